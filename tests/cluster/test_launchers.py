"""The same script under every launcher: the same weights, and an end for all when one rank dies.

KERASDIST_TEST_FAULT=raise pytest -s tests/cluster -k ends_the_job       # the times in docs/clusters.md
"""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import time

import numpy as np
import pytest

from tests.cluster import hosts, jobs
from tests.cluster import slurm as slurm_module
from tests.cluster.parts import missing
from tests.parallel.launch import ROOT, mpi_missing, run

FAULT = os.environ.get("KERASDIST_TEST_FAULT", "kill")
ENDS_WITHIN_S = 30


# The launchers --------------------------------------------------------------------------------------------------


def horovodrun(folder, fault, request):
    command = [jobs.python(), "-m", "horovod.runner.launch", "--gloo", "-np", "2", *jobs.command_of(folder, fault)]
    return jobs.start(command, folder)


def kerasdist_run(folder, fault, request):
    return jobs.start(jobs.kerasdist_command("run", "-np", "2", *jobs.command_of(folder, fault)), folder)


def mpirun(folder, fault, request):
    _need("Open MPI")
    if mpi_missing():
        pytest.skip(f"Open MPI: {mpi_missing()}")
    options = "--allow-run-as-root --oversubscribe --bind-to none -np 2 -x PATH -x PYTHONPATH".split()
    return jobs.start(["mpirun", *options, *jobs.command_of(folder, fault)], folder)


