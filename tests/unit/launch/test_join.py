"""Ranks come to the meeting place and find each other, or learn why not. Threads stand for ranks; no Horovod starts."""

import contextlib
import dataclasses
import http.client
import os
import socket
import threading
from importlib import util

import pytest

from kerasdist.errors import EngineError
from kerasdist.launch.environment import LaunchEnvironment
from kerasdist.launch.place import MeetingPlace

pytestmark = pytest.mark.skipif(util.find_spec("horovod") is None, reason="the engine is not built")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def place():
    return MeetingPlace("127.0.0.1", free_port(), "job 1", "a", one_host=True)


def come(rank, size, place, timeout_s=10.0, local_rank=None, process=None):
    """A rank comes as far as being told every rank's node: the nodes, or its error's message."""
    from kerasdist.launch.join import _Meeting

    said = {"job": place.job, "size": size, "node": place.node, "process": process or f"p{rank}"}
    try:
        return _Meeting("127.0.0.1", place, rank).arrive(said, timeout_s)
    except EngineError as error:
        return str(error)


def together(*calls):
    """Runs calls at the same time; their results in order."""
    found = [None] * len(calls)

    def call(index):
        found[index] = calls[index]()

    threads = [threading.Thread(target=call, args=[index]) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return found


@contextlib.contextmanager
def opened(place, size):
    from kerasdist.launch.join import _open

    server = _open(place, "127.0.0.1", size)
    try:
        yield server
    finally:
        server.stop()


def test_all_learn_the_nodes_in_rank_order(place):
    other = dataclasses.replace(place, node="b")
    with opened(place, 3):
        found = together(lambda: come(0, 3, place), lambda: come(1, 3, other), lambda: come(2, 3, place))
    assert found == [["a", "b", "a"]] * 3


def test_it_listens_on_its_address_only_and_no_longer_than_needed(place):
    own = socket.gethostbyname(socket.gethostname())
    elsewhere = "127.0.0.2" if own.startswith("127.") else own
    with opened(place, 1):
        socket.create_connection(("127.0.0.1", place.port), timeout=5).close()
        with pytest.raises(OSError):
            socket.create_connection((elsewhere, place.port), timeout=5)
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", place.port), timeout=5)


def test_a_missing_rank_is_named(place):
    with opened(place, 3):
        found = together(lambda: come(0, 3, place, 1.0), lambda: come(2, 3, place, 1.0))
    assert all("for rank 1 to start" in one for one in found), found
    assert found[1].startswith("rank 2: waited 1 s")


def test_nobody_opens_the_place(place):
    found = come(1, 2, place, 0.5)
    assert "rank 1: rank 0 did not open the meeting place" in found and "each rank would train alone" in found


def test_another_job_has_the_port(place):
    with opened(place, 2):
        found = come(1, 2, dataclasses.replace(place, job="job 2"), 5.0)
    assert "is another one" in found and "KERASDIST_RENDEZVOUS" in found


def test_the_port_is_taken(place):
    from kerasdist.launch.join import _open

    with socket.socket() as other:
        other.bind(("127.0.0.1", place.port))
        other.listen()
        with pytest.raises(EngineError, match=f"rank 0: cannot listen at 127.0.0.1:{place.port}.*KERASDIST_RENDEZVOUS"):
            _open(place, "127.0.0.1", 2)


NAMELESS = "no-such-host.invalid"  # a name that never has an address (RFC 6761)


def test_a_host_whose_own_name_has_no_address_on_all_ranks(place, monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: NAMELESS)
    with opened(place, 1):
        found = come(0, 1, place)
    assert f"rank 0: This host's own name '{NAMELESS}' has no address" in found and "/etc/hosts" in found


def test_such_a_host_under_horovodrun(monkeypatch):
    """Gloo would end the process by a signal."""
    from kerasdist.launch.join import ready

    with socket.socket() as rendezvous:
        rendezvous.bind(("127.0.0.1", 0))
        rendezvous.listen()
        monkeypatch.setattr(socket, "gethostname", lambda: NAMELESS)
        monkeypatch.setenv("HOROVOD_GLOO_RENDEZVOUS_ADDR", "127.0.0.1")
        monkeypatch.setenv("HOROVOD_GLOO_RENDEZVOUS_PORT", str(rendezvous.getsockname()[1]))
        environment = LaunchEnvironment("horovodrun", rank=1, size=2, local_rank=1, local_size=2)
        with pytest.raises(EngineError, match=f"rank 1: This host's own name '{NAMELESS}'"):
            with ready(environment, mpi_built=False, timeout_s=5.0):
                pass


def test_two_processes_of_one_rank(place):
    with opened(place, 3):
        found = together(lambda: come(0, 3, place), lambda: come(1, 3, place), lambda: come(1, 3, place, process="q"))
    assert all("two processes say that they are rank 1" in one for one in found), found


def test_ranks_that_were_told_other_sizes(place):
    with opened(place, 3):
        found = together(lambda: come(0, 3, place), lambda: come(1, 4, place))
    assert all("rank 1 says that there are 4 ranks, but rank 0 was told 3" in one for one in found), found


def test_noise_at_the_door_changes_nothing(place):
    """What is no JSON of a rank of this job is passed over; what is too large is not read."""
    with opened(place, 1):
        large = {"Content-Length": "9" * 12}
        for body, headers in ((b"\x80\x04K\x01.", {}), (b"[1]", {}), (b'{"job": "job 9"}', {}), (b"", large)):
            connection = http.client.HTTPConnection("127.0.0.1", place.port, timeout=5)
            connection.request("PUT", "/kerasdist/0", body, headers)
            connection.getresponse().read()
            connection.close()
        assert come(0, 1, place) == ["a"]


def test_horovods_variables_are_set_inside_and_gone_afterwards(place):
    from kerasdist.launch.join import joined

    before = dict(os.environ)
    environment = LaunchEnvironment("slurm", 0, 1, 0, 1)
    with joined(place, environment, 5.0):
        inside = {name: value for name, value in os.environ.items() if before.get(name) != value}
    assert inside == {
        "HOROVOD_RANK": "0", "HOROVOD_SIZE": "1", "HOROVOD_LOCAL_RANK": "0", "HOROVOD_LOCAL_SIZE": "1",
        "HOROVOD_CROSS_RANK": "0", "HOROVOD_CROSS_SIZE": "1", "HOROVOD_HOSTNAME": "node0",
        "HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo", "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(place.port), "HOROVOD_GLOO_IFACE": "lo", "NCCL_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    assert dict(os.environ) == before


def test_a_local_rank_that_contradicts(place):
    from kerasdist.launch.join import joined

    with pytest.raises(EngineError, match="slurm says that its local rank is 1.*it is number 0"):
        with joined(place, LaunchEnvironment("slurm", 0, 1, 1, 2), 5.0):
            pass
    with pytest.raises(OSError):  # and the door is closed again
        socket.create_connection(("127.0.0.1", place.port), timeout=5)


def test_variables_left_over_from_a_horovodrun_that_has_ended(monkeypatch):
    from kerasdist.launch.join import ready

    monkeypatch.setenv("HOROVOD_GLOO_RENDEZVOUS_ADDR", "127.0.0.1")
    monkeypatch.setenv("HOROVOD_GLOO_RENDEZVOUS_PORT", str(free_port()))
    with pytest.raises(EngineError, match="left over from a job"):
        with ready(LaunchEnvironment("horovodrun", 0, 2, 0, 2), True, 5.0):
            pass
