"""How does a rank that srun or torchrun started come to a Horovod of several ranks, over Gloo?

Every rank goes to the meeting place of its job, waits until all are there, works out from what they say which of them
share a host, and starts Horovod with the variables that horovodrun would have set. When all have started, rank 0
closes the place: nothing listens during the training.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Any

from kerasdist.errors import EngineError
from kerasdist.launch.environment import LaunchEnvironment
from kerasdist.launch.network import (
    LOOPBACK,
    check_own_name,
    interface_of,
    is_loopback,
    own_address_towards,
    resolve,
)
from kerasdist.launch.place import VARIABLE, MeetingPlace, meeting_place

REQUEST_TIMEOUT_S = 10.0
POLL_S = 0.1
LAST_WORD_S = 10.0  # from a rank's start of Horovod to its saying so


@contextlib.contextmanager
def ready(environment: LaunchEnvironment, mpi_built: bool, timeout_s: float) -> Iterator[None]:
    """Inside, Horovod can be started as this launcher needs it; every rank must come.

    Args:
        environment: what the launcher says.
        mpi_built: whether Horovod was built with MPI, which then serves under an ``srun`` that offers PMI or PMIx.
        timeout_s: seconds to wait for the other ranks.

    Raises:
        EngineError: the ranks cannot find each other; the message says why.
    """
    by_mpi = (
        environment.launcher == "slurm"
        and mpi_built
        and os.environ.get("HOROVOD_CONTROLLER", "mpi").lower() == "mpi"
        and bool(os.environ.get("PMIX_RANK") or os.environ.get("PMI_RANK"))
    )
    place = None if by_mpi else meeting_place(environment)
    if place is not None:
        with joined(place, environment, timeout_s):
            yield
        return
    if environment.launcher == "horovodrun" and (environment.size or 1) > 1:
        _check_left_over()
        _check_own_name(environment)
    with own_interface():
        yield


@contextlib.contextmanager
def joined(place: MeetingPlace, environment: LaunchEnvironment, timeout_s: float) -> Iterator[None]:
    """Inside, Horovod can be started; every rank must come.

    Args:
        place: where the ranks meet.
        environment: what the launcher says.
        timeout_s: seconds to wait for the other ranks.

    Raises:
        EngineError: the port is taken, ranks do not come in time, or do not belong together.
    """
    rank, size = environment.rank or 0, environment.size or 1
    address = LOOPBACK if place.one_host else resolve(place.host)
    server = _open(place, address, size) if rank == 0 else None
    said = {"job": place.job, "size": size, "node": place.node, "process": f"{socket.gethostname()} {os.getpid()}"}
    meeting = _Meeting(address, place, rank)
    try:
        nodes = meeting.arrive(said, timeout_s)
        numbers = placement(nodes, rank)
        if environment.local_rank is not None and numbers["HOROVOD_LOCAL_RANK"] != str(environment.local_rank):
            raise EngineError(
                f"rank {rank}: {environment.launcher} says that its local rank is {environment.local_rank}, but of the "
                f"ranks on {place.node} it is number {numbers['HOROVOD_LOCAL_RANK']}."
            )
        gloo = {
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": address,
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(place.port),
        }
        with variables({**numbers, **gloo}), own_interface():
            yield
        meeting.say({**said, "started": True})
        if server is not None:
            server.roll.all_started.wait(LAST_WORD_S)
    finally:
        if server is not None:
            server.stop()


@contextlib.contextmanager
def own_interface() -> Iterator[None]:
    """Inside, Gloo and NCCL use the interface that leads to the meeting place, unless the user chose another.

    It may have another name on each host. Where no meeting place is named, nothing is set.
    """
    address = os.environ.get("HOROVOD_GLOO_RENDEZVOUS_ADDR")
    if not address:
        yield
        return
    name = os.environ.get("HOROVOD_GLOO_IFACE") or interface_of(own_address_towards(resolve(address)))
    chosen = {"HOROVOD_GLOO_IFACE": name}
    if not os.environ.get("NCCL_SOCKET_IFNAME"):
        chosen["NCCL_SOCKET_IFNAME"] = name
    with variables(chosen):
        yield


def placement(nodes: Sequence[str], rank: int) -> dict[str, str]:
    """Horovod's variables for a rank, from the node of every rank."""
    on_node: dict[str, list[int]] = {}
    for one, node in enumerate(nodes):
        on_node.setdefault(node, []).append(one)
    mine = on_node[nodes[rank]]
    local_rank = mine.index(rank)
    across = [node for node, ranks in on_node.items() if len(ranks) > local_rank]
    return {
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": str(len(nodes)),
        "HOROVOD_LOCAL_RANK": str(local_rank),
        "HOROVOD_LOCAL_SIZE": str(len(mine)),
        "HOROVOD_CROSS_RANK": str(across.index(nodes[rank])),
        "HOROVOD_CROSS_SIZE": str(len(across)),
        "HOROVOD_HOSTNAME": f"node{list(on_node).index(nodes[rank])}",
    }


