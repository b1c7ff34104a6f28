"""kerasdist: train Keras 3 models on several workers with the numbers of one.

The names below are loaded when first used, so that ``import kerasdist`` and the command line start no TensorFlow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "Checkpoint": "kerasdist.callbacks",
    "DataParallelStrategy": "kerasdist.strategy",
    "DistributedOptimizer": "kerasdist.callbacks",
    "LearningRateWarmup": "kerasdist.callbacks",
    "Options": "kerasdist.config",
    "WarmupSchedule": "kerasdist.schedules",
    "scaled_learning_rate": "kerasdist.schedules",
    "shard": "kerasdist.data",
    "init": "kerasdist.engine",
    "shutdown": "kerasdist.engine",
    "rank": "kerasdist.engine",
    "size": "kerasdist.engine",
    "local_rank": "kerasdist.engine",
    "all_gather": "kerasdist.helpers",
    "all_reduce": "kerasdist.helpers",
    "barrier": "kerasdist.helpers",
    "broadcast": "kerasdist.helpers",
    "broadcast_state": "kerasdist.helpers",
    "rank_zero_first": "kerasdist.helpers",
    "assert_replicas_in_sync": "kerasdist.helpers",
    "load_model": "kerasdist.saving",
    "check_build": "kerasdist.engine_build",
    "run": "kerasdist.launch.function",
}

__all__ = sorted(_HOME)

if TYPE_CHECKING:
    from kerasdist.callbacks import Checkpoint as Checkpoint
    from kerasdist.callbacks import DistributedOptimizer as DistributedOptimizer
    from kerasdist.callbacks import LearningRateWarmup as LearningRateWarmup
    from kerasdist.config import Options as Options
    from kerasdist.data import shard as shard
    from kerasdist.engine import init as init
    from kerasdist.engine import local_rank as local_rank
    from kerasdist.engine import rank as rank
    from kerasdist.engine import shutdown as shutdown
    from kerasdist.engine import size as size
    from kerasdist.engine_build import check_build as check_build
    from kerasdist.helpers import all_gather as all_gather
    from kerasdist.helpers import all_reduce as all_reduce
    from kerasdist.helpers import assert_replicas_in_sync as assert_replicas_in_sync
    from kerasdist.helpers import barrier as barrier
    from kerasdist.helpers import broadcast as broadcast
    from kerasdist.helpers import broadcast_state as broadcast_state
    from kerasdist.helpers import rank_zero_first as rank_zero_first
    from kerasdist.launch.function import run as run
    from kerasdist.saving import load_model as load_model
    from kerasdist.schedules import WarmupSchedule as WarmupSchedule
    from kerasdist.schedules import scaled_learning_rate as scaled_learning_rate
    from kerasdist.strategy import DataParallelStrategy as DataParallelStrategy


def __getattr__(name: str) -> Any:
    if name in ("algorithms", "compression", "errors"):
        return importlib.import_module(f"kerasdist.{name}")
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'kerasdist' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
