"""How Keras reduces losses, and what tracks them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.losses import loss as _losses


def loss_reductions(model: Any) -> list[str | None]:
    """The reductions of the compiled losses."""
    compiled = getattr(model, "_compile_loss", None)
    user_loss = getattr(compiled, "_user_loss", None)
    losses = [loss for loss in tf.nest.flatten(user_loss) if isinstance(loss, keras.losses.Loss)]
    return [loss.reduction for loss in losses]


def metrics_of_ones_own(model: Any) -> list[str]:
    """Names of the model's metrics whose class is not Keras' and does not declare ``additive_state = True``."""
    found = []
    for metric in model.metrics:
        for one in getattr(metric, "metrics", None) or [metric]:
            if not type(one).__module__.startswith("keras.") and not getattr(one, "additive_state", False):
                found.append(one.name)
    return found


@contextlib.contextmanager
def corrected_losses(factor: Callable[[str, Any, Any], Any]) -> Iterator[None]:
    """Inside, each loss that Keras reduces to a number is multiplied by ``factor(reduction, weights, loss)``.

    ``weights`` are those whose sum the loss was divided by: the valid entries of a mask, or sample weights under
    ``"mean_with_sample_weight"``; None where it was divided by the number of entries, or not at all.
    """
    own = _losses.reduce_weighted_values

    def reduced(
        values: Any,
        sample_weight: Any = None,
        mask: Any = None,
        reduction: Any = "sum_over_batch_size",
        dtype: Any = None,
    ) -> Any:
        loss = own(values, sample_weight=sample_weight, mask=mask, reduction=reduction, dtype=dtype)
        if reduction == "mean_with_sample_weight":
            weights = _losses.apply_mask(sample_weight, mask, dtype=loss.dtype, reduction=reduction)
        else:
            weights = mask if reduction in ("sum_over_batch_size", "mean") else None
        if tuple(loss.shape) == (0,):  # as Keras leaves it, outside of graphs, where a batch has no samples
            loss = tf.reduce_sum(loss)
        return loss * factor(reduction, weights, loss)

    _losses.reduce_weighted_values = reduced
    try:
        yield
    finally:
        _losses.reduce_weighted_values = own


@contextlib.contextmanager
def weighted_losses(model: Any, weight: Callable[[Any], Any], own_means: bool) -> Iterator[None]:
    """Inside, what tracks a batch's loss takes ``weight(dtype)``; Keras counts each batch as one.

    That are the trackers of each output's loss, and with ``own_means`` also a model's own ``keras.metrics.Mean`` where
    it is given one number without a weight, as in a train step of one's own.
    """
    outputs = list(getattr(getattr(model, "_compile_loss", None), "metrics", ()))
    means = [metric for metric in model.metrics if type(metric) is keras.metrics.Mean] if own_means else []
    trackers = list({id(tracker): tracker for tracker in (*outputs, *means)}.values())
    for tracker in trackers:

        def update_state(value: Any, sample_weight: Any = None, tracker: Any = tracker) -> Any:
            if any(tracker is one for one in outputs) or (sample_weight is None and len(np.shape(value)) == 0):
                sample_weight = weight(tracker.dtype)
            return type(tracker).update_state(tracker, value, sample_weight=sample_weight)

        object.__setattr__(tracker, "update_state", update_state)
    try:
        yield
    finally:
        for tracker in trackers:
            object.__delattr__(tracker, "update_state")


def samples_seen(model: Any) -> float:
    """The weight that the model's loss tracker holds: this rank's samples of the epoch; 0 without one."""
    tracker = getattr(model, "_loss_tracker", None)
    return float(tracker.count) if tracker is not None else 0.0
