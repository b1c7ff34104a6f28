"""``predict`` on all ranks: each computes its rows, and all get the whole in the order of the data."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from kerasdist.engine import Group


class PredictionRows:
    """How many rows of each predicted step count, and how many there are; noted only while someone asks."""

    def __init__(self) -> None:
        self._rows: list[np.ndarray] | None = None

    def taken_from(self, function: Any) -> Any:
        """A predict function that returns outputs alone, of one that returns (outputs, rows)."""
        if getattr(function, "notes", None) is self:
            return function

        def outputs_only(batches: Any) -> Any:
            outputs, rows = function(batches)
            if self._rows is not None:
                self._rows.append(np.asarray(rows))
            return outputs

        outputs_only.notes = self  # type: ignore[attr-defined]
        return outputs_only

    @contextlib.contextmanager
    def noted(self) -> Iterator[list[np.ndarray]]:
        """The rows of the steps that are predicted inside."""
        rows: list[np.ndarray] = []
        self._rows = rows
        try:
            yield rows
        finally:
            self._rows = None


def whole(outputs: Any, counts: list[np.ndarray], group: Group, in_turn: bool) -> Any:
    """Every rank's outputs in the order of the data. Every rank must call it.

    Args:
        outputs: This rank's outputs, arrays whose rows are the steps' rows one after another; a step without samples
            left one row that is dropped here.
        counts: For each step the rows that count, and the rows that there are: more where a copy stands in for none.
        group: The ranks.
        in_turn: Whether the ranks' rows alternate step by step, or each rank's rows stay together.
    """
    rows, held = np.concatenate(counts).astype(np.int64).T
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
