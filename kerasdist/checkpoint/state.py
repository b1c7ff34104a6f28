"""What one rank must remember to go on exactly, beside its place in the data: arrays by name."""

from __future__ import annotations

import json
import random
import warnings
from typing import Any

import numpy as np

from kerasdist import keras_hooks
from kerasdist.algorithms.hierarchical import TwoLevels
from kerasdist.optimizer import DistributedApply, distributed_apply

State = dict[str, np.ndarray]


def take(model: Any, within_epoch: bool) -> State:
    """This rank's state now. Not collective.

    Args:
        model: Built, and its optimizers too.
        within_epoch: Whether an epoch is under way, so that the metrics' state counts.
    """
    variables = _variables(model, within_epoch)
    values = keras_hooks.numpy_values(list(variables.values()))
    state = {name: _plain(value) for name, value in zip(variables, values, strict=True)}
    for number, applied in _averaged(model):
        state |= {f"compressor{number}/{name}": value for name, value in applied.averager.pending.items()}
    return state


def put(model: Any, state: State, within_epoch: bool, resized: bool = False) -> None:
    """Gives this rank a state that ``take`` gave, of the same model.

    Not collective, unless ``resized``: what algorithms keep begins anew where one of the two was one process, which
    keeps nothing.

    Args:
        model: Built, and its optimizers too.
        state: What ``take`` gave.
        within_epoch: As for ``take``.
        resized: Whether another number of workers gave it. Default False.

    Raises:
        ValueError: It is not of such a model.
    """
    left = dict(state)
    kept = {name for name in left if name.startswith("algorithm")}
    for number, applied in _averaged(model):
        averager = applied.averager
        prefix = f"compressor{number}/"
        averager.restore({name.removeprefix(prefix): left.pop(name) for name in [*left] if name.startswith(prefix)})
    variables = _variables(model, within_epoch)
    metrics = [{name for name in names if name.startswith("metric/")} for names in (left, variables)]
    if metrics[0] != metrics[1]:
        warnings.warn(
            "Keras makes the compiled metrics of this model in the first step only: the logs of the epoch that is "
            "continued are those of its remaining batches.",
            stacklevel=2,
        )
        for name in metrics[0] | metrics[1]:
            left.pop(name, None), variables.pop(name, None)
    for name, variable in variables.items():
        if name.startswith("compressor"):
            continue
        value, like = left.pop(name, None), keras_hooks.numpy_values([variable])[0]
        if value is None and resized and name.startswith("algorithm"):
            continue
        if value is None:
            raise ValueError(f"The checkpoint lacks {name!r}, which this model has.")
        if value.shape != like.shape or value.dtype != _plain(like).dtype:
            raise ValueError(
                f"The checkpoint's {name!r} does not fit. Expected: {like.dtype} of shape {like.shape}. "
                f"Received: {value.dtype} of shape {value.shape}"
            )
        variable.assign(value.view(like.dtype))
    if resized:
        for number, applied in _averaged(model):
            if not {f"algorithm{number}/{name}" for name in applied.algorithm.variables} <= kept:
                applied.start()
        left = {name: value for name, value in left.items() if name not in kept}
    if left:
        raise ValueError(f"The checkpoint holds {', '.join(map(repr, [*left][:3]))}, which this model does not have.")


def sums(model: Any) -> set[str]:
    """The names of what adds up over the ranks."""
    found = {f"metric/{position:05d}" for position in range(len(model.metrics_variables))}
    for number, optimizer in enumerate(keras_hooks.own_optimizers(model)):
        applied = distributed_apply(optimizer)
        if applied is not None and applied.takes_addends:
            addends = {id(variable) for variable in keras_hooks.accumulated_gradients(optimizer)}
            positions = [position for position, one in enumerate(optimizer.variables) if id(one) in addends]
            found |= {f"optimizer{number}/{position:05d}" for position in positions}
    return found


def of_parts(model: Any) -> tuple[str, ...]:
    """How the names of residuals begin that are those of one rank's part of a bucket, which changes with the ranks."""
    averaged = _averaged(model)
    return tuple(f"compressor{number}/" for number, one in averaged if isinstance(one.averager.compressor, TwoLevels))


def take_random() -> State:
    """The state of Python's and NumPy's global generators, by which data may be shuffled."""
    kind, keys, position, has_gauss, gauss = np.random.get_state()
    numpy_state = [kind, np.asarray(keys).tolist(), position, has_gauss, gauss]
    return {"random/python": _as_bytes(random.getstate()), "random/numpy": _as_bytes(numpy_state)}


def put_random(state: State) -> None:
    """Gives Python and NumPy a state that ``take_random`` gave; it is taken out of ``state``."""
    if "random/python" in state:
        version, internal, gauss = json.loads(state.pop("random/python").tobytes())
        random.setstate((version, tuple(internal), gauss))
    if "random/numpy" in state:
        kind, keys, *rest = json.loads(state.pop("random/numpy").tobytes())
        np.random.set_state((kind, np.array(keys, np.uint32), *rest))


def _variables(model: Any, within_epoch: bool) -> dict[str, Any]:
    """Everything that training changes: each variable once, by a name that is the same in another process."""
    named = {f"model/{position:05d}": variable for position, variable in enumerate(model.weights)}
    named |= {f"seed/{position:05d}": state for position, state in enumerate(keras_hooks.seed_states(model))}
    for number, optimizer in enumerate(keras_hooks.own_optimizers(model)):
        named |= {f"optimizer{number}/{position:05d}": one for position, one in enumerate(optimizer.variables)}
    for number, applied in _averaged(model):
        prefix = f"{applied.averager.name}."
        kept = applied.averager.variables
        named |= {f"compressor{number}/{name.removeprefix(prefix)}": one for name, one in kept.items()}
        named |= {f"algorithm{number}/{name}": one for name, one in applied.algorithm.variables.items()}
    if within_epoch:
        named |= {f"metric/{position:05d}": one for position, one in enumerate(model.metrics_variables)}
    return named


def _averaged(model: Any) -> list[tuple[int, DistributedApply]]:
    found = enumerate(distributed_apply(optimizer) for optimizer in keras_hooks.own_optimizers(model))
    return [(number, applied) for number, applied in found if applied is not None]


def _plain(value: np.ndarray) -> np.ndarray:
    """The same bits as a dtype that NumPy knows by itself, as a file needs it: bfloat16 as uint16."""
    return value.view(f"u{value.dtype.itemsize}") if value.dtype.kind == "V" else value


def _as_bytes(value: Any) -> np.ndarray:
    return np.frombuffer(json.dumps(value).encode(), np.uint8)
