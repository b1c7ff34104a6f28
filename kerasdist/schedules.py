"""Learning rates for large batches: the linear scaling rule and the gradual warm-up of Goyal et al. (2017).

"Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", https://arxiv.org/abs/1706.02677, section 2. With N
workers the batch is N times as large; the paper multiplies the learning rate by N, and raises it from the rate of one
worker to that within the first epochs. Nothing here happens unless it is asked for.
"""

from __future__ import annotations

import numbers
from typing import Any

import keras

from kerasdist import engine
from kerasdist.config import positive_integer, positive_number


def scaled_learning_rate(learning_rate: float, size: int | None = None) -> float:
    """The linear scaling rule: the learning rate of one worker times the number of workers.

    It is arithmetic and remembers nothing: twice asked, on its own result, is twice scaled. Any rank may call it alone.

    Args:
        learning_rate: The rate that suits one worker's batch, per step. Above 0.
        size: By how much the batch grows. Default: the number of workers.

    Returns:
        ``learning_rate * size``.

    Raises:
        TypeError: An argument is not a number; a schedule, say, whose own numbers are to be scaled.
        ValueError: An argument is not above 0.

    Example:
        ```python
        optimizer = keras.optimizers.SGD(kerasdist.scaled_learning_rate(0.1), momentum=0.9)
        ```
    """
    positive_number("learning_rate", learning_rate)
    if size is None:
        size = engine.size()
    positive_integer("size", size)
    return float(learning_rate) * size


def warmup_start(target: float, start: float | None) -> float:
    """The rate that a warm-up to ``target`` starts from: the given one, else ``target`` over the number of workers.

    Raises:
        TypeError: ``target`` or ``start`` is not a number.
        ValueError: ``target`` is not above 0, or ``start`` is negative or not finite.
    """
    positive_number("target", target)
    if start is None:
        return float(target) / engine.size()
    if isinstance(start, bool) or not isinstance(start, numbers.Real):
        raise TypeError(
            f"`start` must be a number, 0 or above. Received: start={start!r} of type {type(start).__name__}"
        )
    if not 0 <= start < float("inf"):
        raise ValueError(f"`start` must be a number, 0 or above. Received: start={start!r}")
    return float(start)


@keras.saving.register_keras_serializable(package="kerasdist")
class WarmupSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """Raises the learning rate in each step by the same amount, from ``start`` to ``target``; then goes on as told.

    Step s, counted from 0, is taken at ``start + (target - start) * (s + 1) / warmup_steps``, so that step
    ``warmup_steps - 1`` is the first at ``target`` (Goyal et al. 2017, section 2.2; the formula is Horovod's).

    It depends on the optimizer's counter alone, which is saved and broadcast with the optimizer: on all ranks, in every
    execution mode and after a resume the rate is that of the step. Under ``gradient_accumulation_steps`` the counter
    counts every batch, not every update. Every rank must give the same schedule; ``fit`` compares them.

    A model saved with it needs kerasdist to be loaded (docs/schedules.md).

    Args:
        target: The rate at the end of the warm-up; usually ``scaled_learning_rate(rate)``. Above 0.
        warmup_steps: Train steps (batches of all workers) until then. At least 1.
        start: The rate to start from, 0 or above. Default: ``target`` over the number of workers, so that one process
            warms nothing up. It is saved as a number.
        after: A ``LearningRateSchedule`` that takes over after the warm-up, its steps counted from there. Default
            None: the rate stays at ``target``.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: An argument is out of range.

    Example:
        ```python
        rate = kerasdist.scaled_learning_rate(0.1)
        decay = keras.optimizers.schedules.CosineDecay(rate, decay_steps=85 * steps_per_epoch)
        schedule = kerasdist.WarmupSchedule(rate, warmup_steps=5 * steps_per_epoch, after=decay)
        model.compile(keras.optimizers.SGD(schedule, momentum=0.9), "sparse_categorical_crossentropy")
        ```
    """

    def __init__(self, target: float, warmup_steps: int, start: float | None = None, after: Any = None) -> None:
        super().__init__()
        self.start = warmup_start(target, start)
        self.target = float(target)
        positive_integer("warmup_steps", warmup_steps)
        self.warmup_steps = int(warmup_steps)
        if after is not None and not isinstance(after, keras.optimizers.schedules.LearningRateSchedule):
            raise TypeError(
                "`after` must be a keras.optimizers.schedules.LearningRateSchedule or None. "
                f"Received: after={after!r} of type {type(after).__name__}"
            )
        self.after = after

    def __call__(self, step: Any) -> Any:
        """The rate of one step.

        Args:
            step: Number of the step, from 0; a number or a scalar tensor.

        Returns:
            A scalar tensor of Keras' float type, float32 at least.
        """
        steps_done = keras.ops.cast(step, keras.backend.result_type(keras.config.floatx(), "float32"))
        progress = keras.ops.minimum((steps_done + 1) / self.warmup_steps, 1)
        rate = self.start * (1 - progress) + self.target * progress
        if self.after is None:
            return rate
        later = keras.ops.cast(self.after(keras.ops.maximum(step - self.warmup_steps, 0)), rate.dtype)
        return keras.ops.where(steps_done < self.warmup_steps, rate, later)

    def get_config(self) -> dict[str, Any]:
        """The arguments as Keras saves them."""
        return {
            "target": self.target,
            "warmup_steps": self.warmup_steps,
            "start": self.start,
            "after": keras.saving.serialize_keras_object(self.after),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> WarmupSchedule:
        """The schedule that ``get_config`` describes."""
        return cls(**{**config, "after": keras.saving.deserialize_keras_object(config["after"])})
