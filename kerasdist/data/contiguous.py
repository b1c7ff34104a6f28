"""Sharing out arrays once, in contiguous parts (SINGA's ``data_partition``).

Rank k of N holds rows M k // N to M (k + 1) // N of M; it reads no others, and shuffles within its part. Parts differ
by at most one row, so at most one step is short or empty.
"""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from kerasdist import keras_hooks
from kerasdist.data.shared import SharedData, element, take_rows
from kerasdist.engine import Group
from kerasdist.step import Batch


class ContiguousPart(SharedData):
    """This rank's contiguous part of the arrays.

    Args:
        arrays: (x, y, sample_weight), the same whole arrays on every rank.
        batch_size: Samples of one rank in a step.
        group: The ranks.
        adapter_arguments: Further arguments of Keras' adapter (shuffle, class_weight).
    """

    def __init__(self, arrays: tuple[Any, ...], batch_size: int, group: Group, **adapter_arguments: Any) -> None:
        samples = next(leaf.shape[0] for leaf in tf.nest.flatten(arrays) if leaf is not None)
        ends = [samples * k // group.size for k in range(group.size + 1)]
        self._steps = math.ceil(max(b - a for a, b in zip(ends, ends[1:], strict=False)) / batch_size)
        self._rows = [
            [max(0, min(batch_size, b - a - step * batch_size)) for a, b in zip(ends, ends[1:], strict=False)]
            for step in range(self._steps)
        ]
        x, y, sample_weight = tf.nest.map_structure(
            lambda leaf: None if leaf is None else leaf[ends[group.rank] : ends[group.rank + 1]], arrays
        )
        inner = keras_hooks.get_data_adapter(
            x=x, y=y, sample_weight=sample_weight, batch_size=batch_size, **adapter_arguments
        )
        super().__init__(inner, group, check=False)

    @property
    def num_batches(self) -> int:
        return self._steps

    def _take_part(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        spec, rank = dataset.element_spec, self.group.rank
        missing = self._steps - (self.inner.num_batches or 0)
        batches = dataset.map(lambda *args: (element(args, spec),))
        if missing:
            first_row = (tf.constant(0, tf.int64), tf.constant(1, tf.int64))
            spare = batches.take(1).map(lambda data: (take_rows(data, *first_row),))
            batches = batches.concatenate(spare.repeat(missing))
        own = tf.data.Dataset.from_tensor_slices([tf.constant(rows[rank], tf.int64) for rows in self._rows])
        total = tf.data.Dataset.from_tensor_slices([tf.constant(sum(rows), tf.int64) for rows in self._rows])
        empty = any(0 in rows for rows in self._rows)
        return tf.data.Dataset.zip((batches, own, total)).map(
            lambda data, rows, total: Batch(data[0], rows, total, tf.equal(rows, 0) if empty else None)
        )
