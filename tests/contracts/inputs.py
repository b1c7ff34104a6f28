"""What each rank puts in: known to the workers and to the test, which computes the right answer with NumPy."""

from __future__ import annotations

import numpy as np

DTYPES = ("float32", "float64", "int32")
SHAPES = ((), (5,), (2, 3))
OPS = {"sum": np.sum, "mean": np.mean, "min": np.min, "max": np.max}
LENGTHS = (1, 2, 7, 1000)  # of buckets; 7 and 1000 are not divisible by 3, 1 not by 2
FLOATS = ("float32", "float64")


def whole_numbers(rank: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Small whole numbers, whose sums are exact in every dtype."""
    rng = np.random.default_rng([rank, len(shape)])
    return rng.integers(-50, 50, shape).astype(dtype)


def bucket(rank: int, length: int, dtype: str) -> np.ndarray:
    """Values of many magnitudes, within the range in which fp16 has all of its bits."""
    rng = np.random.default_rng([rank, length])
    return (rng.normal(size=length) * 10.0 ** rng.uniform(-2, 3, length)).astype(dtype)


# Of a small model's gradients: two that are matrices to PowerSGD, and two that are not.
TENSORS = ((12, 10), (3, 3, 4, 5), (7,), ())
STEPS = 20


def gradients(rank: int, step: int, dtype: str) -> list[np.ndarray]:
    """One step's gradients: a part that all ranks and steps share, and noise; no rank like another."""
    common, own = np.random.default_rng(0), np.random.default_rng([rank, step])
    return [np.asarray(common.normal(size=s) + own.normal(size=s), dtype) for s in TENSORS]


def flat(tensors: list[np.ndarray]) -> np.ndarray:
    """Tensors as they lie in a bucket: the last one first."""
    return np.concatenate([np.ravel(tensor) for tensor in reversed(tensors)])


def rows_to_gather(rank: int, dtype: str, least: int) -> np.ndarray:
    """``rank + least`` rows of two: with 0, rank 0 has none."""
    rows = rank + least
    return (100 * rank + np.arange(2 * rows)).reshape(rows, 2).astype(dtype)


def splits(rank: int, size: int) -> np.ndarray:
    """How many rows the rank sends to each: uneven, some 0."""
    return np.array([(rank + 2 * to) % 3 for to in range(size)], "int32")


def rows_to_send(rank: int, size: int, dtype: str) -> np.ndarray:
    """Rows of two that tell where they come from."""
    total = int(splits(rank, size).sum())
    return (100 * rank + np.arange(2 * total)).reshape(total, 2).astype(dtype)


def rows_received(rank: int, size: int, dtype: str) -> np.ndarray:
    """What the rank must receive, in the order of the senders."""
    parts = []
    for sender in range(size):
        ends = np.cumsum([0, *splits(sender, size)])
        parts.append(rows_to_send(sender, size, dtype)[ends[rank] : ends[rank + 1]])
    return np.concatenate(parts)
