"""Groups of workers that run while the tests of one process do: waiting for a group is what a test run is made of."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable, Hashable
from typing import Any

_futures: dict[Hashable, concurrent.futures.Future[Any]] = {}
_waiting: dict[Hashable, Callable[[], Any]] = {}
_lock = threading.Lock()


def result(key: Hashable, function: Callable[[], Any]) -> Any:
    """What the function returned for this key: computed once, here if nobody has begun.

    Who would have to wait runs what else there is to do.
    """
    with _lock:
        _waiting.pop(key, None)
        begun = key in _futures
        future = _futures.setdefault(key, concurrent.futures.Future())
    if not begun:
        _run(future, function)
    while not future.done() and _run_next():
        pass
    return future.result()


def start(functions: dict[Hashable, Callable[[], Any]]) -> None:
    """Calls the functions one after another in a thread of its own, but for those that somebody else begins before."""
    _waiting.update(functions)

    def run_all() -> None:
        while _run_next():
            pass

    threading.Thread(target=run_all, daemon=True).start()


def _run_next() -> bool:
    """Runs the first that nobody has begun; whether there was one."""
    with _lock:
        if not _waiting:
            return False
        key = next(iter(_waiting))
        function, future = _waiting.pop(key), concurrent.futures.Future()
        _futures[key] = future
    _run(future, function)
    return True


def _run(future: concurrent.futures.Future[Any], function: Callable[[], Any]) -> None:
    try:
        future.set_result(function())
    except BaseException as error:
        future.set_exception(error)
        if not isinstance(error, Exception):
            raise
