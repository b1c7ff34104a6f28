"""What a function does, in a few characters, for ranks to compare: a loss, a metric, an activation, a Lambda layer."""

from __future__ import annotations

import functools
import hashlib
import types
from typing import Any

import numpy as np

DEPTH = 4  # functions within functions


def function_fact(function: Any) -> str:
    """The name of a callable, and of a Python function a hash of its code and of the numbers that it holds.

    Equal for functions that the same source makes, in whatever file it stands. Numbers and arrays are those of
    defaults and closures, also within functions that it closes over. What it reads of modules and objects is not seen,
    nor are strings that it closes over, which may well be a rank's own file.
    """
    function = getattr(function, "python_function", function)  # of a tf.function
    name = getattr(function, "__name__", type(function).__name__)
    parts = _parts(function, DEPTH)
    return f"{name} {hashlib.sha256(repr(parts).encode()).hexdigest()[:12]}" if parts else name


def _parts(value: Any, depth: int) -> Any:
    if depth == 0:
        return None
    if isinstance(value, types.FunctionType):
        cells = [_cell(cell) for cell in value.__closure__ or ()]
        held = [value.__defaults__, value.__kwdefaults__, *cells]
        return _code(value.__code__), [_parts(one, depth - 1) for one in held]
    if isinstance(value, types.MethodType):
        return _parts(value.__func__, depth)
    if isinstance(value, functools.partial):
        return [_parts(one, depth - 1) for one in (value.func, value.args, value.keywords)]
    if isinstance(value, dict):
        return [(str(key), _parts(one, depth - 1)) for key, one in value.items()]
    if isinstance(value, (list, tuple)):
        return [_parts(one, depth - 1) for one in value]
    if isinstance(value, (bool, int, float, complex)):
        return repr(value)
    if isinstance(value, (np.ndarray, np.generic)):
        return str(value.dtype), value.shape, hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
    return None


def _cell(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _code(code: types.CodeType) -> Any:
    """What is executed: not the file and the lines that it stands in."""
    return code.co_code.hex(), code.co_names, [_constant(one) for one in code.co_consts]


def _constant(value: Any) -> Any:
    if isinstance(value, types.CodeType):
        return _code(value)
    return sorted(map(repr, value)) if isinstance(value, frozenset) else repr(value)
