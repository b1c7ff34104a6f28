"""How is Horovod built? The pinned source, the tools, the options and the environment of the build."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kerasdist.engine_build.machine import Machine

HOROVOD_VERSION = "0.28.1"
SOURCE_SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"

# Raise it when the same machine and options would give another binary than before.
RECIPE_VERSION = 2

# setuptools 81 drops what Horovod's setup.py imports; CMake 4 refuses the policies of its third-party parts.
BUILD_TOOLS = ("setuptools<81", "wheel", "cmake>=3.20,<4", "packaging")
RUNTIME_PACKAGES = ("cloudpickle", "psutil", "pyyaml", "packaging")

# Horovod's setup.py starts CMake twice, to configure and to build everything. What TensorFlow links is enough: without
# a second copy of Gloo, meant for PyTorch, and without data for debuggers.
CMAKE_NAME = "cmake-for-tensorflow"
CMAKE = """\
#!/bin/sh
case "$1" in
--build) shift 2; exec cmake --build . --target tensorflow "$@" ;;
*) exec cmake "$@" -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O2 -DNDEBUG" ;;
esac
"""

# Real code for these GPUs, and portable code (PTX) from the last one for newer GPUs.
GPU_ARCHITECTURES = "75,80,90"

FORWARDING_HEADERS = Path(__file__).parent / "include"
MEMORY_PER_JOB_MB = 1500


@dataclass(frozen=True)
class Options:
    """What the engine shall have beside Gloo, which it always has."""

    mpi: bool = False
    nccl: bool = False
    jobs: int = 1


def choose(machine: Machine, mpi: bool | None = None, nccl: bool | None = None, jobs: int | None = None) -> Options:
    """Fills in what the user left open.

    Args:
        machine: the facts.
        mpi: `None` means where `mpicc` is found.
        nccl: `None` means where CUDA and NCCL are found, and CUDA has the major version that TensorFlow was built with.
        jobs: parallel compilers; `None` means one a core, as far as the memory goes.
    """
    by_memory = machine.memory_mb // MEMORY_PER_JOB_MB if machine.memory_mb else machine.cores
    return Options(
        mpi=machine.mpi is not None if mpi is None else mpi,
        nccl=(same_cuda(machine) and machine.nccl is not None) if nccl is None else nccl,
        jobs=jobs or max(1, min(machine.cores, by_memory)),
    )


def same_cuda(machine: Machine) -> bool:
    """Whether CUDA is here, in the major version that TensorFlow was built with."""
    if machine.cuda is None or machine.tensorflow_cuda is None:
        return False
    return machine.cuda.version.split(".")[0] == machine.tensorflow_cuda.split(".")[0]


def engine_facts(machine: Machine, options: Options) -> dict[str, str]:
    """Returns all that the binary depends on. Two engines are the same exactly if these are equal."""
    package, version = machine.tensorflow[0]
    facts = {
        "recipe": str(RECIPE_VERSION),
        "horovod": HOROVOD_VERSION,
        "python": f"{machine.python[0]}.{machine.python[1]}",
        "tensorflow": f"{package} {version}",
        "compiler": str(machine.compiler or ""),
        "arch": machine.arch,
        "mpi": str(machine.mpi or "mpi") if options.mpi else "",
    }
    if options.nccl:
        facts["nccl"] = str(machine.nccl or "")
        facts["cuda"] = str(machine.cuda or "")
        facts["gpus"] = GPU_ARCHITECTURES
        if machine.nccl is not None and not machine.nccl.from_pip:  # its folder is written into the binary
            facts["nccl_folder"] = str(machine.nccl.path.parent)
    return facts


def engine_key(facts: Mapping[str, str]) -> str:
    """Returns a folder name: readable in front, and a hash of all facts behind."""
    python = facts["python"].replace(".", "")
    options = [facts[name] for name in ("mpi", "nccl", "cuda") if facts.get(name)]
    parts = [f"horovod{facts['horovod']}", f"cp{python}", facts["tensorflow"], facts["compiler"], "gloo", *options]
    text = "-".join(re.sub(r"[^A-Za-z0-9.]+", "_", part) for part in (*parts, facts["arch"]))
    digest = hashlib.sha256(json.dumps(dict(facts), sort_keys=True).encode()).hexdigest()
    return f"{text}-{digest[:10]}"


def tools_environment(environ: Mapping[str, str], tools: Path) -> dict[str, str]:
    """Returns the environment in which the build tools in the folder `tools` come before the user's own."""
    result = dict(environ)
    result["PYTHONPATH"] = _joined(str(tools), environ.get("PYTHONPATH"))
    result["PATH"] = _joined(str(tools / "bin"), environ.get("PATH"))
    return result


def build_environment(
    environ: Mapping[str, str], machine: Machine, options: Options, tools: Path, nccl_home: Path | None = None
) -> dict[str, str]:
    """Returns the environment of the compilation; Horovod is told everything through it and stays unmodified.

    Args:
        environ: the user's environment; Horovod's own build variables in it are dropped, so that the key says all.
        machine: the facts; compiler and TensorFlow must be there.
        options: what to build.
        tools: folder with the build tools.
        nccl_home: folder with NCCL's `include` and `lib/libnccl.so`, if it is built in.
    """
    assert machine.tensorflow_include is not None and machine.compiler is not None
    include = machine.tensorflow_include
    kept = {name: value for name, value in environ.items() if not name.startswith("HOROVOD_")}
    result = tools_environment(kept, tools)
    # Searched before the folders that Horovod names as system folders, so that our headers win.
    headers = [FORWARDING_HEADERS, include / "external/highwayhash", include / "external/farmhash_archive/src"]
    result["CPATH"] = _joined(*map(str, headers), environ.get("CPATH"))
    result |= {
        "CXX": str(machine.compiler.path),
        "MAKEFLAGS": f"-j{options.jobs}",
        "CMAKE_BUILD_PARALLEL_LEVEL": str(options.jobs),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "",
        "HOROVOD_CMAKE": str(tools / "bin" / CMAKE_NAME),
        "HOROVOD_WITH_TENSORFLOW": "1",  # without it a build that finds no TensorFlow "succeeds"
        "HOROVOD_WITHOUT_PYTORCH": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITH_MPI" if options.mpi else "HOROVOD_WITHOUT_MPI": "1",
    }
    if options.nccl:
        assert machine.cuda is not None and machine.nccl is not None and nccl_home is not None
        folder = "$ORIGIN/../../nvidia/nccl/lib" if machine.nccl.from_pip else str(machine.nccl.path.parent)
        result |= {
            "HOROVOD_GPU": "CUDA",
            "HOROVOD_GPU_OPERATIONS": "NCCL",
            "HOROVOD_CUDA_HOME": str(machine.cuda.path),
            "HOROVOD_NCCL_HOME": str(nccl_home),
            "HOROVOD_NCCL_LINK": "SHARED",
            "HOROVOD_BUILD_CUDA_CC_LIST": GPU_ARCHITECTURES,
            "LDFLAGS": f"{environ.get('LDFLAGS', '')} -Wl,-rpath,{folder}".strip(),
        }
    return result


def _joined(*paths: str | None) -> str:
    return os.pathsep.join(path for path in paths if path)
