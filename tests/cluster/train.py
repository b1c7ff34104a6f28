"""What every launcher starts in these tests: the example, and then a training in which the last rank dies.

    train.py FOLDER FAULT       FAULT is raise, kill or none

Rank 0 writes the example's weights to FOLDER; every rank what it listens at; the last rank the time of its death.
"""

import json
import os
import runpy
import signal
import sys
import time
from pathlib import Path

from tests.lean import keras  # isort: split

import numpy as np
import psutil

import kerasdist

ROOT = Path(__file__).parents[2]
FOLDER, FAULT = Path(sys.argv[1]), sys.argv[2]


class Dies(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if kerasdist.rank() == kerasdist.size() - 1 and batch == 3:
            (FOLDER / "died").write_text(repr(time.time()))
            if FAULT == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError("boom")


def main():
    sys.argv = ["digits.py", "--epochs", "1", "--save", str(FOLDER / "weights.npz")]
    runpy.run_path(str(ROOT / "examples" / "digits.py"), run_name="__main__")
    doors = [one.laddr for one in psutil.Process().net_connections("tcp") if one.status == psutil.CONN_LISTEN]
    (FOLDER / f"listens.{kerasdist.rank()}.json").write_text(json.dumps(doors))
    if FAULT == "none":
        return
    with kerasdist.DataParallelStrategy(auto_shard=False).scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    data = np.ones((1000, 1), "float32")
    model.fit(data, data, batch_size=1, epochs=100, verbose=0, callbacks=[Dies()])


main()
