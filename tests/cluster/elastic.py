"""What an elastic job trains: 3 workers, of which one is killed; 2 go on; then there is room for 3 again.

    elastic.py FOLDER       FOLDER/hosts is what the discovery script prints

Every rank of every start notes its size and the step at which it began; at the end its weights. The one process of
plain Keras that this is compared with calls `trained` too.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from tests.lean import keras  # isort: split

import numpy as np

EPOCHS, BATCH, STEPS = 4, 6, 5  # the last global batch of an epoch has 2 rows: one worker of 3 has none


def trained(scope, *callbacks, **options):
    """Fits the model; its history and state."""
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    keras.utils.set_random_seed(3)
    rng = np.random.default_rng(4)
    x, y = rng.normal(size=(26, 3)), rng.normal(size=(26, 1))
    with scope:
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.05), "mse", metrics=["mae"])
    history = model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, verbose=0, callbacks=[*callbacks], **options)
    values = [np.asarray(one) for one in (*model.weights, *model.optimizer.variables)]
    return history.history, values, int(model.optimizer.iterations)


def write(path, text):
    """At once: it may be read at any moment."""
    path.with_suffix(".part").write_text(text)
    os.replace(path.with_suffix(".part"), path)


def main(folder):
    import kerasdist
    from kerasdist.engine import meeting
    from kerasdist.launch import progress

    start = progress.restarts()
    strategy = kerasdist.DataParallelStrategy(global_batch=True)
    rank, logs = strategy.rank, {}

    class Disturbed(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.epoch = epoch

        def on_train_batch_end(self, batch, logs=None):
            noted = folder / f"began.{start}.{rank}.json"
            if not noted.exists():
                noted.write_text(json.dumps([strategy.size, int(self.model.optimizer.iterations)]))
            if (start, rank, self.epoch, batch) == (0, 2, 1, 2):
                write(folder / "hosts", "localhost:2\n")
                os.kill(os.getpid(), signal.SIGKILL)
            if (start, rank, self.epoch, batch) == (1, 0, 2, 2):
                write(folder / "hosts", "# again\nlocalhost slots=3\n")
                end = time.monotonic() + 30
                while not meeting.terminating() and time.monotonic() < end:
                    time.sleep(0.02)

        def on_epoch_end(self, epoch, logs_now=None):
            logs[epoch] = logs_now

    checkpoint = kerasdist.Checkpoint(folder / "checkpoints", every=2)
    _, values, steps = trained(strategy.scope(), Disturbed(), checkpoint)
    np.savez(folder / f"weights.{rank}.npz", *values)
    (folder / f"ended.{rank}.json").write_text(json.dumps({"steps": steps, "logs": logs}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
