"""Data that the user shared out: each rank reads its own part (``auto_shard=False``).

The samples of a step are counted by the exchange that begins it. A rank that has fewer batches goes on with batches
that count nothing until the longest is through, whether the lengths are known or not.
"""

from __future__ import annotations

import logging
from typing import Any

import tensorflow as tf

from kerasdist import keras_hooks
from kerasdist.data.groups import blank_leaves, prolonged, restore
from kerasdist.data.shared import SharedData, element, leaves, rows_of
from kerasdist.engine import Group
from kerasdist.engine.meeting import gather_json
from kerasdist.step import Batch


class OwnPart(SharedData):
    """This rank's own data, padded to the steps of the longest rank. Every rank must make one.

    Args:
        inner: Keras' adapter for this rank's own data.
        group: The ranks.
        steps_per_epoch: As in ``fit``.
        order: As in ``SharedData``.

    Raises:
        ValueError: On all ranks, if they were given different steps.
    """

    def __init__(
        self, inner: keras_hooks.DataAdapter, group: Group, steps_per_epoch: int | None, order: Any = None
    ) -> None:
        super().__init__(inner, group, check=False, order=order)
        plans = gather_json([inner.num_batches, steps_per_epoch, inner.batch_size], group, "own_part")
        lengths, steps, sizes = ([plan[index] for plan in plans] for index in range(3))
        if len(set(steps)) > 1:
            raise ValueError(f"rank {group.rank}: `steps_per_epoch` must be the same on all ranks. Received: {steps}")
        for what, values in (("batches", lengths), ("batch sizes", sizes)):
            if len(set(values)) > 1 and group.rank == 0:
                logging.getLogger("kerasdist").info("The ranks bring different %s, by rank: %s", what, values)
        self._unknown = steps[0] is None and None in lengths
        self._steps = max(lengths) if steps[0] is None and not self._unknown else None
        self._uneven = self._unknown or (self._steps is not None and min(lengths) < self._steps)

    @property
    def num_batches(self) -> int | None:
        if self._unknown:
            return None
        return self._steps if self._steps is not None else self.inner.num_batches

    def _take_part(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        spec = dataset.element_spec
        if not self._uneven:

            def whole(*args: Any) -> Any:
                data = element(args, spec)
                return Batch(data, rows_of(data), None, None)

            return dataset.map(whole)

        def advance(spare: Any, data: Any) -> Any:
            rows = rows_of(data)
            own = tf.cond(rows > 0, lambda: tuple(leaves(data)), lambda: spare)
            return tuple(leaf[:1] for leaf in own), (own, rows)

        # Where a length is unknown the stream has no end; the step in which no rank has samples ends the epoch.
        missing = -1 if self._unknown else (self._steps or 0) - (self.inner.num_batches or 0)
        stream = prolonged(dataset, extra=missing).scan(blank_leaves(spec, rows=1), advance)
        return stream.map(lambda own, rows: Batch(restore(own, spec), rows, None, tf.equal(rows, 0)))
