"""A worker one of whose ranks ends the job. Started by test_stall.py with the kind of fault."""

import os
import signal
import sys
import time

from tests.lean import keras  # isort: split

import numpy as np
import tensorflow as tf

import kerasdist

TIMEOUT_S = 8


def first_two(x):
    """Fails for another width, when a batch comes and not before."""
    return tf.ensure_shape(tf.reshape(x, [tf.shape(x)[0] * tf.shape(x)[1] // 2, 2]), [None, 2])


class At(keras.callbacks.Callback):
    """Does something at the end of the fourth step."""

    def __init__(self, action):
        super().__init__()
        self.action = action

    def on_train_batch_end(self, batch, logs=None):
        if batch == 3 and sys.argv[1] != "sleep in validation":
            self.action()

    def on_test_batch_end(self, batch, logs=None):
        if batch == 2:
            self.action()


def boom():
    raise RuntimeError("boom")


def slow_forward(x):
    """Takes long, or fails, in the fourth step on the last rank."""

    def wait(value):
        slow_forward.calls += 1
        if slow_forward.calls == 4 and kerasdist.rank() == kerasdist.size() - 1:
            if sys.argv[1] == "error in a step":
                raise RuntimeError("boom")
            time.sleep(100)
        return value

    return tf.ensure_shape(tf.numpy_function(wait, [x], tf.float32), x.shape)


slow_forward.calls = 0


def main(kind: str) -> None:
    options = kerasdist.Options(timeout_s=TIMEOUT_S)
    strategy = kerasdist.DataParallelStrategy(options=options, auto_shard=False)
    with strategy.scope():
        slow = [keras.layers.Lambda(slow_forward)] if kind.endswith("in a step") else []
        model = keras.Sequential([keras.Input((None,)), keras.layers.Lambda(first_two), *slow, keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x, y = np.ones((64, 2), "float32"), np.ones((64, 1), "float32")
    last = strategy.rank == strategy.size - 1
    actions = {
        "sleep": lambda: time.sleep(100),
        "sleep in validation": lambda: time.sleep(100),
        "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "wrong shape": lambda: None,
        "sleep in a step": lambda: None,
        "error in a step": lambda: None,
        "boom": boom,
    }
    if kind == "evaluate":
        if strategy.rank == 0:
            model.evaluate(x, y, verbose=0)
        time.sleep(100)
    elif kind == "raise":
        if last:
            raise RuntimeError("boom")
        model.fit(x, y, verbose=0)
    else:
        if kind == "wrong shape" and last:
            x = np.ones((64, 3), "float32")
        callbacks = [At(actions[kind])] if last else []
        model.fit(x, y, batch_size=2, epochs=2, validation_data=(x, y), callbacks=callbacks, verbose=0)


if __name__ == "__main__":
    main(sys.argv[1])
