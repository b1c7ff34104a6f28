"""The interface of a compressor: how is a bucket averaged cheaply?"""

from __future__ import annotations

import abc
from collections.abc import MutableMapping
from typing import Any

from kerasdist.buckets import Bucket
from kerasdist.engine import Group


class Compressor(abc.ABC):
    """Averages a flat bucket over a group, perhaps with loss.

    A compressor object is a description. What it must remember of a bucket from step to step, such as what was left
    unsent, is kept by the averager: ``initial_state`` says what, and ``mean`` gets and replaces the values.

    Attributes:
        name: What the handshake compares: the compressor and its arguments.
        takes_shares: Whether ``mean`` is given addends, already divided by the number of workers, so that it only
            has to sum. That division costs nothing when it is folded into the loss, but makes values smaller before
            a cast.
        remembers: Whether what ``mean`` remembers changes later means. Sparse gradients are then made dense.
        takes_unscaled: Whether values must be of the gradients' own size, so that a loss scale is taken off before
            ``mean`` and put on again after it: what was left unsent under one scale must not be sent under another.
        counters: The names in the state that only count. They are kept in every step, also in one that is skipped.
    """

    name: str
    takes_shares: bool = False
    remembers: bool = False
    takes_unscaled: bool = False
    counters: tuple[str, ...] = ()

    def initial_state(self, bucket: Bucket) -> dict[str, Any]:
        """What is remembered of a bucket: arrays by name, of the shape and dtype that they keep. Default: nothing."""
        return {}

    def sent_bytes(self, bucket: Bucket, workers: int) -> float | None:
        """The bytes that each worker sends to average a bucket once. Default: None, it depends on the data.

        Args:
            bucket: What is averaged.
            workers: The number of workers.
        """
        return None

    @abc.abstractmethod
    def mean(self, flat: Any, bucket: Bucket, group: Group, name: str, state: MutableMapping[str, Any]) -> Any:
        """The mean of ``flat`` over the group's ranks. Every rank must call it. With one rank it is the identity.

        Args:
            flat: Floating tensor of shape (n,), the same n and dtype on every rank.
            bucket: Whose tensors are in ``flat``, and their shapes.
            group: The ranks.
            name: Name of the collective; more collectives may be named after it.
            state: Tensors by name: those of ``initial_state`` at first, then what the last step put there. What is
                put there is kept only if the means of all buckets of the step are finite: otherwise a loss scale
                skips the step on all ranks, and what was sent in it is lost. ``counters`` are always kept.

        Returns:
            Tensor of shape (n,) and the dtype of ``flat``, the same bits on every rank.
        """


def ring_bytes(count: int, item_bytes: int, workers: int) -> float:
    """What each worker sends of ``count`` items in a ring all-reduce, or in an all-to-all and an all-gather."""
    return 2 * (workers - 1) / workers * count * item_bytes
