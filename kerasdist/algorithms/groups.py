"""Partial all-reduce: after each update the workers average in small groups, which change from step to step.

Luo et al., *Prague: high-performance heterogeneity-aware asynchronous decentralized training* (2020), and its
predecessor *Ripples*; here with the static, conflict-free schedule: the groups of a step never overlap.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from kerasdist.algorithms.local_updates import LocalUpdates, check_code, code_of, mix_in_buckets
from kerasdist.averaging import Averager
from kerasdist.compression import Compressor
from kerasdist.config import natural_number, positive_integer
from kerasdist.engine.subgroup import SubGroup

ROUNDS = 1024  # then the schedule begins again


class GroupAllReduce(LocalUpdates):
    """Each rank updates its own variables; then they are averaged in groups of equal size that change by a schedule.

    Cost with P workers in groups of g and S bytes: 2 (g-1)/g S bytes in each step, whatever P; with a compressor (g-1)
    times the encoded bytes.

    The variables are averaged; the optimizer's state is not, but at the end of ``fit``. Compressors: as for ``Gossip``.

    Args:
        group_size: Workers in a group; it must divide the number of workers. Default 2.
        seed: Of the schedule, which is the same on all ranks. Default 0.
        average_at_epoch_end: Whether all replicas are averaged, exactly, at the end of each epoch. Default True.
    """

    def __init__(self, group_size: int = 2, seed: int = 0, average_at_epoch_end: bool = True) -> None:
        positive_integer("group_size", group_size)
        natural_number("seed", seed)
        super().__init__(f"GroupAllReduce group_size={group_size} seed={seed}", average_at_epoch_end)
        self.group_size, self.seed = int(group_size), int(seed)

    def check(self, size: int, compressor: Compressor) -> None:
        if size % self.group_size:
            raise ValueError(
                f"`group_size` must divide the number of workers. Expected a divisor of {size}. Received: "
                f"group_size={self.group_size}"
            )
        if self.group_size == 1 and size > 1:
            raise ValueError(
                f"Groups of one worker share nothing, and {size} workers would train alone. Expected a `group_size` of "
                "2 or more. Received: group_size=1"
            )
        check_code("GroupAllReduce", compressor)

    def after_update(self, variables: Sequence[Any], step: Any, averager: Averager) -> None:
        group = averager.group
        if group.size == 1:
            return
        every = schedule(group.size, self.group_size, self.seed)
        own = every[(every == group.rank).any(axis=2)]  # the rank's own group in each round
        members = tf.ensure_shape(tf.gather(tf.constant(own, tf.int32), step % ROUNDS), [self.group_size])
        mix_in_buckets(variables, averager, functools.partial(self._mix, averager, SubGroup(group, members)))

    def _mix(self, averager: Averager, group: SubGroup, flat: Any, name: str) -> Any:
        code, count = code_of(averager.compressor, flat.dtype), flat.shape[0]
        if code is None:
            return group.all_reduce(flat, "mean", name)
        wire = code.encode(flat)
        parts = tf.split(group.all_gather(wire, name), group.size)
        decoded = [tf.cast(code.decode(part, count), flat.dtype) for part in (wire, *parts)]
        # The difference of what was encoded, so that what rounding took away stays with its rank.
        return tf.ensure_shape(flat + (tf.add_n(decoded[1:]) / group.size - decoded[0]), flat.shape)


def schedule(size: int, group_size: int, seed: int) -> np.ndarray:
    """The groups of each round, drawn at random: ranks of shape (rounds, groups, members)."""
    rng = np.random.default_rng(seed)
    return np.stack([rng.permutation(size) for _ in range(ROUNDS)]).reshape(ROUNDS, -1, group_size)
