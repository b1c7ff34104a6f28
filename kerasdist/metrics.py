"""Epoch values over all ranks: the state variables of metrics are reduced, not their results."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from kerasdist import keras_hooks
from kerasdist.engine import Group
from kerasdist.errors import RankMismatchError


def sum_states(model: Any, group: Group, name: str) -> None:
    """Replaces the state of the model's metrics by the sum over ranks. Every rank must call it, with the same name.

    Warns of metrics of one's own, whose state may be no sum (a maximum, say), unless their class says
    ``additive_state = True``.
    """
    unknown = keras_hooks.metrics_of_ones_own(model)
    if unknown:
        warnings.warn(
            f"The states of the metrics {unknown} are summed over the ranks, which is right only for sums and counts. "
            "If theirs are, set `additive_state = True` on the class.",
            stacklevel=2,
        )
    variables = list(model.metrics_variables)
    flat, assign = _flatten(variables)
    assign(np.asarray(group.all_reduce(flat, "sum", f"{name}.sum")))


def check_equal_states(model: Any, group: Group, name: str, rtol: float = 1e-4) -> None:
    """Replaces the metrics' state by the mean over ranks, which must agree: all evaluated the same data.

    Raises:
        RankMismatchError: On every rank, if they do not agree.
    """
    variables = list(model.metrics_variables)
    flat, assign = _flatten(variables)
    low = np.asarray(group.all_reduce(flat, "min", f"{name}.min"))
    high = np.asarray(group.all_reduce(flat, "max", f"{name}.max"))
    if not np.allclose(low, high, rtol=rtol, atol=rtol, equal_nan=True):
        first = int(np.argmax(~np.isclose(low, high, rtol=rtol, atol=rtol, equal_nan=True)))
        raise RankMismatchError(
            f"rank {group.rank}: the ranks evaluated different validation data, or different weights (a metric state "
            f"is {low[first]:.6g} on one rank and {high[first]:.6g} on another). Give all ranks the same "
            "`validation_data`, or share it out with kerasdist.shard(...)."
        )
    assign(np.asarray(group.all_reduce(flat, "mean", f"{name}.mean")))


def average_layer_state(model: Any, group: Group, samples: float) -> None:
    """Replaces the state that layers keep in training by its mean over ranks, weighted by each rank's ``samples``.

    That is the moving statistics of BatchNormalization, and floating state of the user's own layers.
    """
    variables = keras_hooks.layer_state(model)
    if not variables:
        return
    flat, assign = _flatten(variables)
    total = np.asarray(group.all_reduce(np.append(flat * samples, samples), "sum", "layer_state"))
    if total[-1]:
        assign(total[:-1] / total[-1])


def mean_logs(model: Any, logs: Any, own_results: Any, rows: float, group: Group) -> Any:
    """What the last step of one's own returned, for all ranks: metrics' results anew, other scalars as their mean.

    Args:
        model: The Keras model, whose metrics have all ranks' state by now.
        logs: This rank's; nests are made flat, as in Keras.
        own_results: What the metrics gave on this rank alone. What equals them is a metric's.
        rows: This rank's samples in that step, by which the mean is weighted.
        group: The ranks.
    """
    logs, own_results, results = flat_logs(logs), flat_logs(own_results), flat_logs(model.get_metrics_result())
    keys = sorted(key for key, value in logs.items() if np.ndim(value) == 0)
    values = {key: float(logs[key]) for key in keys} if rows else {}
    others = [
        key not in results or key not in own_results or not np.isclose(value, float(own_results[key]), equal_nan=True)
        for key, value in values.items()
    ]
    flat = np.array([rows, *(rows * values[key] if rows else 0.0 for key in keys), *(others or [False] * len(keys))])
    total = np.asarray(group.all_reduce(flat.astype(np.float64), "sum", f"logs.{len(keys)}"))
    differ = dict(zip(keys, total[len(keys) + 1 :], strict=True))
    means = total[1 : len(keys) + 1] / (total[0] or 1.0)  # 0, as a loss is, where no rank had samples
    logs |= dict(zip(keys, means.tolist(), strict=True))
    return logs | {key: float(results[key]) for key in keys if key in results and not differ[key]}


def flat_logs(logs: Any) -> dict[str, Any]:
    """Logs without nests."""
    flat: dict[str, Any] = {}
    for key, value in logs.items():
        flat |= flat_logs(value) if isinstance(value, dict) else {key: value}
    return flat


def _flatten(variables: list[Any]) -> tuple[np.ndarray, Callable[[np.ndarray], None]]:
    """All variables as one float64 vector, and a function that assigns such a vector back."""
    values = keras_hooks.numpy_values(variables)
    flat = np.concatenate([value.astype(np.float64).ravel() for value in values] or [np.zeros(0)])

    def assign(vector: np.ndarray) -> None:
        start = 0
        for variable, value in zip(variables, values, strict=True):
            variable.assign(vector[start : start + value.size].reshape(value.shape).astype(value.dtype))
            start += value.size

    return flat, assign
