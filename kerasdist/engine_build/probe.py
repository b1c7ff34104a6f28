"""What do the installed TensorFlow, Keras and Horovod say of themselves?

`probe` asks in a process of its own, so that a broken extension cannot take the asker down and nothing is imported
into it. This file is also that process's script, hence it imports nothing of kerasdist.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any


def probe(
    environ: Mapping[str, str] | None = None, timeout_s: float = 180, parts: str = "tensorflow,keras,horovod"
) -> dict[str, Any]:
    """Asks the packages of this environment.

    Args:
        environ: environment of the process; default this process's own.
        timeout_s: after so many seconds the process is ended.
        parts: which packages to ask, in this order.

    Returns:
        One dict a part, with its facts, or with "error" if it does not load, hangs, or crashes.
    """
    environ = {"TF_CPP_MIN_LOG_LEVEL": "3", **(os.environ if environ is None else environ)}
    command = [sys.executable, "-P", __file__, parts]
    try:
        done = subprocess.run(command, env=environ, capture_output=True, text=True, errors="replace", timeout=timeout_s)
        output, failure = done.stdout, _failure(done.returncode, done.stderr)
    except subprocess.TimeoutExpired as error:
        output = (error.stdout or b"").decode(errors="replace") if isinstance(error.stdout, bytes) else ""
        failure = f"did not load within {timeout_s:.0f} s"
    return read_answer(output, failure, parts)


def read_answer(output: str, failure: str, parts: str) -> dict[str, Any]:
    """Joins the script's lines; the first part without an answer gets `failure`, those after it were not asked."""
    result: dict[str, Any] = {}
    for line in output.splitlines():
        if line.startswith('{"part": '):
            answer = json.loads(line)
            result[answer.pop("part")] = answer
    for name in parts.split(","):
        if name not in result:
            result[name] = {"error": failure}
            failure = "not asked, as the one before it failed"
    return result


def look_at_tensorflow() -> dict[str, Any]:
    """Imports TensorFlow and returns its version, whether it has CUDA, and the names of its GPUs."""
    import tensorflow as tf

    gpus = [device.name for device in tf.config.list_physical_devices("GPU")]
    return {"version": tf.__version__, "cuda": tf.test.is_built_with_cuda(), "gpus": gpus}


def look_at_keras() -> dict[str, Any]:
    """Imports Keras and returns its version and backend."""
    import keras

    return {"version": keras.__version__, "backend": keras.backend.backend()}


def look_at_horovod() -> dict[str, Any]:
    """Imports Horovod's TensorFlow side and returns what is built into it."""
    import horovod
    import horovod.tensorflow as hvd

    nccl = int(hvd.nccl_built())
    return {
        "version": horovod.__version__,
        "gloo": bool(hvd.gloo_built()),
        "mpi": bool(hvd.mpi_built()),
        "nccl": nccl_version(nccl) if nccl else "",
        "cuda": bool(hvd.cuda_built()),
    }


def nccl_version(code: int) -> str:
    """Returns "2.32.3" for NCCL's 23203, and "2.8.4" for its older 2804."""
    major = 10000 if code >= 10000 else 1000
    return f"{code // major}.{code % major // 100}.{code % 100}"


def _failure(status: int, stderr: str) -> str:
    if status < 0:
        return f"crashed with {signal.Signals(-status).name} while loading"
    last = next((line for line in reversed(stderr.splitlines()) if line.strip()), "no message")
    return f"ended with status {status}: {last.strip()}"


def _answer(parts: str) -> None:
    questions: dict[str, Callable[[], dict[str, Any]]] = {
        "tensorflow": look_at_tensorflow,
        "keras": look_at_keras,
        "horovod": look_at_horovod,
    }
    for name in parts.split(","):
        try:
            answer = questions[name]()
        except BaseException as error:
            answer = {"error": f"{type(error).__name__}: {error}".strip()}
        print(json.dumps({"part": name, **answer}), flush=True)


if __name__ == "__main__":
    _answer(sys.argv[1])
