"""Partial synchronisation, SINGA's ``partialUpdate``: one bucket of the variables is averaged in each step, in turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from kerasdist.algorithms.local_updates import SharesChanges, common_mean, values
from kerasdist.averaging import Averager
from kerasdist.buckets import plan_buckets
from kerasdist.config import positive_number


class PartialSync(SharesChanges):
    """Each rank updates its own variables; then one bucket of them is averaged, in turn.

    Cost with P workers and S bytes in b buckets: 2 (P-1)/P S/b bytes in each step, the same in every step.

    The variables are averaged; the optimizer's state is not, but at the end of ``fit``. With a compressor the change
    since the bucket's last mean travels.

    Args:
        bucket_mb: Size of what is averaged in a step in MiB; a variable is not divided. Default 4.
        average_at_epoch_end: Whether all variables are also averaged, exactly, at the end of each epoch. Default True.
    """

    def __init__(self, bucket_mb: float = 4.0, average_at_epoch_end: bool = True) -> None:
        positive_number("bucket_mb", bucket_mb)
        super().__init__(f"PartialSync bucket_mb={bucket_mb}", average_at_epoch_end)
        self._bytes = bucket_mb * 2**20

    def after_update(self, variables: Sequence[Any], step: Any, averager: Averager) -> None:
        if averager.group.size == 1:
            return
        specs = [(tuple(value.shape), value.dtype.name) for value in values(variables)]

        def shares(number: int, members: tuple[int, ...]) -> Any:
            return lambda: self._share(variables, members, averager, f".part{number}")

        parts = [shares(bucket.index, bucket.members) for bucket in plan_buckets(specs, self._bytes, self._bytes)]
        tf.switch_case(tf.cast(step % len(parts), tf.int32), parts)

    def _share(self, variables: Sequence[Any], members: tuple[int, ...], averager: Averager, suffix: str) -> int:
        references = [self._references.variables[member] for member in members if self._references.variables]
        means = common_mean([variables[member] for member in members], references, averager, suffix)
        for position, member in enumerate(members):
            variables[member].assign(means[position])
            if references:
                references[position].assign(means[position])
        return 0
