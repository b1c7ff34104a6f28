"""Loading a saved model from a file that only rank 0 has."""

from __future__ import annotations

import contextlib
import io
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras

import kerasdist.schedules  # noqa: F401  (registers what a saved model may hold)
from kerasdist import engine
from kerasdist.engine import Group
from kerasdist.engine.meeting import gather_json
from kerasdist.transport import broadcast_bytes

_KINDS = {kind.__name__: kind for kind in (FileNotFoundError, OSError, TypeError, ValueError)}


def load_model(path: Any, custom_objects: Any = None, compile: bool = True, safe_mode: bool = True) -> Any:
    """``keras.models.load_model`` on every rank, of a file that only rank 0 needs. Every rank must call it.

    Rank 0 reads the file and sends its bytes; the other ranks load them from a temporary file of their own. So every
    rank builds the same model, with the state of the optimizer. Nothing but the file's bytes travels, and Keras'
    ``safe_mode`` holds for them on every rank.

    Inside ``strategy.scope()`` the model trains on all workers, as one that is made there; outside it takes a
    ``DistributedOptimizer`` callback. In one process it is ``keras.models.load_model``.

    Args:
        path: A ``.keras``, ``.h5`` or ``.hdf5`` file as ``model.save`` writes it. Rank 0's counts.
        custom_objects: As in Keras; each rank's own. Default None.
        compile: Whether to compile the model as it was when saved. Default True.
        safe_mode: Whether to refuse code in the file, such as a ``Lambda`` layer's. Default True.

    Returns:
        The model.

    Raises:
        FileNotFoundError: On every rank: rank 0 has no such file.
        OSError: On every rank: rank 0 cannot read it, it is a torn ``.h5``, or a rank cannot write its own copy.
        TypeError: On every rank: ``path`` is no path, or Keras cannot make an object of the file.
        ValueError: On every rank: the file is a torn ``.keras``, or of another kind, or Keras refuses it on some rank.

    Example:
        ```python
        with strategy.scope():
            model = kerasdist.load_model("model.keras")
        model.fit(x, y, initial_epoch=3, epochs=5)
        ```
    """
    group, content = engine.world(), b""
    with _failing_together(path, group):
        if group.rank == 0:
            content = _read(Path(path))
    suffix, size = gather_json([Path(path).suffix, len(content)] if group.rank == 0 else None, group, "load")[0]
    content = broadcast_bytes(content, size, group, "load")
    with _failing_together(path, group), tempfile.TemporaryDirectory(prefix="kerasdist-") as folder:
        own = Path(path) if group.rank == 0 else Path(folder) / f"model{suffix}"
        if group.rank != 0:
            own.write_bytes(content)
        model = keras.models.load_model(own, custom_objects=custom_objects, compile=compile, safe_mode=safe_mode)
    return model


def _read(path: Path) -> bytes:
    if path.name.endswith(".weights.h5"):
        raise ValueError(
            "the file holds weights alone, and `path` must be a whole model's. Make the model and call "
            "model.load_weights(path) on rank 0: `fit` gives all ranks rank 0's."
        )
    if path.suffix not in (".keras", ".h5", ".hdf5"):
        raise ValueError(f"`path` must end in .keras, .h5 or .hdf5. Received: {path.name!r}")
    content = path.read_bytes()
    if path.suffix == ".keras" and not zipfile.is_zipfile(io.BytesIO(content)):
        raise ValueError(
            f"a .keras file must be a zip file, and these {len(content)} bytes are none: the file is torn, or was not "
            "written by model.save(). Take another copy."
        )
    return content


@contextlib.contextmanager
def _failing_together(path: Any, group: Group) -> Iterator[None]:
    """Raises on every rank what the block raises on one. Collective."""
    raised = None
    try:
        yield
    except Exception as error:
        raised = error
    failure = None if raised is None else [[one.__name__ for one in type(raised).__mro__], str(raised)]
    for rank, failed in enumerate(gather_json(failure, group, "load.failures")):
        if failed is not None:
            names, text = failed
            kind = next((_KINDS[name] for name in names if name in _KINDS), ValueError)
            raise kind(
                f"rank {group.rank}: load_model({str(path)!r}) failed on rank {rank}: {names[0]}: {text}"
            ) from raised
