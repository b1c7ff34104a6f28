"""A job that goes on with other workers: when one dies, or hosts change, all end, and as many as can be start again.

The script runs from its top each time; `kerasdist.Checkpoint` continues where the last checkpoint stands.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from kerasdist.errors import EngineError
from kerasdist.launch import progress
from kerasdist.launch.discovery import FixedHosts, Rests, Script, change, placed, shown
from kerasdist.launch.job import (
    Job,
    Plan,
    Screen,
    Signals,
    cause,
    describe,
    exit_code,
    followed,
    how_it_ended,
    lost,
    plan,
    run_once,
    show_cause,
)
from kerasdist.launch.workers import KILLED, TERMINATED, Worker, last_traceback

ENDED_WHEN_ASKED = (KILLED, TERMINATED)
STOPPED_TOGETHER = (0, TERMINATED)


@dataclass(frozen=True)
class Elastic:
    """How many workers a job may have, and where.

    Attributes:
        hosts: says which hosts there are.
        smallest: with fewer workers it waits.
        largest: never more. Default: as many as there are slots.
        wanted: the number to wait for before the first start. Default: the smallest.
        reset_limit: so many times in a row workers may fail without a new checkpoint, and be started again.
        start_timeout_s: seconds to wait for enough slots.
        rest_s: seconds for which a slot is left out after a worker died on it; doubled by each further death there.
    """

    hosts: FixedHosts | Script
    smallest: int
    largest: int | None = None
    wanted: int | None = None
    reset_limit: int = 3
    start_timeout_s: float = 600.0
    rest_s: float = 60.0

    def __post_init__(self) -> None:
        if self.largest is not None and self.smallest > self.largest:
            raise ValueError(f"--min-np {self.smallest} is more than --max-np {self.largest}.")
        if self.wanted is not None and self.wanted < self.smallest:
            raise ValueError(f"-np {self.wanted} is less than --min-np {self.smallest}.")
        if self.wanted is not None and self.largest is not None and self.wanted > self.largest:
            raise ValueError(f"-np {self.wanted} is more than --max-np {self.largest}.")
        if isinstance(self.hosts, FixedHosts):
            for name, number in (("--min-np", self.smallest), ("-np", self.wanted or 0)):
                slots = self.hosts.hosts()
                if number > sum(slots.values()):
                    raise ValueError(f"{name} {number} is more than the slots of the hosts: {shown(slots)}.")


def describe_elastic(job: Job, elastic: Elastic) -> str:
    """What would be started first, for people. A discovery script is asked once.

    Raises:
        EngineError: there are too few slots now.
    """
    hosts = placed(elastic.hosts.ask() or {}, {}, elastic.largest)
    if sum(hosts.values()) < elastic.smallest:
        raise EngineError(_too_few(elastic, hosts))
    most = "all slots" if elastic.largest is None else elastic.largest
    line = f"elastic: {elastic.smallest} to {most} workers, at first {sum(hosts.values())} on {shown(hosts)}"
    job = dataclasses.replace(job, size=sum(hosts.values()), hosts=hosts)
    return f"{line}\n{describe(job, plan(job))}"


def run_elastic(job: Job, elastic: Elastic) -> int:
    """Runs a job until its workers end well, or it cannot go on; returns its exit code.

    Must be called in the main thread. SIGINT, SIGTERM and SIGHUP end all workers, and the job.

    Args:
        job: what to start; its size and hosts are not read.
        elastic: how many workers, and where.

    Raises:
        EngineError: there were too few slots for too long.
    """
    with Signals() as signals:
        elastic.hosts.start()
        try:
            return _Run(job, elastic, signals).run()
        finally:
            elastic.hosts.stop()


class _Run:
    """One elastic job."""

    def __init__(self, job: Job, elastic: Elastic, signals: Signals) -> None:
        self._job, self._elastic, self._signals = job, elastic, signals
        self._screen = Screen(signals)
        self._rests = Rests(elastic.rest_s)
        self._running: dict[str, int] = {}  # workers by host, of this start or the last
        self._starts = self._failures = 0
        self._error = ""  # how the last failure's traceback ended
        self._last: progress.Progress | None = None
        self._committed = False  # since the last failure

    def run(self) -> int:
        """Starts workers until there is an exit code."""
        why = ""
        while True:
            hosts = self._enough()
            if hosts is None:
                return 128 + self._signals.number
            self._announce(hosts, why)
            self._running = hosts
            workers, planned, wanted = self._start(hosts)
            failed = cause(workers)
            if self._signals.count or failed is None:
                return exit_code(workers, self._signals)
            if wanted and (failed.code in ENDED_WHEN_ASKED or followed(failed)):
                why = wanted
                continue
            end = self._end_of(failed)
            if end:
                _say(end)
            show_cause(failed, workers)
            if end:
                return failed.code or 1
            why = (
                f"rank {failed.start.rank} on {planned.slots[failed.start.rank].hostname} ended {how_it_ended(failed)}"
            )
            if all(worker.code in STOPPED_TOGETHER for worker in workers):
                why = "the workers were told to stop"
            else:
                self._let_rest(workers, planned, failed)

    def _available(self) -> dict[str, int]:
        return self._rests.without(self._elastic.hosts.hosts())

    def _enough(self) -> dict[str, int] | None:
        """Waits for enough slots; None if a signal came."""
        elastic, end, said = self._elastic, time.monotonic() + self._elastic.start_timeout_s, False
        wanted = elastic.smallest if self._starts else elastic.wanted or elastic.smallest
        while not self._signals.count:
            hosts = placed(self._available(), self._running, elastic.largest)
            size, late = sum(hosts.values()), time.monotonic() > end
            if size >= wanted or (late and size >= elastic.smallest):
                return hosts
            if late:
                raise EngineError(_too_few(elastic, hosts))
            if not said:
                said = True
                _say(
                    f"waits for slots: {size} of {wanted} ({shown(hosts)}), for {elastic.start_timeout_s:g} s at most."
                )
            time.sleep(0.1)
        return None

    def _announce(self, hosts: dict[str, int], why: str) -> None:
        size, before = sum(hosts.values()), sum(self._running.values())
        workers = "1 worker" if size == 1 else f"{size} workers"
        if not self._starts:
            _say(f"starts {workers} on {shown(hosts)}.")
            return
        since = f"from {self._last}" if self._last else "from the beginning, for no checkpoint was written"
        _say(f"starts {workers} on {shown(hosts)}, after {before} ({why}); they go on {since}.")

    def _start(self, hosts: dict[str, int]) -> tuple[list[Worker], Plan, str]:
        """Runs workers to their end; also returns why they were asked to end, if they were."""
        number, folder = self._starts, self._job.log_dir
        self._starts += 1
        job = dataclasses.replace(
            self._job,
            size=sum(hosts.values()),
            hosts=hosts,
            log_dir=folder / f"start-{number}" if folder else None,
            environment={**self._job.environment, progress.RESTARTS: str(number)},
        )
        wanted = ""

        def wants_end() -> str:
            nonlocal wanted
            wanted = change(hosts, self._available(), self._elastic.largest) or ""
            return wanted

        planned = plan(job)
        return run_once(job, planned, self._signals, self._screen, wants_end, self._hear), planned, wanted

    def _hear(self, content: bytes) -> None:
        """A worker told where the last checkpoint stands."""
        said = progress.heard(content)
        if said is not None:
            if not said.restored and (self._last is None or said.steps != self._last.steps):
                self._committed = True
            self._last = said

    def _end_of(self, failed: Worker) -> str:
        """Why the job ends with this failure; empty if it goes on."""
        if self._committed:
            self._failures, self._error = 0, ""
        else:
            self._failures += 1
        self._committed = False
        before, self._error = self._error, _error_of(failed)
        if self._error and self._error == before:
            return "ends the job: the same error came again, and no checkpoint was written in between."
        if self._failures > self._elastic.reset_limit:
            return (
                f"ends the job: workers failed {self._failures} times without a new checkpoint in between "
                f"(--reset-limit {self._elastic.reset_limit})."
            )
        return ""

    def _let_rest(self, workers: Sequence[Worker], planned: Plan, failed: Worker) -> None:
        """Leaves out for a while the slots of workers that were killed, and hosts that were lost."""
        dead = [one for one in workers if not one.ended_as_asked and (lost(one) or one.code == KILLED)]
        if failed not in dead and (failed.code or 0) > 128 and not lost(failed):
            dead.append(failed)
        by_host: dict[str, list[Worker]] = {}
        for one in dead:
            by_host.setdefault(planned.slots[one.start.rank].hostname, []).append(one)
        for host, ones in by_host.items():
            left = 0 if any(map(lost, ones)) else self._running[host] - len(ones)
            seconds = self._rests.note(host, left)
            _say(f"leaves out {self._running[host] - left} of {self._running[host]} slots of {host} for {seconds:g} s.")


def _error_of(worker: Worker) -> str:
    """The last line of its traceback; empty if it was killed, or left none."""
    text = last_traceback(worker.errors) if (worker.code or 0) < 128 else ""
    lines = text.strip().splitlines()
    return lines[-1] if text.startswith("Traceback") else ""


def _too_few(elastic: Elastic, hosts: dict[str, int]) -> str:
    return (
        f"Expected slots for at least {elastic.smallest} workers (--min-np). Found: {sum(hosts.values())} "
        f"({shown(hosts)}), after {elastic.start_timeout_s:g} s (--start-timeout). A slot on which a worker died is "
        "left out for a while."
    )


def _say(text: str) -> None:
    print(f"kerasdist {time.strftime('%H:%M:%S')}: {text}", file=sys.stderr, flush=True)
