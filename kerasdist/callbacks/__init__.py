"""Callbacks: one a file."""

from kerasdist.callbacks.agreement import Agreement
from kerasdist.callbacks.distributed_optimizer import DistributedOptimizer

__all__ = ["Agreement", "DistributedOptimizer"]
