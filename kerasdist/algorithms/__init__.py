"""What is shared, when, with whom? One algorithm a file; ``get`` turns what the user wrote into one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kerasdist.algorithms.all_reduce import AllReduce
from kerasdist.algorithms.base import Algorithm
from kerasdist.algorithms.gossip import Gossip, mixing_matrix, spectral_gap
from kerasdist.algorithms.groups import GroupAllReduce
from kerasdist.algorithms.hierarchical import Hierarchical
from kerasdist.algorithms.local_sgd import LocalSGD
from kerasdist.algorithms.partial_sync import PartialSync
from kerasdist.algorithms.slowmo import SlowMo
from kerasdist.config import chosen

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "AllReduce",
    "Gossip",
    "GroupAllReduce",
    "Hierarchical",
    "LocalSGD",
    "PartialSync",
    "SlowMo",
    "get",
    "mixing_matrix",
    "spectral_gap",
]

ALGORITHMS: dict[str, Callable[[], Algorithm]] = {
    "all_reduce": AllReduce,
    "hierarchical": Hierarchical,
}


def get(identifier: Any) -> Algorithm:
    """Returns the algorithm that ``algorithm=identifier`` means.

    Args:
        identifier: None, a name in ``ALGORITHMS``, or an ``Algorithm``.

    Raises:
        ValueError: Unknown name.
        TypeError: Neither a name nor an algorithm.
    """
    return chosen("algorithm", identifier, ALGORITHMS, Algorithm, AllReduce)
