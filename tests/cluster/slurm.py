"""A Slurm of one machine: its daemons, with a configuration of their own, while the tests run."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from tests.cluster.daemon import daemon
from tests.cluster.parts import PATH, program

CONFIGURATION = """
ClusterName=kerasdist
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/munge
# A job that was queued again waits as long as its credential lives.
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
ReturnToService=2
KillWait=5
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """A running cluster.

    Args:
        folder: where everything of it is kept.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "PATH": PATH, "SLURM_CONF": str(folder / "slurm.conf")}

    def call(self, *command: str, timeout_s: float = 60) -> str:
        """Runs a command of Slurm's and returns its output; fails the test if it fails."""
        done = subprocess.run(
            [program(command[0]), *command[1:]], env=self.environment, cwd=self.folder, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=timeout_s,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}{self.logs()}"
        return done.stdout

    def facts(self, job: str) -> dict[str, str]:
        """What Slurm says of a job."""
        words = self.call("scontrol", "show", "job", job).split()
        return dict(word.partition("=")[::2] for word in words)

    def wait(self, job: str, states: tuple[str, ...], timeout_s: float = 60) -> dict[str, str]:
        """Returns what Slurm says of a job when it is in one of these states."""
        end = time.monotonic() + timeout_s
        while (facts := self.facts(job))["JobState"] not in states:
            assert time.monotonic() < end, f"{facts}{self.logs()}"
            time.sleep(0.1)
        return facts

    def logs(self) -> str:
        """The ends of the daemons' logs."""
        files = [self.folder / name for name in ("slurmctld.log", "slurmd.log", "munged.log")]
        return "".join(f"\n{file.name}:\n{file.read_text()[-1500:]}" for file in files if file.exists())


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Slurm]:
    """Starts munged, slurmctld and slurmd; ends them afterwards."""
    slurm = Slurm(folder)
    for name in ("state", "spool"):
        (folder / name).mkdir()
    text = CONFIGURATION.format(host=socket.gethostname().split(".")[0], folder=folder, ports=_free_ports(2))
    (folder / "slurm.conf").write_text(text)
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o600)
    paths = [f"--{name}={folder}/munge.{name.split('-')[0]}" for name in ("socket", "pid-file", "seed-file")]
    munged = [
        program("munged"),
        "--foreground",
        "--force",
        f"--key-file={key}",
        f"--log-file={folder}/munged.log",
        *paths,
    ]
    ours = {"PATH": PATH, "SLURM_CONF": slurm.environment["SLURM_CONF"]}
    with contextlib.ExitStack() as daemons:
        for command in (munged, [program("slurmctld"), "-D"], [program("slurmd"), "-D"]):
            daemons.enter_context(daemon(command, folder / f"{Path(command[0]).name}.out", ours))
            if command is munged:
                _until(lambda: (folder / "munge.socket").exists(), "munged made no socket")
        _until(lambda: "idle" in slurm.call("sinfo", "-h", "-o", "%T"), f"no node is idle{slurm.logs()}")
        try:
            yield slurm
        finally:
            with contextlib.suppress(Exception):
                slurm.call("scancel", "--user=root", timeout_s=10)


def _until(condition, otherwise: str, timeout_s: float = 30) -> None:
    end = time.monotonic() + timeout_s
    while True:
        with contextlib.suppress(AssertionError):
            if condition():
                return
        assert time.monotonic() < end, otherwise
        time.sleep(0.1)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
