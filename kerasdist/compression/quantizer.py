"""Fewer bits for each value on the wire, float32 in the sum: what casts and block-wise integers share.

Each rank receives its part of the bucket from all ranks (all-to-all), averages it in float32 and sends the result to
all (all-gather). That moves the values of a ring all-reduce and rounds twice, however many workers there are. Two
workers send each other the whole bucket, which is as many bytes in one collective, and round once.
"""

from __future__ import annotations

import abc
import functools
import math
from collections.abc import MutableMapping
from typing import Any

import tensorflow as tf

from kerasdist.buckets import Bucket
from kerasdist.compression.base import Compressor, ring_bytes
from kerasdist.engine import Group

# What one rank sends to another at a time between hosts. Horovod's all-to-all and all-gather over Gloo fill a network
# in both directions only with messages of this size or below, and pieces follow each other without a gap. Within a
# host there is nothing to fill, and each piece costs its negotiation (docs/benchmarks.md).
MESSAGE_BYTES = 256 * 2**10


class Quantizer(Compressor):
    """A compressor that writes values in fewer bits.

    ``encode`` and ``decode`` may also be used by themselves, by what sends tensors in another way. Encodings of pieces
    that each begin at a multiple of ``block`` values are, joined, the encoding of the whole.

    Attributes:
        block: How many values are encoded together.
        item: Bytes of one item of the wire.
    """

    block: int = 1
    item: int

    @abc.abstractmethod
    def encode(self, flat: Any) -> Any:
        """Values as they travel.

        Args:
            flat: Floating tensor of shape (n,).

        Returns:
            Tensor of shape (``wire_items(n)``,), of a dtype that collectives carry.
        """

    @abc.abstractmethod
    def decode(self, wire: Any, count: int) -> Any:
        """The values that ``encode`` wrote, rounded.

        Args:
            wire: What ``encode`` gave.
            count: How many values there are.

        Returns:
            Float32 tensor of shape (count,).
        """

    @abc.abstractmethod
    def wire_items(self, count: int) -> int:
        """How many items ``count`` values take on the wire."""

    def sent_bytes(self, bucket: Bucket, workers: int) -> float:
        return ring_bytes(self.wire_items(bucket.size), self.item, workers)

    def mean(self, flat: Any, bucket: Bucket, group: Group, name: str, state: MutableMapping[str, Any]) -> Any:
        if group.size == 1:
            return flat
        return tf.cast(self._mean_of_encoded(self.encode(flat), flat.shape[0], group, name), flat.dtype)

    def _mean_of_encoded(self, wire: Any, count: int, group: Group, name: str) -> Any:
        """The mean, in float32, of what the ranks encoded of ``count`` values each."""
        limit = MESSAGE_BYTES * (group.size if group.size > 2 else 1) if group.crosses_hosts else float("inf")
        pieces = max(1, math.ceil(self.wire_items(count) * self.item / limit))
        counts = part_sizes(count, self.block, pieces)
        wires = tf.split(wire, [self.wire_items(one) for one in counts])
        means = [
            self._mean_of_piece(one, size, group, f"{name}.{position}" if position else name)
            for position, (one, size) in enumerate(zip(wires, counts, strict=True))
        ]
        return means[0] if len(means) == 1 else tf.concat(means, axis=0)

    def _mean_of_piece(self, wire: Any, count: int, group: Group, name: str) -> Any:
        if group.size == 2:
            both = tf.ensure_shape(group.all_gather(wire, f"{name}.gather"), [2 * self.wire_items(count)])
            return self._mean_of_parts(both, count, 2)
        counts = part_sizes(count, self.block, group.size)
        own = counts[group.rank]
        received = group.all_to_all(wire, [self.wire_items(one) for one in counts], f"{name}.scatter")
        received = tf.ensure_shape(received, [group.size * self.wire_items(own)])
        mean = self._mean_of_parts(received, own, group.size)
        whole = group.all_gather(self.encode(mean), f"{name}.gather")
        return self.decode(tf.ensure_shape(whole, [self.wire_items(count)]), count)

    def _mean_of_parts(self, wires: Any, count: int, parts: int) -> Any:
        # One after another: a reduction over the first axis of a matrix takes twice as long.
        return functools.reduce(tf.add, [self.decode(one, count) for one in tf.split(wires, parts)]) * (1.0 / parts)


def part_sizes(count: int, block: int, parts: int) -> list[int]:
    """``count`` values in so many parts of whole blocks, nearly equal; the last block may be short."""
    blocks = -(-count // block)
    each, rest = divmod(blocks, parts)
    ends = [min(count, block * (each * part + min(part, rest))) for part in range(parts + 1)]
    return [end - start for start, end in zip(ends, ends[1:], strict=False)]
