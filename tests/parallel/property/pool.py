"""Groups of workers that stay, so that a case costs no start of TensorFlow, and the comparison of what they found."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.parallel.launch import ENVIRONMENT, LAUNCHER, ROOT, Failure, command
from tests.parallel.property.cases import Case

TOLERANCE = 1e-9
START_S = 300  # on a machine that does other things too
CASE_S = 240
GRACE_S = 5  # for the other ranks, when one has failed


class Group:
    """N processes that answer cases; started when first asked, and anew after a failure.

    Args:
        kind: ``reference`` or ``workers``.
        size: The number of processes.
    """

    def __init__(self, kind: str, size: int) -> None:
        self.kind, self.size = kind, size
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = Path()
        self._asked = 0

    def ask(self, case: Case) -> None:
        """Has every rank run a case."""
        if self._process is None:
            self._start()
        question = self._folder / f"{self._asked}.json"
        question.with_suffix(".part").write_text(case.to_json())
        os.replace(question.with_suffix(".part"), question)
        self._asked += 1

    def answers(self) -> list[Any]:
        """What each rank found: a dict, a Failure, or a Failure in its place where there is no answer in time."""
        assert self._process is not None
        paths = [self._folder / f"{self._asked - 1}.{rank}.pkl" for rank in range(self.size)]
        first = self._asked == 1
        deadline = time.monotonic() + (START_S if first else CASE_S)
        found: dict[int, Any] = {}
        while len(found) < self.size and time.monotonic() < deadline:
            for rank, path in enumerate(paths):
                if rank not in found and path.exists():
                    found[rank] = pickle.loads(path.read_bytes())
                    if isinstance(found[rank], Failure):
                        deadline = min(deadline, time.monotonic() + GRACE_S)
            if self._process.poll() is not None:
                deadline = min(deadline, time.monotonic() + 1)
            time.sleep(0.01)
        if len(found) == self.size and not any(isinstance(one, Failure) for one in found.values()):
            return [found[rank] for rank in range(self.size)]
        log = (self._folder / "log").read_text(errors="replace")[-3000:]
        self.stop()
        missing = Failure("NoAnswer", "this rank did not answer: it hung, or the group ended", log)
        return [found.get(rank, missing) for rank in range(self.size)]

    def stop(self) -> None:
        """Ends the group."""
        if self._process is None:
            return
        shutil.rmtree(self._folder, ignore_errors=True)  # by which each rank leaves, in whatever it hangs
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._process = None

    def _start(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="kerasdist-"))
        self._asked = 0
        arguments = ["-m", "tests.parallel.property.worker", str(self._folder), str(os.getpid()), self.kind]
        with open(self._folder / "log", "wb") as log:
            self._process = subprocess.Popen(
                command(self.size, "python" if self.size == 1 else LAUNCHER, arguments), cwd=ROOT, stdout=log,
                stderr=subprocess.STDOUT, env={**os.environ, **ENVIRONMENT}, start_new_session=True,
            )  # fmt: skip


class Pool:
    """One reference process, and a group for each number of workers that was asked for."""

    def __init__(self) -> None:
        self._reference = Group("reference", 1)
        self._workers: dict[int, Group] = {}

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *error: Any) -> None:
        for group in (self._reference, *self._workers.values()):
            group.stop()

    def check(self, case: Case) -> None:
        """Raises AssertionError, with what differs on which rank, unless all ranks equal one process."""
        workers = self._workers.setdefault(case.workers, Group("workers", case.workers))
        for group in (self._reference, workers):
            group.ask(case)
        expected, ranks = self._reference.answers()[0], workers.answers()
        if isinstance(expected, Failure):
            raise RuntimeError(f"the drawn case is no training of plain Keras\n{case.to_json()}\n{expected.traceback}")
        wrong = [line for rank, found in enumerate(ranks) for line in differences(expected, found, f"rank {rank}")]
        if not wrong:
            for rank, found in enumerate(ranks[1:], start=1):
                wrong += [
                    f"rank {rank}: {name} is not rank 0's to the last bit"
                    for name in found
                    if name.startswith(("weight", "optimizer")) and found[name].tobytes() != ranks[0][name].tobytes()
                ]
        again = f"python -m tests.parallel.property --case '{case.to_json()}'"
        assert not wrong, "\n".join([*wrong[:8], f"{len(wrong)} differences. Again by:", again])


def differences(expected: dict[str, np.ndarray], found: Any, who: str) -> list[str]:
    """What one rank has that is not within the tolerance of one process; NaN equals NaN only."""
    if isinstance(found, Failure):
        return [f"{who}: {found.kind}: {found.message}\n{found.traceback}"]
    names = list(expected)
    if names != list(found):
        return [f"{who} has {sorted(set(found) ^ set(expected))} where one process has not, or the reverse"]
    lines = []
    for name in names:
        one, ours = np.asarray(expected[name], np.float64), np.asarray(found[name], np.float64)
        if one.shape != ours.shape or not np.allclose(ours, one, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True):
            lines.append(f"{who}: {name}: {ours.ravel()[:6]} where one process has {one.ravel()[:6]}")
    return lines
