"""What does this rank contribute to the step that is being traced or run?

The train step knows how many samples the rank holds; the optimizer must weigh its gradients by them. A ``Step``
carries the one to the other, within one thread and one call of ``train_step``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple


class Batch(NamedTuple):
    """A rank's part of a global batch, as kerasdist's data adapters yield it.

    Five fields, so that Keras refuses it where no kerasdist hook unpacks it (it takes at most three).

    Attributes:
        data: What Keras expects: x, (x, y) or (x, y, sample_weight).
        rows: This rank's samples, int64 scalar. Where it is 0, ``data`` holds a copy of one row that counts nothing.
        total: All ranks' samples, int64 scalar, or -1 where they must be counted by a collective.
        may_be_empty: A bool scalar where ``rows`` can be 0 (its value is ``rows == 0``), else None.
        mark: An odd int64 scalar that all ranks must have alike, made of the stream that is shared out and of
            ``total``; None where there is none.
    """

    data: Any
    rows: Any
    total: Any
    may_be_empty: Any
    mark: Any = None


@dataclasses.dataclass
class Step:
    """One call of ``train_step``: the rank's samples, and which optimizers reduced in it.

    Attributes:
        rows: This rank's samples.
        total: All ranks' samples.
        gate: An operation that fails unless all ranks take part in this step. Collectives and updates come after it.
        reduced: The tensors that collectives of this step gave.
        reductions: How often each averager was called.
        applied: How often an optimizer that averages was applied.
        losses: How many of Keras' losses were reduced to a number in it.
        weighted: The averagers whose loss was multiplied by this rank's weight, until they are applied.
    """

    rows: Any
    total: Any
    gate: Any = None
    reduced: list[Any] = dataclasses.field(default_factory=list)
    reductions: dict[str, int] = dataclasses.field(default_factory=dict)
    applied: int = 0
    losses: int = 0
    weighted: set[str] = dataclasses.field(default_factory=set)

    def next_suffix(self, name: str) -> str:
        """Tells apart the reductions of one optimizer that is applied more than once in a step."""
        number = self.reductions.get(name, 0)
        self.reductions[name] = number + 1
        return f".{number}" if number else ""

    def gated(self) -> contextlib.AbstractContextManager[Any]:
        """What is made inside runs only if all ranks take part in this step."""
        if self.gate is None:
            return contextlib.nullcontext()
        import tensorflow as tf

        return tf.control_dependencies([self.gate])


_local = threading.local()


def current_step() -> Step | None:
    """The step that this thread is in, or None outside of kerasdist's train step."""
    return getattr(_local, "step", None)


@contextlib.contextmanager
def step_scope(step: Step) -> Iterator[Step]:
    """Makes ``step`` the current one."""
    before = current_step()
    _local.step = step
    try:
        yield step
    finally:
        _local.step = before
