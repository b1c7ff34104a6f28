"""Average first, then the optimizer's own update.

The optimizer stays the object that the user made: its ``apply`` is preceded by the averaging on this instance only.
So ``isinstance``, the learning rate, the state, what is saved and what loads without kerasdist are all plain Keras
(docs/design.md, "The optimizer").

Where the averaging stands, by fact 1 of the design (reduce before anything that is not linear):

- at the top of ``apply`` of the outermost optimizer: before a ``LossScaleOptimizer``'s finite check, before unscaling,
  clipping and decay;
- with ``gradient_accumulation_steps=k``, between the accumulation and the clipping of every k-th pass. All ranks take
  that branch together, for it depends on the iteration counter alone. A loss scale's finite check, which every pass
  makes, is then agreed by one flag.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from kerasdist import keras_hooks
from kerasdist.averaging import Averager
from kerasdist.config import Settings
from kerasdist.engine import Group
from kerasdist.step import Step, current_step

_numbers = itertools.count()


class DistributedApply:
    """The averaging that stands before one optimizer's update.

    Args:
        optimizer: The outermost optimizer, ``LossScaleOptimizer`` included.
        averager: Averages its gradients.
        owner: The door that installed it; a second one is refused.
    """

    def __init__(self, optimizer: Any, averager: Averager, owner: Any) -> None:
        self.optimizer = optimizer
        self.averager = averager
        self.owner = owner
        self._loss_scaled = self._guessed = False
        inner = getattr(optimizer, "inner_optimizer", optimizer)
        self._accumulates = bool(getattr(inner, "gradient_accumulation_steps", None))
        # Under a loss scale gradients may be computed in half precision, where a share such as 1/3 is rounded: they
        # keep their own size, and the division by the number of workers comes after the sum.
        self._divides = averager.compressor.takes_shares and inner is not optimizer
        # Nothing between the loss and the mean that is not linear, so that a wrong guess can be made good after it.
        self._may_guess = averager.compressor.takes_shares and not self._accumulates and inner is optimizer
        hooks: dict[str, Callable[..., Any]] = {"apply": self.apply, "scale_loss": self.scale_loss}
        keras_hooks.patch(optimizer, hooks, self)
        if self._accumulates:
            keras_hooks.patch(inner, {keras_hooks.CLIP: self.clip}, self)
            if inner is not optimizer:
                keras_hooks.patch(optimizer, {"check_finite": self.check_finite}, self)

    def remove(self) -> None:
        """Gives the optimizer back as it was."""
        inner = getattr(self.optimizer, "inner_optimizer", self.optimizer)
        keras_hooks.unpatch(self.optimizer)
        keras_hooks.unpatch(inner)

    def scale_loss(self, loss: Any) -> Any:
        """Keras' own loss scale, times this rank's weight: so the gradients come weighted without a copy of them.

        Where the step's total is still under way, the total of the step before stands in for it; ``apply`` makes good
        the difference, which is none but at the ragged ends.
        """
        loss = type(self.optimizer).scale_loss(self.optimizer, loss)
        step = current_step()
        self._loss_scaled = True
        self._guessed = self._may_guess and step is not None and step.guess is not None
        return loss * self._weight(loss.dtype, step.guess if self._guessed and step is not None else None)

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """Averages ``grads`` over all ranks and updates the variables. Every rank must call it."""
        step = current_step()
        if step is not None:
            step.applied += 1
        grads = list(grads)
        if not self._loss_scaled:
            grads = [None if g is None else keras_hooks.scale_gradient(g, self._weight(g.dtype)) for g in grads]
        self._loss_scaled = False
        if not self._accumulates:
            grads = self._average(grads)
        type(self.optimizer).apply(self.optimizer, grads, trainable_variables)

    def clip(self, grads: Any) -> Any:
        """Averages the gradients accumulated over k passes, then clips them."""
        inner = getattr(self.optimizer, "inner_optimizer", self.optimizer)
        return keras_hooks.clip_gradients(inner, self._average(list(grads)))

    def check_finite(self, grads: Any) -> Any:
        """Whether the gradients of this pass are finite on every rank."""
        finite = type(self.optimizer).check_finite(self.optimizer, grads)
        name = f"{self.averager.name}.finite"
        return self.averager.group.all_reduce(tf.cast(finite, tf.float32), "min", name) > 0.5

    def _average(self, grads: list[Any]) -> list[Any]:
        present = [g for g in grads if g is not None]
        step = current_step()
        suffix = step.next_suffix(self.averager.name) if step is not None else ""
        means = self.averager.average(present, suffix)
        if self._divides:
            means = [mean / self.averager.group.size for mean in means]
        if self._guessed and step is not None:
            factor = tf.cast(step.guess, tf.float64) / tf.cast(step.total, tf.float64)
            means = tf.cond(
                tf.equal(factor, 1.0), lambda: means, lambda: [mean * tf.cast(factor, mean.dtype) for mean in means]
            )
        averaged = iter(means)
        return [None if g is None else next(averaged) for g in grads]

    def _weight(self, dtype: Any, guess: Any = None) -> Any:
        step = current_step() or Step(1, self.averager.group.size)
        weight = self.averager.weight(step.rows, step.total if guess is None else guess, dtype)
        return weight * self.averager.group.size if self._divides else weight


def distribute_optimizer(optimizer: Any, group: Group, settings: Settings, owner: Any) -> DistributedApply:
    """Puts the averaging before an optimizer's update.

    Args:
        optimizer: A Keras 3 optimizer.
        group: The ranks that average.
        settings: How they average.
        owner: The door (strategy or callback) that asks.

    Returns:
        The averaging, already in place; the existing one if the same owner asks again.

    Raises:
        TypeError: Not a Keras 3 optimizer.
        ValueError: Another door already averages for it.
    """
    check_optimizer(optimizer)
    existing = distributed_apply(optimizer)
    if existing is not None:
        if existing.owner is not owner:
            raise ValueError(
                f"rank {group.rank}: the optimizer {optimizer.name!r} is already averaged by {existing.owner!r}. "
                f"Use one of strategy.scope(), strategy.wrap_optimizer() and DistributedOptimizer(), once. "
                f"Received: a second request by {owner!r}"
            )
        return existing
    inner = getattr(optimizer, "inner_optimizer", None)
    inside = distributed_apply(inner) if inner is not None else None
    if inside is not None:
        # Averaging inside the loss scale's branch could hang: the outer optimizer takes it over.
        inside.remove()
    return DistributedApply(optimizer, Averager(group, settings, f"optimizer{next(_numbers)}"), owner)


def distributed_apply(optimizer: Any) -> DistributedApply | None:
    """The averaging that stands before this optimizer's update, or None."""
    patched = keras_hooks.patched_by(optimizer)
    return patched if isinstance(patched, DistributedApply) else None


def check_optimizer(optimizer: Any) -> None:
    """Refuses what is not a Keras 3 optimizer object."""
    if isinstance(optimizer, keras.optimizers.Optimizer):
        return
    module = type(optimizer).__module__.partition(".")[0]
    hint = " tf_keras is Keras 2: use the optimizer of `import keras`." if "tf_keras" in module else ""
    raise TypeError(
        "`optimizer` must be a keras.optimizers.Optimizer of Keras 3." + hint + " "
        f"Received: optimizer={optimizer!r} of type {type(optimizer).__module__}.{type(optimizer).__name__}"
    )
