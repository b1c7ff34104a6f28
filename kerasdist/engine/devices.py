"""What a worker may use of its host: its share of the cores, and the GPU of its local rank."""

from __future__ import annotations

import os
import warnings

import tensorflow as tf

from kerasdist.errors import EngineError
from kerasdist.limits import available_cores

TOO_LATE = (
    "TensorFlow was already running when kerasdist started, so {what} could not be set. Call `kerasdist.init()` (or "
    "make the strategy) before the first tensor, or set {how} in the launcher's environment."
)


def claim_devices(local_rank: int, local_size: int) -> None:
    """Limits TensorFlow to this worker's cores and GPU, unless the user chose otherwise.

    Args:
        local_rank: This process's number on its host.
        local_size: The number of workers on this host.

    Raises:
        EngineError: There are GPUs but fewer than workers, or TensorFlow already took another GPU.
    """
    _claim_gpu(local_rank, local_size)
    _claim_cores(local_size)


def _claim_cores(local_size: int) -> None:
    if local_size == 1:
        return
    cores = max(1, available_cores() // local_size)
    # One more between operations: with a single thread, what waits for a collective runs only when the computation
    # pauses, and so the gradients' collectives would not overlap it (docs/benchmarks.md).
    for kind, threads in (("intra_op", cores), ("inter_op", cores + 1)):
        variable = f"TF_NUM_{kind.replace('_', '').upper()}_THREADS"
        current = getattr(tf.config.threading, f"get_{kind}_parallelism_threads")()
        if current or os.environ.get(variable):
            continue
        try:
            getattr(tf.config.threading, f"set_{kind}_parallelism_threads")(threads)
        except RuntimeError:
            how = "TF_NUM_INTRAOP_THREADS and TF_NUM_INTEROP_THREADS"
            warnings.warn(TOO_LATE.format(what=f"its threads ({cores} for each worker)", how=how), stacklevel=2)
            return


def _claim_gpu(local_rank: int, local_size: int) -> None:
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus or (len(gpus) == 1 and os.environ.get("CUDA_VISIBLE_DEVICES")):
        return
    if len(gpus) < local_size:
        raise EngineError(
            f"local rank {local_rank}: this host has {len(gpus)} visible GPUs for {local_size} workers. "
            "Start at most one worker for each GPU, or hide the GPUs with CUDA_VISIBLE_DEVICES=-1."
        )
    mine = gpus[local_rank]
    if tf.config.get_visible_devices("GPU") == [mine]:
        return
    try:
        tf.config.set_visible_devices(mine, "GPU")
        tf.config.experimental.set_memory_growth(mine, True)
    except RuntimeError as error:
        raise EngineError(
            f"local rank {local_rank}: " + TOO_LATE.format(what=f"GPU {local_rank}", how="CUDA_VISIBLE_DEVICES")
        ) from error
