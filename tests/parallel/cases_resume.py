"""Learning rates, saving, loading and resuming. LINEAR: one weight from 0 whose gradient is the mean of x."""

import contextlib
import tempfile
from pathlib import Path

import keras
import numpy as np

import kerasdist
from tests.callbacks import Rates

RANK, SIZE = kerasdist.init().rank, kerasdist.init().size
STRATEGY = kerasdist.DataParallelStrategy(auto_shard=False)
DOORS = ("scope", "callback")


def linear(y_true, y_pred):
    return y_pred


def opened(door):
    """The strategy's scope, or none for the callback."""
    return STRATEGY.scope() if door == "scope" else contextlib.nullcontext()


def door_of(door):
    return [] if door == "scope" else [kerasdist.DistributedOptimizer()]


def net(door, optimizer, loss=linear, **arguments):
    with opened(door):
        dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        model = keras.Sequential([keras.Input((1,)), dense])
        model.compile(optimizer, loss, **arguments)
    return model


def weight(model):
    return float(model.get_weights()[0].item())


def fit(model, door, *callbacks, x=(2.0 * RANK, 2.0 * RANK), epochs=3, **arguments):
    """Trains on 2 batches of this rank's own, whose mean over two ranks is 1; the rates and the weight."""
    x, rates = np.array(x, "float32")[:, None], Rates()
    call = {"batch_size": 1, "epochs": epochs, "shuffle": False, "verbose": 0} | arguments
    model.fit(x, x, callbacks=[*callbacks, *door_of(door), rates], **call)
    return rates.seen, -weight(model)


# Learning rates -----------------------------------------------------------------------------------------------------


def warmup(**arguments):
    return kerasdist.LearningRateWarmup(kerasdist.scaled_learning_rate(0.1), epochs=2, **arguments)


def case_learning_rates():
    """LR-1: what is asked for once, twice, not at all; in either door, and one mode of execution in each."""
    sgd, found = keras.optimizers.SGD, {}
    found["nothing", "scope"] = fit(net("scope", sgd(0.1)), "scope")
    for door in DOORS:
        model = net(door, sgd(0.1))
        found["callback", door] = fit(model, door, warmup(), warmup())
        with opened(door):
            model.compile(sgd(0.2), linear)
        rates, lost = fit(model, door, warmup())
        found["callback again", door] = rates, lost - found["callback", door][1]
    found["executions", "scope"] = fit(net("scope", sgd(0.1), steps_per_execution=2), "scope", warmup())
    accumulating = net("callback", sgd(0.1, gradient_accumulation_steps=2))
    found["accumulation", "callback"] = fit(accumulating, "callback", warmup(), epochs=2)
    for door, mode in (("scope", {}), ("callback", {"steps_per_execution": 2})):
        schedule = kerasdist.WarmupSchedule(kerasdist.scaled_learning_rate(0.1), 4)
        found["schedule", door] = (None, fit(net(door, sgd(schedule), **mode), door)[1])
    return found


def case_rates_on_resume():
    """LR-2: a fit that goes on takes the rates of its epochs, also where they have fallen."""
    found, path = {}, Path(tempfile.mkdtemp()) / "model.keras"
    found["within the warm-up"] = fit(net("scope", keras.optimizers.SGD(0.1)), "scope", warmup(), initial_epoch=1)

    def decay(epoch, rate):
        return 0.2 if epoch < 3 else 0.02

    after = keras.optimizers.schedules.PiecewiseConstantDecay([1], [0.2, 0.02])
    schedule = kerasdist.WarmupSchedule(0.2, 4, after=after)
    for name, door, rate in (("schedule", "scope", schedule), ("callback", "callback", 0.1)):
        model = net(door, keras.optimizers.SGD(rate), keras.losses.MeanAbsoluteError())
        callbacks = [] if name == "schedule" else [keras.callbacks.LearningRateScheduler(decay), warmup()]
        rates = fit(model, door, *callbacks, epochs=4)[0]
        model.save(path) if RANK == 0 else None
        with opened(door):
            model = kerasdist.load_model(path)
        found[name] = rates + fit(model, door, *callbacks, epochs=5, initial_epoch=4)[0]
    return found


def case_fails_rates_differ():
    warmup = kerasdist.LearningRateWarmup(0.1 * (1 + RANK))
    return fit(net("scope", keras.optimizers.SGD(0.1)), "scope", warmup)


def case_fails_schedules_differ():
    schedule = kerasdist.WarmupSchedule(0.1 * (1 + RANK), 4)
    return fit(net("scope", keras.optimizers.SGD(schedule)), "scope")


# Saving and loading -------------------------------------------------------------------------------------------------

FIRST, SECOND = np.array([[1.0, 2.0], [3.0, -1.0]]), np.array([[-2.0, 1.0], [0.5, 4.0]])  # of two ranks


def adam(door):
    with opened(door):
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.1), keras.losses.MeanSquaredError())
    return model


def step(model, door, x):
    mine = x[RANK : RANK + 1]
    model.fit(mine, mine[:, :1], verbose=0, callbacks=door_of(door))


def state(model):
    return [np.asarray(v) for v in (*model.weights, *model.optimizer.variables)]


