"""How is a bucket averaged cheaply? One compressor a file; ``get`` turns what the user wrote into one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kerasdist.compression.base import Compressor
from kerasdist.compression.cast import Cast
from kerasdist.compression.none import NoCompression
from kerasdist.compression.quantizer import Quantizer

__all__ = ["COMPRESSORS", "Cast", "Compressor", "NoCompression", "Quantizer", "get"]

COMPRESSORS: dict[str, Callable[[], Compressor]] = {
    "none": NoCompression,
    "fp16": lambda: Cast("float16"),
    "bf16": lambda: Cast("bfloat16"),
}


def get(identifier: Any) -> Compressor:
    """Returns the compressor that ``compression=identifier`` means.

    Args:
        identifier: None, ``"none"``, ``"fp16"``, ``"bf16"`` or a ``Compressor``.

    Raises:
        ValueError: Unknown name.
        TypeError: Neither a name nor a compressor.
    """
    if identifier is None:
        return NoCompression()
    if isinstance(identifier, Compressor):
        return identifier
    if not isinstance(identifier, str):
        raise TypeError(
            f"`compression` must be None, one of {', '.join(map(repr, COMPRESSORS))} or a Compressor object. "
            f"Received: compression={identifier!r} of type {type(identifier).__name__}"
        )
    if identifier not in COMPRESSORS:
        raise ValueError(
            f"`compression` must be None or one of {', '.join(map(repr, COMPRESSORS))}. "
            f"Received: compression={identifier!r}"
        )
    return COMPRESSORS[identifier]()
