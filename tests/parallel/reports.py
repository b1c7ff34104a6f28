"""Data and models that the reported cases train, on workers and in one process. Plain Keras: knows no kerasdist."""

from __future__ import annotations

import keras
import numpy as np

_rng = np.random.default_rng(20)
TWENTY = _rng.normal(size=(160, 4))  # 20 batches of 8
ACCUMULATED = _rng.normal(size=(96, 4))  # 4 updates of 24
VALIDATION = _rng.normal(size=(64, 3)).astype("float32"), _rng.normal(size=(64, 1)).astype("float32")
# By step and rank
FIRST_UPDATE = _rng.normal(size=(4, 2, 3)).astype("float32"), _rng.normal(size=(4, 2, 1)).astype("float32")


def small(width: int) -> keras.Sequential:
    """A net of two layers."""
    return keras.Sequential([keras.Input((width,)), keras.layers.Dense(2, activation="tanh"), keras.layers.Dense(1)])


def mlp() -> keras.Sequential:
    """The same, compiled with SGD and momentum."""
    keras.utils.set_random_seed(3)
    model = small(4)
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse")
    return model


def accumulated(passes: int) -> keras.Sequential:
    """The same, compiled with AdamW that decays and clips, and accumulates that many passes."""
    keras.utils.set_random_seed(3)
    model = small(4)
    passes_or_none = passes if passes > 1 else None
    optimizer = keras.optimizers.AdamW(
        0.01, weight_decay=0.1, global_clipnorm=1.0, gradient_accumulation_steps=passes_or_none
    )
    model.compile(optimizer, "mse")
    return model
