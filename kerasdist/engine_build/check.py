"""Is the installed engine fit for training? If not, one message says what is missing and how to rebuild."""

from __future__ import annotations

from kerasdist.engine_build import probe
from kerasdist.engine_build.installed import InstalledEngine, installed_engine
from kerasdist.engine_build.machine import tensorflow_packages
from kerasdist.errors import EngineError


def check_build(mpi: bool = False, nccl: bool = False) -> None:
    """Loads the engine into this process (and TensorFlow with it) and raises if something is missing.

    Args:
        mpi: MPI is needed too.
        nccl: NCCL is needed too.

    Raises:
        EngineError: names what is missing, the TensorFlow that the engine was built for and the one that runs, and
            the command that rebuilds it.
    """
    try:
        built = probe.look_at_horovod()
    except Exception as error:  # TensorFlow's own errors too: a damaged library is a NotFoundError
        raise explain_import_error(error) from error
    missing = []
    if not (built["gloo"] or built["mpi"]):
        missing.append("a controller (Gloo or MPI)")
    if mpi and not built["mpi"]:
        missing.append("the MPI controller")
    if nccl and not built["nccl"]:
        missing.append("the NCCL operations for GPUs")
    if missing:
        raise EngineError(_message(f"is built without {' and '.join(missing)}", installed_engine(), mpi, nccl))


def explain_import_error(error: BaseException) -> EngineError:
    """Returns the error to raise, `from error`, where `import horovod.tensorflow` failed. Imports nothing."""
    engine = installed_engine()
    if engine is None:
        what = "is not installed"
    elif not engine.tensorflow:
        what = "has no TensorFlow extension"
    elif engine.tensorflow not in {version for _, version in tensorflow_packages()}:
        what = "was built for another TensorFlow than the one that runs"
    else:
        what = f"does not load ({type(error).__name__}: {error})"
    return EngineError(_message(what, engine))


def _message(what: str, engine: InstalledEngine | None, mpi: bool = False, nccl: bool = False) -> str:
    running = ", ".join(f"{name} {version}" for name, version in tensorflow_packages()) or "none"
    built_for = "" if engine is None else f"built for: TensorFlow {engine.tensorflow or 'none'}; "
    command = " ".join(["kerasdist build-engine", *["--mpi"] * mpi, *["--nccl"] * nccl])
    return (
        f"The engine (Horovod) {what}. Expected for several workers: Horovod, built for the TensorFlow that runs. "
        f"Received: {built_for}running: {running}. Build it with `{command}`; `kerasdist doctor` shows the rest."
    )
