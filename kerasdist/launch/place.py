"""Where do the ranks of a job meet, whose launcher brings no meeting place? Read from the environment alone.

``srun`` and ``torchrun`` tell each process its rank, but start nothing that Gloo could meet at. So rank 0 opens the
meeting place, at an address and port that every rank can work out for itself.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from kerasdist.errors import EngineError
from kerasdist.launch.environment import LaunchEnvironment
from kerasdist.launch.network import LOOPBACK

VARIABLE = "KERASDIST_RENDEZVOUS"
# Above the ports that Linux hands out by itself (32768 to 60999), so that a derived one is seldom taken by chance.
FIRST_PORT, PORTS = 61000, 4500


@dataclass(frozen=True)
class MeetingPlace:
    """Where the ranks of one job meet.

    Attributes:
        host: name or address of rank 0's host, as all ranks reach it.
        port: where rank 0 listens.
        job: what all ranks of this job, and of no other one, have in common.
        node: what all ranks on this process's host have in common.
        one_host: whether all ranks are on one host.
    """

    host: str
    port: int
    job: str
    node: str
    one_host: bool


def meeting_place(environment: LaunchEnvironment, environ: Mapping[str, str] = os.environ) -> MeetingPlace | None:
    """Works out where the ranks meet.

    Args:
        environment: what the launcher says.
        environ: the environment.

    Returns:
        The place; None where the launcher brings its own (horovodrun, mpirun), or MPI is to be used.

    Raises:
        EngineError: variables of the launcher are missing, or make no sense.
    """
    if (environment.size or 1) < 2:
        return None
    if environment.launcher == "slurm":
        place = _slurm(environ)
    elif environment.launcher == "torchrun":
        place = _torchrun(environment, environ)
    else:
        return None
    if environment.rank is None:
        raise EngineError(f"{environment.launcher} set the number of processes, but not this process's rank.")
    return _chosen(place, environ)


def first_host(hosts: str) -> str:
    """The first name of a Slurm host list: "node01" of "node[01-03,07],gpu5"."""
    name = ""
    rest = hosts
    while rest and not rest.startswith(","):
        if rest.startswith("["):
            inside, closed, rest = rest[1:].partition("]")
            first = re.match(r"[^,-]+", inside)
            if not closed or first is None:
                raise EngineError(f"This is no Slurm host list: {hosts!r}.")
            name += first.group()
        else:
            literal = re.match(r"[^,\[]+", rest)
            assert literal is not None
            name += literal.group()
            rest = rest[literal.end() :]
    if not name:
        raise EngineError(f"This is no Slurm host list: {hosts!r}.")
    return name


def derived_port(number: int) -> int:
    """The port of a job, from its number: neighbouring numbers get different ports."""
    return FIRST_PORT + number % PORTS


def _slurm(environ: Mapping[str, str]) -> MeetingPlace:
    job, step = _needed("slurm", environ, "SLURM_JOB_ID"), _needed("slurm", environ, "SLURM_STEP_ID")
    hosts = _needed("slurm", environ, "SLURM_STEP_NODELIST")
    node = _needed("slurm", environ, "SLURMD_NODENAME")
    first = first_host(hosts)
    number = 8 * _number("SLURM_JOB_ID", job) + _number("SLURM_STEP_ID", step)
    if environ.get("SLURM_PROCID") == "0" and node != first and not environ.get(VARIABLE):
        raise EngineError(
            f"rank 0: it runs on {node}, but all ranks look for it on {first}, the first host of the step. "
            f"Set {VARIABLE}={node} for all of them, or leave out srun's --distribution."
        )
    one_host = not re.search(r"[,\[]", hosts)
    return MeetingPlace(first, derived_port(number), f"slurm step {job}.{step}", node, one_host)


def _torchrun(environment: LaunchEnvironment, environ: Mapping[str, str]) -> MeetingPlace:
    host, port = _needed("torchrun", environ, "MASTER_ADDR"), _needed("torchrun", environ, "MASTER_PORT")
    restarts = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    run = environ.get("TORCHELASTIC_RUN_ID", "without an id")
    job = f"torchrun {run} at {host}:{port}, restart {restarts}"
    node = f"{socket.gethostname()}.{environ.get('GROUP_RANK', '0')}"
    # MASTER_PORT itself is taken by torchrun's own store.
    return MeetingPlace(
        host, derived_port(_number("MASTER_PORT", port)), job, node, environment.local_size == environment.size
    )


def _chosen(place: MeetingPlace, environ: Mapping[str, str]) -> MeetingPlace:
    """The place, where the user chose no other; on one host always by loopback."""
    text = environ.get(VARIABLE, "")
    host, colon, port = text.partition(":")
    number = place.port
    if colon:
        number = _number(VARIABLE, port)
        if not 0 < number < 65536:
            raise EngineError(f"{VARIABLE} should be HOST, HOST:PORT or :PORT. Received: {text!r}")
    host = LOOPBACK if place.one_host else host or place.host
    return MeetingPlace(host, number, place.job, place.node, place.one_host)


def _needed(launcher: str, environ: Mapping[str, str], name: str) -> str:
    if not environ.get(name):
        raise EngineError(
            f"{launcher} started this process as one of several, but {name} is not set: without it the ranks cannot "
            "find each other, and each would train alone. Variables may be left over from another job: unset them, "
            "or start the script with its launcher."
        )
    return environ[name]


def _number(name: str, value: str) -> int:
    if not (value.isascii() and value.isdigit()):
        raise EngineError(f"{name} should hold a whole number. Received: {value!r}")
    return int(value)
