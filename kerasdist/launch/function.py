"""Run a function on several workers of this host, from a notebook or a script."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kerasdist.config import positive_integer
from kerasdist.errors import EngineError, RankFailedError
from kerasdist.launch.job import Job, Plan, cause, end_now, meeting, plan, slot_variables, supervise
from kerasdist.launch.workers import Start, Worker

CALL = Path(__file__).with_name("call.py")


def run(
    fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, num_workers: int = 2
) -> list[Any]:
    """Calls a function on each of several new processes of this host, which form a job of as many ranks.

    Function, arguments and results travel through pipes between this process and its own children, as cloudpickle
    packs them; a lambda or a function of a notebook will do. Each line that a rank prints has its rank in front.

    Args:
        fn: The function. It trains as a script does: it makes a strategy, or calls ``kerasdist.init()``.
        args: Its positional arguments, the same on every rank. Default none.
        kwargs: Its keyword arguments. Default none.
        num_workers: The number of processes. Default 2.

    Returns:
        Each rank's result, in rank order.

    Raises:
        RankFailedError: A rank raised or was killed; the message names it and holds its traceback. All others are
            ended.
        EngineError: Horovod is not installed, or this process is itself a worker.
    """
    positive_integer("num_workers", num_workers)
    if not callable(fn):
        raise TypeError(f"`fn` must be a function. Received: fn={fn!r} of type {type(fn).__name__}")
    from kerasdist.launch.environment import read_environment

    outer = read_environment(os.environ)
    if (outer.size or 1) > 1:
        raise EngineError(
            f"kerasdist.run starts workers, but this process is itself one of {outer.size} that {outer.launcher} "
            "started. Start the script with plain python."
        )
    import cloudpickle

    payload = cloudpickle.dumps((fn, tuple(args), dict(kwargs or {})))
    planned = plan(Job([], num_workers))
    interrupted = _Interrupted()
    with meeting(planned) as port:
        calls: list[_Call] = []
        try:
            calls.extend(_Call(rank, payload, planned, port) for rank in range(num_workers))
            supervise([call.worker for call in calls], interrupted, grace_s=10.0)
        finally:
            end_now([call.worker for call in calls])
    _raise_failure(calls)
    return [call.result() for call in calls]


def _raise_failure(calls: Sequence[_Call]) -> None:
    failed = cause([call.worker for call in calls])
    if failed is None:
        return
    rank = failed.start.rank
    said = calls[rank].failure
    if said:
        raise RankFailedError(f"rank {rank} failed: {said['error']}\n\n{said['traceback']}")
    code = failed.code or 0
    name = f"signal {signal.Signals(code - 128).name}" if code > 128 else f"exit code {code}"
    raise RankFailedError(f"rank {rank} ended by {name} before it had a result.\n{''.join(failed.errors)[-2000:]}")


class _Interrupted:
    """No signals are taken over: the caller's process keeps its own handlers."""

    count = 0


class _Call:
    """The function on one rank: its process and the two pipes to it."""

    def __init__(self, rank: int, payload: bytes, planned: Plan, port: int) -> None:
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        variables = {**slot_variables(planned.slots[rank]), **planned.variables}
        variables["HOROVOD_GLOO_RENDEZVOUS_PORT"] = str(port)
        paths = [path or os.getcwd() for path in sys.path]  # what this process can import, the workers can
        command = [sys.executable, "-P", str(CALL), str(theirs_in), str(theirs_out), json.dumps(paths)]
        try:
            self.worker = Worker(Start(rank, None, command, variables, (theirs_in, theirs_out)), _show)
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
        self._answer = b""
        self._threads = [
            threading.Thread(target=self._send, args=[payload], daemon=True),
            threading.Thread(target=self._receive, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def failure(self) -> dict[str, str] | None:
        """What its function raised, if it did: "error" and "traceback"."""
        self._threads[1].join(10)
        found: dict[str, str] | None = json.loads(self._answer[1:]) if self._answer[:1] == b"E" else None
        return found

    def result(self) -> Any:
        """What its function returned, unpacked from the pipe of this process's own child."""
        import cloudpickle

        self._threads[1].join(10)
        if self._answer[:1] != b"R":
            raise RankFailedError(f"rank {self.worker.start.rank} ended without a result, with exit code 0.")
        return cloudpickle.loads(self._answer[1:])

    def _send(self, payload: bytes) -> None:
        try:
            with os.fdopen(self._out, "wb") as pipe:
                pipe.write(payload)
        except OSError:
            pass  # the process has ended; its exit code says why

    def _receive(self) -> None:
        with os.fdopen(self._in, "rb") as pipe:
            self._answer = pipe.read()


def _show(rank: int, text: str, is_error: bool) -> None:
    print(f"[{rank}] {text}", end="", file=sys.stderr if is_error else sys.stdout, flush=True)
