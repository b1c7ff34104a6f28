"""Are all ranks at the same place? Asked before each collective outside of a graph, and at the start of each step.

Ranks wait for each other in collectives. If one of them is elsewhere (it failed, left the epoch, or runs code that the
others do not), the others would wait for ever. So each collective outside of a graph, each train step, each end of an
epoch and each failure begins with the same small exchange, in which every rank says where it is. A rank that fails
joins it once, and all others learn of it, wherever they are.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
import traceback
import zlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from kerasdist.engine.base import Group
from kerasdist.errors import RankFailedError, RankMismatchError

STEP, EPOCH_END, STOPPED, TERMINATED, FAILED = range(1, 6)
LEAVING = (EPOCH_END, STOPPED, TERMINATED)
FAIL_WAIT_S = 30.0
HINT = (
    "Usual causes: code that only some ranks run, such as `if rank == 0: model.evaluate(...)` (use `with "
    "strategy.local():`); `validation_data` on some ranks only (val_loss); a rank with fewer batches than the others; "
    "another order of calls; values of another shape or type."
)
STALLED = """
rank {rank}: waited {timeout_s:g} s at {where} for other ranks, and ends the job. Usual causes:
  - code that only some ranks run, such as `if rank == 0: model.evaluate(...)` (use `with strategy.local():`);
  - data that takes that long to read, or a rank that is much slower: a longer wait is Options(timeout_s=...);
  - a rank that died.
"""
STALLED_EXIT_CODE = 70

AnyError = TypeVar("AnyError", bound=BaseException)
_thread = threading.local()
_watches: list[Watch] = []


def meet(group: Group, name: str, what: str = "") -> None:
    """Returns when every rank has come to the collective of this name. Collective.

    Args:
        group: The ranks.
        name: The collective's.
        what: What this rank brings, where all must bring the same kind.

    Raises:
        RankFailedError: On every rank but the one that failed.
        RankMismatchError: On every rank, if one of them is somewhere else, or brings another kind.
    """
    if getattr(_thread, "apart", False):
        return
    where = f"the collective {name!r}" + (f", {what}" if what else "")
    with group.waits(where):
        points = places(group, 2**32 + zlib.crc32(where.encode()))
    if len(set(points)) > 1:
        raise disagreement(group, points, where)


def leave_epoch(group: Group, point: int, where: str) -> list[int]:
    """Returns when every rank has left the epoch: each rank's ``EPOCH_END``, ``STOPPED`` or ``TERMINATED``.

    Ranks that begin another step when one asks for a stop do not apply it, and come here.

    Raises:
        RankFailedError: On every rank but the one that failed.
        RankMismatchError: On every rank, if one has further batches, or is somewhere else.
    """
    while True:
        with group.waits(where):
            points = places(group, point)
        if all(one in LEAVING for one in points):
            return points
        stops = any(one in (STOPPED, TERMINATED) for one in points)
        if not (stops and all(one in (*LEAVING, STEP) for one in points)):
            raise disagreement(group, points, where)


def places(group: Group, point: int) -> list[int]:
    """Where each rank is. Collective."""
    return np.asarray(group.exchange(tf.constant([point, 0, 0], tf.int64)))[:, 0].tolist()


def disagreement(group: Group, points: list[int], where: str) -> Exception:
    """The error for ranks that met at different places; all of them must call it."""
    with apart():
        said = gather_json(where[:2000], group, "where")
    table = "\n".join(f"  rank {rank}: {one}" for rank, one in enumerate(said))
    failed = [rank for rank, point in enumerate(points) if point == FAILED]
    error: RankFailedError | RankMismatchError
    if failed:
        causes = "; ".join(f"rank {rank} failed: {said[rank]}" for rank in failed)
        error = RankFailedError(f"rank {group.rank}: {causes}. This rank ends too. It was at: {where}.")
    else:
        error = RankMismatchError(
            f"rank {group.rank}: the ranks wait for each other at different places:\n{table}\n{HINT}"
        )
    return known_to_all(error)


def gather_json(value: Any, group: Group, name: str) -> list[Any]:
    """Every rank's JSON value, in rank order. Nothing received is executed. Collective."""
    if group.size == 1:
        return [value]
    meet(group, name)
    payload = np.frombuffer(json.dumps(value).encode(), np.uint8)
    with apart():
        sizes = np.asarray(group.all_gather(np.array([payload.size], np.int64), f"{name}.sizes"))
        whole = np.asarray(group.all_gather(payload, f"{name}.json")).tobytes()
    ends = np.cumsum(sizes)
    return [json.loads(whole[end - size : end]) for size, end in zip(sizes, ends, strict=True)]


def known_to_all(error: AnyError) -> AnyError:
    """Marks an error of which the other ranks need not be told."""
    error.known_to_all = True  # type: ignore[attr-defined]
    return error


@contextlib.contextmanager
def together(group: Group, training: bool = False) -> Iterator[None]:
    """If this rank raises inside, all ranks do: they learn the rank and the cause at their next exchange.

    Args:
        group: The ranks.
        training: Whether SIGTERM is to end the training on all ranks after the same step, and then the process with
            exit code 143. Default False.
    """
    if group.size == 1 or getattr(_thread, "together", False):
        yield
        return
    _thread.together = True
    handler = _Sigterm() if training else contextlib.nullcontext()
    try:
        with handler:
            yield
    except BaseException as error:
        if not getattr(error, "known_to_all", False):
            _fail(group, error)
        raise
    finally:
        _thread.together = False
        while _watches:
            _watches.pop().close()


