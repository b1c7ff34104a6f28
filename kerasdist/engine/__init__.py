"""Which engine runs this process, and who am I in the job?

``init`` picks the engine from the launcher's environment: Horovod if a launcher started several processes, else the
engine of one process, which needs nothing installed beside Keras and TensorFlow.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import warnings
from typing import Any

from kerasdist.config import Options, one_of
from kerasdist.engine import meeting
from kerasdist.engine.base import Engine, Group
from kerasdist.errors import EngineError
from kerasdist.launch.environment import LaunchEnvironment, read_environment

__all__ = ["Engine", "Group", "current", "init", "local_rank", "rank", "shutdown", "size", "world"]

ENGINES = ("auto", "horovod", "local")
NOT_DISTRIBUTED = (
    "There are several workers, but this model trains on each of them alone: it was made and compiled outside of "
    "strategy.scope(), and `callbacks` holds no kerasdist.DistributedOptimizer()."
)
_current: Engine | None = None


def init(engine: str = "auto", options: Options | None = None) -> Engine:
    """Starts the engine and claims this worker's cores and GPU. Every rank must call it, before the first tensor.

    A second call returns the running engine.

    Args:
        engine: ``"auto"`` (default): Horovod if a launcher started several processes, else ``"local"``.
            ``"horovod"`` or ``"local"``: that one.
        options: ``timeout_s`` is read from it. Default ``Options()``.

    Returns:
        The running engine.

    Raises:
        ValueError: Unknown engine, or Keras does not run on TensorFlow.
        EngineError: The engine is not built, or N processes were started and it sees only one.
    """
    global _current
    one_of("engine", engine, ENGINES)
    if _current is not None:
        if engine not in ("auto", _current.name):
            raise EngineError(
                f"The {_current.name!r} engine already runs, but engine={engine!r} was asked for. "
                "Ask for it in the first call, or call kerasdist.shutdown() before."
            )
        return _current
    from kerasdist import keras_hooks

    keras_hooks.check_backend()
    environment = read_environment(os.environ)
    started = environment.size or 1
    if engine == "local" and started > 1:
        raise EngineError(
            f"engine='local' was asked for, but {environment.launcher} started {started} processes: each would train "
            "alone. Remove the argument, or start one process."
        )
    if engine == "auto":
        engine = "horovod" if started > 1 else "local"
    _current = _start(engine, environment, options or Options())
    if _current.size > 1:
        keras_hooks.surround_fit(_around_fit)
        _name_this_rank(_current.rank)
    if _current.rank != 0:
        keras_hooks.silence_this_rank()
    keras_hooks.check_versions()
    return _current


def _start(engine: str, environment: LaunchEnvironment, options: Options) -> Engine:
    from kerasdist.engine.devices import claim_devices

    if engine == "local":
        from kerasdist.engine.local import LocalEngine

        return LocalEngine()
    from kerasdist.engine.horovod import HorovodEngine

    running = HorovodEngine(options.timeout_s, environment)
    running.start()
    started, launcher = environment.size or 1, environment.launcher or "python"
    if running.size != started:
        seen, built = running.size, ", ".join(running.controllers())
        running.stop()
        raise EngineError(
            f"{launcher} started {started} processes, but Horovod sees {seen}: each would train alone. "
            f"Built controllers: {built}. Start the script with `horovodrun -np {started}`, or with mpirun and a "
            "Horovod built with MPI (`kerasdist build-engine --mpi`)."
        )
    claim_devices(running.local_rank, running.local_size)
    atexit.register(shutdown)
    return running


def _around_fit(model: Any, callbacks: Any) -> contextlib.AbstractContextManager[Any]:
    """All ranks end a ``fit`` together; one that is not distributed is warned of."""
    if _is_distributed(model, callbacks):
        return meeting.together(world(), training=True)
    warnings.warn(NOT_DISTRIBUTED, RuntimeWarning, stacklevel=3)
    return contextlib.nullcontext()


def _name_this_rank(rank: int) -> None:
    """The line before an uncaught exception's traceback says whose it is."""
    own = sys.excepthook

    def named(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        print(f"rank {rank}: {kind.__name__}: {error}", file=sys.stderr, flush=True)
        own(kind, error, trace)

    sys.excepthook = named


def _is_distributed(model: Any, callbacks: Any) -> bool:
    from kerasdist import keras_hooks

    if _current is None or _current.size == 1:
        return True
    given, _ = keras_hooks.make_callback_list(callbacks)
    listed = [*given, *getattr(callbacks, "callbacks", [])]
    return keras_hooks.patched_by(model) is not None or any(hasattr(one, "replica") for one in listed)


def current() -> Engine:
    """The running engine; starts it with default options if need be."""
    return _current if _current is not None else init()


def shutdown() -> None:
    """Stops the engine. Every rank must call it; it is called at exit."""
    global _current
    if _current is not None:
        _current.stop()
        _current = None


def world() -> Group:
    """The group of all ranks."""
    return current().world


def rank() -> int:
    """This process's number, 0 to ``size() - 1``. Any rank may call it alone."""
    return current().rank


def size() -> int:
    """The number of processes in the job. Any rank may call it alone."""
    return current().size


def local_rank() -> int:
    """This process's number on its host. Any rank may call it alone."""
    return current().local_rank
