"""A daemon that does not outlive the test run, however that ends."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from kerasdist.launch.workers import GUARD


@contextlib.contextmanager
def daemon(command: Sequence[str], log: Path, environment: dict[str, str] | None = None) -> Iterator[None]:
    """Runs a program in the foreground behind kerasdist's guard, whose lifeline this process holds."""
    asked = {"command": list(command), "environment": environment or {}, "folder": "/"}
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-P", str(GUARD)], stdin=subprocess.PIPE, stdout=out, stderr=out, start_new_session=True
        )
    assert process.stdin
    process.stdin.write(json.dumps(asked).encode() + b"\n")
    process.stdin.flush()
    try:
        yield
    finally:
        process.stdin.close()
        process.wait(20)
