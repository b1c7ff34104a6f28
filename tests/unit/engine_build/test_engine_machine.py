"""The machine is looked at without importing TensorFlow, and found as it is."""

import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from kerasdist.engine_build import build, machine
from kerasdist.engine_build.progress import BuildProgress
from kerasdist.errors import BuildError


def _program(path: Path, says: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return path


def _cuda(home: Path, version: str) -> Path:
    _program(home / "bin" / "nvcc", f"Cuda compilation tools, release {version}, V{version}.88")
    (home / "include").mkdir()
    (home / "include" / "cuda_runtime.h").touch()
    return home


@pytest.mark.parametrize(
    ("says", "expected"),
    [
        ("g++ (Debian 12.2.0-14+deb12u1) 12.2.0", ("gcc", "12.2.0")),
        ("g++ (crosstool-NG 1.25.0) 11.4.0", ("gcc", "11.4.0")),
        ("Debian clang version 14.0.6", ("clang", "14.0.6")),
    ],
)
def test_the_compiler_that_cxx_names(tmp_path, says, expected):
    cxx = _program(tmp_path / "cxx", says)
    tool = machine._compiler({"CXX": f"ccache {cxx}"})
    assert (tool.name, tool.version, tool.path) == (*expected, cxx)


def test_a_compiler_that_is_not_there():
    assert machine._compiler({"CXX": "/no/such/compiler"}) is None


def test_cuda_of_tensorflow_s_major_version_comes_first(tmp_path):
    thirteen, twelve = _cuda(tmp_path / "13", "13.0"), _cuda(tmp_path / "12", "12.6")
    environ = {"CUDA_HOME": str(thirteen), "CUDA_PATH": str(twelve)}
    assert machine._cuda(environ, None, "12").version == "12.6"
    assert machine._cuda(environ, thirteen, "12").version == "13.0"
    assert machine._cuda(environ, tmp_path, "12") is None


@pytest.mark.parametrize("library", ["lib/libnccl.so.2", "lib64/libnccl.so", "lib/x86_64-linux-gnu/libnccl.so"])
def test_nccl_is_found_with_its_version(tmp_path, library):
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "nccl.h").write_text("#define NCCL_MAJOR 2\n#define NCCL_MINOR 27\n#define NCCL_PATCH 3\n")
    assert machine._nccl({"NCCL_HOME": str(tmp_path)}, None) is None
    (tmp_path / library).parent.mkdir(parents=True)
    (tmp_path / library).touch()
    nccl = machine._nccl({"NCCL_HOME": str(tmp_path)}, None)
    assert (str(nccl), nccl.path, nccl.from_pip) == ("nccl 2.27.3", tmp_path / library, False)


def test_looking_imports_no_tensorflow():
    script = "import os, sys; from kerasdist.engine_build import machine; machine.look(os.environ); "
    script += "sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


def test_a_tool_that_fails_is_logged_and_an_error(tmp_path):
    command = [sys.executable, "-c", "print('No space left on device'); raise SystemExit(3)", "step"]
    with (tmp_path / "log").open("w") as log, pytest.raises(BuildError, match="the disk is full") as error:
        build._run(command, {}, log, BuildProgress(Console(quiet=True), 1))
    assert "ended with status 3" in str(error.value)
    assert "No space left on device" in (tmp_path / "log").read_text()


def test_an_interrupt_ends_the_tool(tmp_path):
    class Interrupting(BuildProgress):
        def line(self, text):
            self.pid = int(text)
            raise KeyboardInterrupt

    progress = Interrupting(Console(quiet=True), 1)
    script = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    with (tmp_path / "log").open("w") as log, pytest.raises(KeyboardInterrupt):
        build._run([sys.executable, "-c", script], {}, log, progress)
    assert not Path(f"/proc/{progress.pid}").exists()
