"""Data that the user shared out: each rank reads its own part (``auto_shard=False``).

The samples of a step are counted by one small collective in each step. A rank that has fewer batches goes on with
batches that count nothing until the longest is through.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from kerasdist import keras_hooks
from kerasdist.data.groups import blank_leaves, counted, restore
from kerasdist.data.shared import SharedData, element, rows_of
from kerasdist.engine import Group
from kerasdist.helpers import gather_json
from kerasdist.step import Batch


class OwnPart(SharedData):
    """This rank's own data, padded to the steps of the longest rank. Every rank must make one.

    Args:
        inner: Keras' adapter for this rank's own data.
        group: The ranks.
        steps_per_epoch: As in ``fit``.

    Raises:
        ValueError: On all ranks, if some rank's number of batches is unknown and no steps were given.
    """

    def __init__(self, inner: keras_hooks.DataAdapter, group: Group, steps_per_epoch: int | None) -> None:
        super().__init__(inner, group, check=False)
        batches = gather_json([inner.num_batches, steps_per_epoch], group, "own_part")
        lengths, steps = [one[0] for one in batches], [one[1] for one in batches]
        if len(set(steps)) > 1:
            raise ValueError(f"rank {group.rank}: `steps_per_epoch` must be the same on all ranks. Received: {steps}")
        if steps[0] is None and None in lengths:
            raise ValueError(
                f"rank {group.rank}: with auto_shard=False the ranks must know how many batches each of them has. "
                f"Received: {lengths} (None: unknown). Give `steps_per_epoch`, or the length by "
                "`dataset.apply(tf.data.experimental.assert_cardinality(n))`."
            )
        known = [length for length in lengths if length is not None]
        self._steps = max(known) if steps[0] is None else None
        self._uneven = steps[0] is None and len(set(known)) > 1

    @property
    def num_batches(self) -> int | None:
        return self._steps if self._steps is not None else self.inner.num_batches

    def _take_part(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        spec = dataset.element_spec
        if not self._uneven:

            def whole(*args: Any) -> Any:
                data = element(args, spec)
                return Batch(data, rows_of(data), None, None)

            return dataset.map(whole)

        def advance(spare: Any, arrived: Any) -> Any:
            batch, rows = arrived
            own = tf.cond(rows > 0, lambda: batch, lambda: spare)
            return tuple(leaf[:1] for leaf in own), (own, rows)

        missing = (self._steps or 0) - (self.inner.num_batches or 0)
        stream = counted(dataset, extra=missing).scan(blank_leaves(spec), advance)
        return stream.map(lambda own, rows: Batch(restore(own, spec), rows, None, tf.equal(rows, 0)))
