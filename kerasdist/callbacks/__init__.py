"""Callbacks: one a file."""

from kerasdist.callbacks.agreement import Agreement
from kerasdist.callbacks.checkpoint import Checkpoint
from kerasdist.callbacks.distributed_optimizer import DistributedOptimizer
from kerasdist.callbacks.warmup import LearningRateWarmup

__all__ = ["Agreement", "Checkpoint", "DistributedOptimizer", "LearningRateWarmup"]
