"""What is on this machine? Everything that the build depends on, found without importing TensorFlow."""

from __future__ import annotations

import importlib.util
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from kerasdist.limits import available_cores, available_memory_mb

# Every distribution that installs the module `tensorflow`.
TENSORFLOW_PACKAGES = (
    "tensorflow",
    "tensorflow-cpu",
    "tensorflow-cpu-aws",
    "tensorflow-gpu",
    "tensorflow-rocm",
    "intel-tensorflow",
    "tf-nightly",
    "tf-nightly-cpu",
)


@dataclass(frozen=True)
class Tool:
    """A program or library: what it is, its version, where it stands."""

    name: str
    version: str
    path: Path

    def __str__(self) -> str:
        return f"{self.name} {self.version}".strip()


@dataclass(frozen=True)
class Nccl(Tool):
    """NCCL: `path` is its library file, `include` the folder of `nccl.h`."""

    include: Path = Path()
    from_pip: bool = False


@dataclass(frozen=True)
class Machine:
    """The facts that the preflight and the key are made of."""

    python: tuple[int, int] = (3, 11)
    arch: str = "x86_64"
    tensorflow: tuple[tuple[str, str], ...] = ()
    tensorflow_include: Path | None = None
    tensorflow_cuda: str | None = None
    compiler: Tool | None = None
    make: str | None = None
    pip: bool = True
    mpi: Tool | None = None
    cuda: Tool | None = None
    nccl: Nccl | None = None
    free_mb: Mapping[Path, int] = field(default_factory=dict)
    cores: int = 1
    memory_mb: int = 0


def look(
    environ: Mapping[str, str],
    folders: Iterable[Path] = (),
    cuda_home: Path | None = None,
    nccl_home: Path | None = None,
) -> Machine:
    """Looks once, in about a tenth of a second.

    Args:
        environ: the environment, usually `os.environ`.
        folders: folders whose disks need room for the build, beside the temporary one.
        cuda_home: where CUDA stands, if the usual places are not to be searched.
        nccl_home: where NCCL stands, likewise.
    """
    include, cuda_of_tensorflow = _tensorflow_module()
    return Machine(
        python=sys.version_info[:2],
        arch=platform.machine(),
        tensorflow=tensorflow_packages(),
        tensorflow_include=include,
        tensorflow_cuda=cuda_of_tensorflow,
        compiler=_compiler(environ),
        make=shutil.which("make"),
        pip=importlib.util.find_spec("pip") is not None,
        mpi=find_mpi(),
        cuda=_cuda(environ, cuda_home, (cuda_of_tensorflow or "").split(".")[0]),
        nccl=_nccl(environ, nccl_home),
        free_mb={folder: _free_mb(folder) for folder in (Path(tempfile.gettempdir()), *folders)},
        cores=available_cores(),
        memory_mb=available_memory_mb(),
    )


def tensorflow_packages() -> tuple[tuple[str, str], ...]:
    """Returns the name and version of every installed package that brings the module `tensorflow`."""
    found = []
    for name in TENSORFLOW_PACKAGES:
        try:
            found.append((name, metadata.version(name)))
        except metadata.PackageNotFoundError:
            continue
    return tuple(found)


def find_mpi() -> Tool | None:
    """Returns the MPI whose compiler `mpicc` is on the path; its version is what `mpirun` or `mpiexec` says."""
    mpicc = shutil.which("mpicc")
    if mpicc is None:
        return None
    text = next((said for said in (_output("mpirun", "--version"), _output("mpiexec", "--version")) if said), "")
    name = next((name for mark, name in (("Open MPI", "openmpi"), ("HYDRA", "mpich")) if mark in text), "mpi")
    return Tool(name, _version(text), Path(mpicc))


def _tensorflow_module() -> tuple[Path | None, str | None]:
    """The include folder of TensorFlow, and the CUDA that it was built with; read as files, not imported."""
    spec = importlib.util.find_spec("tensorflow")
    if spec is None or spec.origin is None:
        return None, None
    folder = Path(spec.origin).parent
    try:
        text = (folder / "python" / "platform" / "build_info.py").read_text(encoding="utf-8")
    except OSError:
        text = ""
    built_with = re.search(r"'cuda_version', '([\d.]+)'", text)
    include = folder / "include"
    return (include if include.is_dir() else None), (built_with[1] if built_with else None)


def _compiler(environ: Mapping[str, str]) -> Tool | None:
    wanted = shlex.split(environ.get("CXX", ""))
    for command in [wanted] if wanted else [["g++"], ["c++"], ["clang++"]]:
        path = shutil.which(command[-1])
        if path:
            first_line = _output(path, "--version").partition("\n")[0]
            return Tool("clang" if "clang" in first_line else "gcc", _version(first_line, last=True), Path(path))
    return None


def _cuda(environ: Mapping[str, str], home: Path | None, preferred_major: str) -> Tool | None:
    """CUDA's compiler and headers; of several, the major version that TensorFlow was built with comes first."""
    if home is not None:
        homes = [home]
    else:
        nvcc = shutil.which("nvcc")
        named = [environ.get("CUDA_HOME"), environ.get("CUDA_PATH")]
        homes = [Path(name) for name in named if name]
        homes += [Path(nvcc).resolve().parent.parent] if nvcc else []
        homes += [Path("/usr/local/cuda"), *sorted(Path("/usr/local").glob("cuda-*"), reverse=True)]
    found = [
        Tool("cuda", _version(_output(str(home / "bin" / "nvcc"), "--version"), after="release "), home)
        for home in homes
        if (home / "bin" / "nvcc").exists() and (home / "include" / "cuda_runtime.h").exists()
    ]
    return next((tool for tool in found if tool.version.split(".")[0] == preferred_major), found[0] if found else None)


def _nccl(environ: Mapping[str, str], home: Path | None) -> Nccl | None:
    homes = [home] if home is not None else [Path(environ["NCCL_HOME"])] if environ.get("NCCL_HOME") else []
    from_pip: list[Path] = []
    if not homes:
        spec = importlib.util.find_spec("nvidia")
        from_pip = [Path(place) / "nccl" for place in (spec.submodule_search_locations or ())] if spec else []
        homes = [*from_pip, Path("/usr"), Path("/usr/local"), Path("/usr/local/cuda")]
    names = [f"{folder}/libnccl.so{end}" for folder in ("lib", "lib64", "lib/*-linux-gnu") for end in ("", ".2")]
    for place in homes:
        header = place / "include" / "nccl.h"
        library = next((file for name in names for file in sorted(place.glob(name))), None)
        if header.exists() and library is not None:
            text = header.read_text(encoding="utf-8", errors="replace")
            parts = [re.search(rf"#define NCCL_{part}\s+(\d+)", text) for part in ("MAJOR", "MINOR", "PATCH")]
            version = ".".join(part[1] for part in parts if part)
            return Nccl("nccl", version, library, include=header.parent, from_pip=place in from_pip)
    return None


def _free_mb(folder: Path) -> int:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free // 2**20


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _version(text: str, last: bool = False, after: str = "") -> str:
    found = re.findall(re.escape(after) + r"(\d+(?:\.\d+)+)", text)
    return found[-1 if last else 0] if found else ""
