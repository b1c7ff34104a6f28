"""Reported cases of epochs, validation, callbacks and unequal parts of data (docs/cases.md)."""

from __future__ import annotations

import contextlib
import io
import logging
import tempfile
import warnings
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import kerasdist
from tests.parallel.cases_core import ONE, TARGET, compiled, linear, net, own, weight
from tests.parallel.cases_faults import caught
from tests.parallel.cases_reports import QUIET, RANK, SIZE, both_doors, ones
from tests.parallel.reports import VALIDATION


def case_statistics_in_time():
    """BN-1: the moving mean at the end of the batch, before validation, and at the end of the epoch."""
    found = {}
    x = np.full((2, 1), 4.0 * min(RANK, 1), "float32")

    def make():
        normalize = keras.layers.BatchNormalization(momentum=0.5)
        return keras.Sequential([keras.Input((1,)), normalize, keras.layers.Dense(1)])

    for door, model, callbacks in both_doors(make):
        seen = {}

        class Note(keras.callbacks.Callback):
            def note(self, when, seen=seen):
                seen[when] = float(self.model.layers[0].moving_mean[0])

            def on_train_batch_end(self, batch, logs=None):
                self.note("batch")

            def on_test_begin(self, logs=None):
                self.note("validation")

            def on_epoch_end(self, epoch, logs=None):
                self.note("epoch")

        model.fit(x, x, validation_data=(ONE, ONE), callbacks=[Note(), *callbacks], **QUIET)
        found[door] = seen
    return found


def case_evaluation_of_the_same_samples():
    """WR-4: after an epoch with BatchNormalization and Dropout each rank evaluates all of 64 samples by itself."""
    x, y = VALIDATION

    def make():
        hidden = [keras.layers.Dense(4), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)]
        return keras.Sequential([keras.Input((3,)), *hidden, keras.layers.Dense(1)])

    strategy = kerasdist.DataParallelStrategy()
    model = compiled(strategy, make=make)
    model.fit(x, y, batch_size=8, **QUIET)
    with strategy.local():
        alone = model.evaluate(x, y, batch_size=16, verbose=0)
    return alone, model.evaluate(x, y, batch_size=16, verbose=0), model.get_weights()


def case_validation_of_unequal_parts():
    """MET-1, MET-2, UNEV-1: validation data of the rank's own, of other lengths, known or not."""
    losses = np.full((100, 1), 1.0, "float32") if RANK == 0 else np.full((10, 1), 2.1, "float32")
    hits = [1.0] * 9 + [0.0] if RANK == 0 else [0.0, 0.0]  # the prediction; the label is 1
    labels, scores = ([1.0], [0.9]) if RANK == 0 else ([1.0, 0.0, 0.0, 0.0], [0.8, 0.7, 0.6, 0.95])
    still = np.zeros((1, 1), "float32")

    def column(values):
        return np.array(values, "float32")[:, None]

    def validated(x, y, loss, *metrics, batch_size=10, unknown=False):
        model = compiled(own(), loss, make=ones, metrics=list(metrics))
        data = (x, y)
        if unknown:
            data = tf.data.Dataset.from_tensor_slices((x, y)).batch(batch_size).filter(lambda *_: True)
        call = {"validation_batch_size": None if unknown else batch_size, "batch_size": 1}
        history = model.fit(still, still, validation_data=data, **call, **QUIET).history
        return {key: value[0] for key, value in history.items() if key.startswith("val_")}

    accuracy = keras.metrics.BinaryAccuracy(name="accuracy")
    auc, precision = keras.metrics.AUC(name="auc"), keras.metrics.Precision(name="precision")
    return {
        "loss": validated(losses, losses, linear),
        "loss, unknown length": validated(losses, losses, linear, unknown=True),
        "accuracy": validated(column(hits), np.ones((len(hits), 1), "float32"), "mse", accuracy),
        "metrics": validated(column(scores), column(labels), "mse", precision, auc, batch_size=1),
        "seen": (column(labels), column(scores)),
    }


