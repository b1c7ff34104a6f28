"""The seeds of TensorFlow, Keras and random layers."""

from __future__ import annotations

from typing import Any

import numpy as np
from tensorflow.python.eager import context as _tf_context


def seed_states(model: Any) -> list[Any]:
    """The state variables of the model's random layers."""
    generators = [g for layer in model._flatten_layers() for g in getattr(layer, "_seed_generators", ())]
    return list({id(g.state): g.state for g in generators}.values())


def folded_seed(state: np.ndarray, rank: int) -> np.ndarray:
    """The state of rank 0's seed generator as that of another rank, which draws its own masks, reproducibly."""
    seed, counter = (int(value) for value in state)
    return np.array([(seed + 1_000_003 * rank) % 2**31 if rank else seed, counter], state.dtype)


def user_seed() -> int | None:
    """The seed that the user set for TensorFlow or Keras, or None."""
    seed = _tf_context.global_seed()
    return int(seed) if seed is not None else None
