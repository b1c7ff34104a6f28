"""Each gradient matrix travels as two thin factors.

Source: Vogels, Karimireddy and Jaggi 2019, "PowerSGD: Practical low-rank gradient compression for distributed
optimization", Algorithms 1 and 2, with warm start and error feedback.

Cost with P workers, rank r and matrices of m times n: 2 (P-1)/P r (m + n) values sent for each, 2 collectives.
"""

from __future__ import annotations

import math
from collections.abc import MutableMapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from kerasdist.buckets import ITEM_BYTES, Bucket
from kerasdist.compression.base import Compressor, ring_bytes
from kerasdist.compression.residual import empty_residual, working_dtype
from kerasdist.config import boolean, positive_integer
from kerasdist.engine import Group

SEED = 20190531  # any, but the same on all ranks


class PowerSGD(Compressor):
    """Approximates the mean of each matrix M by P Q', with ``rank`` columns in P and Q.

    One step of the power method: P = mean(M Q) with Q of the last step, its columns made orthonormal; then
    Q = mean(M' P). Tensors of two and more axes are matrices: the axes are parted where rows plus columns are fewest,
    which for kernels of Keras' Dense and Conv layers is before the outputs, and for attention before or after the
    heads. What would not shrink, biases among it, travels dense beside P.

    Error feedback as in the paper's Algorithm 2: a rank keeps M - P P'M, the error of its own approximation.

    Cost with P workers: 2 (P-1)/P (r (m + n) for each matrix and the size of what is dense) values sent,
    2 collectives (1 where nothing shrinks), and 3 thin matrix products.

    Args:
        rank: Columns of the factors, 1 or more. Default 2.
        residual: Whether what is not sent is added to the next step's gradients (error feedback). Default True.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: ``rank`` is below 1.
    """

    remembers = True

    def __init__(self, rank: int = 2, residual: bool = True) -> None:
        positive_integer("rank", rank)
        boolean("residual", residual)
        self.rank = int(rank)
        self.residual = residual
        self.takes_unscaled = residual
        self.name = f"PowerSGD(rank={self.rank}{'' if residual else ', residual=False'})"

    def initial_state(self, bucket: Bucket) -> dict[str, Any]:
        matrices = [shape for shape in self._plan(bucket) if shape]
        if not matrices:
            return {}
        draw = np.random.default_rng([SEED, bucket.index])
        factors = draw.normal(size=self.rank * sum(columns for _, columns in matrices))
        state = {"q": factors.astype(working_dtype(bucket))}
        if self.residual:
            state |= empty_residual(sum(map(math.prod, matrices)), bucket)
        return state

    def sent_bytes(self, bucket: Bucket, workers: int) -> float:
        values = [self.rank * sum(shape) if shape else size for shape, size in self._shaped(bucket)]
        return ring_bytes(sum(values), ITEM_BYTES[working_dtype(bucket)], workers)

    def mean(self, flat: Any, bucket: Bucket, group: Group, name: str, state: MutableMapping[str, Any]) -> Any:
        if group.size == 1:
            return flat
        values = tf.cast(flat, working_dtype(bucket))
        plan = self._plan(bucket)
        shapes = [shape for shape in plan if shape]
        if not shapes:
            return tf.cast(group.all_reduce(values, "mean", name), flat.dtype)
        parts = tf.split(values, bucket.sizes)
        dense = [part for part, shape in zip(parts, plan, strict=True) if not shape]
        matrices = [tf.reshape(part, shape) for part, shape in zip(parts, plan, strict=True) if shape]
        if self.residual:
            kept = _cut(state["residual"], shapes)
            matrices = [matrix + rest for matrix, rest in zip(matrices, kept, strict=True)]
        q = _cut(state["q"], [(columns, self.rank) for _, columns in shapes])
        first = [*map(tf.matmul, matrices, q), *dense]
        p, dense = _parted(_mean(first, group, f"{name}.p"), len(shapes))
        p = [tf.linalg.qr(one).q for one in p]
        # M'P as (P'M)': the other way round takes ten times as long on a CPU.
        own_q = [tf.transpose(tf.matmul(tf.transpose(one), matrix)) for matrix, one in zip(matrices, p, strict=True)]
        q = _mean(own_q, group, f"{name}.q")
        state["q"] = _join(q)
        if self.residual:
            sent = map(_product, p, own_q)
            state["residual"] = _join([matrix - one for matrix, one in zip(matrices, sent, strict=True)])
        means, others = map(_product, p, q), iter(dense)
        return tf.cast(_join([next(means) if shape else next(others) for shape in plan]), flat.dtype)

    def _plan(self, bucket: Bucket) -> list[tuple[int, int] | None]:
        """The matrix that each member travels as, or None: dense."""
        return [shape for shape, _ in self._shaped(bucket)]

    def _shaped(self, bucket: Bucket) -> list[tuple[tuple[int, int] | None, int]]:
        return [(self._matrix(shape), math.prod(shape)) for shape in bucket.shapes]

    def _matrix(self, shape: tuple[int, ...]) -> tuple[int, int] | None:
        """Rows and columns of a tensor parted where they are fewest; None where the factors are no smaller."""
        cuts = [(math.prod(shape[:axis]), math.prod(shape[axis:])) for axis in range(1, len(shape))]
        if not cuts:
            return None
        best = min(cuts, key=sum)
        return best if self.rank * sum(best) < math.prod(shape) else None


def _product(p: Any, q: Any) -> Any:
    return tf.matmul(p, q, transpose_b=True)


def _join(tensors: Sequence[Any]) -> Any:
    flat = [tf.reshape(tensor, [-1]) for tensor in tensors]
    return flat[0] if len(flat) == 1 else tf.concat(flat, axis=0)


def _cut(flat: Any, shapes: Sequence[Any]) -> list[Any]:
    """The tensors of these shapes that ``_join`` made one."""
    parts = tf.split(flat, [math.prod(shape) for shape in shapes])
    return [tf.reshape(part, shape) for part, shape in zip(parts, shapes, strict=True)]


def _mean(tensors: Sequence[Any], group: Group, name: str) -> list[Any]:
    """The means of tensors that travel together."""
    return _cut(group.all_reduce(_join(tensors), "mean", name), [tuple(tensor.shape) for tensor in tensors])


def _parted(items: list[Any], count: int) -> tuple[list[Any], list[Any]]:
    return items[:count], items[count:]
