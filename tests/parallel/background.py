"""Groups of workers that run while the tests of one process do: waiting for a group is what a test run is made of."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable, Hashable
from typing import Any

_futures: dict[Hashable, concurrent.futures.Future[Any]] = {}
_lock = threading.Lock()


def result(key: Hashable, function: Callable[[], Any]) -> Any:
    """What the function returned for this key: computed once, here if nobody has begun."""
    with _lock:
        begun = key in _futures
        future = _futures.setdefault(key, concurrent.futures.Future())
    if not begun:
        _run(future, function)
    return future.result()


def start(functions: dict[Hashable, Callable[[], Any]]) -> None:
    """Calls the functions one after another in a thread of its own, but for those that somebody else begins before."""

    def run_all() -> None:
        for key, function in functions.items():
            with _lock:
                if key in _futures:
                    continue
                future = _futures[key] = concurrent.futures.Future()
            _run(future, function)

    threading.Thread(target=run_all, daemon=True).start()


def _run(future: concurrent.futures.Future[Any], function: Callable[[], Any]) -> None:
    try:
        future.set_result(function())
    except BaseException as error:
        future.set_exception(error)
        if not isinstance(error, Exception):
            raise
