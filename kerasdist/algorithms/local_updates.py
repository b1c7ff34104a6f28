"""What all algorithms have in common in which each rank updates its own variables, and shares them afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from kerasdist.algorithms.base import Algorithm
from kerasdist.averaging import Averager
from kerasdist.buckets import pack, unpack
from kerasdist.compression import Cast, Compressor, NoCompression, Quantizer
from kerasdist.config import boolean


class LocalUpdates(Algorithm):
    """Each rank applies its own gradients; variables are shared after the update.

    The optimizer's state (momentum and its kind) is each rank's own, as it follows from the rank's gradients.

    Args:
        name: The algorithm and its arguments.
        average_at_epoch_end: Whether replicas are averaged at the end of each epoch.
    """

    updates_locally = True

    def __init__(self, name: str, average_at_epoch_end: bool) -> None:
        boolean("average_at_epoch_end", average_at_epoch_end)
        self.average_at_epoch_end = average_at_epoch_end
        self.name = name if average_at_epoch_end else f"{name} average_at_epoch_end=False"

    def gradients(
        self, gradients: Sequence[Any], step: Any, mean: Callable[[Sequence[Any]], list[Any]]
    ) -> Sequence[Any]:
        return gradients


class References:
    """The last values of some variables that all ranks had in common.

    A compressor with losses is given the change since then. Given the variables themselves it would round them, or
    leave most of them out, and the loss would be as large as they are.
    """

    def __init__(self) -> None:
        self.variables: list[tf.Variable] = []

    def start(self, variables: Sequence[Any], name: str) -> None:
        """Takes the variables' present values, which must be the same on all ranks."""
        if not self.variables:
            self.variables = [
                tf.Variable(variable.value, trainable=False, name=f"{name}.reference{position}")
                for position, variable in enumerate(variables)
            ]
        self.follow(variables)

    def follow(self, variables: Sequence[Any]) -> None:
        """Takes the variables' present values."""
        for reference, variable in zip(self.variables, variables, strict=True):
            reference.assign(variable.value)


class SharesChanges(LocalUpdates):
    """Averages variables over all ranks; with a compressor that loses, their changes since the last common values."""

    def __init__(self, name: str, average_at_epoch_end: bool) -> None:
        super().__init__(name, average_at_epoch_end)
        self._references = References()

    @property
    def variables(self) -> dict[str, tf.Variable]:
        return {f"reference{position}": one for position, one in enumerate(self._references.variables)}

    def start(self, variables: Sequence[Any], averager: Averager) -> None:
        if averager.group.size > 1 and loses(averager.compressor):
            self._references.start(variables, averager.name)


def values(variables: Sequence[Any]) -> list[Any]:
    """The present values of Keras' variables."""
    return [tf.convert_to_tensor(variable.value) for variable in variables]


def loses(compressor: Compressor) -> bool:
    """Whether a mean by this compressor may differ from the exact one by more than rounding."""
    return not isinstance(compressor, NoCompression)


def when(condition: Any, action: Callable[[], None]) -> None:
    """Acts if a condition holds that has the same value on all ranks."""

    def act() -> int:
        action()
        return 0

    tf.cond(condition, act, lambda: 0)


def common_mean(variables: Sequence[Any], references: Sequence[tf.Variable], averager: Averager, suffix: str) -> Any:
    """The mean of the variables over all ranks: of their changes since the references, where there are any."""
    own = values(variables)
    if not references:
        return averager.average(own, suffix)
    before = [reference.value() for reference in references]
    changes = averager.average([new - old for new, old in zip(own, before, strict=True)], suffix)
    return [old + change for old, change in zip(before, changes, strict=True)]


def mix_in_buckets(variables: Sequence[Any], averager: Averager, mix: Callable[[Any, str], Any]) -> None:
    """Replaces variables by what ``mix`` makes of each flat bucket of them; it is also given a name for collectives."""
    own = values(variables)
    for bucket in averager.plan(own):
        mixed = mix(pack(bucket, own), f"{averager.name}.variables.bucket{bucket.index}")
        for member, part in zip(bucket.members, unpack(bucket, mixed), strict=True):
            variables[member].assign(part)


def code_of(compressor: Compressor, dtype: tf.DType) -> Quantizer | None:
    """How a tensor is encoded that some ranks exchange; None: as it is. The engine carries halves only encoded."""
    if isinstance(compressor, Quantizer):
        return compressor
    return Cast(dtype.name) if dtype in (tf.float16, tf.bfloat16) else None


def check_code(algorithm: str, compressor: Compressor) -> None:
    """Refuses a compressor that cannot encode a tensor that only some ranks get.

    Raises:
        ValueError: It cannot.
    """
    if loses(compressor) and not isinstance(compressor, Quantizer):
        raise ValueError(
            f"{algorithm} sends variables to some workers only. A compressor that leaves most of a tensor out, or needs"
            " all workers for its mean, cannot be used: what it leaves out would be lost, for replicas have no value in"
            " common to which it could be added. Expected compression=None, 'fp16', 'bf16', 'int8' or a Quantizer. "
            f"Received: compression={compressor.name!r}"
        )