class Kernel(keras.callbacks.Callback):
    """Sets the weight of each epoch: with x = 1 it is the validation loss."""

    values = (1, 0.875, 0.75, 0.625) if RANK == 0 else (1, 1.125, 1.25, 1.375)

    def on_epoch_begin(self, epoch, logs=None):
        self.model.layers[-1].kernel.assign([[self.values[epoch]]])

    def on_train_end(self, logs=None):
        self.model.layers[-1].kernel.assign([[1.0]])  # the ranks are compared after it


class Evaluates(keras.callbacks.Callback):
    """Evaluates 11 samples in the middle of each epoch, and before its first step."""

    def on_epoch_begin(self, epoch, logs=None):
        self.model.evaluate(*EVALUATED, batch_size=4, verbose=0)

    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            self.model.evaluate(*EVALUATED, batch_size=4, verbose=0)


EVALUATED = np.linspace(-1, 2, 11)[:, None], np.linspace(3, 5, 11)[:, None]


def case_evaluation_within_an_epoch():
    """19 samples in global batches of 8: the history of both doors and of plain Keras, which mixes evaluation in."""
    x, y = np.linspace(-2, 2.3, 19)[:, None], np.linspace(1, 3, 19)[:, None]
    found = {}
    for kind in ("plain", "scope", "callback"):
        keras.config.set_floatx("float64")
        keras.config.set_dtype_policy("float64")
        keras.utils.set_random_seed(3)
        scope = kerasdist.DataParallelStrategy().scope() if kind == "scope" else contextlib.nullcontext()
        with scope:
            model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(3, "tanh"), keras.layers.Dense(1)])
            model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae", keras.metrics.R2Score()])
        call = {"epochs": 2, "verbose": 0, "shuffle": False, "callbacks": [Evaluates()]}
        if kind == "callback":
            call["callbacks"].append(kerasdist.DistributedOptimizer())
            call["x"] = kerasdist.shard(x, y, batch_size=4, shuffle=False)
        else:
            call |= {"x": x, "y": y, "batch_size": 8 if kind == "plain" else 4}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found[kind] = model.fit(**call).history
    return found


def case_statistics_of_own_steps():
    """A train step of one's own that tracks no loss; the ranks get 12 and 8 samples of two values."""

    class Own(keras.Model):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((y - self(x, training=True)) ** 2)
            self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
            return {"error": loss}

    inputs = keras.Input((1,))
    with kerasdist.DataParallelStrategy().scope():
        normalization = keras.layers.BatchNormalization(momentum=0.5)
        model = Own(inputs, keras.layers.Dense(1)(normalization(inputs)))
        model.compile(keras.optimizers.SGD(0.01))
    values = np.repeat(np.array([1, 5, 1], "float32"), [8, 8, 4])[:, None]
    batches = [(values[a:b], values[a:b]) for a, b in ((0, 8), (8, 16), (16, 20))]
    spec = (tf.TensorSpec([None, 1]), tf.TensorSpec([None, 1]))
    data = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=spec)
    model.fit(data.apply(tf.data.experimental.assert_cardinality(3)), verbose=0)
    return float(normalization.moving_mean.numpy()[0])


def case_plateau():
    """CB-1, CB-2: the ranks' validation losses go apart, and their mean stays 1: rates, and epochs until the stop."""
    found = {}
    for door, model, callbacks in both_doors(ones, loss=linear):
        both = np.ones((SIZE, 1), "float32")
        held = (ONE, ONE) if door == "scope" else kerasdist.shard(both, both, batch_size=1, shuffle=False)
        plateau = keras.callbacks.ReduceLROnPlateau(factor=0.5, patience=1)
        stop = keras.callbacks.EarlyStopping("val_loss", patience=1)
        still = np.zeros((1, 1), "float32")  # a gradient of 0
        history = model.fit(
            still, still, epochs=4, validation_data=held, callbacks=[Kernel(), plateau, stop, *callbacks], **QUIET
        )
        found[door] = history.epoch, history.history["val_loss"], float(model.optimizer.learning_rate)
    return found


