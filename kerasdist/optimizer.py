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

import contextlib
import copy
import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist import keras_hooks
from kerasdist.algorithms import Algorithm
from kerasdist.averaging import Averager
from kerasdist.config import Settings
from kerasdist.engine import Group
from kerasdist.engine.meeting import gather_json, meet
from kerasdist.step import Step, current_step

_numbers = itertools.count()


class DistributedApply:
    """The averaging that stands before one optimizer's update.

    Args:
        optimizer: The outermost optimizer, ``LossScaleOptimizer`` included.
        averager: Averages its gradients.
        algorithm: What the ranks share, and when; this optimizer's own.
        owner: The door that installed it; a second one is refused.
    """

    def __init__(self, optimizer: Any, averager: Averager, algorithm: Algorithm, owner: Any) -> None:
        self.optimizer = optimizer
        self.averager = averager
        self.algorithm = algorithm
        self.owner = owner
        self._loss_scaled = False
        self._started = False
        self._present: dict[int, np.ndarray] = {}  # by call within a step: which gradients some rank has
        inner = getattr(optimizer, "inner_optimizer", optimizer)
        self._accumulates = bool(getattr(inner, "gradient_accumulation_steps", None))
        self._divides = False
        hooks: dict[str, Callable[..., Any]] = {"apply": self.apply, "scale_loss": self.scale_loss}
        keras_hooks.patch(optimizer, hooks, self)
        if self._accumulates:
            keras_hooks.patch(inner, {keras_hooks.CLIP: self.clip}, self)
            if inner is not optimizer:
                keras_hooks.patch(optimizer, {"check_finite": self.check_finite}, self)

    @property
    def takes_addends(self) -> bool:
        """Whether a rank's gradients are addends of the mean, and not values of its size."""
        return self.averager.takes_shares and not self._divides

    def remove(self) -> None:
        """Gives the optimizer back as it was."""
        inner = getattr(self.optimizer, "inner_optimizer", self.optimizer)
        keras_hooks.unpatch(self.optimizer)
        keras_hooks.unpatch(inner)

    @tf.autograph.experimental.do_not_convert
    def start(self) -> None:
        """Begins a training from the present values, the same on all ranks. Collective; nothing if nothing is built."""
        if self.optimizer.built:
            self._started = True
            with tf.init_scope():
                self.algorithm.start(keras_hooks.optimized_variables(self.optimizer), self.averager)

    def own_state(self) -> tuple[list[Any], list[Any]]:
        """What differs on each rank by design: variables, and floating state of the optimizer."""
        if not (self.algorithm.updates_locally and self.optimizer.built):
            return [], []
        return keras_hooks.optimized_variables(self.optimizer), keras_hooks.floating_state(self.optimizer)

    def scale_loss(self, loss: Any) -> Any:
        """Keras' own loss scale, times this rank's weight: so the gradients come weighted without a copy of them."""
        loss = type(self.optimizer).scale_loss(self.optimizer, loss)
        step = current_step()
        self._loss_scaled = True
        if step is not None:
            step.weighted.add(self.averager.name)
        self._look_at_precision([loss])
        return loss * self._weight(loss.dtype)

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """Averages ``grads`` over all ranks and updates the variables. Every rank must call it."""
        step = current_step()
        if step is not None:
            step.applied += 1
            step.weighted.discard(self.averager.name)
        elif self.averager.group.size > 1 and keras_hooks.is_inside_a_loss_scale(self.optimizer):
            raise ValueError(
                f"rank {self.averager.group.rank}: a LossScaleOptimizer was put around the optimizer "
                f"{self.optimizer.name!r} that averages. It would skip the averaging on the ranks whose own gradients "
                "are not finite. Wrap the outer one: strategy.wrap_optimizer(LossScaleOptimizer(...))."
            )
        grads = list(grads)
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
            keras_hooks.build_optimizer(self.optimizer, trainable_variables)
        if not self._started:
            self.start()
        with step.gated() if step is not None else contextlib.nullcontext():
            if not self._loss_scaled:
                self._look_at_precision(grads)
                grads = [None if g is None else keras_hooks.scale_gradient(g, self._weight(g.dtype)) for g in grads]
            self._loss_scaled = False
            grads = self._complete(grads, trainable_variables)
            if not self._accumulates:
                grads = self._average(grads)
            before = self._updates()
            type(self.optimizer).apply(self.optimizer, grads, trainable_variables)
            if self.algorithm.updates_locally:
                self._share_variables(before)
                if step is not None:
                    # Read behind the update, so that the step is done only when they were shared.
                    step.reduced += [tf.convert_to_tensor(v.value) for v in self.own_state()[0]]

    def clip(self, grads: Any) -> Any:
        """Averages the gradients accumulated over k passes, then clips them."""
        inner = getattr(self.optimizer, "inner_optimizer", self.optimizer)
        return keras_hooks.clip_gradients(inner, self._average(list(grads)))

    def check_finite(self, grads: Any) -> Any:
        """Whether the gradients of this pass are finite on every rank."""
        finite = type(self.optimizer).check_finite(self.optimizer, grads)
        name = f"{self.averager.name}.finite"
        return self.averager.group.all_reduce(tf.cast(finite, tf.float32), "min", name) > 0.5

    def forget(self) -> None:
        """Asks the ranks anew which gradients there are, when all of them next trace the train step."""
        self._present = {}

    @tf.autograph.experimental.do_not_convert
    def _complete(self, grads: list[Any], variables: list[Any] | None) -> list[Any]:
        """Zeros for gradients that other ranks have and this one has not; what is None on all ranks stays None."""
        group = self.averager.group
        if group.size == 1 or not grads:
            return grads
        step = current_step()
        call = step.reductions.get(self.averager.name, 0) if step is not None else 0
        here = np.array([gradient is not None for gradient in grads], np.int32)
        if call not in self._present or tf.executing_eagerly():
            with tf.init_scope():  # all ranks trace their first step together
                name = f"{self.averager.name}.present"
                if call not in self._present:
                    meet(group, name)
                self._present[call] = np.asarray(group.all_reduce(tf.constant(here), "max", name))
        anywhere = self._present[call]
        if anywhere.size != here.size or (here > anywhere).any():
            raise ValueError(
                f"rank {group.rank}: this train step gives gradients of other variables than the one that the ranks "
                f"agreed on. Expected {int(anywhere.sum())} gradients of {anywhere.size} variables. Received: "
                f"{int(here.sum())} of {here.size}. Compile the model again on all ranks."
            )
        if variables is None:
            variables = keras_hooks.optimized_variables(self.optimizer)
        complete = []
        for gradient, there, variable in zip(grads, anywhere, variables, strict=True):
            if gradient is None and there:
                gradient = tf.zeros(variable.shape, variable.dtype)
            if isinstance(gradient, tf.Tensor) and not gradient.shape.is_fully_defined():
                gradient = tf.ensure_shape(gradient, variable.shape)  # as of a Dense on ragged sequences
            complete.append(gradient)
        return complete

    @tf.autograph.experimental.do_not_convert
    def _average(self, grads: list[Any]) -> list[Any]:
        present = [g for g in grads if g is not None]
        step = current_step()
        suffix = step.next_suffix(self.averager.name) if step is not None else ""

        def mean(gradients: Sequence[Any]) -> list[Any]:
            scale = self._scale_on()
            if scale is not None:
                gradients = [keras_hooks.scale_gradient(one, 1.0 / tf.cast(scale, one.dtype)) for one in gradients]
            means = self.averager.average(gradients, suffix)
            if scale is not None:
                means = [one * tf.cast(scale, one.dtype) for one in means]
            return [one / self.averager.group.size for one in means] if self._divides else means

        applied = list(self.algorithm.gradients(present, self._updates(), mean))
        if step is not None:
            step.reduced += applied
        averaged = iter(applied)
        return [None if g is None else next(averaged) for g in grads]

    def _scale_on(self) -> Any:
        """The loss scale that is on the gradients, if the compressor must not see it; else None.

        It changes from step to step, and what was left unsent under one would be sent under another. Accumulated
        gradients had theirs taken off by Keras.
        """
        wanted = self.averager.compressor.takes_unscaled and self.averager.group.size > 1
        if not wanted or self._accumulates or not isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer):
            return None
        return tf.convert_to_tensor(self.optimizer.dynamic_scale)

    def _updates(self) -> Any:
        """The number of updates so far; the same on all ranks."""
        return tf.cast(tf.convert_to_tensor(self.optimizer.iterations), tf.int64)

    @tf.autograph.experimental.do_not_convert
    def _share_variables(self, before: Any) -> None:
        """What the algorithm shares after an update; nothing after a pass that only accumulated."""
        variables, step = keras_hooks.optimized_variables(self.optimizer), self._updates()
        if not self._accumulates:
            self.algorithm.after_update(variables, step, self.averager)
            return

        def share() -> int:
            self.algorithm.after_update(variables, step, self.averager)
            return 0

        tf.cond(step > before, share, lambda: 0)

    def _look_at_precision(self, tensors: list[Any]) -> None:
        """In half precision a share such as 1/3 is rounded: there, under a loss scale, what is averaged keeps its own
        size, and the division by the number of workers comes after the sum."""
        scaled = self.averager.takes_shares and isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer)
        self._divides = scaled and any(tensor is not None and tensor.dtype.size < 4 for tensor in tensors)

    @tf.autograph.experimental.do_not_convert
    def _weight(self, dtype: Any) -> Any:
        step = current_step() or Step(1, self.averager.group.size)
        weight = self.averager.weight(step.rows, step.total, dtype)
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
    algorithm = copy.deepcopy(settings.algorithm)
    if algorithm.updates_locally and inner is not None:
        raise ValueError(
            f"rank {group.rank}: the algorithm {algorithm.name} updates each rank's own variables, and a loss scale "
            "decides on each rank whether to update: the ranks would part. Train in float32 or bfloat16 "
            f"(mixed_bfloat16), or use algorithm='all_reduce'. Received: the optimizer {optimizer.name!r} of type "
            f"{type(optimizer).__name__}"
        )
    settings = dataclasses.replace(settings, compressor=algorithm.compressor_for(settings.compressor))
    averager = Averager(group, settings, f"optimizer{next(_numbers)}", shares=not algorithm.updates_locally)
    owner.tally.watch(averager.counters)
    return DistributedApply(optimizer, averager, algorithm, owner)


def distributed_apply(optimizer: Any) -> DistributedApply | None:
    """The averaging that stands before this optimizer's update, or None."""
    patched = keras_hooks.patched_by(optimizer)
    return patched if isinstance(patched, DistributedApply) else None


def agree_on_names(averaged: list[DistributedApply], group: Group) -> None:
    """Gives the optimizers of a model the same names on all ranks, which may have made others before. Collective."""
    if group.size == 1:
        return
    global _numbers
    every = gather_json([next(_numbers), [one.averager.name for one in averaged]], group, "names")
    if all(one == every[0] for one in every):
        return
    unused = max(number for number, _ in every)
    _numbers = itertools.count(unused + 1)
    for position, one in enumerate(averaged):
        # One that all ranks name alike keeps its name, under which its compressor's state and its graph are known.
        if any(names[position : position + 1] != [one.averager.name] for _, names in every):
            one.averager.name = f"optimizer{unused}.{position}"


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
