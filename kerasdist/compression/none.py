"""No compression: the bucket travels in its own dtype and is summed in it."""

from __future__ import annotations

from typing import Any

from kerasdist.compression.base import Compressor
from kerasdist.engine import Group


class NoCompression(Compressor):
    """Sums shares in the tensor's own dtype; exact but for rounding."""

    name = "none"
    takes_shares = True

    def mean(self, flat: Any, group: Group, name: str) -> Any:
        return group.all_reduce(flat, "sum", name)
