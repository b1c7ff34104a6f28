"""The public helpers for loops of one's own: move values between ranks, start from one state, wait for each other."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from kerasdist import engine, keras_hooks
from kerasdist.engine import Group, meeting
from kerasdist.engine.meeting import gather_json
from kerasdist.errors import RankMismatchError

_numbers = itertools.count()
_CHUNK_BYTES = 2**28


@tf.autograph.experimental.do_not_convert
def all_reduce(value: Any, op: str = "mean", name: str | None = None) -> Any:
    """Reduces a value over all ranks. Every rank must call it, in the same order.

    Args:
        value: Number, array or tensor; the same shape and dtype on every rank.
        op: ``"mean"`` (default), ``"sum"``, ``"min"`` or ``"max"``. ``"mean"`` of integers is refused.
        name: Name of the collective. Default: numbered by call order. Inside a ``tf.function``, give one.

    Returns:
        A tensor where a tensor was given, else a numpy array; the same on every rank.

    Raises:
        ValueError: Unknown ``op``, or the mean of integers.
        RankMismatchError: Outside of graphs, on every rank: shape, dtype or ``op`` differs by rank, or another rank
            is at another collective.
    """
    from kerasdist.config import one_of
    from kerasdist.engine.base import REDUCTIONS

    one_of("op", op, REDUCTIONS)
    tensor = tf.convert_to_tensor(value)
    if op == "mean" and not tensor.dtype.is_floating:
        raise ValueError(f"`op='mean'` needs floating values. Received: dtype {tensor.dtype.name}. Cast, or use 'sum'.")
    return _like(value, engine.world().all_reduce(tensor, op, _name("all_reduce", name)))


@tf.autograph.experimental.do_not_convert
def all_gather(value: Any, name: str | None = None) -> Any:
    """Concatenates the ranks' arrays along the first axis, in rank order. Every rank must call it.

    Args:
        value: Array or tensor of at least one axis; the first axis may differ by rank. A number counts as shape (1,).
        name: As in ``all_reduce``.

    Returns:
        As ``all_reduce``.

    Raises:
        RankMismatchError: As ``all_reduce``; the first axis may differ.
    """
    tensor = tf.convert_to_tensor(value)
    if tensor.shape.rank == 0:
        tensor = tensor[None]
    return _like(value, engine.world().all_gather(tensor, _name("all_gather", name)))


@tf.autograph.experimental.do_not_convert
def broadcast(value: Any, root: int = 0, name: str | None = None) -> Any:
    """Returns the root's value on every rank. Every rank must call it.

    Args:
        value: Number, array or tensor; the same shape and dtype on every rank.
        root: The rank whose value counts. Default 0.
        name: As in ``all_reduce``.

    Raises:
        ValueError: There is no such rank.
        RankMismatchError: As ``all_reduce``; the root must be the same too.
    """
    if not 0 <= root < engine.size():
        raise ValueError(
            f"rank {engine.rank()}: `root` must be a rank, 0 to {engine.size() - 1}. Received: root={root}"
        )
    return _like(value, engine.world().broadcast(tf.convert_to_tensor(value), root, _name("broadcast", name)))


def barrier() -> None:
    """Returns when every rank has called it."""
    engine.world().barrier()


def broadcast_state(model: Any = None, optimizer: Any = None, root: int = 0) -> None:
    """Gives every rank the root's weights and optimizer state. Every rank must call it.

    The seeds of random layers are left alone: ranks shall not draw the same masks.

    Args:
        model: A built model (``model.weights`` are sent), or None.
        optimizer: A built optimizer (all its variables), or None.
        root: The rank whose state counts. Default 0.

    Raises:
        ValueError: Model or optimizer has no variables yet.
    """
    for name, part in (("model", model), ("optimizer", optimizer)):
        if part is not None and not (keras_hooks.is_built(part) if name == "model" else part.built):
            raise ValueError(
                f"rank {engine.rank()}: `{name}` must be built before its state can be sent. "
                f"Received: {name}={part.name!r}, which is not."
            )
    variables = [] if model is None else list(model.weights)
    variables += [] if optimizer is None else list(optimizer.variables)
    send_variables(variables, engine.world(), root)


def send_variables(variables: list[Any], group: Group, root: int = 0) -> None:
    """Assigns the root's values to variables of equal shapes and dtypes, all in one stream of bytes."""
    if group.size == 1 or not variables:
        return
    values = keras_hooks.numpy_values(variables)
    stream = np.frombuffer(b"".join(np.ascontiguousarray(value).tobytes() for value in values), np.uint8)
    chunks = [
        np.asarray(group.broadcast(stream[start : start + _CHUNK_BYTES], root, f"state.{start}"))
        for start in range(0, stream.size, _CHUNK_BYTES)
    ]
    if group.rank == root:
        return
    received, start = np.concatenate(chunks), 0
    for variable, value in zip(variables, values, strict=True):
        part = received[start : start + value.nbytes]
        variable.assign(part.view(value.dtype).reshape(value.shape))
        start += value.nbytes


