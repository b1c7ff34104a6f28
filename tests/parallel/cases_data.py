"""Who reads which samples: recorded in the train step, and compared with what plain Keras gives on one process."""

from __future__ import annotations

import contextlib

import keras
import numpy as np
import tensorflow as tf

import kerasdist
from tests.parallel import data_kinds

RANK, SIZE = kerasdist.init().rank, kerasdist.init().size


class Recorder(keras.Model):
    """Notes the first column of what every step trains on."""

    def train_step(self, data):
        x = keras.tree.flatten(data)[0]
        tf.py_function(lambda values: self.seen.append(values.numpy().astype(int).tolist()), [x[:, 0]], [])
        return super().train_step(data)


def recorder(strategy=None):
    with strategy.scope() if strategy else contextlib.nullcontext():
        inputs = keras.Input((1,))
        model = Recorder(inputs, keras.layers.Dense(1)(inputs))
        object.__setattr__(model, "seen", [])
        model.compile(keras.optimizers.SGD(0.0), "mse")
    return model


def case_every_sample_once():
    """Ids 0 to 18 in batches of 2 for each worker, two epochs: what this rank saw, step by step."""
    found = {}
    for kind in data_kinds.KINDS:
        for shuffled in (False, True):
            keras.utils.set_random_seed(5)
            strategy = kerasdist.DataParallelStrategy()
            model = recorder(strategy)
            call = data_kinds.arguments(kind, 19, 2, shuffled)
            if kind == "generator":
                model.fit(**call, epochs=1, verbose=0)
            else:
                model.fit(**call, epochs=2, verbose=0)
            found[kind, shuffled] = model.seen
    return found


def case_new_orders():
    """Shuffled arrays where nobody set a seed: what this rank saw in two epochs, and with a seed set afterwards."""
    tf.random.set_seed(None)
    strategy = kerasdist.DataParallelStrategy()
    found = {}
    for kind in ("drawn", "set"):
        model = recorder(strategy)
        call = data_kinds.arguments("arrays", 19, 2, shuffled=True)
        model.fit(**call, class_weight={one: 1.0 for one in range(19)}, epochs=2, verbose=0)
        found[kind] = model.seen
        keras.utils.set_random_seed(5)
    return found


def case_contiguous():
    strategy = kerasdist.DataParallelStrategy(options=kerasdist.Options(partition="contiguous"))
    model = recorder(strategy)
    ids = np.arange(19, dtype="float32")[:, None]
    model.fit(ids, ids, batch_size=2, verbose=0)
    return model.seen


def case_global_batch():
    found = {}
    strategy = kerasdist.DataParallelStrategy(global_batch=True)
    for kind in ("arrays", "tf_data", "py_dataset"):
        model = recorder(strategy)
        model.fit(**data_kinds.arguments(kind, 19, 6, False), epochs=1, verbose=0)
        found[kind] = model.seen
    return found


def case_shard():
    """The shared out data set through both doors."""
    found = {}
    for door in ("scope", "callback"):
        for kind in ("arrays", "tf_data"):
            ids = np.arange(19, dtype="float32")[:, None]
            if kind == "arrays":
                data = kerasdist.shard(ids, ids, batch_size=2, seed=3)
                validation = kerasdist.shard(ids, ids, batch_size=2, shuffle=False)
            else:
                data = kerasdist.shard(tf.data.Dataset.from_tensor_slices((ids, ids)).batch(2))
                validation = kerasdist.shard(tf.data.Dataset.from_tensor_slices((ids, ids)).batch(3))
            strategy = kerasdist.DataParallelStrategy() if door == "scope" else None
            model = recorder(strategy)
            callbacks = [] if strategy else [kerasdist.DistributedOptimizer()]
            history = model.fit(data, epochs=2, validation_data=validation, callbacks=callbacks, verbose=0).history
            kernel = float(model.get_weights()[0][0, 0])
            expected = float(np.mean((ids * kernel - ids) ** 2))
            found[door, kind] = (model.seen, history["val_loss"], expected)
    return found


def case_structures():
    """Dicts, several outputs, weights, masks of arrays: the weights after training."""
    strategy = kerasdist.DataParallelStrategy()
    return data_kinds.structures(SIZE, strategy.scope)


def case_evaluate_and_predict():
    strategy = kerasdist.DataParallelStrategy()
    return data_kinds.evaluations(SIZE, strategy.scope)


def case_own_parts():
    """auto_shard=False: evaluate is over all parts, predict puts them together in the order of the ranks."""
    strategy = kerasdist.DataParallelStrategy(auto_shard=False)
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")])
        model.compile("sgd", "mse", metrics=["mae"])
    mine = np.full((RANK + 1, 1), RANK, "float32")
    evaluation = model.evaluate(mine, np.zeros_like(mine), batch_size=2, verbose=0)
    return evaluation, model.predict(mine, batch_size=2, verbose=0)


def case_own_batches_without_samples():
    """Rank 0 reads 1, 0 and 1 samples, the others 1, 1 and 1; the loss of the epoch, in a graph and out of it."""
    sizes = [1, 0, 1] if RANK == 0 else [1, 1, 1]
    ones = np.ones((sum(sizes), 1), "float32")
    data = data_kinds.batches(ones, ones * (2 if RANK == 0 else 1), sizes)
    losses = []
    for eager in (False, True):
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="zeros")])
        model.compile(keras.optimizers.SGD(0.0), "mse", run_eagerly=eager)
        call = {"callbacks": [kerasdist.DistributedOptimizer()], "verbose": 0}
        losses += model.fit(data.apply(tf.data.experimental.assert_cardinality(3)), **call).history["loss"]
    return losses


