"""A case's model and its training. Plain Keras: knows nothing of kerasdist."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.parallel.property.cases import Case
from tests.parallel.property.data import CLASSES, VOCABULARY

OPTIMIZERS = {
    "sgd": ("SGD", 0.05, {}),
    "momentum": ("SGD", 0.02, {"momentum": 0.9}),
    "nesterov": ("SGD", 0.02, {"momentum": 0.9, "nesterov": True}),
    "adam": ("Adam", 0.01, {}),
    "amsgrad": ("Adam", 0.01, {"amsgrad": True}),
    "adamw": ("AdamW", 0.01, {}),
    "nadam": ("Nadam", 0.01, {}),
    "adamax": ("Adamax", 0.01, {}),
    "rmsprop": ("RMSprop", 0.01, {"momentum": 0.5, "centered": True}),
    "adagrad": ("Adagrad", 0.05, {}),
    "adadelta": ("Adadelta", 0.5, {}),
    "ftrl": ("Ftrl", 0.05, {}),
    "lamb": ("Lamb", 0.01, {}),
    "lion": ("Lion", 0.002, {}),
}
LIMITS = {"clipnorm": 0.3, "clipvalue": 0.05, "global_clipnorm": 0.5}


def reset() -> None:
    """Forgets the case before; all is in float64 from here on."""
    keras.backend.clear_session()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")  # else the first one made stays
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})  # takes longer than the training


def compiled_model(case: Case) -> keras.Model:
    """The case's model. The same weights in every process."""
    keras.utils.set_random_seed(case.seed)
    shape, dtype = {"vector": ((3,), None), "image": ((4, 4, 1), None), "tokens": ((3,), "int64")}[case.inputs]
    layers: list[Any] = [keras.Input(shape, dtype=dtype)]
    flat = case.inputs == "vector"
    for kind, units, activation, regularizer in case.layers:
        if kind == "dense" and not flat:
            layers.append(keras.layers.Flatten())
            flat = True
        layers.append(_layer(kind, units, activation, regularizer and _regularizer(regularizer)))
    layers += [] if flat else [keras.layers.Flatten()]
    model = keras.Sequential([*layers, keras.layers.Dense(2 if case.loss == "mse" else CLASSES)])
    weighted = {"weighted_metrics": ["mse"]} if case.loss == "mse" else {"weighted_metrics": ["accuracy"]}
    model.compile(
        make_optimizer(case),
        "mse" if case.loss == "mse" else keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["mae"] if case.loss == "mse" else ["accuracy"],
        **(weighted if case.weighted else {}),
        steps_per_execution=case.steps_per_execution,
        run_eagerly=case.eager,
        jit_compile=False,  # kerasdist turns it off; and compiling takes longer than training
    )
    keras.utils.set_random_seed(case.seed)
    return model


def _layer(kind: str, units: int, activation: str | None, regularizer: Any) -> Any:
    if kind == "dense":
        return keras.layers.Dense(units, activation, kernel_regularizer=regularizer)
    if kind == "conv":
        return keras.layers.Conv2D(units, 3, activation=activation, kernel_regularizer=regularizer)
    if kind == "embedding":
        return keras.layers.Embedding(VOCABULARY, units, embeddings_regularizer=regularizer)
    return keras.layers.LayerNormalization()


def _regularizer(kind: str) -> Any:
    return keras.regularizers.L1(0.01) if kind == "l1" else keras.regularizers.L2(0.02)


def make_optimizer(case: Case) -> keras.optimizers.Optimizer:
    """The case's optimizer with all of its options."""
    name, rate, own = OPTIMIZERS[case.optimizer]
    options: dict[str, Any] = {**own, "learning_rate": _schedule(case.schedule, rate)}
    if case.clipping:
        options[case.clipping] = LIMITS[case.clipping]
    if case.weight_decay:
        options["weight_decay"] = 0.02
    if case.ema:
        options |= {"use_ema": True, "ema_momentum": 0.8, "ema_overwrite_frequency": case.ema[0]}
    if case.accumulation:
        options["gradient_accumulation_steps"] = case.accumulation
    optimizer = getattr(keras.optimizers, name)(**options)
    return keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=1024.0) if case.loss_scale else optimizer


def _schedule(kind: str | None, rate: float) -> Any:
    schedules = keras.optimizers.schedules
    if kind == "exponential":
        return schedules.ExponentialDecay(rate, 3, 0.8)
    if kind == "cosine":
        return schedules.CosineDecay(rate, 12, alpha=0.1)
    if kind == "steps":
        return schedules.PiecewiseConstantDecay([2, 5], [rate, rate / 2, rate / 4])
    return rate


def train(case: Case, model: keras.Model, fit: dict[str, Any], evaluate: dict[str, Any], callbacks: Any) -> Any:
    """Trains and evaluates; what all processes must agree on, by name.

    Args:
        case: The case.
        model: Compiled.
        fit: Arguments of ``fit`` that say which data.
        evaluate: The same of ``evaluate``.
        callbacks: Returns the callbacks of one ``fit``.
    """
    found: dict[str, Any] = {}
    for number in range(case.fits):
        done = model.fit(**fit, epochs=case.epochs, verbose=0, callbacks=callbacks())
        found |= {f"history {number} {name}": np.array(values) for name, values in done.history.items()}
        found |= {f"weight {number} {index}": value for index, value in enumerate(model.get_weights())}
    if case.evaluate:
        results = model.evaluate(**evaluate, verbose=0, return_dict=True)
        found |= {f"evaluate {name}": np.array(value) for name, value in results.items()}
    # What is accumulated towards the next update is each rank's own share of it.
    state = [variable for variable in model.optimizer.variables if "gradient_accumulator" not in variable.path]
    return found | {f"optimizer {variable.path}": np.asarray(variable) for variable in state}
