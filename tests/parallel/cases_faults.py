"""One rank does what the others do not: every rank learns of it, at the same step, and can go on afterwards.

The model is LINEAR (one weight, loss = w x, SGD(0.1)) on x = 1: each applied step moves the weight by -0.1.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
import warnings

import keras
import numpy as np
import tensorflow as tf

import kerasdist
from tests.parallel.cases_core import compiled, linear, net, own, weight

RANK, SIZE = kerasdist.init().rank, kerasdist.init().size
LAST = SIZE - 1
X = np.ones((8, 1), "float32")


class At(keras.callbacks.Callback):
    """Does something on one rank at the end of one step of one epoch."""

    def __init__(self, action, step=2, epoch=0, rank=LAST):
        super().__init__()
        self.action, self.step, self.at_epoch, self.rank = action, step, epoch, rank
        self.epoch, self.ended = 0, []

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        self.ended.append(batch)
        if rank_is(self.rank) and (self.epoch, batch) == (self.at_epoch, self.step):
            self.action(self)


HOOKS = ("on_train_begin", "on_epoch_begin", "on_test_begin", "on_epoch_end", "on_test_end", "on_train_end")


class Notes(keras.callbacks.Callback):
    """Notes the ends of epochs, and how often validation began."""

    def __init__(self):
        super().__init__()
        self.ends, self.validations = [], 0

    def on_epoch_end(self, epoch, logs=None):
        self.ends.append((epoch, dict(logs)))

    def on_test_begin(self, logs=None):
        self.validations += 1


def rank_is(rank):
    return rank == RANK


def doors():
    """(name, model, extra callbacks) of both doors."""
    yield "scope", compiled(own(), linear), []
    model = net()
    model.compile(keras.optimizers.SGD(0.1), linear)
    yield "callback", model, [kerasdist.DistributedOptimizer()]


def fit(model, *callbacks, x=X, epochs=2, **arguments):
    arguments = {"batch_size": 1, "shuffle": False, "verbose": 0, **arguments}
    return model.fit(x, x if isinstance(x, np.ndarray) else None, epochs=epochs, callbacks=list(callbacks), **arguments)


def fail(*_):
    raise RuntimeError("boom")


def caught(function, *arguments, **keywords):
    """(kind, message, seconds) of what a call raised."""
    start = time.monotonic()
    try:
        function(*arguments, **keywords)
    except (tf.errors.OpError, RuntimeError, ValueError, KeyboardInterrupt) as error:
        return type(error).__name__, str(error), time.monotonic() - start
    return "nothing", "", time.monotonic() - start


def case_exception_in_a_callback():
    found = {}
    for door, model, extra in doors():
        found[door] = (*caught(fit, model, *extra, At(fail)), weight(model))
    return found


def case_exception_at_the_ends():
    """In hooks around the collectives of an epoch's end, and before the first step."""
    found = {}
    for hook in HOOKS:
        callback = keras.callbacks.LambdaCallback()
        if RANK == LAST:
            setattr(callback, hook, fail)
        model = compiled(own(), linear)
        found[hook] = caught(fit, model, callback, validation_data=(X, X))[:2]
    return found


def case_keyboard_interrupt():
    def interrupt(_):
        raise KeyboardInterrupt

    return caught(fit, compiled(own(), linear), At(interrupt))


def breaking(at):
    """Eight batches, of which one cannot be read on the last rank."""

    def batches():
        for step in range(8):
            if step == at and RANK == LAST:
                raise OSError("no such file")
            yield X[:1], X[:1]

    spec = (tf.TensorSpec([None, 1]), tf.TensorSpec([None, 1]))
    data = tf.data.Dataset.from_generator(batches, output_signature=spec)
    return data.apply(tf.data.experimental.assert_cardinality(8))


def case_exception_in_the_data():
    found = {}
    for door, model, extra in doors():
        kind, message, seconds = caught(fit, model, *extra, x=breaking(3))
        found[door] = kind, message, seconds, weight(model)
    return found


def case_exception_in_the_first_batch():
    """Of data that is shared out, which is compared: in training, validation and evaluation."""
    model = compiled(kerasdist.DataParallelStrategy(), linear)
    return {
        "fit": caught(fit, model, x=breaking(0), epochs=1, batch_size=None),
        "validation": caught(fit, model, epochs=1, validation_data=breaking(0)),
        "evaluate": caught(model.evaluate, breaking(0), verbose=0),
    }


def case_stop_in_a_batch_hook():
    """The step after the stop is not applied, on any rank: three steps, w = -0.3."""

    def stop(callback):
        callback.model.stop_training = True

    found = {}
    for door, model, extra in doors():
        at = At(stop)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            history = fit(model, *extra, at, epochs=3, validation_data=(X, X))
        found[door] = weight(model), history.history["loss"], history.epoch, at.ended, [str(w.message) for w in warned]
    model = compiled(own(), linear, steps_per_execution=2)
    history = fit(model, At(stop, step=3), epochs=3)
    found["two steps"] = weight(model), history.history["loss"], history.epoch
    return found


