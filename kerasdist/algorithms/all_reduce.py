"""The mean of the gradients in every step: N workers do what one process does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kerasdist.algorithms.base import Algorithm


class AllReduce(Algorithm):
    """Averages all gradients over all workers in every step, before anything that is not linear.

    Cost with P workers and S bytes: 2 (P-1)/P S bytes sent in each step (fewer with a compressor).
    """

    name = "all_reduce"

    def gradients(
        self, gradients: Sequence[Any], step: Any, mean: Callable[[Sequence[Any]], list[Any]]
    ) -> Sequence[Any]:
        return mean(gradients)
