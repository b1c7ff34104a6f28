"""Error feedback: what a compressor does not send in one step it adds to the gradients of the next.

Source: Seide et al. 2014, "1-bit stochastic gradient descent"; Karimireddy et al. 2019, "Error feedback fixes SignSGD".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from kerasdist.buckets import Bucket


def working_dtype(bucket: Bucket) -> str:
    """Residuals of half precision are kept in float32, or small ones would never add up."""
    return "float64" if bucket.dtype == "float64" else "float32"


def empty_residual(count: int, bucket: Bucket) -> dict[str, Any]:
    """The state before the first step."""
    return {"residual": np.zeros(count, working_dtype(bucket))}


def corrected(flat: Any, bucket: Bucket, state: Mapping[str, Any]) -> Any:
    """The values in the working dtype, with what earlier steps left unsent, if that is remembered."""
    values = tf.cast(flat, working_dtype(bucket))
    return values + state["residual"] if "residual" in state else values
