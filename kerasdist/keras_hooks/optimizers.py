"""What an optimizer holds and does."""

from __future__ import annotations

import inspect
from typing import Any

import keras
import tensorflow as tf


def clip_gradients(optimizer: Any, grads: list[Any]) -> Any:
    """Keras' own clipping, whatever hook stands before it."""
    return type(optimizer)._clip_gradients(optimizer, grads)


def scale_gradient(gradient: Any, factor: Any) -> Any:
    """A gradient, dense or ``tf.IndexedSlices``, times a scalar."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values * factor, gradient.indices, gradient.dense_shape)
    return gradient * factor


def is_inside_a_loss_scale(optimizer: Any) -> bool:
    """Whether a ``LossScaleOptimizer`` around this optimizer is calling it just now."""
    frame = inspect.currentframe()
    for _ in range(40):
        if frame is None:
            return False
        caller = frame.f_locals.get("self")
        if getattr(caller, "inner_optimizer", None) is optimizer:
            return True
        frame = frame.f_back
    return False


def build_optimizer(optimizer: Any, variables: list[Any]) -> None:
    """Makes the state of an optimizer, as Keras does at its first update."""
    if not optimizer.built:
        with keras.name_scope(optimizer.name, caller=optimizer):
            optimizer.build(variables)


def optimized_variables(optimizer: Any) -> list[Any]:
    """The variables that a built optimizer updates, in the order of their gradients."""
    return list(getattr(optimizer, "inner_optimizer", optimizer)._trainable_variables)


def own_optimizers(model: Any) -> list[Any]:
    """Every optimizer that is an attribute of the model, or stands in a list, tuple or dict that is one."""
    found: dict[int, Any] = {}

    def look(value: Any, depth: int) -> None:
        if isinstance(value, keras.optimizers.Optimizer):
            found[id(value)] = value
        elif depth and isinstance(value, (list, tuple, dict)):
            for part in value.values() if isinstance(value, dict) else value:
                look(part, depth - 1)

    for name, value in vars(model).items():
        look(value, 0 if name.startswith("_") else 2)
    return list(found.values())


def state_of_all_ranks(optimizer: Any) -> list[Any]:
    """The optimizer's variables without its accumulated gradients, of which each rank holds its own share."""
    shares = {id(variable) for variable in accumulated_gradients(optimizer)}
    return [variable for variable in optimizer.variables if id(variable) not in shares]


def accumulated_gradients(optimizer: Any) -> list[Any]:
    """What ``gradient_accumulation_steps`` adds up."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return list(getattr(inner, "_accumulated_gradients", None) or ())


def rate_variable(optimizer: Any) -> Any:
    """The learning rate as a variable; None where a schedule gives it."""
    rate = getattr(getattr(optimizer, "inner_optimizer", optimizer), "_learning_rate", None)
    return rate if isinstance(rate, keras.Variable) else None


def floating_state(optimizer: Any) -> list[Any]:
    """What an optimizer keeps of past gradients and variables: not its rate, counter or accumulated gradients."""
    rate = rate_variable(optimizer)
    state = [variable for variable in state_of_all_ranks(optimizer) if variable is not rate]
    return [variable for variable in state if tf.as_dtype(variable.dtype).is_floating]
