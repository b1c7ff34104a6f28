"""How is a bucket averaged cheaply? One compressor a file; ``get`` turns what the user wrote into one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kerasdist.compression.base import Compressor
from kerasdist.compression.cast import Cast
from kerasdist.compression.int8 import Int8
from kerasdist.compression.none import NoCompression
from kerasdist.compression.powersgd import PowerSGD
from kerasdist.compression.quantizer import Quantizer
from kerasdist.compression.sparse import Threshold, TopK
from kerasdist.config import chosen

__all__ = [
    "COMPRESSORS",
    "Cast",
    "Compressor",
    "Int8",
    "NoCompression",
    "PowerSGD",
    "Quantizer",
    "Threshold",
    "TopK",
    "get",
]

COMPRESSORS: dict[str, Callable[[], Compressor]] = {
    "none": NoCompression,
    "fp16": lambda: Cast("float16"),
    "bf16": lambda: Cast("bfloat16"),
    "int8": Int8,
    "topk": TopK,
    "powersgd": PowerSGD,
}


def get(identifier: Any) -> Compressor:
    """Returns the compressor that ``compression=identifier`` means.

    Args:
        identifier: None, a name in ``COMPRESSORS`` (with its defaults), or a ``Compressor``.

    Raises:
        ValueError: Unknown name.
        TypeError: Neither a name nor a compressor.
    """
    return chosen("compression", identifier, COMPRESSORS, Compressor, NoCompression)
