"""What each rank's gradients count for: unknown lengths, masks and weights, missing and sparse gradients.

The model is LINEAR: one weight, loss = w x, SGD(0.1), so the gradient is the mean of x.
"""

from __future__ import annotations

import contextlib
import warnings

import keras
import numpy as np
import tensorflow as tf

import kerasdist
from tests.parallel.cases_core import compiled, linear, net, own, weight
from tests.parallel.cases_faults import LAST, RANK, X, doors, fit

TOKENS = {"overlap": ([[0, 1]], [[0, 2]]), "twice": ([[1, 1]], [[1, 2]])}


def case_unknown_lengths():
    """UNEV-1 with lengths that nobody knows: 5 and 4 batches of x = 1, two epochs."""
    count = 5 - (RANK == LAST)
    data = tf.data.Dataset.from_tensors((X[:1], X[:1])).repeat(count)
    data = data.filter(lambda *_: True)
    found = {}
    model = compiled(own(), linear)
    history = fit(model, x=data)
    found["scope"] = weight(model), history.history["loss"]
    return found


def case_missing_gradients():
    """Two heads: rank 0 trains one, the others the other; a third is trained by nobody."""
    inputs = keras.Input((1,))
    heads = [
        keras.layers.Dense(1, use_bias=False, kernel_initializer=start, name=name)(inputs)
        for name, start in (("first", "zeros"), ("second", "zeros"), ("unused", "ones"))
    ]

    class Heads(keras.Model):
        def train_step(self, data):
            x, _ = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(self(x)[min(RANK, 1)])
            loss_variables = self.trainable_variables
            self.optimizer.apply(tape.gradient(loss, loss_variables), loss_variables)
            return {"loss": loss}

    found = {}
    for mode in ({}, {"run_eagerly": True}):
        with own().scope():
            model = Heads(inputs, heads)
            for variable, value in zip(model.weights, (0.0, 0.0, 1.0), strict=True):
                variable.assign([[value]])
            model.compile(keras.optimizers.SGD(0.1, weight_decay=0.5), None, **mode)
        fit(model, x=X[:1], epochs=1)
        found[str(mode)] = [float(w.ravel()[0]) for w in model.get_weights()]
    return found


def case_masks():
    """WR-5: losses that are divided by the sum of weights or of valid entries; sums; each rank has its own shares."""
    valid = np.array([1.0, 1, 1, 1] if RANK == 0 else [4.0, 4, 0, 0], "float32")[:, None]
    seen = valid > 0
    found = {}
    for door in ("scope", "callback"):
        for name, reduction, weights in (
            ("default", "sum_over_batch_size", seen),
            ("weighted", "mean_with_sample_weight", seen),
            ("sum", "sum", None),
        ):

            class Loss(keras.losses.Loss):
                def call(self, y_true, y_pred):
                    return tf.squeeze(y_pred, -1)

            loss = Loss(reduction=reduction)
            model = compiled(own(), loss) if door == "scope" else net()
            if door == "callback":
                model.compile(keras.optimizers.SGD(0.1), loss)
            extra = [kerasdist.DistributedOptimizer()] if door == "callback" else []
            arguments = {} if weights is None else {"sample_weight": weights[:, 0].astype("float32")}
            fit(model, *extra, x=valid, batch_size=4, epochs=1, **arguments)
            found[door, name] = weight(model)
    for door in ("scope", "callback"):
        inputs = keras.Input((2, 1))
        masked = keras.layers.Masking()(inputs)
        outputs = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")(masked)
        with own().scope() if door == "scope" else contextlib.nullcontext():
            model = keras.Model(inputs, outputs)
            model.compile(keras.optimizers.SGD(0.1), lambda y_true, y_pred: y_pred[..., 0])
        extra = [kerasdist.DistributedOptimizer()] if door == "callback" else []
        sequences = valid.reshape(2, 2, 1)
        history = fit(model, *extra, x=sequences, batch_size=2, epochs=2)
        found[door, "mask"] = weight(model), history.history["loss"]
    return found


def case_own_step_with_weights():
    """WR-5: a train step that weighs samples out of sight, and one that uses Keras' loss: the warnings."""

    class Weighs(keras.Model):
        def train_step(self, data):
            x, y, sample_weight = data
            with tf.GradientTape() as tape:
                if self.name == "hidden":
                    loss = tf.reduce_sum(self(x) * sample_weight[:, None]) / tf.reduce_sum(sample_weight)
                else:
                    loss = self.compute_loss(x, y, self(x), sample_weight)
            self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
            return {"loss": loss}

    found = {}
    for name in ("hidden", "known"):
        with own().scope():
            inputs = keras.Input((1,))
            model = Weighs(inputs, keras.layers.Dense(1)(inputs), name=name)
            model.compile("sgd", "mse")
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            fit(model, x=X, epochs=1, sample_weight=np.ones(len(X), "float32"))
        found[name] = [str(w.message) for w in warned if "sample weights" in str(w.message)]
    return found


def summed(y_true, y_pred):
    return tf.reduce_sum(y_pred, axis=list(range(1, y_pred.shape.rank)))


def case_sparse():
    """SPARSE-1 and SPARSE-2, dense and as rows; the same table in one process is dense."""
    found = {}
    for path, rows, options in (("dense", 3, kerasdist.Options()), ("rows", 1000, kerasdist.Options(alone_kb=1))):
        for name, every in TOKENS.items():
            tokens = every[min(RANK, 1)]
            strategy = own(options=options)
            with strategy.scope():
                table = keras.layers.Embedding(rows, 1, embeddings_initializer="zeros")
                model = keras.Sequential([keras.Input((len(tokens[0]),)), table])
                model.compile(keras.optimizers.SGD(1.0), summed)
            x = np.array(tokens, "int32")
            model.fit(x, x, batch_size=len(x), epochs=1, verbose=0)
            found[path, name] = model.get_weights()[0].ravel()[:3].tolist()
    return found


def case_same_batches_everywhere():
    found = {}
    for door, model, extra in doors():
        for name, x in (("same", np.arange(8, dtype="float32")[:, None]), ("own", X * (RANK + 1))):
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                fit(model, *extra, x=x, epochs=1)
            found[door, name] = [str(w.message) for w in warned if "same batches" in str(w.message)]
    return found
