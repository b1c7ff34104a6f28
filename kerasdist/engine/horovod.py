"""The engine on Horovod: MPI or Gloo between CPUs, NCCL between GPUs. The only import of Horovod in training."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from kerasdist.engine import meeting
from kerasdist.engine.base import Engine, Group
from kerasdist.errors import EngineError
from kerasdist.launch.environment import LaunchEnvironment
from kerasdist.launch.join import ready
from kerasdist.step import current_step

SHUT_DOWN = "has been shut down"  # in every error of Horovod's for a collective that a rank's end cut off


class HorovodGroup(Group):
    """All ranks of a Horovod job.

    Args:
        hvd: Horovod's module for TensorFlow.
        timeout_s: Seconds after which a collective outside of a graph ends the process, and so the job.
    """

    def __init__(self, hvd: Any, timeout_s: float) -> None:
        self._hvd = hvd
        self.timeout_s = timeout_s
        self.rank = hvd.rank()
        self.size = hvd.size()
        self.crosses_hosts = hvd.local_size() < self.size
        self._ops = {"sum": hvd.Sum, "mean": hvd.Average, "min": hvd.Min, "max": hvd.Max}
        self._exchange = tf.function(self._exchange_row, [tf.TensorSpec([3], tf.int64)], autograph=False)
        self._sent: tf.Variable | None = None

    def sent_bytes(self) -> int:
        return round(float(self._counter().numpy()))

    def all_reduce(self, tensor: Any, op: str, name: str) -> Any:
        self._count(tensor, 2 * (self.size - 1) / self.size)
        with self._meeting(name, f"{op} of {_kind(tensor, tensor.shape)}"):
            return self._hvd.allreduce(tensor, op=self._ops[op], name=name, ignore_name_scope=True)

    def all_gather(self, tensor: Any, name: str) -> Any:
        self._count(tensor, self.size - 1)
        with self._meeting(name, f"rows of {_kind(tensor, tensor.shape[1:])}"):
            return self._hvd.allgather(tensor, name=name, ignore_name_scope=True)

    def all_to_all(self, tensor: Any, splits: Any, name: str) -> Any:
        splits = tf.convert_to_tensor(splits)
        kept = tf.cast(splits[self.rank], tf.float64) / tf.cast(tf.maximum(tf.reduce_sum(splits), 1), tf.float64)
        self._count(tensor, 1 - kept)
        with self._meeting(name):
            received, _ = self._hvd.alltoall(tensor, splits=splits, name=name, ignore_name_scope=True)
            return received

    def broadcast(self, tensor: Any, root: int, name: str) -> Any:
        with self._meeting(name, f"{_kind(tensor, tensor.shape)} from rank {root}"):
            return self._hvd.broadcast(tensor, root_rank=root, name=name, ignore_name_scope=True)

    def exchange(self, row: Any) -> Any:
        return self._exchange(row)

    def _count(self, tensor: Any, factor: Any) -> None:
        """Adds ``factor`` times the tensor's bytes to what was sent, within training steps."""
        if current_step() is None:
            return
        tensor = tf.convert_to_tensor(tensor)
        items = tensor.shape.num_elements()
        items = tf.cast(tf.size(tensor) if items is None else items, tf.float64)
        self._counter().assign_add(items * tensor.dtype.size * factor)

    def _counter(self) -> tf.Variable:
        """The bytes sent. Made when first asked for, which is after the devices were claimed."""
        if self._sent is None:
            with tf.init_scope(), tf.device("CPU:0"):
                self._sent = tf.Variable(0.0, trainable=False, dtype=tf.float64)
        return self._sent

    def _exchange_row(self, row: Any) -> Any:
        # In a graph of its own, so that Horovod knows it by the same name wherever it is called.
        with tf.device("CPU:0"):
            return tf.ensure_shape(
                self._hvd.allgather(row[None], name="kerasdist.exchange", ignore_name_scope=True), [self.size, 3]
            )

    @contextlib.contextmanager
    def _meeting(self, name: str, what: str = "") -> Iterator[None]:
        """Outside of graphs: all ranks are known to come with the same, and the process ends if they take too long."""
        if not tf.executing_eagerly() or self.size == 1:
            yield
            return
        if current_step() is None:
            meeting.meet(self, name, what)
        with self.waits(f"the collective {name!r}"):
            yield

    @contextlib.contextmanager
    def waits(self, where: str) -> Iterator[None]:
        timer = threading.Timer(self.timeout_s, meeting.end_stalled, [self, where])
        timer.daemon = True
        timer.start()
        before, self.waiting = self.waiting, True
        try:
            yield
        except tf.errors.OpError as error:
            if not self.was_cut_off(error):
                raise
            raise meeting.cut_off(self, where) from None
        finally:
            self.waiting = before
            timer.cancel()

    def was_cut_off(self, error: Exception) -> bool:
        return SHUT_DOWN in str(error)


def _kind(tensor: Any, shape: Any) -> str:
    return f"{tensor.dtype.name} of shape {shape}"


class HorovodEngine(Engine):
    """Communication through Horovod.

    Horovod reads its settings from the environment when it starts; those that kerasdist chooses are set here, and
    only where the user set none.

    Args:
        timeout_s: Seconds after which a collective that waits for missing ranks ends the job, and for which ranks
            wait for each other at the start.
        environment: What the launcher says. Default none.
    """

    name = "horovod"

    def __init__(self, timeout_s: float, environment: LaunchEnvironment | None = None) -> None:
        self._timeout_s = timeout_s
        self._environment = environment or LaunchEnvironment()
        self._hvd: Any = None
        self._world: HorovodGroup | None = None

    def start(self) -> None:
        """Imports and starts Horovod.

        Raises:
            EngineError: Horovod is not installed, or was built for another TensorFlow; or the ranks do not find each
                other.
        """
        environ = os.environ
        # Horovod names the missing ranks after up to twice this time; before kerasdist ends the job.
        environ.setdefault("HOROVOD_STALL_CHECK_TIME_SECONDS", str(max(1, int(min(60, self._timeout_s / 4)))))
        environ.setdefault("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", str(max(4, int(2 * self._timeout_s))))
        # Fusing what is ready at the same time makes the order of additions, and so the bits, a matter of timing from
        # three ranks on. Small gradients are packed already.
        environ.setdefault("HOROVOD_FUSION_THRESHOLD", "0")
        try:
            import horovod.tensorflow as hvd

            with ready(self._environment, hvd.mpi_built(), self._timeout_s):
                hvd.init()
        except EngineError:
            raise
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
    def host(self) -> int:
        return self._hvd.cross_rank()

    @property
    def world(self) -> Group:
        assert self._world is not None, "the engine was not started"
        return self._world

    def controllers(self) -> list[str]:
        """The controllers that this Horovod was built with."""
        built = {"MPI": self._hvd.mpi_built, "Gloo": self._hvd.gloo_built}
        return [name for name, is_built in built.items() if is_built()]