def terminating() -> bool:
    """Whether this process was sent SIGTERM while it trained."""
    return _Sigterm.received


def sigterm_noted() -> contextlib.AbstractContextManager[Any]:
    """Inside, SIGTERM is noted and does not end the process, as in ``together``: for a process without others."""
    return _Sigterm()


def end_by_sigterm(said: str) -> SystemExit:
    """The exception with which a process, or every rank, leaves a training that a SIGTERM ends."""
    print(f"SIGTERM{said}", file=sys.stderr, flush=True)
    return known_to_all(SystemExit(128 + signal.SIGTERM))


class _Sigterm:
    """Inside, SIGTERM is noted; at the end the process exits if it came.

    A handler that the user installed is left in place, and decides alone.
    """

    received = False

    def __enter__(self) -> None:
        _Sigterm.received = False
        self._before: Any = None
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            self._before = signal.signal(signal.SIGTERM, self._note)

    def __exit__(self, kind: Any, *exception: Any) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)
        received, _Sigterm.received = _Sigterm.received, False
        if kind is None and received:
            raise end_by_sigterm(": the training had ended.")

    def _note(self, number: int, frame: Any) -> None:
        _Sigterm.received = True


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """Inside, collectives of this thread ask nobody where they are: all ranks are known to be at the same place."""
    before = getattr(_thread, "apart", False)
    _thread.apart = True
    try:
        yield
    finally:
        _thread.apart = before


def _fail(group: Group, error: BaseException) -> None:
    cause = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    print(f"rank {group.rank}: {cause}", file=sys.stderr, flush=True)
    after = threading.Timer(FAIL_WAIT_S, _end_alone, [group.rank, error])
    after.daemon = True
    after.start()
    try:
        places(group, FAILED)
        with apart():
            gather_json(cause[:2000], group, "where")
    except Exception:
        pass  # the others have ended already; the cause is what this rank raises
    finally:
        after.cancel()


def _end_alone(rank: int, error: BaseException) -> None:
    traceback.print_exception(error)
    print(
        f"rank {rank}: ends the job, for the other ranks did not meet it within {FAIL_WAIT_S:g} s of its failure "
        f"({type(error).__name__}: {error}).",
        file=sys.stderr,
        flush=True,
    )
    os._exit(1)


def end_stalled(group: Group, where: str) -> None:
    """Ends this process, and so the job, because other ranks did not come."""
    print(STALLED.format(rank=group.rank, timeout_s=group.timeout_s, where=where), file=sys.stderr, flush=True)
    os._exit(STALLED_EXIT_CODE)


def cut_off(group: Group, where: str) -> Exception:
    """The error for a collective that the end of another rank cut off."""
    return known_to_all(
        RankFailedError(f"rank {group.rank}: another rank ended while this one waited for it at {where}.")
    )


class Watch:
    """Ends the process if the work that it watches makes no progress for too long, as in a collective of a graph.

    A rank that stays out of the work for half of that time says where it is: others may wait for it.

    Args:
        group: The ranks.
        progress: Returns numbers that change as long as the work goes on.
        beside: The same of other work, which is all right too.
        where: Describes where it stands.
    """

    def __init__(
        self, group: Group, progress: Callable[[], Any], beside: Callable[[], Any], where: Callable[[], str]
    ) -> None:
        self._group, self._progress, self._beside, self._where = group, progress, beside, where
        self._at_work = False
        self._turns = 0
        self._thread = threading.current_thread().ident
        self._ended = threading.Event()
        _watches.append(self)
        threading.Thread(target=self._look, name="kerasdist.watch", daemon=True).start()

    def enter(self) -> None:
        """The work begins."""
        self._turns += 1
        self._at_work = True

    def leave(self) -> None:
        """The work is done, for now."""
        self._at_work = False

    def close(self) -> None:
        """Nothing is to be watched any more."""
        self._ended.set()

    @property
    def closed(self) -> bool:
        """Whether nothing is watched any more."""
        return self._ended.is_set()

    def _look(self) -> None:
        last, since, said = None, time.monotonic(), False
        timeout_s = self._group.timeout_s
        while not self._ended.wait(min(1.0, timeout_s / 10)):
            at_work = self._at_work
            now = at_work, self._turns, self._progress() if at_work else self._beside()
            if now != last or self._group.waiting:
                last, since, said = now, time.monotonic(), False
            waited = time.monotonic() - since
            if at_work and waited > timeout_s:
                end_stalled(self._group, self._where())
            if not at_work and waited > timeout_s / 2 and not said:
                said = True
                self._say_where(waited)

    def _say_where(self, waited: float) -> None:
        frame = sys._current_frames().get(self._thread or 0)
        stack = "".join(traceback.format_stack(frame)[-3:]) if frame is not None else ""
        print(
            f"rank {self._group.rank}: for {waited:.0f} s outside of any step, before {self._where()}. Other ranks may "
            f"wait for this one. It is at:\n{stack}",
            file=sys.stderr,
            flush=True,
        )
