"""Half precision on the wire, float32 in the sum.

Horovod's own fp16 rounds at each hop, overflows in the sum, and knows no bfloat16.

Cost with P workers and S bytes in float32: 2 (P-1)/P S/2 bytes sent, 2 collectives; 1 at 2 workers.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import numpy as np
import tensorflow as tf

from kerasdist.buckets import Bucket
from kerasdist.compression.quantizer import Quantizer
from kerasdist.config import one_of
from kerasdist.engine import Group

# From so many values on a CPU decodes and averages in one compiled loop: operation by operation each writes and reads
# all of them, which takes five times as long (2 million values: 7 ms, 1.4 compiled). Sums come before products here,
# so no compiler fuses the two into an operation that rounds otherwise on other processors.
COMPILED_VALUES = 2**16

SHORT = {"float16": "fp16", "bfloat16": "bf16"}


class Cast(Quantizer):
    """Casts to a 16-bit type for the wire.

    Values above the type's largest (65504 for fp16) become inf, as Keras' loss scaling expects; the smallest fp16
    value that survives is 2**-24. bfloat16 has the range of float32 and 8 significant bits. Values that were finite
    and became inf are counted on the rank that sent them (``strategy.stats().overflows``).

    Cost with P workers and S bytes in float32: 2 (P-1)/P S/2 bytes sent, 2 collectives; 1 at 2 workers.
    ``overflow="float32"``: one look at all values and one more collective, of 4 bytes, before them.

    Args:
        dtype: ``"float16"`` or ``"bfloat16"``.
        overflow: ``"inf"`` (default), or ``"float32"``: where a value of any rank would become inf, this bucket
            travels in float32 in this step, on all ranks.

    Raises:
        ValueError: An argument is none of these.
    """

    counters = ("overflows",)
    item = 2

    def __init__(self, dtype: str, overflow: str = "inf") -> None:
        one_of("dtype", dtype, tuple(SHORT))
        one_of("overflow", overflow, ("inf", "float32"))
        self._dtype = tf.dtypes.as_dtype(dtype)
        self._falls_back = overflow == "float32"
        self.name = SHORT[dtype] + ("(overflow='float32')" if self._falls_back else "")

    def initial_state(self, bucket: Bucket) -> dict[str, Any]:
        return {"overflows": np.zeros((), "int64")}

    def mean(self, flat: Any, bucket: Bucket, group: Group, name: str, state: MutableMapping[str, Any]) -> Any:
        if group.size == 1:
            return flat
        wire, count = self.encode(flat), flat.shape[0]

        def in_halves() -> Any:
            return self._mean_of_encoded(wire, count, group, name)

        if self._falls_back:
            overflows = self._overflows(flat, wire)
            anywhere = group.all_reduce(tf.cast(overflows > 0, tf.float32), "max", f"{name}.overflow")
            in_full = lambda: group.all_reduce(tf.cast(flat, tf.float32), "mean", f"{name}.float32")  # noqa: E731
            mean = tf.ensure_shape(tf.cond(anywhere > 0, in_full, in_halves), flat.shape)
        else:
            mean = in_halves()
            # Who sent what is looked up only where inf came out.
            finite = tf.reduce_all(tf.math.is_finite(mean))
            overflows = tf.cond(finite, lambda: tf.constant(0, tf.int64), lambda: self._overflows(flat, wire))
        if "overflows" in state:
            state["overflows"] += overflows
        return tf.cast(mean, flat.dtype)

    def encode(self, flat: Any) -> Any:
        """16 bits that Horovod can carry: it knows no bfloat16."""
        half = tf.cast(flat, self._dtype)
        return tf.bitcast(half, tf.uint16) if self._dtype == tf.bfloat16 else half

    def decode(self, wire: Any, count: int) -> Any:
        half = tf.bitcast(wire, tf.bfloat16) if self._dtype == tf.bfloat16 else wire
        return tf.cast(half, tf.float32)

    def wire_items(self, count: int) -> int:
        return count

    def _mean_of_parts(self, wires: Any, count: int, parts: int) -> Any:
        mean = super()._mean_of_parts
        if count >= COMPILED_VALUES and not tf.config.list_physical_devices("GPU"):
            mean = tf.function(mean, jit_compile=True, autograph=False)
        return mean(wires, count, parts)

    def _overflows(self, flat: Any, wire: Any) -> Any:
        """How many of this rank's values are finite and inf on the wire."""
        infinite = tf.math.is_inf(self.decode(wire, flat.shape[0]))
        return tf.math.count_nonzero(tf.logical_and(infinite, tf.math.is_finite(flat)))
