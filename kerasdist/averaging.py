"""The mean of many tensors over the workers: buckets, a compressor and a group put together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from kerasdist.buckets import pack, plan_buckets, unpack
from kerasdist.compression import Cast, Compressor
from kerasdist.config import Settings
from kerasdist.engine import Group


class Averager:
    """Averages lists of gradients over a group. Every rank must call it with the same shapes in the same order.

    Args:
        group: The ranks that average.
        settings: Compressor, bucket size and options.
        name: Prefix of the collectives' names; two averagers of one process need different names.
    """

    def __init__(self, group: Group, settings: Settings, name: str) -> None:
        self.group = group
        self.name = name
        self._settings = settings

    @property
    def compressor(self) -> Compressor:
        """How buckets are averaged."""
        return self._settings.compressor

    def weight(self, rows: Any, total: Any, dtype: Any) -> Any:
        """The factor that a rank's mean gradient takes before it is averaged.

        Args:
            rows: The rank's samples in this step, scalar.
            total: All ranks' samples in this step, scalar.
            dtype: Floating dtype of the result.

        Returns:
            ``rows / total``, times the number of workers where the compressor divides by it.
        """
        share = tf.cast(rows, dtype) / tf.cast(total, dtype)
        return share if self.compressor.takes_shares else share * self.group.size

    def average(self, tensors: Sequence[Any], suffix: str = "") -> list[Any]:
        """Sums ``weight * tensor`` over the ranks.

        Args:
            tensors: Floating tensors, already multiplied by ``weight``. ``tf.IndexedSlices`` become dense.
            suffix: Told apart from other calls that may run at the same time.

        Returns:
            The averaged tensors, in the same order.
        """
        if self.group.size == 1:
            return list(tensors)
        tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
        specs = [(tuple(tensor.shape), tensor.dtype.name) for tensor in tensors]
        options = self._settings.options
        averaged: list[Any] = [None] * len(tensors)
        for bucket in plan_buckets(specs, self._settings.bucket_mb * 2**20, options.alone_kb * 2**10):
            name = f"{self.name}{suffix}.bucket{bucket.index}"
            flat = tensors[bucket.members[0]] if len(bucket.members) == 1 else pack(bucket, tensors)
            reduced = self._mean(flat, name)
            parts = [reduced] if len(bucket.members) == 1 else unpack(bucket, reduced)
            for member, part in zip(bucket.members, parts, strict=True):
                averaged[member] = part
        return averaged

    def _mean(self, tensor: Any, name: str) -> Any:
        """The group mean of a bucket; a tensor that travels alone keeps its shape where nothing must be flat."""
        compressor = self.compressor
        if compressor.takes_shares and tensor.dtype in (tf.float16, tf.bfloat16):
            # Horovod would add halves in halves, and knows no bfloat16.
            flat = tf.reshape(tensor, [-1]) * self.group.size
            return tf.reshape(Cast(tensor.dtype.name).mean(flat, self.group, name), tensor.shape)
        if compressor.takes_shares:
            return compressor.mean(tensor, self.group, name)
        return tf.reshape(compressor.mean(tf.reshape(tensor, [-1]), self.group, name), tensor.shape)
