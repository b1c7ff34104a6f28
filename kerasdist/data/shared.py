"""What all ways of sharing out data have in common: a Keras data adapter around Keras' own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from kerasdist import keras_hooks
from kerasdist.data.check import FirstBatchCheck
from kerasdist.engine import Group
from kerasdist.step import Batch


class SharedData(keras_hooks.DataAdapter):
    """Yields this rank's ``Batch`` of each global batch. Keras takes it as ``x`` of ``fit`` and ``evaluate``.

    Args:
        inner: Keras' adapter for the data that every rank is given.
        group: The ranks.
        check: Whether the ranks compare what they read.
        order: Where kerasdist shuffles: the seed, and what makes the inner adapter of one.
    """

    def __init__(
        self,
        inner: keras_hooks.DataAdapter,
        group: Group,
        check: bool,
        order: tuple[int, Callable[[int], keras_hooks.DataAdapter]] | None = None,
    ) -> None:
        self.inner = inner
        self.group = group
        self._order = order
        self._check = FirstBatchCheck() if check and group.size > 1 else None

    @property
    def seed(self) -> int | None:
        """The seed by which kerasdist shuffles; None where it does not."""
        return self._order[0] if self._order is not None else None

    def reseed(self, seed: int) -> None:
        """Takes the order that a seed gives now, as in a run that is resumed. Before the data is read."""
        if self._order is not None:
            self.inner, self._order = self._order[1](seed), (seed, self._order[1])

    def get_tf_dataset(self) -> tf.data.Dataset:
        """The dataset of this rank's batches."""
        return self._share(self.inner.get_tf_dataset())

    @tf.autograph.experimental.do_not_convert  # takes a second or two, for nothing
    def _share(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        return self._take_part(dataset.map(without_optionals(dataset.element_spec))).prefetch(2)

    def _take_part(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """This rank's ``Batch`` of each step. In few functions: each call of one is handed to another thread."""
        raise NotImplementedError

    def _look(self, index: Any, data: Any) -> Any:
        """What must be done before a batch of the stream is passed on, if it is compared."""
        return tf.no_op() if self._check is None else self._check.look(index, data)

    def _mark(self, total: Any) -> Any:
        """The mark of a global batch, if the stream is compared."""
        return None if self._check is None else self._check.mark(total)

    @property
    def num_batches(self) -> int | None:
        """Steps of an epoch, the same on all ranks; None if unknown."""
        return self.inner.num_batches

    def on_epoch_begin(self) -> None:
        """Passed on to Keras' adapter."""
        self.inner.on_epoch_begin()

    def on_epoch_end(self) -> None:
        """Passed on to Keras' adapter."""
        self.inner.on_epoch_end()


def element(args: tuple[Any, ...], spec: Any) -> Any:
    """The element that ``Dataset.map`` was given, however it unpacked it."""
    return args if isinstance(spec, tuple) else args[0]


def without_optionals(spec: Any) -> Callable[..., Any]:
    """A map that turns the ``Optional`` by which Keras' adapters stand for None into None."""

    def convert(*args: Any) -> Any:
        return tf.nest.map_structure(
            lambda leaf: None if isinstance(leaf, tf.experimental.Optional) else leaf, element(args, spec)
        )

    return convert


def leaves(data: Any) -> list[Any]:
    """The tensors of a nest, without None."""
    return [leaf for leaf in tf.nest.flatten(data) if leaf is not None]


def rows_of(data: Any) -> Any:
    """Number of samples in a batch, int64 scalar."""
    first = leaves(data)[0]
    if isinstance(first, tf.SparseTensor):
        return first.dense_shape[0]
    if isinstance(first, tf.RaggedTensor):
        return first.nrows(out_type=tf.int64)
    return tf.shape(first, out_type=tf.int64)[0]


def take_rows(data: Any, start: Any, count: Any) -> Any:
    """Rows ``start`` to ``start + count`` of every tensor of a nest."""

    def take(leaf: Any) -> Any:
        if leaf is None:
            return None
        if isinstance(leaf, tf.SparseTensor):
            rank = tf.shape(leaf.dense_shape)[0]
            begin = tf.concat([[start], tf.zeros([rank - 1], tf.int64)], axis=0)
            return tf.sparse.slice(leaf, begin, tf.concat([[count], leaf.dense_shape[1:]], axis=0))
        return leaf[start : start + count]

    return tf.nest.map_structure(take, data)


def slice_global_batch(data: Any, group: Group, may_be_empty: bool) -> Batch:
    """This rank's rows of a global batch: contiguous, in rank order, as even as can be."""
    total = rows_of(data)
    start = total * group.rank // group.size
    rows = total * (group.rank + 1) // group.size - start
    if not may_be_empty:
        return Batch(take_rows(data, start, rows), rows, total, None)
    # A rank without samples gets a copy of a row that another rank owns, and counts it 0 times.
    own = take_rows(data, tf.minimum(start, total - 1), tf.maximum(rows, 1))
    return Batch(own, rows, total, tf.equal(rows, 0))
