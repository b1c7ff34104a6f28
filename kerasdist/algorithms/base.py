"""The interface of an algorithm: what is shared, when, with whom?"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from kerasdist.averaging import Averager
from kerasdist.compression import Compressor


class Algorithm(abc.ABC):
    """Decides what the workers share in a training step.

    It has two places in a step. ``gradients`` stands where gradients are averaged: before the finite check, unscaling
    and clipping, and between accumulating and clipping where gradients are accumulated. ``after_update`` stands behind
    the optimizer's update. (One method around the update could not stand between accumulating and clipping.)

    An algorithm object is a description; each optimizer that averages works with a copy of its own, which may keep
    variables.

    Attributes:
        name: What the handshake compares: the algorithm and its arguments.
        updates_locally: Whether a rank applies gradients that other ranks have not seen, so that replicas differ by
            design. Its gradients then have the size of a mean, weighted by n P / B (n of the step's B samples, P
            workers), and it must not stand inside of a loss scale, whose branch is each rank's own.
        average_at_epoch_end: Whether replicas that differ by design are averaged at the end of each epoch, before
            validation and before callbacks save.
    """

    name: str
    updates_locally: bool = False
    average_at_epoch_end: bool = False

    @property
    def variables(self) -> dict[str, tf.Variable]:
        """What it keeps from step to step, by name."""
        return {}

    def check(self, size: int, compressor: Compressor) -> None:
        """Refuses what cannot work on so many workers, or with this compressor.

        Args:
            size: The number of workers.
            compressor: How buckets are to be averaged.

        Raises:
            ValueError: It cannot.
        """
        return None

    def compressor_for(self, compressor: Compressor) -> Compressor:
        """How buckets are averaged, made of the compressor that the user chose. Default: that one."""
        return compressor

    def start(self, variables: Sequence[Any], averager: Averager) -> None:
        """Before the first update of a ``fit``, or of a loop of one's own: all ranks hold the same values. Collective.

        Args:
            variables: Those that the optimizer updates.
            averager: As in ``after_update``.
        """
        return None

    @abc.abstractmethod
    def gradients(
        self, gradients: Sequence[Any], step: Any, mean: Callable[[Sequence[Any]], list[Any]]
    ) -> Sequence[Any]:
        """The gradients that this rank applies. Every rank must call it.

        Args:
            gradients: The rank's own, weighted; dense or ``tf.IndexedSlices``. None are left out.
            step: The number of updates before this one, int64 scalar, equal on all ranks.
            mean: Averages gradients over all ranks, in buckets, by the compressor.

        Returns:
            As many, in the same order.
        """

    def after_update(self, variables: Sequence[Any], step: Any, averager: Averager) -> None:
        """What is shared after an update. Every rank must call it.

        Args:
            variables: The updated variables.
            step: The number of updates up to this one, int64 scalar, equal on all ranks.
            averager: Averages tensors over ranks, in buckets, by the compressor.
        """
        return None
