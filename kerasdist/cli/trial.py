"""Does it really work? Starts two processes that average their ranks; this file is also their script."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# What an outer launcher set for this process must not reach the two.
_OF_A_LAUNCHER = (
    "OMPI_",
    "PMIX_",
    "PMI_",
    "HOROVOD_RANK",
    "HOROVOD_SIZE",
    "HOROVOD_LOCAL_",
    "HOROVOD_CROSS_",
    "HOROVOD_GLOO_R",
)
_GRACE_S = 10


def start_two(environ: Mapping[str, str], timeout_s: float, controller: str = "gloo") -> dict[str, Any]:
    """Starts 2 processes on this host with Horovod's launcher.

    Args:
        environ: the environment.
        timeout_s: after so many seconds all of them are ended.
        controller: "gloo" or "mpi".

    Returns:
        {"mean": 0.5, "seconds": …} if all is well, else {"error": …}.
    """
    environ = {name: value for name, value in environ.items() if not name.startswith(_OF_A_LAUNCHER)}
    environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    with tempfile.TemporaryDirectory(prefix="kerasdist-") as folder:
        answer = Path(folder) / "answer.json"
        worker = [sys.executable, "-P", __file__, str(answer), str(int(timeout_s) + 1)]
        command = [sys.executable, "-m", "horovod.runner.launch", "-np", "2", f"--{controller}", *worker]
        start = time.monotonic()
        process = subprocess.Popen(
            command,
            env=environ,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            _end(process)
            return {"error": f"2 processes did not start and answer within {timeout_s:.0f} s"}
        except BaseException:
            _end(process)
            raise
        if process.returncode or not answer.exists():
            last = [line for line in output.splitlines() if line.strip()][-3:]
            return {"error": f"the launcher ended with status {process.returncode}: {' | '.join(last)}"}
        return {**json.loads(answer.read_text(encoding="utf-8")), "seconds": time.monotonic() - start}


def _end(process: subprocess.Popen[str]) -> None:
    """The launcher first, as it ends its workers; they have an alarm of their own too."""
    process.terminate()
    try:
        process.communicate(timeout=_GRACE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def _work(answer: Path, timeout_s: int) -> None:
    signal.alarm(timeout_s)
    import horovod.tensorflow as hvd
    import tensorflow as tf

    hvd.init()
    mean = hvd.allreduce(tf.constant(float(hvd.rank())), op=hvd.Average, name="doctor")
    if hvd.rank() == 0:
        answer.write_text(json.dumps({"mean": float(mean), "size": hvd.size()}), encoding="utf-8")
    hvd.shutdown()


if __name__ == "__main__":
    _work(Path(sys.argv[1]), int(sys.argv[2]))
