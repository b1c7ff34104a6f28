"""Trainings that are continued from a checkpoint, at 2 workers: each must equal the one that was never interrupted.

One uninterrupted training writes many checkpoints. A training that was killed has left the first of them; so for each
place that is asked for, those up to it are copied to a new folder, and a new model goes on from there.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import tempfile
import warnings
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import kerasdist
from kerasdist.algorithms import LocalSGD
from kerasdist.checkpoint import files

RANK, SIZE = kerasdist.init().rank, kerasdist.init().size
RNG = np.random.default_rng(1)
X, Y = RNG.normal(size=(19, 4)), RNG.normal(size=(19, 1))
OWN = slice(RANK, None, SIZE)
EPOCHS = 3
WITHIN, BETWEEN = (1, 2), (2, 0)


class Shuffled(keras.utils.PyDataset):
    """Batches in an order that Keras changes by Python's generator, and this class by NumPy's."""

    def __init__(self):
        super().__init__()
        self.order = np.arange(len(X))

    def __len__(self):
        return 10

    def __getitem__(self, index):
        rows = self.order[2 * index : 2 * index + 2]
        return X[rows], Y[rows]

    def on_epoch_end(self):
        np.random.shuffle(self.order)


def batches(x=X, y=Y):
    return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(19, seed=3).batch(2)


def unknown_length(x, y):
    return batches(x, y).filter(lambda x, y: True)


# Each: door, options of the door, optimizer, arguments of compile, whether a seed is set, data for fit, a place.
TRAININGS = {
    "arrays, accumulation of 3": (
        "scope", {}, lambda: keras.optimizers.SGD(0.05, momentum=0.9, gradient_accumulation_steps=3), {}, True,
        lambda: {"x": X, "y": Y, "batch_size": 2}, BETWEEN,
    ),
    "arrays without a seed, residuals": (
        "scope", {"compression": "topk"}, lambda: keras.optimizers.Adam(0.05), {}, False,
        lambda: {"x": X, "y": Y, "batch_size": 2}, WITHIN,
    ),
    "shard without a seed, local updates": (
        "scope", {"algorithm": LocalSGD(every=3), "compression": "int8"},
        lambda: keras.optimizers.SGD(0.05, momentum=0.9), {}, False,
        lambda: {"x": kerasdist.shard(X, Y, batch_size=2)}, WITHIN,
    ),
    "one stream, executions of 2": (
        "scope", {}, lambda: keras.optimizers.Adam(0.05), {"steps_per_execution": 2}, True,
        lambda: {"x": batches().repeat(), "steps_per_epoch": 4}, WITHIN,
    ),
    "PyDataset": (
        "scope", {}, lambda: keras.optimizers.Adam(0.05), {}, True, lambda: {"x": Shuffled(), "shuffle": True}, WITHIN,
    ),
    "own arrays without a seed": (
        "callback", {"compression": "powersgd"}, lambda: keras.optimizers.Adam(0.05), {}, False,
        lambda: {"x": X[OWN], "y": Y[OWN], "batch_size": 2}, WITHIN,
    ),
    "own data of unknown length": (
        "callback", {}, lambda: keras.optimizers.Adam(0.05), {}, True,
        lambda: {"x": unknown_length(X[: 9 + 5 * RANK], Y[: 9 + 5 * RANK])}, None,
    ),
}  # fmt: skip
FOLDERS = {}  # of the uninterrupted trainings


def new_model(door, options, optimizer, compiled, seeded=True):
    """A model with random layers and moving statistics, and the callbacks of its door."""
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    keras.utils.set_random_seed(7)
    if not seeded:
        tf.random.set_seed(None)
    layers = keras.layers
    scope = kerasdist.DataParallelStrategy(**options).scope() if door == "scope" else contextlib.nullcontext()
    with scope:
        body = [layers.Dense(6, activation="tanh"), layers.BatchNormalization(momentum=0.8), layers.Dropout(0.3)]
        model = keras.Sequential([keras.Input((4,)), *body, layers.Dense(1)])
        model.compile(optimizer(), "mse", metrics=["mae"], **compiled)
    return model, [] if door == "scope" else [kerasdist.DistributedOptimizer(**options)]


def trained(name, *callbacks):
    """Fits a new model; its history, and all that this rank holds at the end."""
    door, options, optimizer, compiled, seeded, data, _ = TRAININGS[name]
    model, extra = new_model(door, options, optimizer, compiled, seeded)
    call = {"epochs": EPOCHS, "verbose": 0, "callbacks": [*callbacks, *extra], **data()}
    history = model.fit(**call)
    seeds = [layer.seed_generator.state for layer in model.layers if hasattr(layer, "seed_generator")]
    values = [np.asarray(one) for one in (*model.weights, *model.optimizer.variables, *seeds)]
    return {"epochs": history.epoch, "logs": history.history, "values": values}


def up_to(folder, place):
    """A new folder with the checkpoints up to a place."""
    copied = new_folder()
    for path in folder.glob("*.npz"):
        if tuple(map(int, re.findall(r"\d+", path.name)))[:2] <= place:
            shutil.copy(path, copied)
    return copied


def new_folder():
    return Path(tempfile.mkdtemp(prefix="kerasdist-checkpoints-"))


def case_continued():
    found = {}
    for name, (*_, place) in TRAININGS.items():
        folder = FOLDERS[name] = new_folder()
        straight = trained(name, kerasdist.Checkpoint(folder, every=2, keep=100))
        found[name] = {"straight": straight, "files": sorted(path.name for path in folder.iterdir())}
        if place is not None:
            found[name]["continued"] = trained(name, kerasdist.Checkpoint(up_to(folder, place), every=2))
    found["without"] = trained("PyDataset")
    return found


class Terminated(keras.callbacks.Callback):
    """Sends SIGTERM to the last rank's process within the second epoch."""

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if RANK == SIZE - 1 and (self.epoch, batch) == (1, 2):
            os.kill(os.getpid(), signal.SIGTERM)


