"""``predict`` on all ranks: each computes its rows, and all get the whole in the order of the data."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from kerasdist.engine import Group

_COUNTS = "kerasdist_counts"


def split_counts(model: Any) -> None:
    """Makes the predict function give Keras the outputs alone; the rows that count are noted aside."""
    function = model.predict_function
    if hasattr(function, _COUNTS):
        return

    def outputs_only(batches: Any) -> Any:
        outputs, rows = function(batches)
        outputs_only.kerasdist_counts.append(np.asarray(rows))  # type: ignore[attr-defined]
        return outputs

    setattr(outputs_only, _COUNTS, [])
    model.predict_function = outputs_only


@contextlib.contextmanager
def counting(model: Any) -> Iterator[list[np.ndarray]]:
    """The rows of each step that is predicted inside, known once the context is left."""
    counts: list[np.ndarray] = []
    model.make_predict_function()
    getattr(model.predict_function, _COUNTS).clear()
    yield counts
    counts.extend(getattr(model.predict_function, _COUNTS))


def whole(outputs: Any, counts: list[np.ndarray], group: Group, in_turn: bool) -> Any:
    """Every rank's outputs in the order of the data. Every rank must call it.

    Args:
        outputs: This rank's outputs, arrays whose rows are the steps' rows one after another; a step without samples
            left one row that is dropped here.
        counts: The rows of each step.
        group: The ranks.
        in_turn: Whether the ranks' rows alternate step by step, or each rank's rows stay together.
    """
    rows = np.concatenate(counts).astype(np.int64)
    held = np.maximum(rows, 1)
    keep = np.repeat(rows > 0, held)
    sizes = np.asarray(group.all_gather(np.array([rows.size], np.int64), "predict.steps"))
    every = np.split(np.asarray(group.all_gather(rows, "predict.rows")), np.cumsum(sizes)[:-1])
    order = _order(every) if in_turn else None
    position = 0

    def gather(output: Any) -> np.ndarray:
        nonlocal position
        position += 1
        output = np.asarray(output)
        if len(output) != keep.size:
            raise ValueError(
                f"rank {group.rank}: predict shares out rows, so every output must have one row for each sample. "
                f"Expected {keep.size} rows. Received: shape {output.shape}. Use `with strategy.local():`."
            )
        gathered = np.asarray(group.all_gather(output[keep], f"predict.{position}"))
        return gathered if order is None else gathered[order]

    return keras.tree.map_structure(gather, outputs)


def _order(every: list[np.ndarray]) -> np.ndarray:
    """Where each row of the whole stands among the ranks' rows, one rank after another."""
    starts = np.concatenate([[0], np.cumsum([rows.sum() for rows in every])[:-1]])
    positions = [start + np.concatenate([[0], np.cumsum(rows)]) for start, rows in zip(starts, every, strict=True)]
    steps = max(rows.size for rows in every)
    parts = [
        np.arange(place[step], place[step + 1]) for step in range(steps) for place in positions if step + 1 < place.size
    ]
    return np.concatenate(parts)
