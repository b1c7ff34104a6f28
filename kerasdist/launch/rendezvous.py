"""The meeting place itself: Horovod's rendezvous server on one address only, and the roll of the ranks that came.

What travels is HTTP with JSON for kerasdist's own part; nothing received is executed.
"""

from __future__ import annotations

import functools
import json
import re
import threading
from collections.abc import Callable
from typing import Any

from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer, RendezvousServer
from horovod.runner.util.threads import in_thread

from kerasdist.launch import progress

SCOPE = "kerasdist"
LARGEST_BODY = 16 << 20
_NUMBER = re.compile("[0-9]{1,9}")


class BoundServer(RendezvousServer):
    """Horovod's rendezvous server, which listens on one address instead of on all.

    Args:
        address: IPv4 address of this host.
        port: Default 0, any free one.
    """

    def __init__(self, address: str, port: int = 0) -> None:
        super().__init__()
        self._address = address, port
        self.roll: Roll | None = None
        self.told: Callable[[bytes], None] | None = None

    def start(self, handler_cls: Any = None) -> int:
        """Starts to listen; returns the port.

        Raises:
            OSError: The port is taken, or the address is not one of this host's.
        """
        self._httpd = RendezvousHTTPServer(self._address, handler_cls or Handler, 0)
        self._httpd.roll, self._httpd.told = self.roll, self.told
        self._httpd.daemon_threads, self._httpd.block_on_close = True, False  # a connection left open holds up nothing
        self._listen_thread = in_thread(target=functools.partial(self._httpd.serve_forever, poll_interval=0.05))
        return int(self._httpd.server_address[1])

    def stop(self) -> None:
        super().stop()
        self._httpd.server_close()


class Handler(RendezvousHandler):
    """Horovod's requests, and beside them the roll's and the progress of a job, under scopes of their own."""

    def do_PUT(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not _NUMBER.fullmatch(length) or int(length) > LARGEST_BODY:
            self.send_status_code(400)
            return
        super().do_PUT()

    def _get_value(self, scope: str, key: str) -> Any:
        roll = self.server.roll
        if roll is None or scope != SCOPE:
            return super()._get_value(scope, key)
        return json.dumps(roll.answer()).encode()

    def _put_value(self, scope: str, key: str, value: bytes) -> None:
        if scope == progress.SCOPE:
            if self.server.told is not None:
                self.server.told(value)
            return
        roll = self.server.roll
        if roll is None or scope != SCOPE:
            super()._put_value(scope, key, value)
            return
        try:
            said = json.loads(value)
        except ValueError:
            return
        if _NUMBER.fullmatch(key) and isinstance(said, dict):
            roll.enter(int(key), said)


class Roll:
    """Who has come, and who has started.

    Args:
        job: What all ranks of the job have in common.
        size: Their number.
    """

    def __init__(self, job: str, size: int) -> None:
        self._job, self._size = job, size
        self._came: dict[int, dict[str, Any]] = {}
        self._started: set[int] = set()
        self._error = ""
        self._lock = threading.Lock()
        self.all_started = threading.Event()

    def enter(self, rank: int, said: dict[str, Any]) -> None:
        """A rank says what it is: its job, size, node and process, whether it has started, what went wrong."""
        with self._lock:
            if said.get("job") != self._job:
                return  # it reads in the answer that this is another job, and says so
            wrong = self._objection(rank, said)
            self._error = self._error or wrong
            if not wrong:
                self._came.setdefault(rank, said)
                if said.get("started"):
                    self._started.add(rank)
            if len(self._started) == self._size:
                self.all_started.set()

    def answer(self) -> dict[str, Any]:
        """What every rank is told; the nodes in rank order once all have come."""
        with self._lock:
            missing = [rank for rank in range(self._size) if rank not in self._came]
            nodes = None if missing else [self._came[rank]["node"] for rank in range(self._size)]
            return {"job": self._job, "missing": missing, "nodes": nodes, "error": self._error}

    def _objection(self, rank: int, said: dict[str, Any]) -> str:
        if said.get("error"):
            return f"rank {rank}: {said['error']}"
        if not isinstance(said.get("node"), str) or said.get("size") != self._size or rank >= self._size:
            return f"rank {rank} says that there are {said.get('size')} ranks, but rank 0 was told {self._size}."
        before = self._came.get(rank)
        if before is not None and before.get("process") != said.get("process"):
            return f"two processes say that they are rank {rank}: {before.get('process')} and {said.get('process')}."
        return ""
