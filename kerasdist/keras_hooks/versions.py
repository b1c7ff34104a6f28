"""Does Keras run on TensorFlow, and in versions that kerasdist is tested with?"""

from __future__ import annotations

import platform
import re
import warnings

import keras
import tensorflow as tf

TESTED = {"Python": ((3, 11), (3, 13)), "TensorFlow": ((2, 20), (2, 21)), "Keras": ((3, 11), (3, 15))}


def check_backend() -> None:
    """Raises ValueError unless Keras runs on TensorFlow."""
    backend = keras.config.backend()
    if backend != "tensorflow":
        raise ValueError(
            f"kerasdist needs Keras' TensorFlow backend. Received: backend={backend!r}. Set KERAS_BACKEND=tensorflow "
            "before Keras is imported."
        )


def check_versions() -> None:
    """Warns if Python, TensorFlow or Keras is outside of the range that kerasdist is tested with."""
    running = {"Python": platform.python_version(), "TensorFlow": tf.__version__, "Keras": keras.__version__}
    for name, (low, high) in TESTED.items():
        version = tuple(int(part) for part in re.findall(r"\d+", running[name])[:2])
        if not low <= version <= high:
            span = f"{'.'.join(map(str, low))} to {'.'.join(map(str, high))}"
            warnings.warn(
                f"kerasdist is tested with {name} {span}. Running: {name} {running[name]}. Numbers may differ, or "
                "hooks into Keras fail; `kerasdist doctor` shows what works.",
                stacklevel=3,
            )
