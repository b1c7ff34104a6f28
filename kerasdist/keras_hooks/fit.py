"""Around every ``fit``: its arguments, its callbacks, its first epoch, its logs."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

from kerasdist.keras_hooks.patching import METRICS

_surroundings: list[Callable[[Any, Any], contextlib.AbstractContextManager[Any]]] = []


def surround_fit(
    surroundings: Callable[[Any, Any], contextlib.AbstractContextManager[Any]] | None = None,
) -> None:
    """From now on each ``fit`` of this process runs inside of ``surroundings(model, callbacks)``, if any are given.

    Callbacks of a list that have a ``comes_last`` are moved behind the others, by its size. A callback with a method
    ``surround`` gives a context for the call, whose arguments it may change; after that, one with a method
    ``take_data`` is given the arguments, to put data of its own in the place of the user's.

    That holds for a call, too, whose arguments are just being made: in ``model.fit(x, callbacks=[Checkpoint(...)])``
    Python has looked up ``fit`` before. So what is replaced is the function inside of Keras' filter of tracebacks.
    """
    if surroundings is not None:
        _surroundings[:] = [surroundings]
    filtered = TensorFlowTrainer.fit
    if hasattr(filtered, "surrounded"):
        return
    own = filtered.__wrapped__
    (inside,) = [cell for cell in filtered.__closure__ if cell.cell_contents is own]

    @functools.wraps(own)
    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = call_arguments("fit", args, kwargs)
        callbacks, users_list = make_callback_list(call.get("callbacks"))
        if users_list is None:
            call["callbacks"] = sorted(callbacks, key=lambda callback: getattr(callback, "comes_last", 0))
        with contextlib.ExitStack() as stack:
            for around in _surroundings:
                stack.enter_context(around(self, call.get("callbacks")))
            callbacks = callbacks if users_list is None else users_list.callbacks
            for callback in callbacks:
                if isinstance(callback, type):
                    name = callback.__name__
                    raise TypeError(f"`callbacks` must hold objects. Received: the class {name}; write {name}().")
            for callback in callbacks:
                if hasattr(callback, "surround"):
                    stack.enter_context(callback.surround(self, call))
            for callback in callbacks:
                if hasattr(callback, "take_data"):
                    callback.take_data(call)
            return own(self, **call)

    inside.cell_contents = fit
    filtered.surrounded = True


def call_arguments(method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call of one of Keras' model methods, by name."""
    bound = inspect.signature(getattr(keras.Model, method)).bind(None, *args, **kwargs).arguments
    bound.pop("self")
    return {**bound, **bound.pop("kwargs", {})}


def initial_epoch(model: Any) -> int | None:
    """The epoch that ``BackupAndRestore`` asks ``fit`` to start from."""
    return model._initial_epoch


def set_initial_epoch(model: Any, epoch: int | None) -> None:
    """Sets the epoch that ``fit`` starts from."""
    model._initial_epoch = epoch


def make_callback_list(callbacks: Any) -> tuple[list[Any], Any]:
    """Splits the ``callbacks`` argument of ``fit`` into a list and the user's own CallbackList, if any."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return [], callbacks
    return list(tf.nest.flatten(callbacks)) if callbacks is not None else [], None


@contextlib.contextmanager
def logs_without_steps(model: Any) -> Iterator[None]:
    """Inside, an epoch in which no step is left to take has the logs of the metrics' state."""
    own, before = getattr(model, METRICS), vars(model).get(METRICS)

    def answer(logs: Any) -> Any:
        return own(logs or dict.fromkeys(model.get_metrics_result()))

    object.__setattr__(model, METRICS, answer)
    try:
        yield
    finally:
        if vars(model).get(METRICS) is answer:  # else a door has taken its own off, and this one with it
            object.__delattr__(model, METRICS)
            if before is not None:
                object.__setattr__(model, METRICS, before)
