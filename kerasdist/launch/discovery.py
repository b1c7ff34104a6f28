"""Which hosts has an elastic job now, and how many workers may run on each?

A script says it, every second; or they are fixed. Slots on which workers died are left out for a while.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from kerasdist.errors import EngineError
from kerasdist.launch.hosts import parse_lines
from kerasdist.launch.network import resolve

POLL_S = 1.0
SCRIPT_TIMEOUT_S = 10.0
LONGEST_REST_S = 3600.0


class FixedHosts:
    """Hosts that stay as they are.

    Args:
        slots: workers by host.
    """

    def __init__(self, slots: Mapping[str, int]) -> None:
        self._slots = dict(slots)

    def start(self) -> None:
        """Nothing is to be asked."""

    def stop(self) -> None:
        """Nothing is to be stopped."""

    def hosts(self) -> dict[str, int]:
        """Workers by host."""
        return dict(self._slots)

    def ask(self) -> dict[str, int]:
        """The same."""
        return self.hosts()


class Script:
    """Hosts that a script prints, a line ``host:slots`` or ``host`` for each, asked again and again in a thread.

    A failing, slow or unreadable answer is warned of once, and the last good one holds. An answer that differs from the
    one that holds counts when it came twice.

    Args:
        command: the script and its arguments.
        say: called with each warning.
    """

    def __init__(self, command: Sequence[str], say: Callable[[str], None] | None = None) -> None:
        self.command = list(command)
        self._say = say or (lambda text: print(text, file=sys.stderr, flush=True))
        self._holds: dict[str, int] = {}
        self._last: dict[str, int] | None = None
        self._warned: set[str] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Asks for the first time, which counts at once, and goes on asking."""
        self.look()
        self._thread.start()

    def stop(self) -> None:
        """Asks no more."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join(SCRIPT_TIMEOUT_S + 5)

    def hosts(self) -> dict[str, int]:
        """Workers by host, as far as is known."""
        return dict(self._holds)

    def ask(self) -> dict[str, int] | None:
        """What the script says now; None if that is not to be had, which is warned of once."""
        said = shlex.join(self.command)
        try:
            process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except OSError as error:
            self._warn("cannot start", f"{said} cannot be started: {error}.")
            return None
        try:
            out, error_text = process.communicate(timeout=SCRIPT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            self._warn("slow", f"{said} took longer than {SCRIPT_TIMEOUT_S:g} s.")
            return None
        if process.returncode:
            last = (error_text.strip().splitlines() or ["no error output"])[-1]
            self._warn("failed", f"{said} failed with exit code {process.returncode}: {last}.")
            return None
        try:
            found = parse_lines(out, said)
        except ValueError as error:
            self._warn("unreadable", str(error))
            return None
        return {host: slots for host, slots in found.items() if self._is_known(host)}

    def look(self) -> None:
        """Asks once, and keeps the answer if there is one."""
        found = self.ask()
        if found is not None:
            if found == self._last or self._last is None:
                self._holds = found
            self._last = found

    def _run(self) -> None:
        while not self._ended.wait(POLL_S):
            self.look()

    def _is_known(self, host: str) -> bool:
        try:
            resolve(host)
        except EngineError as error:
            self._warn(f"host {host}", f"{error} It is left out.")
            return False
        return True

    def _warn(self, kind: str, text: str) -> None:
        if kind not in self._warned and not self._ended.is_set():
            self._warned.add(kind)
            self._say(f"Host discovery: {text} (Said once; the last answer that was good holds.)")


class Rests:
    """Slots that are left out for a while, because workers died on them.

    After a death a host gives no more slots than its workers that were left, for ``rest_s`` seconds; each further
    death on that host doubles the time, up to an hour.

    Args:
        rest_s: seconds after the first death on a host.
        clock: gives the time in seconds.
    """

    def __init__(self, rest_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rest_s, self._clock = rest_s, clock
        self._deaths: dict[str, int] = {}
        self._limits: dict[str, tuple[int, float]] = {}  # slots, until when

    def note(self, host: str, left: int) -> float:
        """A worker died on a host on which so many are left; returns for how long its slot rests."""
        self._deaths[host] = self._deaths.get(host, 0) + 1
        seconds = min(self._rest_s * 2.0 ** (self._deaths[host] - 1), LONGEST_REST_S)
        self._limits[host] = left, self._clock() + seconds
        return seconds

    def without(self, hosts: Mapping[str, int]) -> dict[str, int]:
        """Of workers by host, what does not rest."""
        now = self._clock()
        found = {}
        for host, slots in hosts.items():
            limit, until = self._limits.get(host, (slots, 0.0))
            found[host] = min(slots, limit) if now < until else slots
        return {host: slots for host, slots in found.items() if slots}


def placed(available: Mapping[str, int], before: Mapping[str, int], largest: int | None) -> dict[str, int]:
    """Where the next workers are: the hosts of the last ones first, so that rank 0 stays where it was if it can."""
    ordered = [*(host for host in before if host in available), *(host for host in available if host not in before)]
    found, left = {}, largest
    for host in ordered:
        slots = available[host] if left is None else min(available[host], left)
        left = None if left is None else left - slots
        if slots:
            found[host] = slots
    return found


def change(running: Mapping[str, int], available: Mapping[str, int], largest: int | None) -> str | None:
    """Why workers that run on these hosts should make room for others; None if they may go on."""
    for host, slots in running.items():
        if host not in available:
            return f"{host} is gone"
        if available[host] < slots:
            return f"{host} has room for {available[host]} instead of {slots}"
    size, possible = sum(running.values()), sum(available.values())
    possible = possible if largest is None else min(possible, largest)
    return f"there are slots for {possible} workers instead of {size}" if possible > size else None


def shown(hosts: Mapping[str, int]) -> str:
    """ "host1:2,host2:1", or "no host"."""
    return ",".join(f"{host}:{slots}" for host, slots in hosts.items()) or "no host"
