"""Real trainings with each compressor, what is counted in them, and what is remembered under a loss scale."""

from __future__ import annotations

import warnings

import keras
import numpy as np

import kerasdist
from kerasdist.compression import Cast, Int8, PowerSGD, Threshold, TopK
from tests.parallel.cases_core import RANK, compiled, linear, own

TRAININGS = {
    "none": None,
    "fp16": "fp16",
    "fp16 or float32": Cast("float16", overflow="float32"),
    "bf16": "bf16",
    "int8": Int8(block=64),
    "topk": TopK(ratio=0.2),
    "threshold": Threshold(0.02),
    "powersgd": PowerSGD(rank=1),
}
EPOCHS, BATCHES = 4, 4


def regression():
    """8 inputs, 161 weights, 64 samples; the same on both ranks."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(64, 8)).astype("float32")
    dense = keras.layers.Dense(16, activation="tanh")
    return x, np.sin(x[:, :1]) + x[:, 1:2], keras.Sequential([keras.Input((8,)), dense, keras.layers.Dense(1)])


def case_fit_with_each_compressor():
    """Both doors: losses of the epochs, weights, and what was counted."""
    found = {}
    for name, compression in TRAININGS.items():
        keras.utils.set_random_seed(11)
        x, y, model = regression()
        strategy = kerasdist.DataParallelStrategy(compression=compression)
        with strategy.scope():
            model.compile(keras.optimizers.SGD(0.1), "mse", steps_per_execution=2)
        history = model.fit(x, y, batch_size=64 // BATCHES // 2, epochs=EPOCHS, verbose=0)
        found[name, "scope"] = history.history["loss"], model.get_weights(), strategy.stats()
    for name in ("fp16", "topk"):
        keras.utils.set_random_seed(11)
        x, y, model = regression()
        callback = kerasdist.DistributedOptimizer(compression=TRAININGS[name])
        model.compile(keras.optimizers.SGD(0.1), "mse")
        half = slice(RANK, None, 2)
        call = {"batch_size": 64 // BATCHES // 2, "epochs": EPOCHS, "verbose": 0}
        history = model.fit(x[half], y[half], callbacks=[callback], **call)
        found[name, "callback"] = history.history["loss"], model.get_weights(), callback.stats()
    return found


def two_inputs():
    dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    return keras.Sequential([keras.Input((2,)), dense])


GRADIENTS = np.array([[[4.0, 3.0]], [[1.0, 2.5]]], "float32")  # by rank


def case_residual_under_a_loss_scale():
    """The weights after each of 8 steps of a scale that doubles in each; in the fourth, rank 1 has an inf."""
    found = {}
    for name, compression in (("topk", TopK(ratio=0.5)), ("threshold", Threshold(2.7, residual=False))):
        for passes in (None, 2):
            sgd = keras.optimizers.SGD(0.1, gradient_accumulation_steps=passes)
            optimizer = keras.optimizers.LossScaleOptimizer(sgd, initial_scale=64.0, dynamic_growth_steps=1)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model, steps = compiled(own(compression=compression), linear, optimizer, two_inputs), []
                for step in range(8):
                    infinite = step == 3 and RANK == 1 and passes is None
                    x = GRADIENTS[RANK] * (np.inf if infinite else 1)
                    model.train_on_batch(x, np.zeros((1, 1), "float32"))
                    steps.append(model.get_weights()[0].ravel())
            found[name, passes] = np.stack(steps), float(optimizer.dynamic_scale)
    return found


def case_overflows_are_counted():
    """Of 40000 times 2 on rank 1 and 1 on rank 0, in fp16; the second training in float32 where that overflows."""
    found = {}
    for name in ("fp16", "fp16 or float32"):
        strategy = own(compression=TRAININGS[name])
        model = compiled(strategy, linear, keras.optimizers.SGD(1.0), two_inputs)
        model.fit(np.full((1, 2), 40000.0 * (1 + RANK), "float32"), np.zeros((1, 1)), verbose=0)
        found[name] = model.get_weights()[0].ravel(), strategy.stats().overflows
    return found
