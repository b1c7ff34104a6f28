"""Can the build succeed here? Asked before minutes are spent; every answer is one line that names the mend."""

from __future__ import annotations

from kerasdist.engine_build.machine import Machine
from kerasdist.engine_build.recipe import Options

OLDEST_PYTHON, NEWEST_PYTHON = (3, 11), (3, 13)
OLDEST_GCC, OLDEST_CLANG = 10, 13
FREE_MB = 3000


def problems(machine: Machine, options: Options) -> list[str]:
    """Returns what stands in the way, most basic first; empty if the build can start."""
    checks = (_python, _pip, _tensorflow, _compiler, _make, _disk, _mpi, _nccl)
    return [line for check in checks for line in [check(machine, options)] if line]


def _python(machine: Machine, options: Options) -> str | None:
    if OLDEST_PYTHON <= machine.python <= NEWEST_PYTHON:
        return None
    found = ".".join(map(str, machine.python))
    return f"Python {found} is not supported (3.11 to 3.13 are): make the environment with one of those."


def _pip(machine: Machine, options: Options) -> str | None:
    return None if machine.pip else "This environment has no pip: run `python -m ensurepip`."


def _tensorflow(machine: Machine, options: Options) -> str | None:
    if len(machine.tensorflow) > 1:
        names = " and ".join(f"{name} {version}" for name, version in machine.tensorflow)
        every = " ".join(name for name, _ in machine.tensorflow)
        return (
            f"Both {names} are installed and overwrite each other's files: "
            f"run `pip uninstall {every}`, then install the one you want."
        )
    if not machine.tensorflow or machine.tensorflow_include is None:
        return "TensorFlow is not installed in this environment: run `pip install 'kerasdist[cpu]'` (or `[gpu]`) first."
    return None


def _compiler(machine: Machine, options: Options) -> str | None:
    if machine.compiler is None:
        return "No C++ compiler found: run `apt-get install g++` (or set CXX to one)."
    oldest = OLDEST_CLANG if machine.compiler.name == "clang" else OLDEST_GCC
    major = machine.compiler.version.split(".")[0]
    if major.isdigit() and int(major) < oldest:
        return (
            f"{machine.compiler.path} is {machine.compiler}, too old for TensorFlow's headers "
            f"({oldest} or newer is needed): install a newer one and set CXX to it."
        )
    return None


def _make(machine: Machine, options: Options) -> str | None:
    return None if machine.make else "`make` is not installed: run `apt-get install make`."


def _disk(machine: Machine, options: Options) -> str | None:
    for folder, free in machine.free_mb.items():
        if free < FREE_MB:
            return (
                f"Only {free} MB are free in {folder}, the build needs {FREE_MB}: "
                "make room, or set TMPDIR (build) and KERASDIST_CACHE (finished engines) to a larger disk."
            )
    return None


def _mpi(machine: Machine, options: Options) -> str | None:
    if options.mpi and machine.mpi is None:
        return "--mpi was asked for but `mpicc` is not found: run `apt-get install openmpi-bin libopenmpi-dev`."
    return None


def _nccl(machine: Machine, options: Options) -> str | None:
    if not options.nccl:
        return None
    if machine.cuda is None:
        return "--nccl was asked for but CUDA's nvcc and headers are not found: install CUDA, or give --cuda-home."
    if machine.nccl is None:
        mend = "run `pip install nvidia-nccl-cu12`, or give --nccl-home"
        return f"--nccl was asked for but nccl.h and libnccl.so are not found: {mend}."
    if machine.tensorflow and machine.tensorflow_cuda is None:
        name, version = machine.tensorflow[0]
        return (
            f"--nccl was asked for but {name} {version} is built without CUDA: install `tensorflow[and-cuda]` instead."
        )
    return None
