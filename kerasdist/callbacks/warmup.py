"""The gradual warm-up of the learning rate as a callback, which leaves the saved model plain Keras."""

from __future__ import annotations

import json
from typing import Any

import keras

from kerasdist import engine
from kerasdist.config import positive_integer
from kerasdist.engine.meeting import gather_json
from kerasdist.errors import RankMismatchError
from kerasdist.schedules import warmup_start


class LearningRateWarmup(keras.callbacks.Callback):
    """Raises the learning rate in each batch of the first epochs by the same amount, from ``start`` to ``target``.

    Batch b of epoch e, both counted from 0, is taken at ``start + (target - start) * (e * S + b + 1) / (epochs * S)``
    with S batches an epoch (Goyal et al. 2017, https://arxiv.org/abs/1706.02677, section 2.2; the formula is
    Horovod's). The rate does not depend on the one found, so a second ``fit``, a resume with ``initial_epoch`` and
    ``BackupAndRestore`` continue it. After the warm-up it sets nothing, and other callbacks may lower the rate.

    With ``steps_per_execution`` the rate of the first step of an execution holds for all of it. With
    ``gradient_accumulation_steps`` an update is taken at the rate of its last batch. The momentum is left as it is
    (docs/schedules.md). Every rank must give one to the same ``fit``.

    Args:
        target: The rate at the end of the warm-up; usually ``kerasdist.scaled_learning_rate(rate)``. Above 0.
        epochs: Epochs of the warm-up. Default 5, as in the paper. At least 1.
        start: The rate to start from, 0 or above. Default: ``target`` over the number of workers, so that one process
            warms nothing up.
        steps_per_epoch: Batches of an epoch. Default: as many as ``fit`` counts; it must be given where ``fit`` cannot.

    Raises:
        TypeError: An argument is of the wrong type; at the start of ``fit``, the optimizer has a schedule.
        ValueError: An argument is out of range; at the start of ``fit``, the length of an epoch is not known.
        RankMismatchError: At the start of ``fit``, the ranks give different arguments or lengths.

    Example:
        ```python
        rate = kerasdist.scaled_learning_rate(0.1)
        model.compile(keras.optimizers.SGD(rate, momentum=0.9), "sparse_categorical_crossentropy")
        model.fit(x, y, epochs=90, callbacks=[kerasdist.LearningRateWarmup(rate, epochs=5)])
        ```
    """

    def __init__(
        self, target: float, epochs: int = 5, start: float | None = None, steps_per_epoch: int | None = None
    ) -> None:
        super().__init__()
        self.start = warmup_start(target, start)
        self.target = float(target)
        positive_integer("epochs", epochs)
        self.epochs = int(epochs)
        if steps_per_epoch is not None:
            positive_integer("steps_per_epoch", steps_per_epoch)
        self.steps_per_epoch = steps_per_epoch
        self._steps = 0
        self._epoch = 0
        self._progress = 1.0

    def on_train_begin(self, logs: Any = None) -> None:
        """Compares the ranks. Collective."""
        steps = self.steps_per_epoch or (self.params or {}).get("steps")
        facts = {"target": self.target, "epochs": self.epochs, "start": self.start, "steps_per_epoch": steps}
        every = gather_json([facts, _is_settable(self.model.optimizer)], engine.world(), "warmup")
        here = f"rank {engine.rank()}: LearningRateWarmup"
        fixed = [rank for rank, (_, settable) in enumerate(every) if not settable]
        if fixed:
            raise TypeError(
                f"{here} sets the learning rate, so the compiled optimizer must have been given it as a number. "
                f"On rank(s) {fixed} there is no such optimizer. With a schedule, use kerasdist.WarmupSchedule."
            )
        if len({json.dumps(one) for one, _ in every}) > 1:
            table = "".join(f"\n  rank {rank}: {one}" for rank, (one, _) in enumerate(every))
            raise RankMismatchError(f"{here} must be the same on all ranks, for epochs of the same length.{table}")
        if not steps:
            raise ValueError(
                f"{here} must know how many batches an epoch has, and `fit` does not. Give `steps_per_epoch`, to "
                f"LearningRateWarmup or to `fit`. Received: steps_per_epoch={steps}"
            )
        self._steps = steps

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes the epoch, which a resumed ``fit`` does not begin with 0."""
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Sets the rate of this batch."""
        if self._epoch < self.epochs:
            self._set((self._epoch * self._steps + batch + 1) / (self.epochs * self._steps))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """The warm-up ends at the target, also where the last batches were one execution."""
        if epoch + 1 == self.epochs and self._progress < 1:
            self._set(1.0)

    def _set(self, progress: float) -> None:
        self._progress = min(progress, 1.0)
        self.model.optimizer.learning_rate = self.start * (1 - self._progress) + self.target * self._progress


def _is_settable(optimizer: Any) -> bool:
    try:
        optimizer.learning_rate = optimizer.learning_rate
    except (TypeError, AttributeError):
        return False
    return True
