"""The engine on Horovod: MPI or Gloo between CPUs, NCCL between GPUs. The only import of Horovod in training."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from kerasdist.engine.base import Engine, Group
from kerasdist.errors import EngineError

STALLED = """
rank {rank}: waited {timeout_s:g} s in the collective {name!r} for other ranks, and ends the job. Usual causes:
  - code that only some ranks run, such as `if rank == 0: model.evaluate(...)` (use `with strategy.local():`);
  - a rank that left the epoch early (a stop asked for in a batch hook) or has other data;
  - a rank that died or is much slower: a longer wait is Options(timeout_s=...).
"""
STALLED_EXIT_CODE = 70


class HorovodGroup(Group):
    """All ranks of a Horovod job.

    Args:
        hvd: Horovod's module for TensorFlow.
        timeout_s: Seconds after which a collective outside of a graph ends the process, and so the job.
    """

    def __init__(self, hvd: Any, timeout_s: float) -> None:
        self._hvd = hvd
        self._timeout_s = timeout_s
        self.rank = hvd.rank()
        self.size = hvd.size()
        self._ops = {"sum": hvd.Sum, "mean": hvd.Average, "min": hvd.Min, "max": hvd.Max}

    def all_reduce(self, tensor: Any, op: str, name: str) -> Any:
        with self._watched(name):
            return self._hvd.allreduce(tensor, op=self._ops[op], name=name)

    def all_gather(self, tensor: Any, name: str) -> Any:
        with self._watched(name):
            return self._hvd.allgather(tensor, name=name)

    def all_to_all(self, tensor: Any, splits: Any, name: str) -> Any:
        with self._watched(name):
            received, _ = self._hvd.alltoall(tensor, splits=splits, name=name)
            return received

    def broadcast(self, tensor: Any, root: int, name: str) -> Any:
        with self._watched(name):
            return self._hvd.broadcast(tensor, root_rank=root, name=name)

    @contextlib.contextmanager
    def _watched(self, name: str) -> Iterator[None]:
        """Ends the process if a collective that is being waited for takes too long; Horovod would wait on."""
        if not tf.executing_eagerly() or self.size == 1:
            yield
            return
        timer = threading.Timer(self._timeout_s, self._end, [name])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _end(self, name: str) -> None:
        print(STALLED.format(rank=self.rank, timeout_s=self._timeout_s, name=name), file=sys.stderr, flush=True)
        os._exit(STALLED_EXIT_CODE)


class HorovodEngine(Engine):
    """Communication through Horovod.

    Horovod reads its settings from the environment when it starts; those that kerasdist chooses are set here, and
    only where the user set none.

    Args:
        timeout_s: Seconds after which a collective that waits for missing ranks ends the job.
    """

    name = "horovod"

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._hvd: Any = None
        self._world: HorovodGroup | None = None

    def start(self) -> None:
        """Imports and starts Horovod.

        Raises:
            EngineError: Horovod is not installed, or was built for another TensorFlow.
        """
        environ = os.environ
        environ.setdefault("HOROVOD_STALL_CHECK_TIME_SECONDS", str(max(1, int(min(60, self._timeout_s / 2)))))
        environ.setdefault("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", str(max(2, int(self._timeout_s))))
        try:
            import horovod.tensorflow as hvd

            hvd.init()
        except Exception as error:
            from kerasdist.engine_build import check_build

            check_build()
            raise EngineError(
                f"Horovod could not be started: {error}. See `kerasdist doctor` for what is missing."
            ) from error
        self._hvd = hvd
        self._world = HorovodGroup(hvd, self._timeout_s)

    def stop(self) -> None:
        if self._hvd is not None:
            self._hvd.shutdown()
            self._hvd = self._world = None

    @property
    def rank(self) -> int:
        return self._hvd.rank()

    @property
    def size(self) -> int:
        return self._hvd.size()

    @property
    def local_rank(self) -> int:
        return self._hvd.local_rank()

    @property
    def local_size(self) -> int:
        return self._hvd.local_size()

    @property
    def world(self) -> Group:
        assert self._world is not None, "the engine was not started"
        return self._world

    def controllers(self) -> list[str]:
        """The controllers that this Horovod was built with."""
        built = {"MPI": self._hvd.mpi_built, "Gloo": self._hvd.gloo_built}
        return [name for name, is_built in built.items() if is_built()]