def case_validation_is_compared():
    """The callback's validation data, the same on all ranks."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")])
    model.compile(keras.optimizers.SGD(0.0), "mse")
    x, y = np.ones((3, 1), "float32"), np.zeros((3, 1), "float32")
    history = model.fit(x, y, validation_data=(x, y), verbose=0, callbacks=[kerasdist.DistributedOptimizer()]).history
    return history["val_loss"]


def case_fails_validation_differs():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")])
    model.compile(keras.optimizers.SGD(0.0), "mse")
    x, y = np.ones((3, 1), "float32"), np.full((3, 1), RANK, "float32")
    model.fit(x, x, validation_data=(x, y), verbose=0, callbacks=[kerasdist.DistributedOptimizer()])


def case_early_stopping():
    """CB-1: the average of the ranks' validation losses is 1 in every epoch, so all stop after the second."""
    rates = [1, 0.875, 0.75, 0.625] if RANK == 0 else [1, 1.125, 1.25, 1.375]

    class Rate(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.model.layers[-1].kernel.assign([[rates[epoch]]])

    options = kerasdist.Options(watch_every=0)  # the ranks' weights are to differ
    strategy = kerasdist.DataParallelStrategy(auto_shard=False, options=options)
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")])
        model.compile(keras.optimizers.SGD(0.0), lambda y, p: p)
    x = np.ones((1, 1), "float32")
    target = [Rate(), keras.callbacks.EarlyStopping("val_loss", patience=1)]
    history = model.fit(x, x, epochs=4, validation_data=(x, x), callbacks=target, verbose=0)

    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = RANK == SIZE - 1 and epoch == 1

    stopped = model.fit(x, x, epochs=4, callbacks=[Stop()], verbose=0)
    return len(history.epoch), history.history["val_loss"], len(stopped.epoch)


def case_odd_calls():
    """A prediction of fewer rows than workers, one under a fixed partition, and a ``compile`` of one's own."""
    strategy = kerasdist.DataParallelStrategy(options=kerasdist.Options(partition="contiguous"))

    class OwnCompile(keras.Model):
        def compile(self, rate):
            super().compile(keras.optimizers.SGD(rate), "mse")

    inputs = keras.Input((1,))
    made_outside = OwnCompile(inputs, keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")(inputs))
    with strategy.scope():
        made_outside.compile(0.0)
    rows = np.arange(7, dtype="float32")[:, None]
    return {
        "one": made_outside.predict(rows[3:4], verbose=0).ravel(),
        "seven": made_outside.predict(rows, batch_size=2, verbose=0).ravel(),
        "labelled": made_outside.predict(tf.data.Dataset.from_tensor_slices((rows, rows)).batch(2), verbose=0).ravel(),
        "loss": made_outside.evaluate(rows[:1], rows[:1] + 2, verbose=0),
        "averages": type(keras.tree.flatten(vars(made_outside.optimizer).get("apply"))[0]).__name__,
    }


def case_apart_before_predict():
    """Weights that one rank alone has: evaluate and predict use rank 0's, and say so."""
    strategy = kerasdist.DataParallelStrategy()
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")])
        model.compile("sgd", "mse")
    if RANK:
        model.set_weights([np.full((1, 1), 5.0)])
    rows = np.arange(4, dtype="float32")[:, None]
    return model.predict(rows, verbose=0).ravel(), model.evaluate(rows, rows, verbose=0)


class Widest(keras.metrics.Metric):
    """A state that is no sum."""

    def __init__(self):
        super().__init__(name="widest")
        self.value = self.add_weight(name="value", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.value.assign(keras.ops.maximum(self.value, keras.ops.max(y_pred)))

    def result(self):
        return self.value


def case_a_metric_that_is_no_sum():
    import warnings

    strategy = kerasdist.DataParallelStrategy()
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=[Widest(), "mae", keras.metrics.AUC()])
    rows = np.arange(4, dtype="float32")[:, None] / 4
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.evaluate(rows, rows, verbose=0)
    return [str(one.message) for one in caught if "additive_state" in str(one.message)]


def case_optimizers_in_a_dict():
    """Each of two optimizers that stand in a dict averages."""

    class Two(keras.Model):
        def __init__(self):
            super().__init__()
            self.a, self.b = (keras.layers.Dense(1, kernel_initializer="zeros", use_bias=False) for _ in range(2))
            self.by_name = {"a": keras.optimizers.SGD(0.1), "b": keras.optimizers.SGD(0.1)}

        def call(self, x):
            return self.a(x) + self.b(x)

        def compute_loss(self, images, factor):  # a method of one's own that has a name of Keras'
            return keras.ops.mean(self(images)) * factor

        def train_step(self, data):
            with tf.GradientTape(persistent=True) as tape:
                loss = self.compute_loss(images=data[0], factor=1.0)
            for name, layer in (("a", self.a), ("b", self.b)):
                kernel = layer.trainable_variables
                self.by_name[name].apply(tape.gradient(loss, kernel), kernel)
            return {"loss": loss}

    strategy = kerasdist.DataParallelStrategy(auto_shard=False)
    with strategy.scope():
        model = Two()
        model.compile(loss=None)
    x = np.full((1, 1), 1.0 + 2 * RANK, "float32")
    model.fit(x, x, verbose=0)
    return [float(w.ravel()[0]) for w in model.get_weights()]


def case_fails_weights_beside_shard():
    strategy = kerasdist.DataParallelStrategy()
    model = recorder(strategy)
    ids = np.arange(6, dtype="float32")[:, None]
    model.fit(kerasdist.shard(ids, ids, batch_size=2), class_weight={0: 1.0}, verbose=0)
