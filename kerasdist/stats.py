"""What a door's models have done so far on this rank, in numbers: ``strategy.stats()``."""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

from kerasdist.config import Settings
from kerasdist.engine import Group


@dataclasses.dataclass(frozen=True)
class Stats:
    """What one rank has done since its strategy or callback was made.

    Attributes:
        steps: Train steps that this strategy's or callback's models took.
        sent_bytes: The bytes that this rank sent to others within train steps; envelopes and the 24 bytes that begin a
            step are not counted. They are counted at the engine: those of other models that this process trained
            meanwhile are among them.
        sent_bytes_per_step: The same for one step; 0 before the first.
        overflows: How many finite values of this rank a cast to 16 bits made inf.
        compression: The compressor and its arguments.
        algorithm: The algorithm and its arguments.
    """

    steps: int
    sent_bytes: int
    sent_bytes_per_step: float
    overflows: int
    compression: str
    algorithm: str


class Tally:
    """Counts for one door.

    Args:
        group: The ranks that train together.
        settings: How.
    """

    def __init__(self, group: Group, settings: Settings) -> None:
        self._group = group
        self._settings = settings
        self._sent_before = group.sent_bytes()
        self._counters: list[dict[str, tf.Variable]] = []
        with tf.init_scope(), tf.device("CPU:0"):
            self._steps = tf.Variable(0, trainable=False, dtype=tf.int64)

    def count_step(self) -> Any:
        """One more step; part of the graph of the train step."""
        return self._steps.assign_add(1)

    def watch(self, counters: dict[str, tf.Variable]) -> None:
        """Adds an averager's counters, of which there may be more later. They outlive the averager."""
        self._counters.append(counters)

    def stats(self) -> Stats:
        """The numbers so far. Not collective."""
        steps, sent = int(self._steps.numpy()), self._group.sent_bytes() - self._sent_before
        overflows = sum(
            int(variable.numpy())
            for counters in self._counters
            for name, variable in counters.items()
            if name.endswith(".overflows")
        )
        names = self._settings.compressor.name, self._settings.algorithm.name
        return Stats(steps, sent, sent / max(steps, 1), overflows, *names)