def srun(folder, fault, request):
    """By the batch script that `kerasdist slurm` writes."""
    slurm = request.getfixturevalue("slurm")
    script, output = folder / "digits.sbatch", folder / "out"
    asked = ["--tasks-per-node", "2", "--time", "5", "--output", str(output), "-o", str(script)]
    _, *words = jobs.command_of(folder, fault)
    code, text = run(jobs.kerasdist_command("slurm", *asked, *words), 60)
    assert code == 0, text
    exported = f"ALL,PYTHONPATH={ROOT},TF_CPP_MIN_LOG_LEVEL=2"
    job = slurm.call("sbatch", "--parsable", "--chdir", str(ROOT), "--export", exported, str(script)).strip()
    facts = slurm.wait(job, ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"), timeout_s=150)
    assert output.exists(), f"{facts}{slurm.logs()}"
    return jobs.ended(int(facts["ExitCode"].split(":")[0]), output.read_text(), folder)


def torchrun_environment(folder, fault, request):
    return _torchrun(folder, fault, [[], []], {"GROUP_RANK": ["0", "0"], "LOCAL_RANK": ["0", "1"]}, "2", "localhost")


def torchrun_environment_two_hosts(folder, fault, request):
    request.getfixturevalue("two_hosts")
    places = [hosts.inside(host) for host in hosts.HOSTS]
    by_rank = {"GROUP_RANK": ["0", "1"]}
    return _torchrun(folder, fault, places, by_rank, "1", next(iter(hosts.HOSTS.values())))


def kerasdist_run_two_hosts(folder, fault, request):
    request.getfixturevalue("two_hosts")
    asked = [
        "run",
        "-H",
        ",".join(f"{address}:1" for address in hosts.HOSTS.values()),
        "--ssh-port",
        str(hosts.SSH_PORT),
    ]
    command = jobs.kerasdist_command(*asked, *jobs.command_of(folder, fault))
    return jobs.start(hosts.inside(next(iter(hosts.HOSTS)), *command), folder)


def horovodrun_two_hosts(folder, fault, request):
    request.getfixturevalue("two_hosts")
    asked = f"--gloo --disable-cache --network-interfaces {hosts.LINK} -p {hosts.SSH_PORT} -np 2 -H".split()
    asked.append(",".join(f"{address}:1" for address in hosts.HOSTS.values()))
    command = [jobs.python(), "-m", "horovod.runner.launch", *asked, *jobs.command_of(folder, fault)]
    return jobs.start(hosts.inside(next(iter(hosts.HOSTS)), *command), folder)


LAUNCHERS = (
    horovodrun, kerasdist_run, mpirun, srun, torchrun_environment, torchrun_environment_two_hosts,
    kerasdist_run_two_hosts, horovodrun_two_hosts,
)  # fmt: skip


def _torchrun(folder, fault, places, by_rank, local_size, address):
    """Two processes with the variables that torchrun sets; no agent ends them, so each must end by itself.

    On two hosts with those alone that other platforms set too.
    """
    common = {"MASTER_ADDR": address, "MASTER_PORT": "29500", "WORLD_SIZE": "2"}
    if local_size == "2":
        common |= {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0", "LOCAL_WORLD_SIZE": "2"}
    first, last = (
        ["env", f"RANK={rank}", *(f"{name}={values[rank]}" for name, values in by_rank.items()), *place]
        for rank, place in enumerate(places)
    )
    both = 'first=$1; shift; "${@:1:first}" & "${@:first+1}"; code=$?; wait $! || code=$?; exit $code'
    command = jobs.command_of(folder, fault)
    words = [str(len(first) + len(command)), *first, *command, *last, *command]
    return jobs.start(["bash", "-c", both, "two", *words], folder, **common)


def _need(part):
    if missing(part):
        pytest.skip(missing(part))


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    _need("Slurm")
    with slurm_module.running(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def two_hosts(tmp_path_factory):
    _need("two hosts")
    probe = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True)
    if probe.returncode:
        pytest.skip(f"two hosts: no network namespaces here: {probe.stderr.strip()}")
    with hosts.connected(tmp_path_factory.mktemp("hosts")):
        yield


@pytest.fixture(scope="module")
def started(tmp_path_factory, request):
    """Starts the script under a launcher, once each."""

    @functools.cache
    def start(launcher):
        return launcher(tmp_path_factory.mktemp(launcher.__name__), FAULT, request)

    return start


# Every launcher --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("launcher", LAUNCHERS[1:], ids=lambda one: one.__name__)
def test_the_weights_are_those_of_horovodrun(launcher, started):
    found, expected = started(launcher).weights(), started(LAUNCHERS[0]).weights()
    assert len(found) == len(expected) == 8
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)


@pytest.mark.parametrize("launcher", LAUNCHERS, ids=lambda one: one.__name__)
def test_a_dead_rank_ends_the_job(launcher, started):
    """The last rank dies in its second training; `jobs` looks for orphans."""
    job = started(launcher)
    print(f"{launcher.__name__}, {FAULT}: {job.seconds:.1f} s, exit code {job.code}")
    assert job.code != 0, job.output[-3000:]
    if FAULT == "raise":
        assert "rank 1: RuntimeError: boom" in job.output
    assert job.seconds < ENDS_WITHIN_S, job.output[-3000:]


@pytest.mark.parametrize("launcher", [kerasdist_run, srun, torchrun_environment], ids=lambda one: one.__name__)
def test_nothing_listens_beyond_this_host(launcher, started):
    doors = started(launcher).doors()
    assert len(doors) == 2
    assert all(address.startswith("127.") for rank in doors for address, _ in rank), doors


# Slurm ----------------------------------------------------------------------------------------------------------


def test_a_cancelled_job_leaves_nothing(slurm, tmp_path):
    script = tmp_path / "sleep.sh"
    script.write_text(f"#!/bin/bash\nsrun -n2 {jobs.python()} -c 'import time; time.sleep(100)' {tmp_path}\n")
    job = slurm.call("sbatch", "--parsable", "-n2", "-o", str(tmp_path / "out"), str(script)).strip()
    slurm.wait(job, ("RUNNING",))
    assert job in slurm.call("squeue", "-h", "-o", "%i").split()
    slurm.call("scancel", job)
    assert slurm.wait(job, ("CANCELLED",))["JobState"] == "CANCELLED"
    end = time.monotonic() + 15
    while jobs.left(tmp_path) and time.monotonic() < end:
        time.sleep(0.1)
    assert jobs.left(tmp_path) == []


def test_a_job_that_was_told_to_stop_is_queued_again(slurm, tmp_path):
    """The batch script of `kerasdist slurm --requeue`: its first run ends as SIGTERM ends a training."""
    train = tmp_path / "train.py"
    train.write_text(
        "import os, sys\nagain = os.environ.get('SLURM_RESTART_COUNT', '0')\n"
        f"print('run', again, flush=True)\nsys.exit({128 + signal.SIGTERM} if again == '0' else 0)\n"
    )
    script, output = tmp_path / "train.sbatch", tmp_path / "out"
    asked = ["--requeue", "--time", "5", "--output", str(output), "-o", str(script), str(train)]
    code, text = run(jobs.kerasdist_command("slurm", *asked), 60)
    assert code == 0, text
    job = slurm.call("sbatch", "--parsable", str(script)).strip()
    facts = slurm.wait(job, ("COMPLETED", "FAILED", "CANCELLED"), timeout_s=60)
    runs = [line for line in output.read_text().splitlines() if line.startswith("run")]
    assert (facts["JobState"], facts["Restarts"], runs) == ("COMPLETED", "1", ["run 0", "run 1"]), output.read_text()
