"""Make the wheel: fetch the tools and the source, compile, hand back one file."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

from kerasdist.engine_build import recipe
from kerasdist.engine_build.causes import likely_cause
from kerasdist.engine_build.machine import Machine, Nccl
from kerasdist.engine_build.progress import BuildProgress
from kerasdist.errors import BuildError

STAGES = 3
_SHOWN_LINES = 24
_ERROR = re.compile(r": (fatal )?error:|CMake Error|No space left on device|undefined reference|\bKilled\b")


def build_wheel(
    machine: Machine,
    options: recipe.Options,
    folder: Path,
    log: Path,
    progress: BuildProgress,
    environ: Mapping[str, str],
) -> Path:
    """Builds Horovod for the TensorFlow that is installed. Nothing of the user's environment is changed.

    Args:
        machine: the facts, past the preflight.
        options: what to build.
        folder: an empty folder for everything that is temporary.
        log: file that gets all output.
        progress: is told of stages and lines.
        environ: the user's environment.

    Returns:
        The wheel, in `folder`.

    Raises:
        BuildError: a tool failed; says which, the likely cause, the end of the log and where it is.
    """
    tools, source, wheels, scratch = (folder / name for name in ("tools", "source", "wheels", "scratch"))
    scratch.mkdir()
    environ = {**environ, "TMPDIR": str(scratch), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8", errors="replace") as output:
        progress.stage("fetching the build tools")
        _run(pip("install", "--target", str(tools), *recipe.BUILD_TOOLS), environ, output, progress)
        cmake = tools / "bin" / recipe.CMAKE_NAME
        cmake.write_text(recipe.CMAKE)
        cmake.chmod(0o755)

        progress.stage(f"fetching Horovod {recipe.HOROVOD_VERSION}'s source")
        # pip compares the hash before it runs anything of the source.
        pinned = folder / "source.txt"
        pinned.write_text(f"horovod=={recipe.HOROVOD_VERSION} --hash=sha256:{recipe.SOURCE_SHA256}\n")
        fetch = ("--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--require-hashes")
        fetching = recipe.build_environment(environ, machine, recipe.Options(jobs=options.jobs), tools)
        _run(pip("download", *fetch, "--dest", str(source), "-r", str(pinned)), fetching, output, progress)

        progress.stage("compiling")
        nccl_home = _nccl_home(machine.nccl, log.with_suffix(".nccl")) if options.nccl and machine.nccl else None
        compiling = recipe.build_environment(environ, machine, options, tools, nccl_home)
        (archive,) = source.iterdir()
        how = ("--verbose", "--no-deps", "--no-build-isolation", "--no-cache-dir")
        _run(pip("wheel", *how, "--wheel-dir", str(wheels), str(archive)), compiling, output, progress)
    (wheel,) = wheels.glob("horovod-*.whl")
    return wheel


def pip(*arguments: str) -> list[str]:
    """Returns the command that runs this environment's pip."""
    return [sys.executable, "-m", "pip", *arguments]


def _run(command: Sequence[str], environ: Mapping[str, str], log: TextIO, progress: BuildProgress) -> None:
    log.write(f"\n$ {' '.join(command)}\n")
    tail: deque[str] = deque(maxlen=2000)
    with subprocess.Popen(
        command,
        env=dict(environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        start_new_session=True,  # so that an interrupt ends the compilers too
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                log.write(line)
                tail.append(line)
                progress.line(line)
            status = process.wait()
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    if status:
        log.flush()
        raise BuildError(failure_text(command, status, tail, Path(log.name)))


def failure_text(command: Sequence[str], status: int, tail: Sequence[str] | deque[str], log: Path) -> str:
    """Returns what a failed build says: the log around its first error, the likely cause, where the whole log is."""
    cause = likely_cause("".join(tail)) or "not one that kerasdist knows; the log says more"
    lines = list(tail)
    # What setup.py and pip say after the first error (a traceback, a clean-up) tells nothing.
    first = next((number for number, line in enumerate(lines) if _ERROR.search(line)), len(lines))
    end = "".join(lines[: first + _SHOWN_LINES // 2][-_SHOWN_LINES:]).rstrip()
    return (
        f"{end}\n\nThe engine was not built: `pip {command[3]}` ended with status {status}.\n"
        f"Likely cause: {cause}.\nWhole log: {log}"
    )


def _nccl_home(nccl: Nccl, home: Path) -> Path:
    """A folder as Horovod expects it: the package of NCCL names its library `libnccl.so.2`, and has no `libnccl.so`.

    CMake leaves this folder in the binary as a place to search, so it stands in the user's cache: a temporary one
    could later be made by somebody else.
    """
    shutil.rmtree(home, ignore_errors=True)
    (home / "lib").mkdir(parents=True)
    (home / "include").symlink_to(nccl.include)
    (home / "lib" / "libnccl.so").symlink_to(nccl.path)
    return home
