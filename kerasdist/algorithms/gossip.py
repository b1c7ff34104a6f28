"""Gossip: after each update, a worker averages with its neighbours only.

Lian et al., *Can decentralized algorithms outperform centralized algorithms?* (D-PSGD, 2017), in the order of update,
then mean. What a topology is worth is its spectral gap: Zhang et al. (2020); Ying et al. (2021) on the exponential
graph.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from kerasdist.algorithms.local_updates import LocalUpdates, check_code, code_of, mix_in_buckets
from kerasdist.averaging import Averager
from kerasdist.compression import Compressor
from kerasdist.config import one_of

TOPOLOGIES = ("ring", "exponential")


class Gossip(LocalUpdates):
    """Each rank updates its own variables; then they are averaged with its neighbours'.

    The matrix of the weights is doubly stochastic, so the mean over all workers stays what it is, and the replicas come
    nearer to it at the rate of the spectral gap. With two or three workers on a ring everybody meets everybody.

    Cost with P workers and S bytes: d S bytes in each step, for d neighbours: 2 on a ring, about log2 P on the
    exponential graph. No worker waits for all others.

    The variables are averaged; the optimizer's state is not, but at the end of ``fit``. A compressor must be one that
    encodes single tensors: variables take the differences of what was encoded, x + sum_j W_ij (C(x_j) - C(x)), so that
    rounding stays small and the mean is kept.

    Args:
        topology: ``"ring"`` (default): both neighbours. ``"exponential"``: those 1, 2, 4, 8, ... ranks further.
        average_at_epoch_end: Whether all replicas are averaged, exactly, at the end of each epoch. Default True.
    """

    def __init__(self, topology: str = "ring", average_at_epoch_end: bool = True) -> None:
        one_of("topology", topology, TOPOLOGIES)
        super().__init__(f"Gossip topology={topology}", average_at_epoch_end)
        self.topology = topology

    def check(self, size: int, compressor: Compressor) -> None:
        if size < 2:
            raise ValueError(
                f"Gossip needs neighbours. Expected 2 workers or more. Received: {size}. Start more workers, or leave "
                "out `algorithm`."
            )
        check_code("Gossip", compressor)

    def after_update(self, variables: Sequence[Any], step: Any, averager: Averager) -> None:
        mix_in_buckets(variables, averager, functools.partial(self._mix, averager))

    def _mix(self, averager: Averager, flat: Any, name: str) -> Any:
        group, count = averager.group, flat.shape[0]
        distances = _distances(self.topology, group.size)
        code = code_of(averager.compressor, flat.dtype)
        wire = flat if code is None else code.encode(flat)
        readers = [(group.rank - distance) % group.size for distance in distances]
        splits = [wire.shape[0] * readers.count(rank) for rank in range(group.size)]
        received = group.all_to_all(tf.tile(wire, [len(readers)]), tf.constant(splits, tf.int32), name)
        parts = [wire, *tf.split(received, len(readers))]
        if code is not None:
            parts = [tf.cast(code.decode(part, count), flat.dtype) for part in parts]
        own, *others = parts
        return tf.ensure_shape(flat + (tf.add_n(others) - len(others) * own) / (len(others) + 1), flat.shape)


def mixing_matrix(topology: str, size: int) -> np.ndarray:
    """The weights of a topology: row i says how much of each worker's variables worker i takes.

    Args:
        topology: ``"ring"`` or ``"exponential"``.
        size: The number of workers.

    Returns:
        A doubly stochastic matrix of shape (size, size).
    """
    distances = (0, *_distances(topology, size))
    matrix = np.zeros((size, size))
    for rank in range(size):
        for distance in distances:
            matrix[rank, (rank + distance) % size] = 1 / len(distances)
    return matrix


def spectral_gap(matrix: np.ndarray) -> float:
    """1 less the second largest magnitude of an eigenvalue: 1 if all workers meet in a step, 0 if some never do."""
    magnitudes = np.sort(np.abs(np.linalg.eigvals(matrix)))
    return 1.0 if len(magnitudes) == 1 else float(1 - magnitudes[-2])


def _distances(topology: str, size: int) -> tuple[int, ...]:
    """How many ranks further the neighbours are."""
    steps = (1, size - 1) if topology == "ring" else tuple(2**k for k in range(size.bit_length()))
    return tuple(sorted({step for step in steps if 0 < step < size}))
