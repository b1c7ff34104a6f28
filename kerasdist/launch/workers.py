"""One worker of a job that kerasdist started: its process, its output, its end."""

from __future__ import annotations

import collections
import contextlib
import json
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

GUARD = Path(__file__).with_name("guard.py")
KEPT_LINES = 2000
KILLED, TERMINATED = 128 + signal.SIGKILL, 128 + signal.SIGTERM
_TRACEBACK = "Traceback (most recent call last):"
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")


@dataclass(frozen=True)
class Ssh:
    """How other hosts are reached; what is not given is as the user's ssh configuration says."""

    port: int | None = None
    identity_file: str | None = None

    def command(self, host: str, remote: Sequence[str]) -> list[str]:
        """The command that runs another one on a host. A dead host or network is noticed within 20 s."""
        options = ["-T", "-o", "BatchMode=yes", "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"]
        options += ["-p", str(self.port)] if self.port else []
        options += ["-i", self.identity_file] if self.identity_file else []
        return ["ssh", *options, host, shlex.join(remote)]


@dataclass(frozen=True)
class Start:
    """What a worker is to run, and where.

    Attributes:
        rank: its number.
        host: name of its host; None is this one.
        command: program and arguments.
        environment: variables to set. On another host it gets them by ssh's input, not on a command line.
        descriptors: open files that the worker inherits.
    """

    rank: int
    host: str | None
    command: Sequence[str]
    environment: dict[str, str]
    descriptors: Sequence[int] = ()


@dataclass
class Worker:
    """One started worker.

    Args:
        start: what it runs.
        show: called with (rank, text, whether it is an error) for each line.
        log: file that keeps its output too.
        ssh: how another host is reached.
    """

    start: Start
    show: Callable[[int, str, bool], None]
    log: Path | None = None
    ssh: Ssh = Ssh()
    code: int | None = None
    ended_at: float = 0.0
    asked_to_end: bool = False
    killed_from: float = math.inf  # when it is killed if it was asked to end and has not
    errors: collections.deque[str] = field(default_factory=lambda: collections.deque(maxlen=KEPT_LINES))

    def __post_init__(self) -> None:
        self._log = self.log.open("w", encoding="utf-8") if self.log else None
        self._lock = threading.Lock()
        guard = [sys.executable, "-P", str(GUARD)]
        command = guard if self.start.host is None else self.ssh.command(self.start.host, guard)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=list(self.start.descriptors),
            start_new_session=True,
        )
        self._tell(
            {
                "command": list(self.start.command),
                "environment": {"PYTHONUNBUFFERED": "1", **self.start.environment},
                "folder": os.getcwd(),
                "descriptors": list(self.start.descriptors),
            }
        )
        self._readers = [
            threading.Thread(target=self._read, args=[stream, is_error], daemon=True)
            for stream, is_error in ((self._process.stdout, False), (self._process.stderr, True))
        ]
        for reader in self._readers:
            reader.start()

    def wait(self) -> int:
        """Returns the exit code, 128 and the signal's number if it was killed, when all output is out."""
        code = self._process.wait()
        ended_at = time.monotonic()
        for reader in self._readers:
            reader.join(5)
        if self._log:
            self._log.close()
        self.ended_at = ended_at
        self.code = 128 - code if code < 0 else code
        return self.code

    def end(self, seconds: float) -> None:
        """Asks the worker to end: SIGTERM, and SIGKILL after so many seconds."""
        self.asked_to_end = True
        self.killed_from = min(self.killed_from, time.monotonic() + seconds)
        self._tell({"end": seconds})

    @property
    def ended_as_asked(self) -> bool:
        """Whether it ended because it was asked to: not by a SIGKILL before its time for that was over."""
        killed = self.code == KILLED and self.ended_at >= self.killed_from
        return self.asked_to_end and (killed or self.code == TERMINATED)

    def abandon(self) -> None:
        """Cuts the lifeline, and ends the guard or ssh itself."""
        with contextlib.suppress(OSError):
            self._process.stdin.close()  # type: ignore[union-attr]
        self._process.kill()

    def _tell(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(json.dumps(message).encode() + b"\n")  # type: ignore[union-attr]
            self._process.stdin.flush()  # type: ignore[union-attr]

    def _read(self, stream: Any, is_error: bool) -> None:
        for text in _lines(stream.fileno()):
            if is_error:
                self.errors.append(text)
            with self._lock:
                if self._log and not self._log.closed:
                    self._log.write(text)
                    self._log.flush()
            self.show(self.start.rank, text, is_error)
        stream.close()


def _lines(descriptor: int) -> Any:
    """Yields lines as they come, and what a progress bar writes before each return to the line's start."""
    rest = b""
    while chunk := os.read(descriptor, 65536):
        *whole, rest = re.split(rb"(?<=[\r\n])", rest + chunk)
        for line in whole:
            if line:
                yield line.decode(errors="replace")
    if rest:
        yield rest.decode(errors="replace") + "\n"


def last_traceback(errors: Sequence[str]) -> str:
    """The last traceback in a worker's error output with all that it is chained to, or its last lines."""
    starts = [number for number, line in enumerate(errors) if line.startswith(_TRACEBACK)]
    if not starts:
        return "".join(list(errors)[-20:])
    lines = list(errors)
    first = starts[-1]
    for start in reversed(starts[:-1]):
        if not any(line.startswith(_CHAINED) for line in lines[start:first]):
            break
        first = start
    return "".join(lines[first:])
