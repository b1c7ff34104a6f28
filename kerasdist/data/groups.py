"""Sharing out data that comes in workers' batches: of every N consecutive batches, rank k takes the k-th.

Every rank reads the whole stream. The last group may be short: its ranks without a batch get a copy of one row,
counted 0 times.
"""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from kerasdist.data.shared import SharedData, element, leaves, rows_of
from kerasdist.step import Batch


class Groups(SharedData):
    """N consecutive batches of the stream that one process sees make a global batch."""

    @property
    def num_batches(self) -> int | None:
        inner = self.inner.num_batches
        return None if inner is None else math.ceil(inner / self.group.size)

    def _take_part(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        rank, size, spec = self.group.rank, self.group.size, dataset.element_spec
        blank = blank_leaves(spec)

        def advance(state: Any, arrived: Any) -> Any:
            position, total, rows, own = state
            batch, count = arrived
            first = tf.equal(position, 0)
            mine = tf.logical_and(tf.equal(position, rank), count > 0)
            own = tf.cond(
                mine,
                lambda: batch,
                lambda: tf.cond(first, lambda: tuple(leaf[:1] for leaf in batch), lambda: own),
            )
            rows = tf.where(mine, count, tf.where(first, tf.zeros_like(rows), rows))
            total = count + tf.where(first, tf.zeros_like(total), total)
            complete = tf.logical_and(tf.equal(position, size - 1), total > 0)
            return ((position + 1) % size, total, rows, own), (complete, own, rows, total)

        start = (tf.constant(0), tf.constant(0, tf.int64), tf.constant(0, tf.int64), blank)
        stream = counted(dataset, extra=size - 1)
        complete = stream.scan(start, advance).filter(lambda complete, *_: complete)
        return complete.map(lambda _, own, rows, total: Batch(restore(own, spec), rows, total, tf.equal(rows, 0)))


def counted(dataset: tf.data.Dataset, extra: int) -> tf.data.Dataset:
    """(tensors, rows) of every batch, then ``extra`` times (-1: for ever) no rows, as others may have more."""
    spec = dataset.element_spec

    def count(*args: Any) -> Any:
        data = element(args, spec)
        return tuple(leaves(data)), rows_of(data)

    blank = blank_leaves(spec)
    end = tf.data.Dataset.from_tensors((blank, tf.constant(0, tf.int64))).repeat(extra)
    loose = tuple(tf.TensorSpec([None] * leaf.shape.rank, leaf.dtype) for leaf in blank)
    relaxed = end.map(lambda own, rows: (tuple(_relax(t, s) for t, s in zip(own, loose, strict=True)), rows))
    return dataset.map(count).concatenate(relaxed) if extra else dataset.map(count)


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