def average_variables(variables: list[Any], group: Group, name: str) -> None:
    """Assigns the mean over the ranks, computed in the variables' own precision, or float32. Collective."""
    if group.size == 1 or not variables:
        return
    meeting.meet(group, name)
    with meeting.apart():
        for position, variable in enumerate(variables):
            value = tf.convert_to_tensor(variable.value)
            wide = tf.cast(value, tf.float32) if value.dtype.size < 4 else value
            variable.assign(tf.cast(group.all_reduce(wide, "mean", f"{name}.{position}"), value.dtype))


@contextlib.contextmanager
def rank_zero_first() -> Iterator[None]:
    """Rank 0 runs the block first, then all others: for downloads and caches. Every rank must enter it.

    An exception of rank 0 is raised on every rank, so that nobody waits.
    """
    group, error = engine.world(), None
    if group.rank == 0:
        try:
            yield
        except BaseException as raised:
            error = raised
        failures = gather_json(repr(error) if error else None, group, "rank_zero_first")
        if error is not None:
            raise error
    else:
        failures = gather_json(None, group, "rank_zero_first")
        if failures[0] is not None:
            raise RuntimeError(f"rank {group.rank}: rank 0 failed in rank_zero_first(): {failures[0]}")
        yield


def assert_replicas_in_sync(model: Any, atol: float = 0.0) -> None:
    """Checks that all ranks hold the same weights. Every rank must call it.

    Args:
        model: A built model; ``model.weights`` and its optimizer's variables are compared.
        atol: Largest difference from rank 0 that is let pass. Default 0: equal bits.

    Raises:
        RankMismatchError: On every rank, naming the variable, the rank and the largest difference.
    """
    group = engine.world()
    variables = list(model.weights)
    if getattr(model, "optimizer", None) is not None and model.optimizer.built:
        variables += list(model.optimizer.variables)
    values = keras_hooks.numpy_values(variables)
    digest = hashlib.sha256(b"".join(value.tobytes() for value in values)).hexdigest()
    if len(set(gather_json(digest, group, "in_sync"))) == 1:
        return
    for position, (variable, value) in enumerate(zip(variables, values, strict=True)):
        kept = np.asarray(group.all_gather(value[None], f"in_sync.{position}"))
        difference = np.abs(kept.astype(np.float64) - kept[:1].astype(np.float64)).reshape(group.size, -1)
        odd = np.nonzero(~(difference.max(axis=1, initial=0.0) <= atol))[0]
        if odd.size:
            worst = float(np.nanmax(difference, initial=0.0))
            raise RankMismatchError(
                f"rank {group.rank}: replicas are not in sync. Variable {variable.path!r} of rank(s) "
                f"{', '.join(map(str, odd))} differs from rank 0's by up to {worst:.3g} (allowed: {atol:.3g})."
            )


def _like(value: Any, tensor: Any) -> Any:
    return tensor if tf.is_tensor(value) else np.asarray(tensor)


def _name(kind: str, name: str | None) -> str:
    return f"user.{name}" if name is not None else f"user.{kind}.{next(_numbers)}"
