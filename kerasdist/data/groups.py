"""Sharing out data that comes in workers' batches: of every N consecutive batches, rank k takes the k-th.

Every rank reads the whole stream. The last group may be short: its ranks without a batch get a copy of one row,
counted 0 times.
"""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from kerasdist.data.shared import SharedData, leaves, rows_of
from kerasdist.step import Batch


class Groups(SharedData):
    """N consecutive batches of the stream that one process sees make a global batch."""

    @property
    def num_batches(self) -> int | None:
        inner = self.inner.num_batches
        return None if inner is None else math.ceil(inner / self.group.size)

    def _take_part(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        rank, size, spec = self.group.rank, self.group.size, dataset.element_spec

        def advance(state: Any, data: Any) -> Any:
            index, total, rows, own = state
            count, nothing = rows_of(data), tf.constant(0, tf.int64)
            with tf.control_dependencies([self._look(index, data)]):
                first, mine = tf.equal(index % size, 0), tf.equal(index % size, rank)
                # The group's first batch too: one row of it stands in where the group is short.
                keep = tf.logical_and(tf.logical_or(first, mine), count > 0)
                own = tf.cond(keep, lambda: tuple(leaves(data)), lambda: own)
            rows = tf.where(mine, count, tf.where(first, nothing, rows))
            total = count + tf.where(first, nothing, total)
            return (index + 1, total, rows, own), (tf.equal((index + 1) % size, 0), own, rows, total)

        def finish(_: Any, own: Any, rows: Any, total: Any) -> Batch:
            own = tuple(leaf[: tf.maximum(rows, 1)] for leaf in own)
            return Batch(restore(own, spec), rows, total, tf.equal(rows, 0), self._mark(total))

        start = (*(tf.constant(0, tf.int64) for _ in range(3)), blank_leaves(spec, rows=1))
        steps = prolonged(dataset, extra=size - 1).scan(start, advance)
        return steps.filter(lambda complete, *_: complete).map(finish)


def prolonged(dataset: tf.data.Dataset, extra: int) -> tf.data.Dataset:
    """The batches, then ``extra`` (-1: endlessly many) without rows, as others may have more."""
    if not extra:
        return dataset
    spec, blank = dataset.element_spec, blank_leaves(dataset.element_spec)
    loose = tuple(tf.TensorSpec([None] * leaf.shape.rank, leaf.dtype) for leaf in blank)
    end = tf.data.Dataset.from_tensors(blank).repeat(extra)
    return dataset.concatenate(
        end.map(lambda *own: restore(tuple(_relax(t, s) for t, s in zip(own, loose, strict=True)), spec))
    )


def blank_leaves(spec: Any, rows: int = 0) -> tuple[Any, ...]:
    """For each tensor of a batch, one of zeros: without rows, or with so many.

    Raises:
        ValueError: A component is ragged or sparse, or of unknown rank.
    """
    blank = []
    for leaf in tf.nest.flatten(spec):
        if isinstance(leaf, tf.TensorSpec) and leaf.shape.rank:
            blank.append(tf.zeros([rows] + [dim or rows for dim in leaf.shape[1:]], leaf.dtype))
        elif "NoneTensorSpec" not in type(leaf).__name__:
            raise ValueError(
                "kerasdist shares out batches of dense tensors with a first axis of samples. "
                f"Received: a component {leaf}. Batch it densely, or give each rank its own part with auto_shard=False."
            )
    return tuple(blank)


def restore(own: tuple[Any, ...], spec: Any) -> Any:
    """The nest that ``leaves`` flattened, with the static shapes of ``spec``."""
    remaining = iter(own)

    def fill(leaf: Any) -> Any:
        if not isinstance(leaf, tf.TensorSpec):
            return None
        return tf.ensure_shape(next(remaining), [None, *leaf.shape[1:]])

    return tf.nest.map_structure(fill, spec)


def _relax(tensor: Any, spec: tf.TensorSpec) -> Any:
    return tf.compat.v1.placeholder_with_default(tensor, spec.shape)
