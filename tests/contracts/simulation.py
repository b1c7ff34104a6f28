"""The algorithms by their definitions, in NumPy: what 20 steps of each rank must give.

The model has two linear layers, the loss is the mean squared error, the optimizer SGD with momentum as Keras writes it.
Knows nothing of kerasdist.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

STEPS = 20
ROWS = 3
SHAPES = ((4, 3), (3,), (3, 2), (2,))
RATE = 1 / 64  # exact in float32, in which Keras keeps it
PARTS = ((3, 2, 1), (0,))  # the variables' buckets of at most 104 bytes: from the last one on
SMALL_MB = 1e-4

Weights = list[np.ndarray]
Replicas = list[Weights]


def data(rank: int, steps: int = STEPS) -> tuple[np.ndarray, np.ndarray]:
    """The rank's own samples, of another slope on each rank."""
    rng = np.random.default_rng(rank)
    x = rng.normal(size=(steps * ROWS, 4))
    return x, x[:, :2] * (1 + rank / 4) + rng.normal(size=(steps * ROWS, 2)) * 0.1


def initial() -> Weights:
    """The weights of all ranks at first."""
    rng = np.random.default_rng(99)
    return [rng.normal(size=shape) * 0.5 for shape in SHAPES]


def gradients(weights: Weights, rank: int, step: int) -> Weights:
    """The mean gradient of the rank's rows in a step."""
    x, y = (part[step * ROWS : (step + 1) * ROWS] for part in data(rank))
    w1, b1, w2, b2 = weights
    hidden = x @ w1 + b1
    slope = 2 * (hidden @ w2 + b2 - y) / y.size
    back = slope @ w2.T
    return [x.T @ back, back.sum(axis=0), hidden.T @ slope, slope.sum(axis=0)]


def mean(replicas: Replicas) -> Weights:
    return [np.mean(np.stack(parts), axis=0) for parts in zip(*replicas, strict=True)]


def train(
    size: int, share: Callable[[int, Replicas], Replicas], momentum: float, all_reduce_steps: int = 0
) -> Replicas:
    """Every rank's weights after all steps.

    Args:
        size: The number of ranks.
        share: The replicas after the communication that follows update number k, from those before it.
        momentum: Of SGD.
        all_reduce_steps: So many first steps apply the mean gradient of all ranks.
    """
    replicas = [initial() for _ in range(size)]
    speed = [[np.zeros(shape) for shape in SHAPES] for _ in range(size)]
    for step in range(STEPS):
        found = [gradients(replicas[rank], rank, step) for rank in range(size)]
        if step < all_reduce_steps:
            found = [mean(found)] * size
        for rank in range(size):
            speed[rank] = [momentum * v - RATE * g for v, g in zip(speed[rank], found[rank], strict=True)]
            replicas[rank] = [w + v for w, v in zip(replicas[rank], speed[rank], strict=True)]
        replicas = share(step + 1, replicas)
    return replicas


def alone(count: int, replicas: Replicas) -> Replicas:
    return replicas


def all_reduce(size: int, momentum: float) -> Replicas:
    return train(size, alone, momentum, all_reduce_steps=STEPS)


def partial(size: int, momentum: float) -> Replicas:
    def share(count: int, replicas: Replicas) -> Replicas:
        part, common = PARTS[count % len(PARTS)], mean(replicas)
        return [[common[k] if k in part else weights[k] for k in range(len(SHAPES))] for weights in replicas]

    return train(size, share, momentum)


def local(size: int, momentum: float, every: int, warmup: int = 0) -> Replicas:
    def share(count: int, replicas: Replicas) -> Replicas:
        return [mean(replicas)] * size if count > warmup and (count - warmup) % every == 0 else replicas

    return train(size, share, momentum, warmup)


def slowmo(size: int, momentum: float, every: int, slow: float, rate: float, warmup: int = 0) -> Replicas:
    """With the inner learning rate, as the paper writes it."""
    anchor, u = initial(), [np.zeros(shape) for shape in SHAPES]

    def share(count: int, replicas: Replicas) -> Replicas:
        nonlocal anchor, u
        if count == warmup:
            anchor = replicas[0]
        if count <= warmup or (count - warmup) % every:
            return replicas
        u = [slow * v + (a - m) / RATE for v, a, m in zip(u, anchor, mean(replicas), strict=True)]
        anchor = [a - rate * RATE * v for a, v in zip(anchor, u, strict=True)]
        return [anchor] * size

    return train(size, share, momentum, warmup)


def weights_of(topology: str, size: int) -> np.ndarray:
    """Row i: how much worker i takes of each."""
    matrix = np.eye(size)
    for i in range(size):
        if topology == "ring":
            others = {(i + 1) % size, (i - 1) % size}
        else:
            others = {(i + step) % size for step in (1, 2, 4, 8) if step < size}
        for j in others - {i}:
            matrix[i, j] = 1
    return matrix / matrix.sum(axis=1, keepdims=True)


def mixed(matrix: np.ndarray, replicas: Replicas) -> Replicas:
    return [[sum(row[j] * replicas[j][k] for j in range(len(replicas))) for k in range(len(SHAPES))] for row in matrix]


def gossip(size: int, momentum: float, topology: str) -> Replicas:
    return train(size, lambda count, replicas: mixed(weights_of(topology, size), replicas), momentum)


def groups(size: int, momentum: float, schedule: np.ndarray) -> Replicas:
    """Groups of update number k: ``schedule[k]``, of shape (groups, members)."""

    def share(count: int, replicas: Replicas) -> Replicas:
        matrix = np.zeros((size, size))
        for group in schedule[count]:
            matrix[np.ix_(group, group)] = 1 / len(group)
        return mixed(matrix, replicas)

    return train(size, share, momentum)


def accumulated(size: int, momentum: float, every: int) -> Replicas:
    """Local SGD whose updates take the mean gradient of two passes each."""
    replicas = [initial() for _ in range(size)]
    speed = [[np.zeros(shape) for shape in SHAPES] for _ in range(size)]
    for update in range(STEPS // 2):
        for rank in range(size):
            passes = [gradients(replicas[rank], rank, 2 * update + one) for one in (0, 1)]
            speed[rank] = [momentum * v - RATE * g for v, g in zip(speed[rank], mean(passes), strict=True)]
            replicas[rank] = [w + v for w, v in zip(replicas[rank], speed[rank], strict=True)]
        if (update + 1) % every == 0:
            replicas = [mean(replicas)] * size
    return replicas
