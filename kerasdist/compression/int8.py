"""Eight bits and a scale for each block on the wire, float32 in the sum.

Source: ByteGrad of Bagua (Gan et al. 2021, "Bagua: Scaling up distributed learning with system relaxations"), which
takes minimum and maximum of a chunk. Here a block's largest magnitude is its scale, so that 0 stays 0, and blocks are
small, so that one large value spoils few others.

Cost with P workers and S bytes in float32: 2 (P-1)/P S (1/4 + 1/block) bytes sent, 2 collectives; 1 at 2 workers.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from kerasdist.compression.quantizer import Quantizer
from kerasdist.config import positive_integer

LEVELS = 127
SCALE_BYTES = 4


class Int8(Quantizer):
    """Rounds each block of values to 255 equidistant levels between minus and plus its largest magnitude.

    With more than 2 workers the mean is rounded once more in the same way. A block with an inf or NaN arrives as NaN,
    all of it. A block whose largest magnitude is below about 1e-36 arrives as 0.

    Cost with P workers and S bytes in float32: 2 (P-1)/P S (1/4 + 1/block) bytes sent, 2 collectives; 1 at 2 workers.

    Args:
        block: How many values share one scale of 4 bytes. Default 256.

    Raises:
        TypeError: ``block`` is not a whole number.
        ValueError: ``block`` is below 1.
    """

    item = 1

    def __init__(self, block: int = 256) -> None:
        positive_integer("block", block)
        self.block = int(block)
        self.name = f"Int8(block={self.block})"

    def encode(self, flat: Any) -> Any:
        count = flat.shape[0]
        blocks = self._blocks(tf.cast(flat, tf.float32), count)
        # The bits of magnitudes are ordered as whole numbers, with inf and then NaN at the top: a maximum of floats
        # may pass over a NaN.
        bits = tf.bitwise.bitwise_and(tf.bitcast(blocks, tf.int32), 0x7FFFFFFF)
        scale = tf.bitcast(tf.reduce_max(bits, axis=1, keepdims=True), tf.float32) / LEVELS
        inverse = 1.0 / scale
        usable = tf.math.is_finite(inverse) & tf.math.is_finite(scale)
        levels = tf.where(usable, tf.round(blocks * tf.where(usable, inverse, 0.0)), 0.0)
        scale = tf.where(tf.math.is_finite(scale), scale, float("nan"))
        rows = [tf.bitcast(scale, tf.uint8)[:, 0], tf.bitcast(tf.cast(levels, tf.int8), tf.uint8)]
        return tf.reshape(tf.concat(rows, axis=1), [-1])[: self.wire_items(count)]

    def decode(self, wire: Any, count: int) -> Any:
        missing = self._block_count(count) * (SCALE_BYTES + self.block) - self.wire_items(count)
        rows = tf.reshape(tf.pad(wire, [[0, missing]]), [-1, SCALE_BYTES + self.block])
        scale = tf.bitcast(rows[:, :SCALE_BYTES], tf.float32)[:, None]
        levels = tf.cast(tf.bitcast(rows[:, SCALE_BYTES:], tf.int8), tf.float32)
        return tf.reshape(levels * scale, [-1])[:count]

    def wire_items(self, count: int) -> int:
        return SCALE_BYTES * self._block_count(count) + count

    def _block_count(self, count: int) -> int:
        return -(-count // self.block)

    def _blocks(self, flat: Any, count: int) -> Any:
        """One block a row; the last one is filled up with zeros, which do not travel."""
        missing = self._block_count(count) * self.block - count
        return tf.reshape(tf.pad(flat, [[0, missing]]), [self._block_count(count), self.block])
