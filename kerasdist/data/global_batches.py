"""Sharing out batches that are already global: each rank takes its slice of every batch.

Every rank reads every batch (arrays: gathers the rows of the global batch) and keeps its own rows.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from kerasdist.data.shared import SharedData, element, slice_global_batch


class GlobalBatches(SharedData):
    """Keras' adapter at the global batch size, and this rank's slice of each batch.

    Order, shuffle and step count are those of one process.
    """

    def _take_part(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        spec, group = dataset.element_spec, self.group
        sizes = (self.inner.batch_size, self.inner.partial_batch_size)
        may_be_empty = any(size is None or 0 < size < group.size for size in sizes)

        def take(*args: Any) -> Any:
            return slice_global_batch(element(args, spec), group, may_be_empty)

        return dataset.map(take, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
