"""Synchronised BatchNormalization: the layer takes the statistics of the global batch, not of the rank's part.

Each rank finds count, mean and sum of squared deviations of its own values. One all-gather brings them together, and
they are merged as Chan, Golub and LeVeque do (1983): nowhere is a difference taken of two large sums. The gradient with
respect to mean and variance is summed over the ranks on its way back; the rest of it is TensorFlow's own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from kerasdist import keras_hooks
from kerasdist.engine import Group
from kerasdist.step import Step


@contextlib.contextmanager
def synchronized(model: Any, group: Group, step: Step) -> Iterator[None]:
    """Inside, ``BatchNormalization(synchronized=True)`` of a model takes the statistics of all ranks' samples.

    Args:
        model: The Keras model.
        group: The ranks that train it together. Every rank must call the same layers in the same order.
        step: The train step; a rank that has no samples in it counts nothing.
    """

    def moments(number: int, inputs: Any, axes: list[int], mask: Any) -> tuple[Any, Any]:
        slack = 0.0 if mask is None else keras.config.epsilon()
        name = f"normalization{number}"
        return merged(local_sums(inputs, axes, mask, step.rows), slack, group, step, name)

    layers = keras_hooks.synchronized_normalizations(model) if group.size > 1 else []
    with keras_hooks.moments_from(layers, moments):
        yield


def local_sums(inputs: Any, axes: list[int], mask: Any, rows: Any) -> Any:
    """Count, mean and sum of squared deviations of a rank's values per channel, of shape [1, 3, channels]."""
    alive = tf.cast(rows > 0, inputs.dtype)
    if mask is None:
        mean, variance = tf.nn.moments(inputs, axes)
        count = alive * tf.cast(tf.size(inputs) // tf.size(mean), inputs.dtype) * tf.ones_like(mean)
        return tf.stack([count, mean, variance * count])[None]
    weights = alive * tf.cast(mask, inputs.dtype)
    inputs = tf.where(mask, inputs, tf.zeros_like(inputs))
    count = tf.reduce_sum(weights, axes, keepdims=True)
    mean = tf.math.divide_no_nan(tf.reduce_sum(weights * inputs, axes, keepdims=True), count)
    squares = tf.reduce_sum(weights * tf.square(inputs - mean), axes)
    return tf.stack([tf.squeeze(count, axes), tf.squeeze(mean, axes), squares])[None]


def merged(own: Any, slack: float, group: Group, step: Step, name: str) -> tuple[Any, Any]:
    """Mean and variance over all ranks' values.

    Args:
        own: What ``local_sums`` gives.
        slack: What Keras adds to the count of masked values before it divides.
        group: The ranks.
        step: The train step.
        name: Of the collectives.
    """
    counts, means, squares = tf.unstack(_gather(own, group, step, name), axis=1)
    divisor = tf.reduce_sum(counts, axis=0) + slack
    mean = tf.math.divide_no_nan(tf.reduce_sum(counts * means, axis=0), divisor)
    deviations = tf.reduce_sum(squares + counts * tf.square(means - mean), axis=0)
    both = tf.stack([mean, tf.math.divide_no_nan(deviations, divisor)])
    mean, variance = tf.unstack(_sum_gradient(both, group, step, f"{name}.gradient"))
    return mean, variance


def _gather(own: Any, group: Group, step: Step, name: str) -> Any:
    """All ranks' rows. What comes back is already the gradient of all ranks: this one's row of it is its own."""
    name += step.next_suffix(name)

    @tf.custom_gradient
    def gather(own: Any) -> Any:
        def gradient(upstream: Any) -> Any:
            return upstream[group.rank : group.rank + 1]

        with step.gated():
            return group.all_gather(own, name), gradient

    return gather(own)


def _sum_gradient(values: Any, group: Group, step: Step, name: str) -> Any:
    """The values, which all ranks share, so that their gradient is the sum of what comes back on each rank.

    The sum is that of the step's loss, in which a rank counts by its samples. Where the loss does not carry that
    weight, because the gradients take it afterwards, it is put in here and taken out again.
    """

    @tf.custom_gradient
    def sum_gradient(values: Any) -> Any:
        def gradient(upstream: Any) -> Any:
            weight = tf.cast(1 if step.weighted else step.rows, upstream.dtype)
            weighted, unique = upstream * weight, name + step.next_suffix(name)
            with step.gated():
                total = group.all_reduce(weighted, "sum", unique)
            return _only_once(tf.math.divide_no_nan(total, weight))

        return tf.identity(values), gradient

    return sum_gradient(values)


@tf.custom_gradient
def _only_once(gradient: Any) -> Any:
    def refuse(upstream: Any) -> Any:
        raise NotImplementedError(
            "BatchNormalization(synchronized=True) has no second derivative between workers. Leave `synchronized` out "
            "in models whose gradients are differentiated again."
        )

    return tf.identity(gradient), refuse
