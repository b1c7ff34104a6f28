"""Starts real workers, and gathers what every rank of them found.

A group of N processes runs many cases, one after another. Each rank writes every case's result to a file as soon as
it has it. A test asks for one case and gets the results of all ranks; it fails if any rank failed, hung or is missing.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.parallel import background

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 420
# Of all workers. Ranks that have nothing to send ask each other for it every 5 ms, not every one: they share few cores.
ENVIRONMENT = {
    "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1", "HOROVOD_CYCLE_TIME": "5",
}  # fmt: skip
KERASDIST = [sys.executable, "-c", "from kerasdist.cli import main; main()"]


@dataclasses.dataclass(frozen=True)
class Failure:
    """An exception that a case raised on one rank."""

    kind: str
    message: str
    traceback: str


@dataclasses.dataclass(frozen=True)
class Job:
    """What a finished group of workers left behind."""

    exit_code: int
    results: dict[str, list[Any]]
    output: str

    def ranks(self, case: str) -> list[Any]:
        """The results of all ranks for a case; fails the test if one rank raised or is missing."""
        found = self.results.get(case, [])
        missing = [rank for rank, value in enumerate(found) if value is None]
        assert found and not missing, f"{case}: no result of ranks {missing or 'all'}\n{self.output[-6000:]}"
        for rank, value in enumerate(found):
            assert not isinstance(value, Failure), f"{case}: rank {rank}\n{value.traceback}"
        return found

    def failures(self, case: str) -> list[Failure]:
        """The exceptions of all ranks for a case; fails the test if one rank did not raise."""
        found = self.results.get(case, [])
        for rank, value in enumerate(found):
            assert isinstance(value, Failure), f"{case}: rank {rank} did not raise: {value}\n{self.output[-3000:]}"
        assert found, f"{case}: no results\n{self.output[-3000:]}"
        return found


@functools.cache
def mpi_missing() -> str | None:
    """Why workers cannot be started by mpirun here, or None."""
    if shutil.which("mpirun") is None:
        return "mpirun is not installed"
    probe = "import horovod.tensorflow as hvd; print('built' if hvd.mpi_built() else 'no')"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=120)
    return None if done.stdout.strip().endswith("built") else "Horovod was built without MPI"


def command(size: int, launcher: str, arguments: list[str]) -> list[str]:
    """The command line that starts ``python arguments`` on ``size`` workers.

    Over Gloo by ``kerasdist run``, which starts them in a second; ``horovodrun`` itself imports TensorFlow twice.
    """
    python = [sys.executable, *arguments]
    if launcher == "python":
        assert size == 1
        return python
    if launcher == "mpi":
        return [
            "mpirun", "--allow-run-as-root", "--oversubscribe", "-bind-to", "none", "-np", str(size),
            "-x", "PATH", "-x", "PYTHONPATH", *python,
        ]  # fmt: skip
    if launcher == "horovodrun":
        return [sys.executable, "-m", "horovod.runner.launch", "--gloo", "-np", str(size), *python]
    return [*KERASDIST, "run", "-np", str(size), *arguments]


def leave_input_untuned() -> None:
    """In this process: no epoch of a test is long enough to tune, and an iterator's end waits for the tuner."""
    import tensorflow as tf

    options, own = tf.data.Options(), tf.data.Dataset.__iter__
    options.autotune.enabled = False
    tf.data.Dataset.__iter__ = lambda self: own(self.with_options(options))


def leave_graphs_as_traced() -> None:
    """In this process: TensorFlow's optimizer of graphs takes a fifth of the time of small trainings."""
    import tensorflow as tf

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


LAUNCHER = os.environ.get("KERASDIST_TEST_LAUNCHER", "gloo")


def three_workers() -> str:
    """How 3 workers start: by mpirun where that can be, so that both ways of starting see every case."""
    return "mpi" if mpi_missing() is None else LAUNCHER


def run_cases(module: str, size: int, launcher: str = LAUNCHER) -> Job:
    """Runs every ``case_*`` of a module on ``size`` workers, once: tests of one module share one group.

    A module without a dot in its name stands in ``tests.parallel``.
    """
    return background.result((module, size, launcher), cases_run(module, size, launcher))


def small_cases() -> Job:
    """The one group of all small cases, at 2 workers."""
    return run_cases("cases_small", 2)


def cases_run(module: str, size: int, launcher: str) -> Callable[[], Job]:
    """What runs such a group."""
    return functools.partial(_run_cases, module, size, launcher)


def _run_cases(module: str, size: int, launcher: str) -> Job:
    timeout_s = 3 * TIMEOUT_S if module == "cases_small" else TIMEOUT_S
    with tempfile.TemporaryDirectory(prefix="kerasdist-") as folder:
        arguments = ["-m", "tests.parallel.worker", module, folder]
        code, output = run(command(size, launcher, arguments), timeout_s)
        results: dict[str, list[Any]] = {}
        for path in sorted(Path(folder).glob("*.pkl")):
            case, rank = path.stem.rsplit(".", 1)
            results.setdefault(case, [None] * size)[int(rank)] = pickle.loads(path.read_bytes())
    return Job(code, results, output)


def run(command_line: list[str], timeout_s: int, environment: dict[str, str] | None = None) -> tuple[int, str]:
    """Runs a command in a process group of its own and kills all of it at the timeout."""
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command_line, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, **ENVIRONMENT, **(environment or {})},
        )  # fmt: skip
        _running.add(process.pid)
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            code = 124
        finally:
            _kill(process.pid)
            process.wait()
            _running.discard(process.pid)
        log.seek(0)
        return code, log.read()


_running: set[int] = set()


def _kill(leader: int) -> None:
    """Ends a process group, if it is still there."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


@atexit.register
def _kill_all() -> None:
    """Nothing outlives the test run, groups in the background neither."""
    for leader in list(_running):
        _kill(leader)
