"""What a worker of an elastic job and its launcher tell each other: how often it was started, where it stands.

The launcher sets a variable; rank 0 sends a few numbers, as JSON, to the rendezvous server that it started by.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

RESTARTS = "KERASDIST_RESTARTS"  # how often the workers of an elastic job were started again
SCOPE = "kerasdist.progress"
TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Progress:
    """The last checkpoint of a job.

    Attributes:
        steps: updates of the optimizer up to it.
        epoch: epochs that are done.
        batch: batches of the next epoch that are done.
        restored: whether it was read just now, and not written.
    """

    steps: int
    epoch: int
    batch: int
    restored: bool

    def __str__(self) -> str:
        return f"step {self.steps} (epoch {self.epoch}, batch {self.batch})"


def restarts(environ: Mapping[str, str] = os.environ) -> int:
    """How often this worker's job was started again; 0 if it is not elastic."""
    text = environ.get(RESTARTS, "")
    return int(text) if text.isascii() and text.isdigit() else 0


def tell(place: Sequence[int], steps: int, restored: bool = False) -> None:
    """Tells the launcher of an elastic job where the last checkpoint stands. Nothing depends on it."""
    address, port = (os.environ.get(f"HOROVOD_GLOO_RENDEZVOUS_{one}", "") for one in ("ADDR", "PORT"))
    if RESTARTS not in os.environ or not address or not port.isdigit():
        return
    said = json.dumps({"steps": steps, "epoch": place[0], "batch": place[1], "restored": restored})
    with contextlib.suppress(OSError, http.client.HTTPException):
        connection = http.client.HTTPConnection(address, int(port), timeout=TIMEOUT_S)
        try:
            connection.request("PUT", f"/{SCOPE}/0", said)
            connection.getresponse().read()
        finally:
            connection.close()


def heard(content: bytes) -> Progress | None:
    """What a worker told; None if it makes no sense."""
    try:
        said: Any = json.loads(content)
        steps, epoch, batch = numbers = [said[name] for name in ("steps", "epoch", "batch")]
        restored = said["restored"]
    except (ValueError, TypeError, KeyError):
        return None
    if not (isinstance(restored, bool) and all(type(one) is int and 0 <= one < 2**53 for one in numbers)):
        return None
    return Progress(steps, epoch, batch, restored)