def case_save_load_and_go_on():
    """SAVE-1: one step, rank 0 saves, all load, one step on other data; and the same without the break."""
    found, folder = {}, Path(tempfile.mkdtemp())
    shared = Path(bytes(kerasdist.broadcast(np.frombuffer(f"{folder!s:128}".encode(), np.uint8))).decode().strip())
    for door in DOORS:
        straight = adam(door)
        step(straight, door, FIRST)
        if RANK == 0:
            straight.save(folder / f"{door}.keras")
        kerasdist.barrier()
        step(straight, door, SECOND)
        found[door, "straight"] = state(straight)
        with opened(door):
            loaded = kerasdist.load_model(folder / f"{door}.keras")  # only rank 0's folder holds it
        step(loaded, door, SECOND)
        found[door, "kerasdist.load_model"] = state(loaded)
    with opened("scope"):
        loaded = keras.models.load_model(shared / "scope.keras")
    step(loaded, "scope", SECOND)
    found["scope", "keras.models.load_model"] = state(loaded)
    found["files"] = sorted(path.name for path in folder.iterdir())
    return found


def case_weights_of_rank_zero():
    """Weights that rank 0 alone loads, and their optimizer's state, are those that all train on with."""
    path, model = Path(tempfile.mkdtemp()) / "only.weights.h5", adam("scope")
    step(model, "scope", FIRST)
    model.save_weights(path)
    model = adam("scope")
    model.optimizer.build(model.trainable_variables)
    if RANK == 0:
        model.load_weights(path)
    step(model, "scope", SECOND)
    return state(model)


def case_files_of_two_workers():
    """SAVE-2: the bytes of each kind of file that rank 0 writes, and its weights."""
    model, folder = adam("scope"), Path(tempfile.mkdtemp())
    step(model, "scope", FIRST)
    for name in ("model.keras", "only.weights.h5", "model.h5"):
        model.save_weights(folder / name) if "weights" in name else model.save(folder / name)
    return {path.name: path.read_bytes() for path in folder.iterdir()}, model.get_weights()


def case_files_that_cannot_be_loaded():
    """What every rank is told, and that the ranks are still in step afterwards."""
    folder, found = Path(tempfile.mkdtemp()), {}
    model = adam("scope")
    model.save(folder / "whole.keras")
    if RANK == 0:
        (folder / "torn.keras").write_bytes((folder / "whole.keras").read_bytes()[:-30])
    for name in ("none.keras", "torn.keras", "whole.txt"):
        try:
            kerasdist.load_model(folder / name)
        except Exception as error:
            found[name] = (type(error).__name__, str(error))

    class Only(keras.layers.Layer):
        pass

    model = keras.Sequential([keras.Input((2,)), Only()])
    if RANK == 0:
        model.save(folder / "own.keras")
    try:
        kerasdist.load_model(folder / "own.keras", custom_objects={"Only": Only} if RANK == 0 else None)
    except Exception as error:
        found["own.keras"] = (type(error).__name__, str(error))
    found["after"] = float(kerasdist.all_reduce(1.0, "sum"))
    return found


def case_a_large_file_travels_in_pieces():
    from kerasdist import transport

    path, whole = Path(tempfile.mkdtemp()) / "model.keras", transport.CHUNK_BYTES
    model = adam("callback")
    model.save(path) if RANK == 0 else None
    transport.CHUNK_BYTES = 1000
    try:
        loaded = kerasdist.load_model(path)
    finally:
        transport.CHUNK_BYTES = whole
    return path.exists(), loaded.get_weights(), model.get_weights()


# Resuming -----------------------------------------------------------------------------------------------------------


class Breaks(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 2:
            raise KeyboardInterrupt


def case_backup():
    """SAVE-5: stopped at epoch 2 of 4, started again; only rank 0's folder holds the backup."""
    found = {}
    x = np.concatenate([FIRST, SECOND])[RANK::SIZE]
    call = {"batch_size": 1, "epochs": 4, "shuffle": False, "verbose": 0}
    straight = adam("scope")
    straight.fit(x, x[:, :1], **call)
    for door in DOORS:
        backup = keras.callbacks.BackupAndRestore(Path(tempfile.mkdtemp()) / "backup")
        try:
            adam(door).fit(x, x[:, :1], callbacks=[backup, *door_of(door), Breaks()], **call)
        except KeyboardInterrupt:
            there = Path(backup.backup_dir).exists()
        resumed = adam(door)
        history = resumed.fit(x, x[:, :1], callbacks=[*door_of(door), backup], **call)
        found[door] = there, history.epoch, state(straight), state(resumed)
    return found


def case_only_rank_zero_writes():
    """After a fit through either door, each rank saves to a folder of its own: which files are there."""
    found = {}
    for door in DOORS:
        model = net(door, keras.optimizers.SGD(0.1))
        fit(model, door)
        folder = Path(tempfile.mkdtemp())
        model.save(folder / "method.keras")
        model.save_weights(folder / "method.weights.h5")
        keras.saving.save_model(model, folder / "function.keras")
        keras.saving.save_model(model, folder / "function.h5")
        keras.saving.save_weights(model, folder / "function.weights.h5")
        model.export(folder / "exported", verbose=False)
        found[door] = sorted(path.name for path in folder.iterdir())
    alone = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    alone.save(folder / "alone.keras")
    return found, (folder / "alone.keras").exists()


def case_fails_epochs_differ():
    return fit(net("scope", keras.optimizers.SGD(0.1)), "scope", initial_epoch=RANK)