def case_terminate_on_nan():
    """Keras' TerminateOnNaN: one rank's batch loss is NaN at its third step; both end in that epoch."""
    x = X.copy()
    if RANK == LAST:
        x[2] = np.nan
    model = compiled(own(), linear)
    history = fit(model, keras.callbacks.TerminateOnNaN(), x=x, epochs=3)
    return np.isnan(weight(model)), history.epoch


def case_sigterm():
    """All ranks end after the same step of the second epoch with 143, and go on from the backup of the first."""

    def terminate(*_):
        os.kill(os.getpid(), signal.SIGTERM)

    def ended(model, *callbacks):
        notes = Notes()
        try:
            fit(model, *callbacks, notes, validation_data=(X, X), epochs=3)
            code = None
        except SystemExit as error:
            code = error.code
        return code, weight(model), [epoch for epoch, _ in notes.ends], notes.validations

    found = {}
    for door, model, extra in doors():
        in_validation = keras.callbacks.LambdaCallback()
        in_validation.on_test_begin = terminate if RANK == LAST else lambda logs=None: None
        found[door, "validation"] = ended(model, *extra, in_validation)
        backup = keras.callbacks.BackupAndRestore(tempfile.mkdtemp(prefix="kerasdist-backup-"))
        found[door] = ended(model, *extra, At(terminate, step=4, epoch=1), backup)
        found[door, "again"] = fit(model, *extra, backup, epochs=3).epoch, weight(model)
    return found, signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def case_one_rank_evaluates_alone():
    strategy = kerasdist.DataParallelStrategy()
    model = compiled(strategy, linear)
    model.fit(X, X, verbose=0)

    class Alone(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if RANK == 0:
                self.model.evaluate(X, X, verbose=0)

    found = {"without": caught(fit, model, Alone())}

    class Local(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            with strategy.local():
                if RANK == 0:
                    self.model.evaluate(X, X, verbose=0)

    found["with"] = caught(fit, model, Local())
    return found


def case_more_batches():
    """Ranks that say that their data has as many batches, but one has more."""
    count = 8 if RANK == LAST else 6
    data = tf.data.Dataset.from_tensors((X[:1], X[:1])).repeat(count)
    model = compiled(own(), linear)
    return caught(fit, model, x=data, steps_per_epoch=8, epochs=1), weight(model)


def case_other_model():
    model = net(units=1 + (RANK == LAST))
    model.compile("sgd", "mse")
    return caught(model.fit, X, X, verbose=0, callbacks=[kerasdist.DistributedOptimizer()])


def case_another_order_of_calls():
    return caught(kerasdist.all_reduce, 1.0, name="a" if RANK == LAST else "b")


def case_another_kind_of_value():
    """What one rank brings to a collective has another shape, type, reduction or root."""
    last, two, three = RANK == LAST, np.zeros(2, np.float32), np.zeros(3, np.float32)
    return {
        "shape": caught(kerasdist.all_reduce, three if last else two),
        "type": caught(kerasdist.all_reduce, two.astype(np.float64) if last else two),
        "op": caught(kerasdist.all_reduce, two, "sum" if last else "max"),
        "rows": caught(kerasdist.all_gather, np.zeros((1, 3 if last else 2), np.float32)),
        "root": caught(kerasdist.broadcast, two, 1 if last else 0),
        "right": float(kerasdist.all_reduce(float(RANK), "sum")),
    }


def case_watchdog():
    """One rank's weight, or rate, is changed after step 3; the ranks compare after every second step."""

    def change_weight(callback):
        callback.model.trainable_variables[0].assign_add([[1.0]])

    def change_rate(callback):
        callback.model.optimizer.learning_rate = 0.5

    found = {}
    for action in ("raise", "warn", "repair"):
        for what, change in (("weight", change_weight), ("rate", change_rate)):
            options = kerasdist.Options(watch_every=2, on_divergence=action)
            model = compiled(own(options=options), linear)
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                outcome = caught(fit, model, At(change), epochs=1)
            said = [str(w.message) for w in warned if "do not hold the same model" in str(w.message)]
            found[action, what] = outcome[:2], said, weight(model), float(model.optimizer.learning_rate)
    return found


def case_watchdog_at_the_end():
    """The last hook changes the weights of one rank, in a training of fewer steps than the watchdog waits for."""
    callback = keras.callbacks.LambdaCallback()
    model = compiled(own(), linear)
    if RANK == LAST:
        callback.on_train_end = lambda logs=None: model.set_weights([np.ones((1, 1))])
    return caught(fit, model, callback, epochs=1)


def case_goes_on():
    """After all of the above the ranks still train together."""
    model = compiled(own(), linear)
    fit(model, x=X * (1 + 2 * RANK), epochs=1)
    return weight(model)
