"""Runs a launcher's command to its end, and looks at what it left."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
import time
from pathlib import Path

import numpy as np

from tests.parallel.launch import KERASDIST, ROOT, run

TRAIN = "tests/cluster/train.py"
OF_A_LAUNCHER = re.compile(r"(HOROVOD|OMPI|PMI|PMIX|SLURM|KERASDIST|TORCHELASTIC|NCCL)_|(WORLD_SIZE|RANK|LOCAL_RANK)$")


@dataclasses.dataclass(frozen=True)
class Ended:
    """A job that has ended: its exit code, output, and the seconds from the rank's death to its end."""

    code: int
    output: str
    seconds: float
    folder: Path

    def weights(self) -> list[np.ndarray]:
        """The example's weights."""
        assert (self.folder / "weights.npz").exists(), self.output[-6000:]
        with np.load(self.folder / "weights.npz") as file:
            return [file[name] for name in file.files]

    def doors(self) -> list[list]:
        """The addresses at which each rank listened during the training."""
        return [json.loads(path.read_text()) for path in sorted(self.folder.glob("listens.*.json"))]


def python() -> str:
    return sys.executable


def kerasdist_command(*arguments: str) -> list[str]:
    """`kerasdist ...` by this Python."""
    return [*KERASDIST, *arguments]


def start(command: list[str], folder: Path, timeout_s: int = 150, **environment: str) -> Ended:
    """Runs a command that starts the workers of TRAIN with this folder; no worker may be left."""
    outer = {name: "" for name in os.environ if OF_A_LAUNCHER.match(name)}
    code, output = run(command, timeout_s, {**outer, **environment})
    return ended(code, output, folder)


def ended(code: int, output: str, folder: Path) -> Ended:
    now = time.time()
    died = folder / "died"
    seconds = now - float(died.read_text()) if died.exists() else float("nan")
    end = time.monotonic() + 10
    while left(folder) and time.monotonic() < end:
        time.sleep(0.1)
    assert not left(folder), f"orphans: {left(folder)}\n{output[-3000:]}"
    return Ended(code, output, seconds, folder)


def left(folder: Path) -> list[str]:
    """The command lines of processes that were started with this folder."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path("/proc", entry, "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if str(folder).encode() in words:
            found.append(b" ".join(words).decode(errors="replace"))
    return found


def command_of(folder: Path, fault: str) -> list[str]:
    """The command of each worker."""
    return [sys.executable, str(ROOT / TRAIN), str(folder), fault]
