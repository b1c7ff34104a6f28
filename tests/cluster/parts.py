"""What a cluster is made of, from Debian's packages: installed where the test run may, else the reason for a skip."""

from __future__ import annotations

import dataclasses
import functools
import os
import shutil
import subprocess

PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
INSTALL_TIMEOUT_S = 240


@dataclasses.dataclass(frozen=True)
class Part:
    """Programs, and the packages that bring them."""

    programs: tuple[str, ...]
    packages: tuple[str, ...]


PARTS = {
    "Open MPI": Part(("mpirun",), ("openmpi-bin",)),
    "Slurm": Part(("munged", "slurmctld", "slurmd", "sbatch", "srun"), ("slurm-wlm", "munge")),
    "two hosts": Part(("ip", "sshd", "ssh", "ssh-keygen"), ("iproute2", "openssh-server", "openssh-client")),
}


def program(name: str) -> str:
    """Its path."""
    found = shutil.which(name, path=PATH)
    assert found, f"{name} is not there"
    return found


@functools.cache
def missing(name: str) -> str | None:
    """Why a part is not there, after its packages were installed where that is allowed; None if it is there."""
    part = PARTS[name]
    if not _absent(part):
        return None
    how = f"{name}: {', '.join(_absent(part))} not found"
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return f"{how}; as root: apt-get install {' '.join(part.packages)}"
    error = _install(part.packages)
    return f"{how}, and apt-get could not install {' '.join(part.packages)}: {error}" if _absent(part) else None


def _absent(part: Part) -> list[str]:
    return [one for one in part.programs if shutil.which(one, path=PATH) is None]


def _install(packages: tuple[str, ...]) -> str:
    # RUNLEVEL: what is installed starts no service.
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    install = ["apt-get", "install", "-y", "-q", "--no-install-recommends", *packages]
    last = ""
    for command in (install, ["apt-get", "update", "-q"], install):
        try:
            done = subprocess.run(
                command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                timeout=INSTALL_TIMEOUT_S,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"it took more than {INSTALL_TIMEOUT_S} s"
        if done.returncode == 0 and command is install:
            return ""
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return last
