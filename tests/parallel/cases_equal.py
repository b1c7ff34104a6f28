"""What docs/equal.md says is equal, is not, and is refused: two samples, shared by two workers; SGD(0.1), one step."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

import kerasdist

STRATEGY = kerasdist.DataParallelStrategy()
ONES, TARGETS = np.ones((2, 1), "float32"), np.array([[1.0], [3.0]], "float32")


def fit(x, y, layers, loss="mse", **arguments):
    with STRATEGY.scope():
        model = keras.Sequential(layers)
        model.compile(keras.optimizers.SGD(0.1), loss, **arguments)
    history = model.fit(x, y, batch_size=1, shuffle=False, verbose=0).history
    return float(model.trainable_variables[0].numpy().ravel()[0]), history


def dense(start="zeros", **arguments):
    return keras.layers.Dense(1, use_bias=False, kernel_initializer=start, **arguments)


def case_regularizer():
    return fit(ONES, TARGETS, [keras.Input((1,)), dense("ones", kernel_regularizer=keras.regularizers.L2(0.5))])


def case_coupled_loss():
    return fit(ONES, TARGETS, [keras.Input((1,)), dense()], lambda y, p: tf.reduce_max((y - p) ** 2))


def case_scalar_metric():
    def largest(y, p):
        return tf.reduce_max(tf.abs(y - p))

    return fit(ONES, TARGETS, [keras.Input((1,)), dense()], metrics=[largest])[1]["largest"]


def case_mask():
    """A sequence with one valid step of four, target 1, and one with four, target 3."""
    steps = np.array([[1, 0, 0, 0], [1, 1, 1, 1]])
    embedding = keras.layers.Embedding(2, 1, mask_zero=True, embeddings_initializer="ones", trainable=False)
    layers = [keras.Input((4,), dtype="int32"), embedding, dense()]
    return fit(steps, np.repeat(TARGETS[:, None], 4, axis=1), layers)


def case_fails_no_reduction():
    fit(ONES, TARGETS, [keras.Input((1,)), dense()], keras.losses.MeanSquaredError("none"))
