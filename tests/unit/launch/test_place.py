"""Where the ranks of a job meet, from srun's and torchrun's variables alone."""

import socket

import pytest

from kerasdist.errors import EngineError
from kerasdist.launch.environment import read_environment
from kerasdist.launch.join import placement
from kerasdist.launch.place import FIRST_PORT, MeetingPlace, derived_port, first_host, meeting_place

SLURM = {
    "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "2", "SLURM_LOCALID": "0", "SLURM_JOB_ID": "1234",
    "SLURM_STEP_ID": "2", "SLURM_STEP_NODELIST": "node[01-02]", "SLURMD_NODENAME": "node02",
    "SLURM_STEP_TASKS_PER_NODE": "3,1",
}  # fmt: skip
TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none", "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "0", "MASTER_ADDR": "host1", "MASTER_PORT": "29500", "TORCHELASTIC_RESTART_COUNT": "0",
}  # fmt: skip


def place(environ):
    return meeting_place(read_environment(environ), environ)


@pytest.mark.parametrize(
    ("hosts", "first"),
    [
        ("node1", "node1"),
        ("node[01-03,07]", "node01"),
        ("node[7,01-03]", "node7"),
        ("gpu-a100,node[1-2]", "gpu-a100"),
        ("rack[0-1]n[10-12]-ib,x", "rack0n10-ib"),
    ],
)
def test_first_host(hosts, first):
    assert first_host(hosts) == first


@pytest.mark.parametrize("hosts", ["", ",a", "node[", "node[]", "node[1"])
def test_what_is_no_host_list(hosts):
    with pytest.raises(EngineError, match="no Slurm host list"):
        first_host(hosts)


def test_slurm_on_several_hosts():
    found = place(SLURM)
    assert found == MeetingPlace("node01", derived_port(8 * 1234 + 2), "slurm step 1234.2", "node02", False)
    assert FIRST_PORT <= found.port < 65536


def test_jobs_and_steps_near_each_other_get_ports_of_their_own():
    ports = {derived_port(8 * job + step) for job in range(500) for step in range(8)}
    assert len(ports) == 500 * 8


def test_one_host_meets_on_loopback():
    one = {**SLURM, "SLURM_STEP_NODELIST": "node02", "SLURM_STEP_TASKS_PER_NODE": "4"}
    assert (place(one).host, place(one).one_host) == ("127.0.0.1", True)
    assert (place(TORCHRUN).host, place(TORCHRUN).one_host) == ("127.0.0.1", True)


def test_torchrun_on_several_hosts():
    found = place({**TORCHRUN, "WORLD_SIZE": "4", "RANK": "3", "GROUP_RANK": "1"})
    assert (found.host, found.one_host, found.node) == ("host1", False, f"{socket.gethostname()}.1")
    assert found.port not in (29500, place({**TORCHRUN, "MASTER_PORT": "29501"}).port)
    assert "host1:29500" in found.job
    assert found.job != place({**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "1"}).job


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("10.0.0.9:7000", "10.0.0.9", 7000), ("login", "login", derived_port(8 * 1234 + 2)), (":7000", "node01", 7000)],
)
def test_the_users_own_choice(text, host, port):
    found = place({**SLURM, "KERASDIST_RENDEZVOUS": text})
    assert (found.host, found.port) == (host, port)


@pytest.mark.parametrize("text", ["host:", "host:port", "host:0", "host:65536", "host:-1"])
def test_a_choice_that_makes_no_sense(text):
    with pytest.raises(EngineError, match="KERASDIST_RENDEZVOUS"):
        place({**SLURM, "KERASDIST_RENDEZVOUS": text})


@pytest.mark.parametrize("missing", ["SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_STEP_NODELIST", "SLURMD_NODENAME"])
def test_missing_variables_of_slurm(missing):
    with pytest.raises(EngineError, match=f"{missing} is not set.*each would train alone"):
        place({name: value for name, value in SLURM.items() if name != missing})


@pytest.mark.parametrize("missing", ["MASTER_ADDR", "MASTER_PORT"])
def test_missing_variables_of_torchrun(missing):
    with pytest.raises(EngineError, match=f"{missing} is not set"):
        place({name: value for name, value in TORCHRUN.items() if name != missing})


def test_a_process_without_rank():
    with pytest.raises(EngineError, match="not this process's rank"):
        place({name: value for name, value in SLURM.items() if name != "SLURM_PROCID"})


def test_rank_0_elsewhere_than_the_first_host():
    with pytest.raises(EngineError, match="rank 0: it runs on node02, but all ranks look for it on node01"):
        place({**SLURM, "SLURM_PROCID": "0"})
    assert place({**SLURM, "SLURM_PROCID": "0", "KERASDIST_RENDEZVOUS": "node02"}).host == "node02"


@pytest.mark.parametrize(
    "environ", [{}, {**SLURM, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, {"PMI_SIZE": "2", "PMI_RANK": "0"}]
)
def test_launchers_that_need_no_place(environ):
    assert place(environ) is None


@pytest.mark.parametrize(
    ("change", "name"),
    [({"RANK": "2"}, "WORLD_SIZE"), ({"LOCAL_RANK": "2"}, "LOCAL_WORLD_SIZE"), ({"WORLD_SIZE": "0"}, "WORLD_SIZE")],
)
def test_contradictions(change, name):
    with pytest.raises(ValueError, match=f"contradict each other.*{name}"):
        read_environment({**TORCHRUN, **change})


def test_placement_of_uneven_hosts():
    """3 ranks on a, 1 on b, dealt out in turn: rank 0 on a, 1 on b, 2 and 3 on a."""
    numbers = [placement(["a", "b", "a", "a"], rank) for rank in range(4)]
    assert [one["HOROVOD_RANK"] for one in numbers] == ["0", "1", "2", "3"]
    assert [one["HOROVOD_LOCAL_RANK"] for one in numbers] == ["0", "0", "1", "2"]
    assert [one["HOROVOD_LOCAL_SIZE"] for one in numbers] == ["3", "1", "3", "3"]
    assert [one["HOROVOD_CROSS_RANK"] for one in numbers] == ["0", "1", "0", "0"]
    assert [one["HOROVOD_CROSS_SIZE"] for one in numbers] == ["2", "2", "1", "1"]
    assert [one["HOROVOD_HOSTNAME"] for one in numbers] == ["node0", "node1", "node0", "node0"]
