"""The trainings that must come out equal on one process and on many. Plain Keras: knows nothing of kerasdist."""

from __future__ import annotations

import contextlib
import itertools
import os
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

GLOBAL_BATCH = 24
SAMPLES = 100  # four batches of 24 and a ragged one of 4
MODELS = ("mlp", "cnn")
OPTIMIZERS = ("sgd", "adamw", "lion")
DATA = ("arrays", "tf_data")

ALL = list(itertools.product(MODELS, OPTIMIZERS, DATA))
# Every pair of model and optimizer, of optimizer and data, of model and data, in half of the runs.
PAIRS = [one for one in ALL if (MODELS.index(one[0]) + OPTIMIZERS.index(one[1]) + DATA.index(one[2])) % 2 == 0]
FLOAT32 = [("mlp", "sgd", "arrays"), ("cnn", "adamw", "tf_data"), ("mlp", "lion", "tf_data")]


def float64(workers: int, plain: bool = False) -> list[tuple[str, str, str]]:
    """All combinations at 2 workers (and in plain Keras), some at others; all with ``KERASDIST_TEST_FULL=1``."""
    if plain or workers == 2 or os.environ.get("KERASDIST_TEST_FULL"):
        return ALL
    return {3: [*PAIRS[:2], PAIRS[5]], 4: PAIRS[2:5]}.get(workers, PAIRS)


def names(workers: int, plain: bool = False) -> list[str]:
    """The names of the trainings at so many workers."""
    exact = float64(workers, plain)
    rounded = FLOAT32 if exact is ALL else FLOAT32[1:2]
    return [f"float64 {' '.join(one)}" for one in exact] + [f"float32 {' '.join(one)}" for one in rounded]


def digits() -> tuple[np.ndarray, np.ndarray]:
    """100 real handwritten digits."""
    x, y = load_digits(return_X_y=True)
    return (x[:SAMPLES, :, None].reshape(-1, 8, 8, 1) / 16).astype(keras.config.floatx()), y[:SAMPLES]


def make_model(kind: str) -> keras.Model:
    """An MLP or a small CNN for 8x8 digits."""
    layers = keras.layers
    if kind == "mlp":
        body = [layers.Flatten(), layers.Dense(32, activation="tanh"), layers.Dense(16, activation="tanh")]
    else:
        convolution = [layers.Conv2D(6, 3, activation="tanh"), layers.MaxPooling2D(), layers.Flatten()]
        body = [*convolution, layers.Dense(16, activation="tanh")]
    return keras.Sequential([keras.Input((8, 8, 1)), *body, layers.Dense(10)])


def make_optimizer(kind: str) -> keras.optimizers.Optimizer:
    """SGD with momentum, AdamW with global clipping, or Lion."""
    if kind == "sgd":
        return keras.optimizers.SGD(0.05, momentum=0.9)
    if kind == "adamw":
        return keras.optimizers.AdamW(0.002, weight_decay=0.01, global_clipnorm=0.5)
    return keras.optimizers.Lion(0.0005)


def train(
    model_kind: str, optimizer_kind: str, data_kind: str, floatx: str, workers: int, scope: Any = None
) -> dict[str, Any]:
    """Trains 3 epochs with a global batch of 24; returns early and late weights, history and predictions."""
    keras.config.set_floatx(floatx)
    keras.config.set_dtype_policy(floatx)  # else the first one made stays
    keras.utils.set_random_seed(3)
    x, y = digits()
    batch_size = GLOBAL_BATCH // workers
    with scope() if scope else contextlib.nullcontext():
        model = make_model(model_kind)
        model.compile(
            make_optimizer(optimizer_kind),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    early = []

    class Early(keras.callbacks.Callback):
        """Keeps the weights after the 4 steps of the first epoch."""

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if epoch == 0:
                early.extend(self.model.get_weights())

    call = {"epochs": 3, "verbose": 0, "callbacks": [Early()]}
    if data_kind == "arrays":
        history = model.fit(x, y, batch_size=batch_size, validation_split=0.2, **call)
    else:
        held, kept = slice(80, None), slice(80)
        data = tf.data.Dataset.from_tensor_slices((x[kept], y[kept])).shuffle(80, seed=5).batch(batch_size)
        validation = tf.data.Dataset.from_tensor_slices((x[held], y[held])).batch(batch_size)
        history = model.fit(data, validation_data=validation, **call)
    found = {"early": early, "weights": model.get_weights(), "history": history.history}
    if optimizer_kind == "sgd":
        found["evaluation"] = model.evaluate(x, y, batch_size=batch_size, verbose=0)
        found["predictions"] = model.predict(x[:50], batch_size=batch_size, verbose=0)
    return found


def all_trainings(workers: int, scope: Any = None) -> dict[str, dict[str, Any]]:
    """Every combination, by name."""
    results = {}
    for name in names(workers, plain=scope is None):
        floatx, model, optimizer, data = name.split()
        results[name] = train(model, optimizer, data, floatx, workers, scope)
    return results
