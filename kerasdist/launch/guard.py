"""Stands between a launcher and one worker, on the worker's host. Started by path: it uses the standard library only.

Its standard input is its lifeline. The first line is JSON: command, what to add to the environment, folder, and file
descriptors to hand on. A later line ``{"end": seconds}`` asks to end the worker: SIGTERM, and SIGKILL after so many
seconds. The end of the input means that the launcher, or the connection to it, is gone: then the worker is ended too.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

LEFT_ALONE_S = 10.0  # between SIGTERM and SIGKILL when the launcher is gone
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


def main() -> int:
    """Starts the worker, waits for it, and leaves none of its processes behind; returns its exit code."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    messages = _messages()
    asked = next(messages, None)
    if asked is None:
        return 1
    library = ctypes.CDLL(None)
    own = os.getpid()

    def tie() -> None:
        library.prctl(_DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        if os.getppid() != own:
            os._exit(1)

    try:
        worker = subprocess.Popen(
            asked["command"],
            env={**os.environ, **asked["environment"]},
            cwd=asked["folder"],
            stdin=subprocess.DEVNULL,
            pass_fds=asked.get("descriptors", []),
            start_new_session=True,
            preexec_fn=tie,
        )
    except OSError as error:
        print(f"cannot start {asked['command'][0]} in {asked['folder']}: {error}", file=sys.stderr)
        return 127
    for descriptor in asked.get("descriptors", []):
        os.close(descriptor)
    signal.signal(signal.SIGTERM, lambda *_: _end(worker, LEFT_ALONE_S))
    threading.Thread(target=_obey, args=[worker, messages], daemon=True).start()
    code = worker.wait()
    _signal(worker, signal.SIGKILL)  # what the worker itself started and left
    return 128 - code if code < 0 else code


def _messages() -> Iterator[dict[str, Any]]:
    """What comes along the lifeline, until it ends."""
    rest = b""
    while chunk := os.read(0, 65536):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from map(json.loads, lines)


def _obey(worker: subprocess.Popen[Any], messages: Iterator[dict[str, Any]]) -> None:
    for message in messages:
        _end(worker, float(message["end"]))
    _end(worker, LEFT_ALONE_S)


def _end(worker: subprocess.Popen[Any], seconds: float) -> None:
    def kill() -> None:
        time.sleep(seconds)
        _signal(worker, signal.SIGKILL)

    _signal(worker, signal.SIGTERM)
    threading.Thread(target=kill, daemon=True).start()


def _signal(worker: subprocess.Popen[Any], number: int) -> None:
    try:
        os.killpg(worker.pid, number)
    except (ProcessLookupError, PermissionError):
        pass


if __name__ == "__main__":
    sys.exit(main())