@contextlib.contextmanager
def variables(values: dict[str, str]) -> Iterator[None]:
    """Inside, environment variables are set; afterwards they are as before, so that child processes see none."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class _Meeting:
    """A rank's side of the roll."""

    def __init__(self, address: str, place: MeetingPlace, rank: int) -> None:
        self._address, self._place, self._rank = address, place, rank
        self._where = f"{place.host}:{place.port}"

    def arrive(self, said: dict[str, Any], timeout_s: float) -> list[str]:
        """Says that this rank has come, waits for all others; returns every rank's node."""
        error = self._own_fault()
        if error:
            said = {**said, "error": error}
        end = time.monotonic() + timeout_s
        entered, answer, trouble = False, None, "nothing listened there"
        while time.monotonic() < end:
            try:
                if not entered:
                    self._request("PUT", said)
                    entered = True
                answer = self._request("GET")
            except (OSError, http.client.HTTPException, ValueError) as failure:
                entered, trouble = False, str(failure) or type(failure).__name__
            else:
                if not isinstance(answer, dict) or answer.get("job") != self._place.job:
                    raise EngineError(
                        f"rank {self._rank}: at {self._where}, where rank 0 of this job ({self._place.job}) should "
                        f"listen, is another one. Choose a free port with {VARIABLE}=:PORT, the same for all ranks."
                    )
                if answer.get("error"):
                    raise EngineError(f"rank {self._rank}: {answer['error']}")
                if answer.get("nodes"):
                    return list(answer["nodes"])
            time.sleep(POLL_S)
        raise EngineError(error or self._missing(answer, timeout_s, trouble))

    def say(self, said: dict[str, Any]) -> None:
        """Tells the roll something that nothing depends on."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            self._request("PUT", said)

    def _own_fault(self) -> str:
        try:
            check_own_name(self._place.one_host)
        except EngineError as error:
            return str(error)
        return ""

    def _missing(self, answer: dict[str, Any] | None, timeout_s: float, trouble: str) -> str:
        if answer is None:
            return (
                f"rank {self._rank}: rank 0 did not open the meeting place at {self._where} within {timeout_s:g} s "
                f"({trouble}), so each rank would train alone. Is its process running, can this host reach that port? "
                f"Another address or port is {VARIABLE}=HOST:PORT, the same for all ranks."
            )
        missing = ", ".join(map(str, answer["missing"]))
        return (
            f"rank {self._rank}: waited {timeout_s:g} s at {self._where} for rank {missing} to start. All processes of "
            "the job must call kerasdist.init(), or make the strategy or callback; a longer wait is "
            "Options(timeout_s=...)."
        )

    def _request(self, method: str, body: dict[str, Any] | None = None) -> Any:
        connection = http.client.HTTPConnection(self._address, self._place.port, timeout=REQUEST_TIMEOUT_S)
        try:
            connection.request(method, f"/kerasdist/{self._rank}", None if body is None else json.dumps(body))
            response = connection.getresponse()
            text = response.read()
            return json.loads(text) if method == "GET" and response.status == 200 else None
        finally:
            connection.close()


def _check_own_name(environment: LaunchEnvironment) -> None:
    if not os.environ.get("HOROVOD_GLOO_RENDEZVOUS_ADDR"):
        return
    try:
        check_own_name(one_host=environment.local_size == environment.size)
    except EngineError as error:
        raise EngineError(f"rank {environment.rank}: {error}") from None


def _check_left_over() -> None:
    """Refuses variables of a horovodrun that has ended, as in a shell that a worker had started."""
    address, port = (os.environ.get(f"HOROVOD_GLOO_RENDEZVOUS_{one}", "") for one in ("ADDR", "PORT"))
    if not address or not port.isdigit():
        return
    try:
        socket.create_connection((address, int(port)), timeout=REQUEST_TIMEOUT_S).close()
    except OSError as error:
        raise EngineError(
            f"HOROVOD_RANK and HOROVOD_SIZE say that horovodrun started this process, but at {address}:{port}, which "
            f"HOROVOD_GLOO_RENDEZVOUS_ADDR and _PORT name, nothing answers ({error}). They may be left over from a job "
            "that has ended: unset all HOROVOD_ variables of it, or start the script with its launcher."
        ) from error


def _open(place: MeetingPlace, address: str, size: int) -> Any:
    from kerasdist.launch.rendezvous import BoundServer, Roll

    if not place.one_host and is_loopback(address):
        raise EngineError(
            f"rank 0: the name of its host, {place.host!r}, resolves to {address}, which other hosts cannot reach. "
            f"Give the name its address on the network in /etc/hosts, or set {VARIABLE}=ADDRESS for all ranks."
        )
    server = BoundServer(address, place.port)
    server.roll = Roll(place.job, size)
    try:
        server.start()
    except OSError as error:
        raise EngineError(
            f"rank 0: cannot listen at {address}:{place.port}, where the ranks of this job meet: {error}. "
            f"Choose another port with {VARIABLE}=:PORT, the same for all ranks."
        ) from error
    return server
