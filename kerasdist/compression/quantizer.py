"""A compressor that can also encode one tensor by itself, for algorithms in which not all workers meet."""

from __future__ import annotations

import abc
from typing import Any

from kerasdist.compression.base import Compressor


class Quantizer(Compressor):
    """A compressor whose ``mean`` is built on a code for single tensors."""

    @abc.abstractmethod
    def encode(self, flat: Any) -> Any:
        """What travels instead of a tensor of shape (n,): a tensor of one axis, of a dtype that the engine carries."""

    @abc.abstractmethod
    def decode(self, wire: Any, count: int) -> Any:
        """The tensor of shape (count,), in float32, that such a code stands for."""
