"""What docs/equal.md says is not equal and not noticed: two samples, shared by two workers; SGD(0.1), one step."""

from __future__ import annotations

import contextlib
import os
import tempfile

import keras
import numpy as np
import tensorflow as tf

import kerasdist
from tests.parallel.cases_equal import ONES, STRATEGY, TARGETS, dense, fit, local_training

RANK = STRATEGY.rank


class ByHand(keras.Model):
    """A train step that clips by itself, and adds up losses."""

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.total = keras.metrics.Sum(name="total")

    @property
    def metrics(self):
        return [self.total]

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((y - self(x, training=True)) ** 2)
        gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, self.trainable_variables), 3.0)
        self.optimizer.apply(gradients, self.trainable_variables)
        self.total.update_state(loss)
        return {"total": self.total.result()}


class SumAsLoss(keras.layers.Layer):
    """A factor whose loss is a sum over the batch; and a state that adds up what it sees."""

    def build(self, shape):
        self.factor = self.add_weight(shape=(1,), initializer="zeros", name="factor")
        self.seen = self.add_weight(shape=(1,), initializer="zeros", trainable=False, name="seen")

    def call(self, x, training=False):
        self.add_loss(tf.reduce_sum(x * self.factor))
        if training:
            self.seen.assign_add([tf.reduce_sum(x)])
        return x * self.factor


def case_steps_by_hand():
    inputs = keras.Input((1,))
    with STRATEGY.scope():
        model = ByHand(inputs, dense()(inputs))
        model.compile(keras.optimizers.SGD(0.1))
    history = model.fit(ONES, TARGETS, batch_size=1, shuffle=False, verbose=0).history
    return float(model.get_weights()[0][0, 0]), history["total"]


def case_sums_of_layers():
    layer = SumAsLoss()
    weight, _ = fit(ONES, TARGETS, [keras.Input((1,)), layer])
    return weight, float(layer.seen.numpy()[0])


def half_precision(scope, batch_size):
    """The scale 40000 times the gradient -1 of each sample: finite in half precision, unlike the sum of the two."""
    keras.config.set_dtype_policy("mixed_float16")
    with scope:
        model = keras.Sequential([keras.Input((1,)), dense()])
        model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=40000.0), "mse")
    model.fit(ONES, ONES, batch_size=batch_size, shuffle=False, verbose=0)
    return float(np.asarray(model.get_weights()[0]).ravel()[0])


def case_overflow_of_a_sum():
    return half_precision(STRATEGY.scope(), 1), half_precision(local_training(), 2)


def case_rows_of_one_token():
    """The same token twice: with Adagrad, shared out and in plain Keras."""
    found = {}
    for kind, scope, batch_size in (("shared", STRATEGY.scope(), 1), ("plain", local_training(), 2)):
        with scope:
            embedding = keras.layers.Embedding(1, 1, embeddings_initializer="zeros")
            model = keras.Sequential([keras.Input((1,), dtype="int32"), embedding, keras.layers.Flatten()])
            model.compile(keras.optimizers.Adagrad(0.1, initial_accumulator_value=0.0, epsilon=1e-12), "mse")
        model.fit(np.zeros((2, 1), "int32"), TARGETS, batch_size=batch_size, shuffle=False, verbose=0)
        found[kind] = float(model.get_weights()[0][0, 0])
    return found


def case_updates_of_a_stream():
    """Four samples of unknown length: the updates that the optimizer counted."""
    found = {}
    for kind, scope, batch_size in (("shared", STRATEGY.scope(), 1), ("plain", local_training(), 2)):
        with scope:
            model = keras.Sequential([keras.Input((1,)), dense()])
            model.compile(keras.optimizers.SGD(0.1), "mse")
        data = tf.data.Dataset.from_tensor_slices((np.repeat(ONES, 2, 0), np.repeat(TARGETS, 2, 0)))
        model.fit(data.filter(lambda x, y: True).batch(batch_size), verbose=0)
        found[kind] = int(model.optimizer.iterations)
    return found


def case_saved_between_updates():
    """One pass of two: what this rank has accumulated, and what rank 0's file holds."""
    with STRATEGY.scope():
        model = keras.Sequential([keras.Input((1,)), dense()])
        model.compile(keras.optimizers.SGD(0.1, gradient_accumulation_steps=2), "mse")
    model.fit(ONES, TARGETS, batch_size=1, shuffle=False, verbose=0)

    def accumulated(one):
        (found,) = (v for v in one.optimizer.variables if "accumul" in v.path)
        return float(np.asarray(found).ravel()[0])

    own = accumulated(model)
    every = np.asarray(kerasdist.all_gather(np.array([own]))).tolist()
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(StopIteration):
        if RANK:
            raise StopIteration
        path = os.path.join(folder, "model.keras")
        model.save(path)
        return every, accumulated(keras.models.load_model(path))
    return every, None
