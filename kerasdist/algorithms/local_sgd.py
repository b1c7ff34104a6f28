"""Local SGD: the ranks train alone, and average their variables from time to time.

Stich, *Local SGD converges fast and communicates little* (2019). With a warm-up of plain all-reduce it is the
post-local SGD of Lin, Stich, Patel and Jaggi, *Don't use large mini-batches, use local SGD* (2018).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from kerasdist.algorithms.local_updates import SharesChanges, common_mean, when
from kerasdist.averaging import Averager
from kerasdist.config import natural_number, positive_integer


class LocalSGD(SharesChanges):
    """Averages the variables after every k-th update.

    Cost with P workers and S bytes: 2 (P-1)/P S bytes every k steps, so 1/k of all-reduce; in warm-up as all-reduce.

    The variables are averaged; the optimizer's state is not, but at the end of ``fit``. With ``every=1`` and plain SGD
    this is all-reduce. With a compressor the change since the last mean travels.

    Args:
        every: Updates from one mean to the next. Default 8.
        warmup_steps: So many first updates average gradients, as all-reduce does. Default 0.
        average_at_epoch_end: Whether the variables are also averaged, exactly, at the end of each epoch. Default True.
    """

    def __init__(self, every: int = 8, warmup_steps: int = 0, average_at_epoch_end: bool = True) -> None:
        positive_integer("every", every)
        natural_number("warmup_steps", warmup_steps)
        super().__init__(f"LocalSGD every={every} warmup_steps={warmup_steps}", average_at_epoch_end)
        self.every, self.warmup_steps = int(every), int(warmup_steps)

    def gradients(
        self, gradients: Sequence[Any], step: Any, mean: Callable[[Sequence[Any]], list[Any]]
    ) -> Sequence[Any]:
        if not self.warmup_steps:
            return gradients
        dense = [tf.convert_to_tensor(gradient) for gradient in gradients]
        return tf.cond(step < self.warmup_steps, lambda: mean(dense), lambda: dense)

    def after_update(self, variables: Sequence[Any], step: Any, averager: Averager) -> None:
        if averager.group.size == 1:
            return
        if self.warmup_steps and self._references.variables:
            when(tf.equal(step, self.warmup_steps), lambda: self._references.follow(variables))
        when(self.is_due(step), lambda: self._share(variables, averager))

    def is_due(self, step: Any) -> Any:
        """Whether the variables are averaged after this update."""
        since = step - self.warmup_steps
        return tf.logical_and(since > 0, tf.equal(since % self.every, 0))

    def _share(self, variables: Sequence[Any], averager: Averager) -> None:
        means = common_mean(variables, self._references.variables, averager, ".variables")
        for variable, mean in zip(variables, means, strict=True):
            variable.assign(mean)
        if self._references.variables:
            self._references.follow(variables)