def case_sigterm_writes():
    """The exit code, the files, and the same training continued, for both doors."""
    found = {}
    for name in ("arrays, accumulation of 3", "own data of unknown length"):
        folder = new_folder()
        try:
            trained(name, kerasdist.Checkpoint(folder, every=2, keep=2), Terminated())
            code = None
        except SystemExit as ended:
            code = ended.code
        there = sorted(path.name for path in folder.iterdir())
        found[name] = code, there, trained(name, kerasdist.Checkpoint(folder))
    return found


def told(function, *arguments):
    """What a call raises, and the warnings of this rank's."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = function(*arguments)
        except Exception as error:
            result = type(error).__name__, str(error)
    return result, [str(one.message) for one in caught if "heckpoint" in str(one.message)]


def rewritten(folder, **header):
    """The newest checkpoint of a folder, with something else in its header."""
    saved = files.newest(folder, print)
    files.write(folder, tuple(header.get("place", saved.header["place"])), {**saved.header, **header}, saved.arrays)


def case_not_continued():
    """What is skipped, what is refused, and that the ranks are in step afterwards."""
    name, found = "arrays, accumulation of 3", {}
    copied = up_to(FOLDERS[name], (EPOCHS, 0))
    if RANK == 0:
        last = copied / "checkpoint-e000003-b000000000.npz"
        content = bytearray(last.read_bytes())
        content[len(content) // 2] ^= 1
        last.write_bytes(content)
        (copied / "checkpoint-e000002-b000000002.npz").write_bytes(b"")
        (copied / "checkpoint-e000002-b000000004.npz").unlink()
        np.savez(copied / "checkpoint-e000007-b000000000.npz", weights=np.ones(3))
        (copied / "checkpoint-e000008-b000000000.npz").write_bytes(last.read_bytes()[:-200])
        (copied / ".checkpoint-e000009-b000000000.npz.1.tmp").write_bytes(b"half of one")
    result, messages = told(trained, name, kerasdist.Checkpoint(copied))
    found["torn"] = result, messages, sorted(path.name for path in copied.iterdir())

    def of_another_model():
        keras.utils.set_random_seed(7)
        with kerasdist.DataParallelStrategy().scope():
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
            model.compile(keras.optimizers.SGD(0.05), "mse")
        model.fit(X, Y, batch_size=2, epochs=4, verbose=0, callbacks=[kerasdist.Checkpoint(copied)])

    def again(every=None, seed=7, **call):
        door, options, optimizer, compiled, *_ = TRAININGS[name]
        model, _ = new_model(door, options, optimizer, compiled)
        keras.utils.set_random_seed(seed)
        arguments = {"x": X, "y": Y, "batch_size": 2, "epochs": 4, "verbose": 0} | call
        model.fit(**arguments, callbacks=[kerasdist.Checkpoint(copied, every)])

    found["another model"] = told(of_another_model)[0]
    found["another batch size"] = told(lambda: again(batch_size=3))[0]
    found["another seed"] = told(lambda: again(seed=8))[0]
    found["arguments that differ"] = told(lambda: again(every=1 + RANK))[0]
    if RANK == 0:
        rewritten(copied, workers=3)
    found["another number of workers"] = told(again)
    found["after"] = float(kerasdist.all_reduce(1.0, "sum"))
    return found


def case_nothing_left():
    """A training that is over, by its epochs or by a callback, is not continued; its state is there."""

    class Stops(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = epoch == 0

    folder, name = new_folder(), "PyDataset"
    stopped = trained(name, kerasdist.Checkpoint(folder), Stops())
    return {
        "epochs": (None, *told(trained, name, kerasdist.Checkpoint(FOLDERS[name]))),
        "stopped": (stopped, *told(trained, name, kerasdist.Checkpoint(folder))),
    }


def case_generator():
    def stream():
        while True:
            yield X[:2], Y[:2]

    door, options, optimizer, compiled, *_ = TRAININGS["PyDataset"]
    model, _ = new_model(door, options, optimizer, compiled)
    call = {"steps_per_epoch": 2, "verbose": 0, "callbacks": [kerasdist.Checkpoint(new_folder())]}
    return told(lambda: model.fit(stream(), **call))[1]


def case_ranks_hold_their_own():
    """What of a checkpoint is kept for each rank, with local updates and residuals."""
    folder = FOLDERS["shard without a seed, local updates"]
    return {path.name: files.read(path).header["own"] for path in folder.iterdir()}
