"""The interface of a compressor: how is a bucket averaged cheaply?"""

from __future__ import annotations

import abc
from typing import Any

from kerasdist.engine import Group


class Compressor(abc.ABC):
    """Averages a flat bucket over a group, perhaps with loss.

    Attributes:
        name: What the user writes and the handshake compares.
        takes_shares: Whether ``mean`` is given addends, already divided by the number of workers, so that it only
            has to sum. That division costs nothing when it is folded into the loss, but makes values smaller before
            a cast.
    """

    name: str
    takes_shares: bool = False

    @abc.abstractmethod
    def mean(self, flat: Any, group: Group, name: str) -> Any:
        """The mean of ``flat`` over the group's ranks. Every rank must call it.

        Args:
            flat: Floating tensor of shape (n,), the same n and dtype on every rank.
            group: The ranks.
            name: Name of the collective; more collectives may be named after it.

        Returns:
            Tensor of shape (n,) and the dtype of ``flat``, the same bits on every rank.
        """
