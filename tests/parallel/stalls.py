"""A worker whose rank 0 does what the others do not. Started by test_stall.py with the kind of stall."""

import sys
import time

import keras
import numpy as np

import kerasdist

TIMEOUT_S = 6


def main(kind: str) -> None:
    options = kerasdist.Options(timeout_s=TIMEOUT_S)
    strategy = kerasdist.DataParallelStrategy(options=options)
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x = np.ones((64, 1), "float32")

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = strategy.rank == 0 and batch == 3

    if kind == "stop":
        model.fit(x, x, batch_size=2, epochs=2, callbacks=[Stop()], verbose=0)
    elif kind == "evaluate" and strategy.rank == 0:
        model.evaluate(x, x, verbose=0)
    elif kind == "raise":
        if strategy.rank == 1:
            raise RuntimeError("boom")
        model.fit(x, x, verbose=0)
    time.sleep(120 if kind == "evaluate" else 0)


if __name__ == "__main__":
    main(sys.argv[1])
