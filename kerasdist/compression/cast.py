"""Half precision on the wire, float32 in the sum.

Each rank receives its part of the bucket from all ranks (all-to-all), averages it in float32 and sends the result to
all (all-gather): the bytes of a ring all-reduce in half precision, and two roundings however many workers there are.
Horovod's own fp16 rounds at each hop, overflows in the sum, and knows no bfloat16.

Cost with P workers and S bytes in float32: 2 (P-1)/P S/2 bytes sent, 2 collectives.
"""

from __future__ import annotations

import functools
from collections.abc import MutableMapping
from typing import Any

import tensorflow as tf

from kerasdist.buckets import Bucket
from kerasdist.compression.quantizer import Quantizer
from kerasdist.engine import Group


class Cast(Quantizer):
    """Casts to a 16-bit type for the wire.

    Values above the type's largest (65504 for fp16) become inf, as Keras' loss scaling expects; the smallest fp16
    value that survives is 2**-24. bfloat16 has the range of float32 and 8 significant bits.

    Args:
        dtype: ``"float16"`` or ``"bfloat16"``.
    """

    def __init__(self, dtype: str) -> None:
        self._dtype = tf.dtypes.as_dtype(dtype)
        self.name = {"float16": "fp16", "bfloat16": "bf16"}[dtype]

    def mean(self, flat: Any, bucket: Bucket, group: Group, name: str, state: MutableMapping[str, Any]) -> Any:
        if group.size == 1:
            return flat
        count = flat.shape[0]
        each, rest = count // group.size, count % group.size
        splits = tf.stack([each + tf.cast(k < rest, tf.int32) for k in range(group.size)])
        parts = group.all_to_all(self.encode(flat), splits, f"{name}.scatter")
        # One after another: a reduction over the first axis of a matrix takes twice as long.
        summed = functools.reduce(tf.add, [self.decode(part, part.shape[0]) for part in tf.split(parts, group.size)])
        mean = summed * (1.0 / group.size)
        whole = group.all_gather(self.encode(mean), f"{name}.gather")
        return tf.ensure_shape(tf.cast(self.decode(whole, count), flat.dtype), flat.shape)

    def encode(self, flat: Any) -> Any:
        """16 bits that Horovod can carry."""
        half = tf.cast(flat, self._dtype)
        return tf.bitcast(half, tf.uint16) if self._dtype == tf.bfloat16 else half

    def decode(self, wire: Any, count: int) -> Any:
        half = tf.bitcast(wire, tf.bfloat16) if self._dtype == tf.bfloat16 else wire
        return tf.cast(half, tf.float32)
