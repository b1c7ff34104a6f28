"""What does `doctor` look at? Collected once; only subprocesses load TensorFlow, Keras and Horovod."""

from __future__ import annotations

import importlib.util
import shutil
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kerasdist.engine_build.installed import InstalledEngine, installed_engine
from kerasdist.engine_build.machine import Tool, find_mpi, tensorflow_packages
from kerasdist.engine_build.probe import probe
from kerasdist.launch.environment import read_environment
from kerasdist.limits import available_cores, available_memory_mb


@dataclass(frozen=True)
class Evidence:
    """Everything that the diagnosis is made from.

    Attributes:
        python: version of Python.
        packages: names and versions of the packages that bring TensorFlow.
        answers: what `probe` says of "tensorflow", "keras" and "horovod".
        engine: the installed Horovod, as its files describe it.
        horovodrun: whether Horovod's launcher is there.
        mpi: MPI's compiler, if it is there.
        mpirun: path of MPI's launcher.
        launcher: the launcher seen, in words, and whether its variables are sound.
        host_name: this host's name, the address that it resolves to ("" if none), and whether there is a route out.
        trial: what two processes made of their ranks' mean; `None` if not tried.
    """

    python: tuple[int, int, int] = (3, 11, 0)
    packages: tuple[tuple[str, str], ...] = ()
    answers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    engine: InstalledEngine | None = None
    horovodrun: bool = False
    mpi: Tool | None = None
    mpirun: str | None = None
    launcher: tuple[str, bool] = ("no launcher: one process", True)
    host_name: tuple[str, str, bool] = ("localhost", "10.0.0.1", True)
    memory_mb: int = 0
    cores: int = 1
    trial: Mapping[str, Any] | None = None


def collect(environ: Mapping[str, str], timeout_s: float) -> Evidence:
    """Looks at this environment; takes as long as TensorFlow takes to load."""
    packages = tensorflow_packages()
    return Evidence(
        python=sys.version_info[:3],
        packages=packages,
        answers=_answers(environ, timeout_s),
        engine=installed_engine(),
        horovodrun=importlib.util.find_spec("horovod") is not None,
        mpi=find_mpi(),
        mpirun=shutil.which("mpirun"),
        launcher=_launcher(environ),
        host_name=_host_name(),
        memory_mb=available_memory_mb(),
        cores=available_cores(),
    )


def _answers(environ: Mapping[str, str], timeout_s: float) -> dict[str, dict[str, Any]]:
    """Asks the three together; if one takes the process down, those after it are asked alone."""
    answers = probe(environ, timeout_s)
    for name, answer in answers.items():
        if answer.get("error", "").startswith("not asked"):
            answers[name] = probe(environ, timeout_s, parts=name)[name]
    return answers


def _launcher(environ: Mapping[str, str]) -> tuple[str, bool]:
    try:
        return read_environment(environ).describe(), True
    except ValueError as error:
        return str(error), False


def _host_name() -> tuple[str, str, bool]:
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError:
        address = ""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way_out:
        try:
            way_out.connect(("10.255.255.255", 9))  # a datagram socket: chooses a route, sends nothing
            routable = not way_out.getsockname()[0].startswith("127.")
        except OSError:
            routable = False
    return name, address, routable