def case_one_rank_stops_at_an_epochs_end():
    """CB-1: one rank alone asks for the stop, in a callback before the door's or after it."""

    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if RANK == 1 and epoch == 1:
                self.model.stop_training = True

    found = {}
    for position in ("before", "after"):
        for door, model, callbacks in both_doors(net, loss=linear):
            every = [Stop(), *callbacks] if position == "before" else [*callbacks, Stop()]
            kind, message, _ = caught(model.fit, ONE, ONE, epochs=4, callbacks=every, **QUIET)
            found[door, position] = kind, message, weight(model)
    return found


def case_callbacks_on_rank_zero():
    """CB-4: rank 0 alone has callbacks that write files, look at every batch and add to the logs; and validates."""
    found = {}

    class Foo(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            logs["foo"] = 1.0

        def on_epoch_end(self, epoch, logs=None):
            logs["foo"] = 1.0

    for door, model, callbacks in both_doors(net):
        folder = Path(tempfile.mkdtemp())
        board = keras.callbacks.TensorBoard(folder / "board", update_freq=1, histogram_freq=1)
        checkpoint = keras.callbacks.ModelCheckpoint(folder / "model.keras", monitor="loss", save_best_only=True)
        extra = [board, checkpoint, Foo()] if RANK == 0 else []
        history = model.fit(ONE, TARGET, callbacks=[*extra, *callbacks], **QUIET)
        found[door] = weight(model), history.history["loss"], (folder / "model.keras").exists()
    return found


def case_validation_on_rank_zero():
    """CB-4: ``validation_data`` on rank 0 alone: what every rank is told."""
    found = {}
    for door, model, callbacks in both_doors(net):
        held = {"validation_data": (ONE, ONE)} if RANK == 0 else {}
        found[door] = caught(model.fit, ONE, TARGET, callbacks=callbacks, **held, **QUIET)
    return found


def case_uneven_through_the_callback():
    """UNEV-1: 5 and 4 batches through the callback: arrays, a stream of known length, one of unknown length."""
    x = np.ones((5 - RANK, 1), "float32")
    stream = tf.data.Dataset.from_tensor_slices((x, x)).batch(1)
    found, log = {}, io.StringIO()
    handler = logging.StreamHandler(log)
    logging.getLogger("kerasdist").addHandler(handler)
    logging.getLogger("kerasdist").setLevel(logging.INFO)
    for kind, call in {
        "arrays": {"x": x, "y": x, "batch_size": 1},
        "known": {"x": stream},
        "unknown": {"x": stream.filter(lambda *_: True)},
        "generator": {"x": ((x[:1], x[:1]) for _ in range(10)), "steps_per_epoch": 5},
    }.items():
        model = net()
        model.compile(keras.optimizers.SGD(0.1), linear)
        history = model.fit(**call, epochs=2, verbose=0, callbacks=[kerasdist.DistributedOptimizer()])
        found[kind] = weight(model), history.history["loss"]
    logging.getLogger("kerasdist").removeHandler(handler)
    return found, log.getvalue()


def case_resumed_shards():
    """SAVE-5: stopped at epoch 2 of 4 and started again: the samples that this rank saw afterwards, by epoch."""
    ids = np.arange(8, dtype="float32")[:, None]
    seen = []

    class Recorder(keras.Model):
        def train_step(self, data):
            tf.py_function(lambda rows: seen.append(rows.numpy().ravel().astype(int).tolist()), [data[0]], [])
            return super().train_step(data)

    class Breaks(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise KeyboardInterrupt

    def train(*callbacks):
        with kerasdist.DataParallelStrategy().scope():
            inputs = keras.Input((1,))
            model = Recorder(inputs, keras.layers.Dense(1)(inputs))
            model.compile(keras.optimizers.SGD(0.0), "mse")
        return model.fit(ids, ids, batch_size=2, epochs=4, verbose=0, callbacks=list(callbacks)).epoch

    backup = keras.callbacks.BackupAndRestore(Path(tempfile.mkdtemp()) / "backup")
    try:
        train(backup, Breaks())
    except KeyboardInterrupt:
        seen.clear()
    return train(backup), seen
