"""Kills a random worker at a random moment of a training, again and again: does every one come back?

    python -m tests.parallel.crash --runs 100 --seed 1

Each run trains on 2 workers with a checkpoint every few steps, sends SIGKILL or SIGTERM to one of them, and starts the
job again until it is done. The weights at the end must be those of a training that nobody disturbed; no process may be
left over, and no file may be found torn.
"""

from __future__ import annotations

import argparse
import atexit
import collections
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from tests.parallel.launch import ENVIRONMENT, LAUNCHER, ROOT, command

WORKERS, EPOCHS, STARTS = 2, 3, 4
END_S, UNDISTURBED_S = 90.0, 300.0
ATOL = 1e-6


def worker(folder: Path) -> None:
    """The training: a new order in each epoch, random layers, moving statistics, residuals."""
    from tests.lean import keras  # isort: split

    import kerasdist

    class Marks(keras.callbacks.Callback):
        """Says when the training begins, and makes its steps last a little."""

        def on_train_begin(self, logs=None):
            (folder / f"pid.{kerasdist.rank()}").write_text(str(os.getpid()))

        def on_train_batch_begin(self, batch, logs=None):
            time.sleep(0.02)

    keras.utils.set_random_seed(1)
    strategy = kerasdist.DataParallelStrategy(compression="topk")
    rng = np.random.default_rng(5)
    x, y = rng.normal(size=(190, 16)), rng.normal(size=(190, 1))
    with strategy.scope():
        layers = keras.layers
        body = [layers.Dense(256, activation="tanh"), layers.BatchNormalization(), layers.Dropout(0.2)]
        model = keras.Sequential([keras.Input((16,)), *body, layers.Dense(256), layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    checkpoint = kerasdist.Checkpoint(folder / "checkpoints", every=3)
    data = kerasdist.shard(x, y, batch_size=5, seed=3)
    model.fit(data, epochs=EPOCHS, verbose=0, callbacks=[checkpoint, Marks()])
    if strategy.rank == 0:
        values = [np.asarray(one) for one in (*model.weights, *model.optimizer.variables)]
        np.savez(folder / "part.npz", *values)
        os.replace(folder / "part.npz", folder / "weights.npz")


class Job:
    """One start of the training."""

    def __init__(self, folder: Path, end_s: float) -> None:
        self.folder, self.end_s = folder, end_s
        for path in folder.glob("pid.*"):
            path.unlink()
        self.orphans = 0
        self.log = tempfile.TemporaryFile("w+")
        line = command(WORKERS, LAUNCHER, ["-m", "tests.parallel.crash", "--worker", str(folder)])
        self.process = subprocess.Popen(
            line,
            cwd=ROOT,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=os.environ | ENVIRONMENT,
        )
        atexit.register(self.kill)

    def kill(self) -> None:
        """Ends whatever of it is still there."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for pid in alive(self.folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def pids(self) -> list[int]:
        """The workers' processes, once all of them train; else none."""
        texts = [path.read_text() for path in sorted(self.folder.glob("pid.*"))]
        return [int(text) for text in texts] if len(texts) == WORKERS and all(texts) else []

    def wait_for_training(self) -> bool:
        """Whether it began to train."""
        deadline = time.monotonic() + END_S
        while not self.pids() and self.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        return bool(self.pids())

    def end(self) -> tuple[int | None, str]:
        """The exit code, None if it hung, and the output. Nothing of it is left running."""
        try:
            code: int | None = self.process.wait(self.end_s)
        except subprocess.TimeoutExpired:
            code = None
        time.sleep(0.2)
        left = [pid for pid in alive(self.folder) if pid != os.getpid()]
        deadline = time.monotonic() + 10
        while code is not None and left and time.monotonic() < deadline:
            time.sleep(0.2)
            left = alive(self.folder)
        self.orphans = len(left) if code is not None else 0
        self.kill()
        self.process.wait()
        self.log.seek(0)
        return code, self.log.read()


def alive(folder: Path) -> list[int]:
    """The processes whose command line names this run's own folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if str(folder) in path.read_bytes().decode(errors="replace") and int(path.parent.name) != os.getpid():
                found.append(int(path.parent.name))
    return found


def undisturbed(home: Path) -> tuple[list[np.ndarray], float]:
    """The final state of a training that nobody disturbs, and how long it trains."""
    folder = home / "undisturbed"
    folder.mkdir()
    job = Job(folder, UNDISTURBED_S)
    job.wait_for_training()
    begun = time.monotonic()
    code, output = job.end()
    assert code == 0, output[-4000:]
    return final(folder), time.monotonic() - begun


def final(folder: Path) -> list[np.ndarray]:
    with np.load(folder / "weights.npz", allow_pickle=False) as file:
        return [file[name] for name in file.files]


def disturbed(folder: Path, chance: random.Random, lasts_s: float) -> dict[str, object]:
    """One run: killed once in its first start, and started until it is done."""
    name, rank = chance.choice(["SIGKILL", "SIGTERM"]), chance.randrange(WORKERS)
    moment = chance.uniform(0, lasts_s)
    found: dict[str, object] = {"signal": name, "rank": rank, "moment": moment, "hung": 0, "orphans": 0, "torn": 0}
    for start in range(1, STARTS + 1):
        job = Job(folder, END_S + 3 * lasts_s)
        if start == 1 and job.wait_for_training():
            time.sleep(moment)
            with contextlib.suppress(ProcessLookupError):
                os.kill(job.pids()[rank], getattr(signal, name))
        code, output = job.end()
        found["hung"] += code is None
        found["orphans"] += job.orphans
        found["torn"] += output.count(" is not used: ")
        if start == 1:
            found["code"], found["left"] = code, len(list((folder / "checkpoints").glob("*.npz")))
        if code == 0 and (folder / "weights.npz").exists():
            found["starts"] = start
            return found
    found["starts"], found["output"] = None, output
    return found


def main(runs: int, seed: int) -> int:
    """All runs, and a table of what came of them; 0 if every one came back right."""
    from rich.console import Console
    from rich.table import Table

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing is left running
    chance, rows = random.Random(seed), []
    console = Console()
    with tempfile.TemporaryDirectory(prefix="kerasdist-crash-") as home:
        expected, lasts_s = undisturbed(Path(home))
        for number in range(runs):
            folder = Path(home) / f"run{number}"
            folder.mkdir()
            row = disturbed(folder, chance, lasts_s)
            done = row["starts"] is not None
            pairs = zip(final(folder), expected, strict=True) if done else []
            row["difference"] = max((float(np.abs(a - b).max(initial=0)) for a, b in pairs), default=np.inf)
            rows.append(row)
            console.print(
                f"run {number}: {row}" if not done else f"run {number}: {row['signal']} {row['difference']:g}"
            )
    table = Table(title=f"{runs} runs of {lasts_s:.1f} s, seed {seed}")
    for column in ("signal", "runs", "came back", "equal", "killed before it ended", "orphans", "hung", "torn files"):
        table.add_column(column)
    for name in ("SIGKILL", "SIGTERM"):
        mine = [row for row in rows if row["signal"] == name]
        counts = collections.Counter()
        for row in mine:
            counts["came back"] += row["starts"] is not None
            counts["equal"] += row["difference"] <= ATOL
            counts["killed"] += row["code"] != 0
            for key in ("orphans", "hung", "torn"):
                counts[key] += row[key]
        cells = [counts[key] for key in ("came back", "equal", "killed", "orphans", "hung", "torn")]
        table.add_row(name, str(len(mine)), *map(str, cells))
    console.print(table)
    right = [row["difference"] <= ATOL and not (row["orphans"] or row["hung"] or row["torn"]) for row in rows]
    return 0 if all(right) else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--worker", type=Path)
    chosen = parser.parse_args()
    sys.exit(worker(chosen.worker) if chosen.worker else main(chosen.runs, chosen.seed))
