"""One checkpoint, one file: written whole or not at all, and checked before it is believed.

A file is NumPy's ``.npz`` without pickles: one member a tensor, and a member of JSON that says what the others must be.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

FORMAT = 1
HEADER = "kerasdist.json"
_NAME = re.compile(r"checkpoint-e(\d+)-b(\d+)\.npz")


class NotACheckpointError(Exception):
    """A file that is torn, or that ``write`` did not write."""


@dataclasses.dataclass(frozen=True)
class Saved:
    """What a file holds.

    Attributes:
        path: The file.
        header: What it says of itself, JSON values.
        arrays: Its tensors by name.
    """

    path: Path
    header: dict[str, Any]
    arrays: dict[str, np.ndarray]


def digest(array: np.ndarray) -> str:
    """A hash of an array's bytes."""
    return hashlib.blake2b(np.ascontiguousarray(array).tobytes(), digest_size=16).hexdigest()


def write(folder: Path, position: tuple[int, int], header: dict[str, Any], arrays: dict[str, np.ndarray]) -> Path:
    """Writes a checkpoint. Killed at any moment, it leaves either no file of this name, or the whole one.

    Args:
        folder: Where; it is made if there is none.
        position: The epoch and the batches of it that are done. The file is named after it.
        header: JSON values.
        arrays: Tensors by name, of NumPy's own dtypes.

    Raises:
        OSError: It cannot be written. Files that were there before are untouched.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"checkpoint-e{position[0]:06d}-b{position[1]:09d}.npz"
    described = {name: [str(one.dtype), list(one.shape), digest(one)] for name, one in arrays.items()}
    whole = json.dumps({**header, "format": FORMAT, "arrays": described}).encode()
    temporary = folder / f".{target.name}.{os.getpid()}.tmp"
    try:
        with open(temporary, "wb") as file:
            np.savez(file, **{HEADER: np.frombuffer(whole, np.uint8)}, **arrays)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    _flush(folder)
    return target


def read(path: Path) -> Saved:
    """Reads a checkpoint, every byte of it checked.

    Raises:
        NotACheckpointError: Torn, changed, foreign, or of another format.
    """
    try:
        with zipfile.ZipFile(path) as parts, np.load(path, allow_pickle=False) as file:
            if f"{HEADER}.npy" not in parts.namelist():
                raise NotACheckpointError("it was not written by kerasdist.Checkpoint")
            header = json.loads(file[HEADER].tobytes())
            if header["format"] != FORMAT:
                raise NotACheckpointError(f"its format is {header['format']}, and this version reads {FORMAT}")
            described = header.pop("arrays")
            arrays = {name: file[name] for name in file.files if name != HEADER}
    except NotACheckpointError:
        raise
    except Exception as error:  # whatever zipfile, NumPy and json say of bytes that are not what they should be
        raise NotACheckpointError(f"it is torn or foreign ({type(error).__name__}: {error})") from error
    found = {name: [str(one.dtype), list(one.shape), digest(one)] for name, one in arrays.items()}
    wrong = [name for name in {**described, **found} if described.get(name) != found.get(name)]
    if wrong:
        raise NotACheckpointError(f"{wrong[0]!r} is not what its header says (dtype, shape and checksum)")
    return Saved(path, header, arrays)


def newest(folder: Path, skipped: Callable[[str], None]) -> Saved | None:
    """The last checkpoint of a folder that is whole, or None. What is passed over is told to ``skipped``."""
    for path in reversed(_checkpoints(folder)):
        try:
            return read(path)
        except NotACheckpointError as error:
            skipped(f"The checkpoint {path} is not used: {error}. The one before it is tried.")
    return None


def prune(folder: Path, written: Path, keep: int) -> None:
    """Deletes the older ones, so that ``keep`` are left up to and with the one that was just written.

    Files named as later ones are left alone: they were passed over, and must not push out what is whole.
    """
    older = [path for path in _checkpoints(folder) if _position(path) < _position(written)]
    for path in older[: len(older) - (keep - 1)]:
        path.unlink(missing_ok=True)


def drop_between(folder: Path, written: tuple[int, int], last: tuple[int, int]) -> None:
    """Deletes what stands later than the one just written, up to one that it takes the place of."""
    for path in _checkpoints(folder):
        if written < _position(path) <= last:
            path.unlink(missing_ok=True)


def prepare(folder: Path) -> None:
    """Makes the folder, where one can write, and deletes what a process that was killed while it wrote has left.

    Raises:
        OSError: It cannot be made, or nothing can be written there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f".checkpoint-trial.{os.getpid()}.tmp").touch()
    for path in folder.glob(".checkpoint-*.tmp"):
        path.unlink(missing_ok=True)


def _checkpoints(folder: Path) -> list[Path]:
    found = [path for path in folder.glob("checkpoint-*.npz") if _NAME.fullmatch(path.name)]
    return sorted(found, key=_position)


def _position(path: Path) -> tuple[int, ...]:
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return tuple(int(part) for part in match.groups())


def _flush(folder: Path) -> None:
    """Makes a renaming last: the folder's own entry, too, goes to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
