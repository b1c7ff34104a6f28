"""Slow momentum: local SGD with a momentum over its means.

Wang, Tantia, Ballas and Rabbat, *SlowMo: improving communication-efficient distributed SGD with slow momentum* (2020).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from kerasdist.algorithms.local_sgd import LocalSGD
from kerasdist.algorithms.local_updates import LocalUpdates, References, common_mean, when
from kerasdist.averaging import Averager
from kerasdist.config import positive_number


class SlowMo(LocalUpdates):
    """Takes the change from one mean of the variables to the next as a gradient, and applies it with momentum.

    With x the variables after the last such step, m their mean now, v the slow momentum (0 at first)::

        v = slow_momentum v + (x - m)
        x = x - slow_learning_rate v

    That is the paper's algorithm with v in units of the variables, not divided by the inner learning rate. For a rate
    that does not change the two are the same; when it changes, v keeps its size here. The optimizer's own state stays
    as it is ("maintain" in the paper), each rank's own until the end of ``fit``. On one worker nothing is averaged, so
    there is no slow step: the numbers are plain Keras'.

    Cost with P workers and S bytes: as the inner algorithm; two copies of the variables in memory.

    Args:
        inner: When to average; its ``average_at_epoch_end`` counts. Default ``LocalSGD()``.
        slow_momentum: 0 to below 1. Default 0.5; the paper's lie between 0.4 and 0.8. With 0, and a slow learning rate
            of 1, this is the inner algorithm.
        slow_learning_rate: Above 0. Default 1, the paper's.
    """

    def __init__(
        self, inner: LocalSGD | None = None, slow_momentum: float = 0.5, slow_learning_rate: float = 1.0
    ) -> None:
        self.inner = LocalSGD() if inner is None else inner
        if not isinstance(self.inner, LocalSGD):
            raise TypeError(f"`inner` must be a LocalSGD or None. Received: inner={inner!r}")
        if isinstance(slow_momentum, bool) or not isinstance(slow_momentum, (int, float)) or not 0 <= slow_momentum < 1:
            raise ValueError(
                f"`slow_momentum` must be a number from 0 to below 1. Received: slow_momentum={slow_momentum!r}"
            )
        positive_number("slow_learning_rate", slow_learning_rate)
        slow = f"slow_momentum={slow_momentum} slow_learning_rate={slow_learning_rate}"
        super().__init__(f"SlowMo {slow} of {self.inner.name}", self.inner.average_at_epoch_end)
        self._momentum, self._rate = float(slow_momentum), float(slow_learning_rate)
        self._anchors = References()
        self._slow: list[tf.Variable] = []

    @property
    def variables(self) -> dict[str, tf.Variable]:
        anchors = {f"reference{position}": one for position, one in enumerate(self._anchors.variables)}
        return anchors | {f"slow_momentum{position}": one for position, one in enumerate(self._slow)}

    def start(self, variables: Sequence[Any], averager: Averager) -> None:
        if averager.group.size == 1:
            return
        self._anchors.start(variables, averager.name)
        if not self._slow:
            self._slow = [
                tf.Variable(tf.zeros_like(one), trainable=False, name=f"{averager.name}.slow_momentum{position}")
                for position, one in enumerate(self._anchors.variables)
            ]

    def gradients(
        self, gradients: Sequence[Any], step: Any, mean: Callable[[Sequence[Any]], list[Any]]
    ) -> Sequence[Any]:
        return self.inner.gradients(gradients, step, mean)

    def after_update(self, variables: Sequence[Any], step: Any, averager: Averager) -> None:
        if averager.group.size == 1:
            return
        if self.inner.warmup_steps:
            when(tf.equal(step, self.inner.warmup_steps), lambda: self._anchors.follow(variables))
        when(self.inner.is_due(step), lambda: self._slow_step(variables, averager))

    def _slow_step(self, variables: Sequence[Any], averager: Averager) -> None:
        # The mean of the changes since the anchors, whatever the compressor: so small a difference of large values is
        # not to be had from a mean of the values.
        means = common_mean(variables, self._anchors.variables, averager, ".variables")
        for variable, mean, anchor, slow in zip(variables, means, self._anchors.variables, self._slow, strict=True):
            slow.assign(self._momentum * slow + (anchor - mean))
            variable.assign(anchor - self._rate * slow)
        self._anchors.follow(variables)
