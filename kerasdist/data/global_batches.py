"""Sharing out batches that are already global: each rank takes its slice of every batch.

Every rank reads every batch (arrays: gathers the rows of the global batch) and keeps its own rows.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from kerasdist.data.shared import SharedData, slice_global_batch
from kerasdist.engine import Group
from kerasdist.keras_hooks import DataAdapter


class GlobalBatches(SharedData):
    """Keras' adapter at the global batch size, and this rank's slice of each batch.

    Order, shuffle and step count are those of one process.

    Args:
        inner: Keras' adapter.
        group: The ranks.
        check: Whether the ranks compare what they read.
        smallest: Samples of the smallest batch, or None if unknown.
        order: As in ``SharedData``.
    """

    def __init__(
        self, inner: DataAdapter, group: Group, check: bool, smallest: int | None = None, order: Any = None
    ) -> None:
        super().__init__(inner, group, check, order)
        self._may_be_empty = smallest is None or smallest < group.size

    def _take_part(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        group, may_be_empty = self.group, self._may_be_empty

        def take(index: Any, data: Any) -> Any:
            with tf.control_dependencies([self._look(index, data)]):
                batch = slice_global_batch(data, group, may_be_empty)
                return batch._replace(mark=self._mark(batch.total))

        # One after the other: a mark is read behind the first look.
        return dataset.enumerate().map(take)
