"""The mean of many tensors over the workers: buckets, a compressor and a group put together."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from kerasdist.buckets import Bucket, pack, plan_buckets, unpack
from kerasdist.compression import Cast, Compressor, NoCompression
from kerasdist.config import Settings
from kerasdist.engine import Group


class Averager:
    """Averages lists of gradients over a group. Every rank must call it with the same shapes in the same order.

    Args:
        group: The ranks that average.
        settings: Compressor, bucket size and options.
        name: Prefix of the collectives' names; two averagers of one process need different names.
        shares: Whether ``average`` is given addends where the compressor takes them. Default True. False: always
            values of the mean's size, as those that a rank also applies by itself.
    """

    def __init__(self, group: Group, settings: Settings, name: str, shares: bool = True) -> None:
        self.group = group
        self.name = name
        self.takes_shares = shares and settings.compressor.takes_shares
        self._settings = settings
        self._alone_bytes = settings.options.alone_kb * 2**10
        self._state: dict[str, dict[str, tf.Variable]] = {}
        self._buckets: dict[str, Bucket] = {}  # whose state it is
        self.counters: dict[str, tf.Variable] = {}
        self._restored: dict[str, Any] = {}  # for what is not made yet
        self._compared = False

    @property
    def compressor(self) -> Compressor:
        """How buckets are averaged."""
        return self._settings.compressor

    @property
    def variables(self) -> dict[str, tf.Variable]:
        """What the compressor remembers on this rank, by the names of bucket and value. Made in the first call."""
        state = {f"{bucket}.{key}": v for bucket, state in self._state.items() for key, v in state.items()}
        return {**state, **self.counters}

    @property
    def pending(self) -> dict[str, Any]:
        """What was restored and is not in ``variables`` yet, by the names that ``restore`` takes."""
        return dict(self._restored)

    def restore(self, values: Mapping[str, Any]) -> None:
        """Puts back what ``variables`` were, by their names without the averager's own. Not collective.

        What is not made yet begins with its value; what is made and not among them, as before the first step.
        """
        self._restored = dict(values)
        for name, bucket in self._buckets.items():
            variables = self._made(name)
            for key, value in self._first_values(bucket, name).items():
                variables[key].assign(value)

    def weight(self, rows: Any, total: Any, dtype: Any) -> Any:
        """The factor that a rank's mean gradient takes before it is averaged.

        Args:
            rows: The rank's samples in this step, scalar.
            total: All ranks' samples in this step, scalar.
            dtype: Floating dtype of the result.

        Returns:
            ``rows / total``, times the number of workers unless addends are summed.
        """
        share = tf.math.divide_no_nan(tf.cast(rows, dtype), tf.cast(total, dtype))
        return share if self.takes_shares else share * self.group.size

    def average(self, tensors: Sequence[Any], suffix: str = "") -> list[Any]:
        """The mean over the ranks, or the sum where it takes shares.

        Args:
            tensors: Floating tensors, already multiplied by ``weight``. ``tf.IndexedSlices`` become dense; large ones
                travel as rows where that is less to send and the compressor remembers nothing.
            suffix: Told apart from other calls that may run at the same time.

        Returns:
            The averaged tensors, in the same order.
        """
        if self.group.size == 1:
            return list(tensors)
        averaged: list[Any] = [None] * len(tensors)
        for position, tensor in enumerate(tensors):
            if self._travels_as_rows(tensor):
                averaged[position] = self._mean_of_rows(tensor, f"{self.name}{suffix}.rows{position}")
        dense = [position for position, mean in enumerate(averaged) if mean is None]
        packed = [tf.convert_to_tensor(tensors[position]) for position in dense]
        changes: list[tuple[tf.Variable, Any]] = []
        buckets = self.plan(packed)
        self._warn_if_more_is_sent(buckets)
        for bucket in buckets:
            name = f"{self.name}{suffix}.bucket{bucket.index}"
            flat = packed[bucket.members[0]] if len(bucket.members) == 1 else pack(bucket, packed)
            reduced = self._mean(flat, bucket, name, changes)
            parts = [reduced] if len(bucket.members) == 1 else unpack(bucket, reduced)
            for member, part in zip(bucket.members, parts, strict=True):
                averaged[dense[member]] = part
        self._remember(changes, averaged)
        return averaged

    def plan(self, tensors: Sequence[Any]) -> tuple[Bucket, ...]:
        """The buckets in which dense tensors travel."""
        specs = [(tuple(tensor.shape), tensor.dtype.name) for tensor in tensors]
        return plan_buckets(specs, self._settings.bucket_mb * 2**20, self._alone_bytes)

    def _mean(self, tensor: Any, bucket: Bucket, name: str, changes: list[tuple[tf.Variable, Any]]) -> Any:
        """The group mean of a bucket; a tensor that travels alone keeps its shape where nothing must be flat.

        What the compressor then remembers is added to ``changes``, as pairs of a variable and its next value.
        """
        compressor, group = self.compressor, self.group
        if compressor.takes_shares and tensor.dtype in (tf.float16, tf.bfloat16):
            # Horovod would add halves in halves, and knows no bfloat16.
            flat = tf.reshape(tensor, [-1]) * (group.size if self.takes_shares else 1)
            return tf.reshape(Cast(tensor.dtype.name).mean(flat, bucket, group, name, {}), tensor.shape)
        if compressor.takes_shares:
            total = compressor.mean(tensor, bucket, group, name, {})
            return total if self.takes_shares else total / group.size
        variables = self._remembered(bucket, name)
        state = {key: variable.value() for key, variable in variables.items()}
        before = dict(state)
        mean = compressor.mean(tf.reshape(tensor, [-1]), bucket, group, name, state)
        for key, value in state.items():
            if key in compressor.counters:
                variables[key].assign(value)
            elif value is not before[key]:
                changes.append((variables[key], value))
        return tf.reshape(mean, tensor.shape)

    def _remembered(self, bucket: Bucket, name: str) -> dict[str, tf.Variable]:
        """The state of a bucket: anew where other tensors are in it than before, as after a layer was frozen."""
        counters = self.compressor.counters
        if self._buckets.get(name) != bucket:
            with tf.init_scope():
                initial = self._first_values(bucket, name)
                made = {k: tf.Variable(v, trainable=False, name=f"{name}.{k}") for k, v in initial.items()}
            self._state[name] = {key: variable for key, variable in made.items() if key not in counters}
            self._buckets[name] = bucket
            for key in counters:
                self.counters.setdefault(f"{name}.{key}", made[key])
        return self._made(name)

    def _made(self, name: str) -> dict[str, tf.Variable]:
        """The variables of a bucket that there are, counters among them, by the compressor's names."""
        return {**self._state[name], **{key: self.counters[f"{name}.{key}"] for key in self.compressor.counters}}

    def _first_values(self, bucket: Bucket, name: str) -> dict[str, Any]:
        """What a bucket's state begins with: what was restored, else the compressor's own."""
        values = self.compressor.initial_state(bucket)
        for key, value in values.items():
            restored = self._restored.pop(f"{name}.{key}".removeprefix(f"{self.name}."), None)
            if restored is not None and restored.shape == np.shape(value):
                values[key] = restored
        return values

    def _warn_if_more_is_sent(self, buckets: Sequence[Bucket]) -> None:
        """Once: a compressor that sends more than no compression would is hardly what was wanted."""
        if self._compared:
            return
        self._compared = True
        compressor, workers = self.compressor, self.group.size
        own = [compressor.sent_bytes(bucket, workers) for bucket in buckets]
        sent = sum(size for size in own if size is not None)
        dense = sum(NoCompression().sent_bytes(bucket, workers) for bucket in buckets)
        if None not in own and sent > dense:
            warnings.warn(
                f"compression={compressor.name} sends more than no compression: {sent / 2**20:.3g} MiB a step from "
                f"each of {workers} workers, and {dense / 2**20:.3g} MiB without. See the table in "
                "docs/compression.md for what each sends.",
                stacklevel=2,
            )

    def _remember(self, changes: list[tuple[tf.Variable, Any]], means: list[Any]) -> None:
        """Keeps what compressors put into their state, if all means are finite: else the step counts for nothing."""
        if not changes:
            return
        finite = tf.reduce_all(tf.stack([tf.reduce_all(tf.math.is_finite(mean)) for mean in means]))

        def keep() -> int:
            for variable, value in changes:
                variable.assign(value)
            return 0

        tf.cond(finite, keep, lambda: 0)

    def _travels_as_rows(self, tensor: Any) -> bool:
        """Whether it may pay to send the rows of a sparse gradient instead of all of it."""
        if not isinstance(tensor, tf.IndexedSlices) or tensor.dtype not in (tf.float32, tf.float64):
            return False
        if self.compressor.remembers:
            return False
        shape = tf.get_static_value(tensor.dense_shape) if tensor.dense_shape is not None else None
        return shape is not None and math.prod(shape) * tensor.dtype.size >= self._alone_bytes

    def _mean_of_rows(self, tensor: tf.IndexedSlices, name: str) -> Any:
        """The dense group mean of a sparse gradient. Rows of one index are merged before they are sent."""
        shape = [int(size) for size in tf.get_static_value(tensor.dense_shape)]
        indices, places = tf.unique(tf.cast(tensor.indices, tf.int64))
        values = tf.math.unsorted_segment_sum(tensor.values, places, tf.size(indices))
        width = math.prod(shape[1:]) * tensor.dtype.size
        sent = tf.cast(tf.size(indices), tf.float32) * (width + indices.dtype.size)
        # What a rank receives: of rows, those of all others; of a dense ring, 2 (N - 1) / N of the whole.
        dense_bytes = 2 * shape[0] * width
        gathered = self.group.all_reduce(sent, "sum", f"{name}.size")

        def as_rows() -> Any:
            every = self.group.all_gather(indices, f"{name}.indices")
            return tf.math.unsorted_segment_sum(self.group.all_gather(values, f"{name}.values"), every, shape[0]) / (
                1 if self.takes_shares else self.group.size
            )

        def as_dense() -> Any:
            whole = tf.reshape(tf.math.unsorted_segment_sum(values, indices, shape[0]), shape)
            bucket = Bucket(0, tensor.dtype.name, (0,), (tuple(shape),))
            return self._mean(whole, bucket, f"{name}.dense", [])

        return tf.ensure_shape(tf.cond(gathered < dense_bytes, as_rows, as_dense), shape)
