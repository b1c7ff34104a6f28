"""A job that kerasdist starts itself: ranks and meeting place by Horovod's launcher, processes and their ends here."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kerasdist.errors import EngineError
from kerasdist.launch.network import LOOPBACK, address_of, interface_of, own_address_towards, resolve
from kerasdist.launch.workers import Ssh, Start, Worker, last_traceback

THIS_HOST = "localhost"
OTHERS_S = 3.0  # after one rank failed the others learn of it and end by themselves; then they are told to
FAILED_S = 5.0  # and get this long between SIGTERM and SIGKILL
_OF_THIS_HOST = re.compile(
    r"(_|HOME|USER|LOGNAME|SHELL|MAIL|PWD|OLDPWD|SHLVL|HOSTNAME|DISPLAY|TERM|TMPDIR|XAUTHORITY|(SSH|XDG|DBUS|BASH_FUNC)_.*)"
)


@dataclass(frozen=True)
class Job:
    """What to start, and where.

    Attributes:
        command: program and arguments of every worker.
        size: number of workers.
        hosts: slots by host, filled in order. Default: all on this host.
        interface: network interface that the workers of several hosts use. Default: the one on the route.
        ssh: how other hosts are reached.
        log_dir: folder that keeps each rank's output. Default: none.
        grace_s: seconds that workers get between SIGTERM and SIGKILL, when the job itself is told to end.
        environment: further variables of every worker. Default: none.
    """

    command: Sequence[str]
    size: int
    hosts: dict[str, int] | None = None
    interface: str | None = None
    ssh: Ssh = Ssh()
    log_dir: Path | None = None
    grace_s: float = 30.0
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """Where the ranks are, and how they meet."""

    slots: Sequence[Any]
    remote: frozenset[str]
    address: str
    variables: dict[str, str]


def plan(job: Job) -> Plan:
    """Places the ranks on hosts; starts nothing.

    Raises:
        ValueError: there are fewer slots than workers.
        EngineError: a host or the interface is unknown, or Horovod is not installed.
    """
    hosts = job.hosts or {THIS_HOST: job.size}
    slots = sum(hosts.values())
    if job.size > slots:
        raise ValueError(f"{job.size} workers were asked for, but the hosts named have room for {slots}.")
    try:
        from horovod.runner.common.util.hosts import HostInfo, get_host_assignments
        from horovod.runner.util.network import get_local_host_addresses
    except ImportError as error:
        raise EngineError(f"Horovod is not installed ({error}). Run `kerasdist build-engine`.") from error
    assigned = get_host_assignments([HostInfo(*one) for one in hosts.items()], job.size, job.size)
    addresses = {slot.hostname: resolve(slot.hostname) for slot in assigned}
    here = get_local_host_addresses()
    remote = frozenset(host for host, address in addresses.items() if address not in here and host != THIS_HOST)
    variables = {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo"}
    if remote:
        first = next(host for host in addresses if host in remote)
        address = address_of(job.interface) if job.interface else own_address_towards(addresses[first])
        if job.interface:
            variables |= {"HOROVOD_GLOO_IFACE": job.interface, "NCCL_SOCKET_IFNAME": job.interface}
    else:
        address = LOOPBACK
        variables |= {"HOROVOD_GLOO_IFACE": interface_of(LOOPBACK), "NCCL_SOCKET_IFNAME": interface_of(LOOPBACK)}
    return Plan(assigned, remote, address, variables | {"HOROVOD_GLOO_RENDEZVOUS_ADDR": address})


def describe(job: Job, planned: Plan) -> str:
    """What would be started, for people: one line a rank."""
    lines = []
    for slot in planned.slots:
        shown = {**slot_variables(slot), **planned.variables, "HOROVOD_GLOO_RENDEZVOUS_PORT": "<a free port>"}
        settings = " ".join(f"{name}={value}" for name, value in shown.items())
        by = " by ssh" if slot.hostname in planned.remote else ""
        lines.append(f"rank {slot.rank} on {slot.hostname}{by}: {settings} {shlex.join(job.command)}")
    return "\n".join(lines)


def run_job(job: Job) -> int:
    """Runs all workers and returns the job's exit code: that of the rank that failed first, or 0.

    Must be called in the main thread. SIGINT, SIGTERM and SIGHUP end all workers.
    """
    planned = plan(job)
    with Signals() as signals:
        return exit_code(run_once(job, planned, signals, Screen(signals)), signals)


def run_once(
    job: Job,
    planned: Plan,
    signals: Signals,
    screen: Screen,
    wants_end: Callable[[], Any] = lambda: None,
    told: Callable[[bytes], None] | None = None,
) -> list[Worker]:
    """Runs all workers to their end, and returns them.

    Args:
        job: what they run.
        planned: where.
        signals: those that ask the job to end.
        screen: shows their output.
        wants_end: asked again and again; when it returns something true, all workers get SIGTERM.
        told: gets what a worker tells of its progress. Default: nobody listens.
    """
    if job.log_dir:
        job.log_dir.mkdir(parents=True, exist_ok=True)
    workers: list[Worker] = []
    with meeting(planned, told) as port:
        try:
            for slot in planned.slots:
                log = job.log_dir / f"rank-{slot.rank}.log" if job.log_dir else None
                workers.append(Worker(_start(job, planned, slot, port), screen.show, log, job.ssh))
            supervise(workers, signals, job.grace_s, wants_end)
        finally:
            end_now(workers)
    return workers


def exit_code(workers: Sequence[Worker], signals: Signals) -> int:
    """The exit code of a job whose workers have ended. What failed first is shown."""
    if signals.number == signal.SIGINT:
        return 128 + signal.SIGINT
    failed = cause(workers)
    if failed is None:
        return 0
    show_cause(failed, workers)
    return failed.code or 0


def supervise(
    workers: Sequence[Worker], signals: Any, grace_s: float, wants_end: Callable[[], Any] = lambda: None
) -> None:
    """Returns when all workers have ended; ends them all when one fails, a signal comes, or it is wanted."""
    ended: queue.SimpleQueue[Worker] = queue.SimpleQueue()

    def wait(worker: Worker) -> None:
        worker.wait()
        ended.put(worker)

    for worker in workers:
        threading.Thread(target=wait, args=[worker], daemon=True).start()
    running, heard = len(workers), 0
    failed_at = deadline = None
    while running:
        with contextlib.suppress(queue.Empty):
            ended.get(timeout=0.1)
            running -= 1
        now = time.monotonic()
        if failed_at is None and any(worker.code for worker in workers):
            failed_at = now
        if signals.count > heard:
            deadline = _end_all(workers, 0.0 if heard else grace_s)
            heard = signals.count
        elif deadline is None and failed_at is not None and now > failed_at + OTHERS_S:
            deadline = _end_all(workers, FAILED_S)
        elif deadline is None and failed_at is None and wants_end():
            deadline = _end_all(workers, grace_s)
        elif deadline is not None and now > deadline:
            _abandon_all(workers)


def end_now(workers: Sequence[Worker]) -> None:
    """Ends those that still run, as after an error of this process."""
    end = _end_all(workers, FAILED_S)
    while any(worker.code is None for worker in workers) and time.monotonic() < end:
        time.sleep(0.05)
    _abandon_all(workers)


def _end_all(workers: Sequence[Worker], seconds: float) -> float:
    """Asks those that still run to end; returns when even their guards should have."""
    for worker in workers:
        if worker.code is None:
            worker.end(seconds)
    return time.monotonic() + seconds + 10.0


def _abandon_all(workers: Sequence[Worker]) -> None:
    for worker in workers:
        if worker.code is None:
            worker.abandon()


def cause(workers: Sequence[Worker]) -> Worker | None:
    """The worker that failed first of its own, not because another one had, or was told to end; None if none failed."""
    failed = sorted((worker for worker in workers if worker.code), key=lambda worker: worker.ended_at)
    own = [worker for worker in failed if not worker.ended_as_asked]
    first = [worker for worker in own if not followed(worker)]
    return next(iter([*first, *own, *failed]), None)


def followed(worker: Worker) -> bool:
    """Whether it ended because another rank had."""
    return any(line.startswith("kerasdist.errors.RankFailedError:") for line in worker.errors)


def lost(worker: Worker) -> bool:
    """Whether the connection to its host was lost, or could not be made; ssh tells that by its exit code."""
    return worker.start.host is not None and worker.code == 255


def how_it_ended(worker: Worker) -> str:
    """By which signal or exit code, for people."""
    code = worker.code or 0
    if lost(worker):
        return f"with exit code 255; ssh to {worker.start.host} gives that too"
    if code > 128 and code - 128 in list(signal.Signals):
        name = signal.Signals(code - 128).name
        return f"by {name} (exit code {code})" + ("; out of memory is one cause" if code == 137 else "")
    return f"with exit code {code}"


def show_cause(worker: Worker, workers: Sequence[Worker]) -> None:
    """Shows how the worker that failed first ended, its traceback last."""
    text = "" if worker.asked_to_end else last_traceback(worker.errors).rstrip()
    done = [str(other.start.rank) for other in workers if other.code == 0 and other.ended_at < worker.ended_at]
    before = f"; before it rank {', '.join(done)} had ended with exit code 0" if done else ""
    first = "failed" if done else "ended"
    said = f"\nrank {worker.start.rank} {first} first, {how_it_ended(worker)}{before}."
    print(said + (f" Its last lines:\n{text}" if text else ""), file=sys.stderr, flush=True)


def slot_variables(slot: Any) -> dict[str, str]:
    from horovod.runner.gloo_run import create_slot_env_vars

    found: dict[str, str] = create_slot_env_vars(slot)
    return found


def _start(job: Job, planned: Plan, slot: Any, port: int) -> Start:
    own_port = {"HOROVOD_GLOO_RENDEZVOUS_PORT": str(port)}
    environment = {**slot_variables(slot), **planned.variables, **own_port, **job.environment}
    if slot.hostname not in planned.remote:
        return Start(slot.rank, None, job.command, environment)
    own = {name: value for name, value in os.environ.items() if not _OF_THIS_HOST.fullmatch(name)}
    return Start(slot.rank, slot.hostname, job.command, {**own, **environment})


@contextlib.contextmanager
def meeting(planned: Plan, told: Callable[[bytes], None] | None = None) -> Iterator[int]:
    """Horovod's rendezvous server, on the plan's address alone, while the job runs; its port."""
    from kerasdist.launch.rendezvous import BoundServer

    server = BoundServer(planned.address)
    server.told = told
    port = server.start()
    server.init(planned.slots)
    try:
        yield port
    finally:
        server.stop()


class Signals:
    """Counts the signals that ask the job to end."""

    def __init__(self) -> None:
        self.count, self.number = 0, 0

    def note(self, number: int, frame: Any = None) -> None:
        self.count, self.number = self.count + 1, number

    def __enter__(self) -> Signals:
        self._before = {one: signal.signal(one, self.note) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        return self

    def __exit__(self, *exception: Any) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


class Screen:
    """Writes all workers' lines as they come, each with its rank in front."""

    def __init__(self, signals: Signals) -> None:
        self._signals, self._lock, self._gone = signals, threading.Lock(), False

    def show(self, rank: int, text: str, is_error: bool) -> None:
        with self._lock:
            if self._gone:
                return
            stream = sys.stderr if is_error else sys.stdout
            try:
                stream.write(f"[{rank}] {text}")
                stream.flush()
            except OSError:  # whoever read it is gone, as in `kerasdist run ... | head`
                self._gone = True
                self._signals.note(signal.SIGPIPE)
