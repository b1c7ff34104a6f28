"""Which tensors travel together? Planning and packing of buckets.

Planning is pure Python and depends on nothing but the order, shapes and dtypes of the tensors, so that every rank
makes the same plan. Tensors are taken in reverse order (the last layer's gradients are ready first; PyTorch DDP,
Li et al. 2020, section 3.2.3). A large tensor is a bucket of its own and is not copied; small ones are packed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


@dataclasses.dataclass(frozen=True)
class Bucket:
    """Tensors of one dtype that are reduced in one collective.

    Attributes:
        index: Position in the plan; part of the collective's name.
        dtype: The dtype shared by all members.
        members: Positions of the tensors in the caller's list.
        shapes: The members' shapes, in the same order.
    """

    index: int
    dtype: str
    members: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of elements of each member."""
        return tuple(math.prod(shape) for shape in self.shapes)

    @property
    def size(self) -> int:
        """Number of elements of all members."""
        return sum(self.sizes)


def plan_buckets(
    specs: Sequence[tuple[tuple[int, ...], str]], bucket_bytes: float, alone_bytes: float
) -> tuple[Bucket, ...]:
    """Plans the buckets for tensors of the given shapes and dtypes.

    Args:
        specs: One (shape, dtype name) per tensor, in the order of the variables.
        bucket_bytes: Packed buckets hold at most this many bytes (one tensor always fits).
        alone_bytes: Tensors of at least this many bytes are not packed.

    Returns:
        Buckets that hold each tensor exactly once, ordered by their first member in reverse order.

    Raises:
        ValueError: A shape has an unknown dimension.
    """
    groups: list[tuple[str, list[int]]] = []
    open_groups: dict[str, tuple[list[int], float]] = {}
    for position in reversed(range(len(specs))):
        shape, dtype = specs[position]
        if any(dim is None for dim in shape):
            raise ValueError(f"Gradient {position} has shape {shape}: a bucket needs every dimension to be known.")
        nbytes = math.prod(shape) * ITEM_BYTES.get(dtype, 8)
        if nbytes >= alone_bytes:
            groups.append((dtype, [position]))
            continue
        members, used = open_groups.get(dtype, ([], 0.0))
        if members and used + nbytes > bucket_bytes:
            members, used = [], 0.0
        if not members:
            groups.append((dtype, members))
        members.append(position)
        open_groups[dtype] = (members, used + nbytes)
    return tuple(
        Bucket(index, dtype, tuple(members), tuple(tuple(specs[m][0]) for m in members))
        for index, (dtype, members) in enumerate(groups)
    )


def pack(bucket: Bucket, tensors: Sequence[Any]) -> Any:
    """Returns the bucket's members as one flat tensor; a single member is reshaped, not copied."""
    import tensorflow as tf

    members = zip((tensors[member] for member in bucket.members), bucket.shapes, strict=True)
    # Each operation counts where tensors are small and many: a vector needs no new shape.
    flat = [one if len(shape) == 1 else tf.reshape(one, [-1]) for one, shape in members]
    return flat[0] if len(flat) == 1 else tf.concat(flat, axis=0)


def unpack(bucket: Bucket, flat: Any) -> list[Any]:
    """Returns the members of a flat bucket, in the order of ``bucket.members``."""
    import tensorflow as tf

    parts = [flat] if len(bucket.members) == 1 else tf.split(flat, bucket.sizes)
    shaped = zip(parts, bucket.shapes, strict=True)
    return [part if len(shape) == 1 else tf.reshape(part, shape) for part, shape in shaped]
