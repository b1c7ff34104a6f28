"""Do the ranks still hold the same weights, optimizer state and rate? Asked every ``watch_every`` steps and at the end.

Each rank adds up the bits of every variable, and the ranks compare the sums. It costs one reading of the weights and
two small collectives, on one step in many.
"""

from __future__ import annotations

import collections
import warnings
from typing import Any

import numpy as np
import tensorflow as tf

from kerasdist import keras_hooks
from kerasdist.config import Options
from kerasdist.engine import Group, meeting
from kerasdist.errors import RankMismatchError
from kerasdist.helpers import send_variables
from kerasdist.optimizer import distributed_apply


class Watchdog:
    """Compares the ranks' copies of a model from time to time.

    Args:
        model: The Keras model.
        group: The ranks that train it together.
        options: ``watch_every`` and ``on_divergence`` are read.
    """

    def __init__(self, model: Any, group: Group, options: Options) -> None:
        self._model, self._group = model, group
        self._every, self._action = options.watch_every, options.on_divergence
        self._calls = 0
        self._specs: list[Any] = []
        self._sums: Any = None

    def after_step(self) -> None:
        """Counts an execution of the train function, and compares when it is time. Collective."""
        self._calls += 1
        if self._every and self._group.size > 1 and self._calls % self._every == 0:
            self.compare()

    def at_end(self) -> None:
        """Compares at the end of a training, if at all. Collective."""
        if self._every and self._group.size > 1:
            self.compare()

    def compare(self) -> None:
        """Compares now. Collective.

        Raises:
            RankMismatchError: On every rank, if they differ and ``on_divergence`` is ``"raise"``.
        """
        variables = self._compared()
        # Tensors, not variables, of which TensorFlow would trace one function for all shapes, and sum wrongly.
        values = [tf.convert_to_tensor(variable.value) for variable in variables]
        specs = [tf.TensorSpec(value.shape, value.dtype) for value in values]
        if specs != self._specs:
            # Traced at once: of a function that is traced for each model TensorFlow warns.
            self._specs, self._sums = specs, tf.function(_sums, autograph=False).get_concrete_function(specs)
        sums = np.asarray(self._sums(values))
        every = np.asarray(self._group.all_gather(sums[None], "the watchdog"))
        differing = np.nonzero((every != every[0]).any(axis=0))[0]
        if not differing.size:
            return
        first = int(differing[0])
        usual = collections.Counter(every[:, first].tolist()).most_common(1)[0]
        right = usual[0] if usual[1] > 1 else every[0, first]
        odd = [rank for rank in range(self._group.size) if every[rank, first] != right]
        names = ", ".join(variables[int(one)].path for one in differing[:3]) + (", ..." if differing.size > 3 else "")
        message = (
            f"rank {self._group.rank}: the ranks do not hold the same model any more: {differing.size} of "
            f"{len(variables)} variables differ, of rank {', '.join(map(str, odd))}: {names}. "
            "Usual causes: weights or a learning rate set on some ranks only, an update beside the optimizer's."
        )
        if self._action == "raise":
            raise meeting.known_to_all(RankMismatchError(message))
        if self._action == "repair":
            message += " Those of rank 0 are taken."
            send_variables(variables, self._group)
        warnings.warn(message, stacklevel=2)

    def _compared(self) -> list[Any]:
        """What all ranks must hold alike: not what an algorithm updates on each rank alone."""
        own: set[int] = set()
        for optimizer in keras_hooks.own_optimizers(self._model):
            applied = distributed_apply(optimizer)
            for part in applied.own_state() if applied is not None else ():
                own |= {id(variable) for variable in part}
        replicated = [one for one in keras_hooks.replicated_variables(self._model) if id(one) not in own]
        # Scalars first, of which a rate is one: where one differs, all that it moved does too.
        return sorted(replicated, key=lambda variable: len(variable.shape) > 0)


def _sums(values: list[Any]) -> Any:
    """One number for each tensor, in one vector."""
    return tf.stack([_bits(value) for value in values])


def _bits(value: Any) -> Any:
    """The sum of a tensor's bits, taken as integers; it wraps around."""
    whole = {1: tf.uint8, 2: tf.int16, 4: tf.int32, 8: tf.int64}[value.dtype.size]
    bits = tf.cast(value, tf.uint8) if value.dtype == tf.bool else tf.bitcast(value, whole)
    return tf.cast(tf.reduce_sum(tf.cast(bits, tf.int64) if whole.size < 4 else bits), tf.int64)
