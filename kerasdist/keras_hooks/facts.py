"""What must be equal on all ranks of a model's layers, losses and metrics, as JSON values."""

from __future__ import annotations

import hashlib
import re
import types
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.utils.naming import to_snake_case

from kerasdist.functions import function_fact


def loss_facts(model: Any) -> list[Any]:
    """What the compiled losses are, as JSON values: class and options, or a function; and their weights."""
    compiled = getattr(model, "_compile_loss", None)
    facts: list[Any] = []
    for loss in tf.nest.flatten(getattr(compiled, "_user_loss", None)):
        if isinstance(loss, keras.losses.Loss):
            # Some of Keras' losses leave their own arguments out of their configuration.
            config = {**loss.get_config(), **getattr(loss, "_fn_kwargs", {})}
            facts.append([type(loss).__name__, {key: value for key, value in config.items() if key != "name"}])
        else:
            facts.append(loss if isinstance(loss, str) else function_fact(loss))
    return [facts, getattr(compiled, "_user_loss_weights", None)]


def layer_facts(model: Any) -> dict[str, Any]:
    """The options of the model's layers, as JSON values: without names and seeds, which ranks may have apart."""
    facts: dict[str, Any] = {}
    for position, layer in enumerate(model._flatten_layers()):
        kind = f"layer {position} {type(layer).__name__}"
        facts[kind] = True
        if isinstance(layer, keras.Model):
            continue  # its layers come by themselves
        try:
            options = _comparable(layer.get_config(), leave_out=("name", "seed", "trainable"))
        except Exception:  # a layer of one's own need not have one
            options = {}
        functions = {
            name: function_fact(value)
            for name, value in vars(layer).items()
            if isinstance(value, types.FunctionType) and not name.startswith("_") and not _of_keras(value)
        }
        facts |= {f"{kind} {name}": value for name, value in (options | functions).items()}
    return facts


def metric_facts(model: Any) -> Any:
    """What the compiled metrics are, in their order, as JSON values."""
    compiled = getattr(model, "_compile_metrics", None)

    def fact(metric: Any) -> Any:
        if isinstance(metric, keras.metrics.Metric):
            try:
                return [type(metric).__name__, _comparable(metric.get_config(), leave_out=("name",))]
            except Exception:  # as of layers
                return type(metric).__name__
        return _comparable(metric)

    given = [getattr(compiled, name, None) for name in ("_user_metrics", "_user_weighted_metrics")]
    return keras.tree.map_structure(fact, given)


def _comparable(value: Any, leave_out: tuple[str, ...] = ()) -> Any:
    """A part of a configuration as a JSON value that is equal on ranks that configured alike."""
    if isinstance(value, dict) and value.get("class_name") == "__lambda__":
        return "a function"  # as an option of a layer it is compared by itself; what is here names its file
    if isinstance(value, dict):
        # Layers within layers: their names may be numbered. That of a dtype policy is all that it has.
        hidden = leave_out or (("name", "seed") if len(value) > 1 else ())
        return {str(key): _comparable(one) for key, one in value.items() if key not in hidden}
    if isinstance(value, (list, tuple)):
        return [_comparable(one) for one in value]
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if isinstance(value, (np.ndarray, np.generic, tf.Tensor, keras.Variable)):
        array = np.asarray(value)
        return f"{array.dtype} {array.shape} {hashlib.sha256(array.tobytes()).hexdigest()[:12]}"
    return function_fact(value)


def _of_keras(function: Any) -> bool:
    return str(function.__module__).startswith(("keras.", "tensorflow."))


def auto_named(model: Any) -> dict[str, str]:
    """Names of layers that Keras made up, such as ``dense_1``: each with its class, and the attribute that holds it."""
    layers = model._flatten_layers()
    held: dict[int, str] = {}
    for parent in layers:
        for name, value in vars(parent).items():
            if not name.startswith("_"):
                parts = value.items() if isinstance(value, dict) else ()
                held |= {id(value): name, **{id(part): f"{name}.{key}" for key, part in parts}}
    names = {}
    for layer in layers:
        base = to_snake_case(type(layer).__name__)
        if re.fullmatch(rf"{re.escape(base)}(_\d+)?", layer.name):
            place = held.get(id(layer))
            names[layer.name] = type(layer).__name__ + (f"[{place}]" if place else "")
    return names
