"""Only the large entries of a bucket travel, as index and value; what is left waits for a later step.

Source: SINGA's ``sparseTopK`` and ``sparseThreshold``; Aji and Heafield 2017, "Sparse communication for distributed
gradient descent"; Lin et al. 2018, "Deep gradient compression".

Cost with P workers: each sends its entries to all others, (P-1) times 8 bytes an entry (12 in float64), in 1
collective. A ring of dense float32 sends 2 (P-1)/P times 4 bytes a value: fewer if more than 1/P of the values are
sent.
"""

from __future__ import annotations

import abc
import math
import numbers
from collections.abc import MutableMapping
from typing import Any

import tensorflow as tf

from kerasdist.buckets import ITEM_BYTES, Bucket
from kerasdist.compression.base import Compressor
from kerasdist.compression.residual import corrected, empty_residual, working_dtype
from kerasdist.config import boolean
from kerasdist.engine import Group

INDEX_BYTES = 4
SAMPLE = 16384


class Sparse(Compressor):
    """Sends some entries of each bucket; which, say its subclasses.

    Args:
        residual: Whether what is not sent is added to the next step's values.
    """

    def __init__(self, residual: bool) -> None:
        boolean("residual", residual)
        self.remembers = residual
        self.takes_unscaled = residual

    def initial_state(self, bucket: Bucket) -> dict[str, Any]:
        return empty_residual(bucket.size, bucket) if self.remembers else {}

    def mean(self, flat: Any, bucket: Bucket, group: Group, name: str, state: MutableMapping[str, Any]) -> Any:
        if group.size == 1:
            return flat
        whole = corrected(flat, bucket, state)
        indices = self._choose(whole)
        values = tf.gather(whole, indices)
        if self.remembers:
            state["residual"] = tf.tensor_scatter_nd_update(whole, indices[:, None], tf.zeros_like(values))
        total = tf.zeros_like(whole)
        # Rank after rank, for within one rank's entries no index occurs twice: the same bits everywhere.
        for entries in tf.split(*self._gather(_to_rows(indices, values), group, name), num=group.size):
            places, addends = _from_rows(entries, values.dtype)
            total = tf.tensor_scatter_nd_add(total, places[:, None], addends)
        return tf.cast(total / group.size, flat.dtype)

    @abc.abstractmethod
    def _choose(self, values: Any) -> Any:
        """The int32 indices of what is sent; those of inf and NaN among them."""

    @abc.abstractmethod
    def _gather(self, rows: Any, group: Group, name: str) -> tuple[Any, Any]:
        """All ranks' rows, and how many are whose."""


class TopK(Sparse):
    """Sends the entries of largest magnitude: a fixed share of each bucket, at least one.

    Cost with P workers and S bytes in float32: 2 (P-1) ratio S bytes sent, 1 collective. That is less than dense
    float32 only while ratio < 1/P.

    Args:
        ratio: The share of the entries, above 0 and at most 1. Default 0.05.
        residual: Whether what is not sent is added to the next step's gradients (error feedback). Default True.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: ``ratio`` is outside its range.
    """

    def __init__(self, ratio: float = 0.05, residual: bool = True) -> None:
        super().__init__(residual)
        _real("ratio", ratio, "a number above 0 and at most 1")
        if not 0 < ratio <= 1:
            raise ValueError(f"`ratio` must be a number above 0 and at most 1. Received: ratio={ratio!r}")
        self.ratio = float(ratio)
        self.name = f"TopK(ratio={self.ratio}{_unless(residual)})"

    def count(self, size: int) -> int:
        """How many of ``size`` entries are sent."""
        return max(1, round(self.ratio * size))

    def sent_bytes(self, bucket: Bucket, workers: int) -> float:
        entry = INDEX_BYTES + ITEM_BYTES[working_dtype(bucket)]
        return (workers - 1) * self.count(bucket.size) * entry

    def _choose(self, values: Any) -> Any:
        magnitudes = tf.where(tf.math.is_finite(values), tf.abs(values), math.inf)
        return _largest(magnitudes, self.count(values.shape[0]))

    def _gather(self, rows: Any, group: Group, name: str) -> tuple[Any, Any]:
        return group.all_gather(rows, f"{name}.entries"), [rows.shape[0]] * group.size


class Threshold(Sparse):
    """Sends the entries whose magnitude is at least ``value``; how many that are differs by rank and step.

    Cost with P workers: (P-1) times 8 bytes an entry sent, and 4 bytes for their number; 2 collectives at once. What
    it sends depends on the data: nothing is promised.

    Args:
        value: The smallest magnitude that is sent, 0 or more, of a gradient (without the loss scale) and what earlier
            steps left of it.
        residual: Whether what is not sent is added to the next step's gradients (error feedback). Default True.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: ``value`` is outside its range.
    """

    def __init__(self, value: float, residual: bool = True) -> None:
        super().__init__(residual)
        _real("value", value, "a number, 0 or more")
        if not 0 <= value < math.inf:
            raise ValueError(f"`value` must be a number, 0 or more. Received: value={value!r}")
        self.value = float(value)
        self.takes_unscaled = True
        self.name = f"Threshold(value={self.value}{_unless(residual)})"

    def _choose(self, values: Any) -> Any:
        # NaN too. Not by way of `not <`, which TensorFlow rewrites as `>=`.
        chosen = tf.logical_or(tf.abs(values) >= self.value, tf.math.is_nan(values))
        return tf.cast(tf.where(chosen)[:, 0], tf.int32)

    def _gather(self, rows: Any, group: Group, name: str) -> tuple[Any, Any]:
        counts = group.all_gather(tf.shape(rows)[:1], f"{name}.counts")
        return group.all_gather(rows, f"{name}.entries"), counts


def _largest(magnitudes: Any, count: int) -> Any:
    """The indices of the largest, exactly: chosen among those above a bound that a sample gives, if it suffices."""
    size = magnitudes.shape[0]

    def of_all() -> Any:
        return tf.math.top_k(magnitudes, count, sorted=False).indices

    sample = magnitudes[:: max(1, size // SAMPLE)]
    enough = round(1.2 * count / size * sample.shape[0]) + 20  # more than the share of the sample that is wanted
    if size < 4 * SAMPLE or enough > sample.shape[0] // 2:
        return of_all()
    bound = tf.reduce_min(tf.math.top_k(sample, enough, sorted=False).values)
    above = tf.cast(tf.where(magnitudes >= bound)[:, 0], tf.int32)

    def of_those() -> Any:
        return tf.gather(above, tf.math.top_k(tf.gather(magnitudes, above), count, sorted=False).indices)

    return tf.ensure_shape(tf.cond(tf.size(above) >= count, of_those, of_all), [count])


def _to_rows(indices: Any, values: Any) -> Any:
    """One entry a row of int32: its index, and the bits of its value."""
    bits = tf.reshape(tf.bitcast(values, tf.int32), [-1, values.dtype.size // INDEX_BYTES])
    return tf.concat([indices[:, None], bits], axis=1)


def _from_rows(rows: Any, dtype: Any) -> tuple[Any, Any]:
    bits = rows[:, 1] if dtype.size == INDEX_BYTES else rows[:, 1:]
    return rows[:, 0], tf.bitcast(bits, dtype)


def _real(name: str, value: Any, expected: str) -> None:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"`{name}` must be {expected}. Received: {name}={value!r} of type {type(value).__name__}")


def _unless(residual: bool) -> str:
    return "" if residual else ", residual=False"
