"""Methods set on single instances, and models observed while a scope is open."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
from keras.src.trainers.trainer import Trainer

CLIP = "_clip_gradients"  # called between the accumulation and the update (base_optimizer.py)
METRICS = "_get_metrics_result_or_logs"  # called once at the end of an epoch and of an evaluation (trainer.py)
_OWNER = "_kerasdist_owner"
_HOOKS = "_kerasdist_hooks"


def patch(target: Any, methods: dict[str, Callable[..., Any]], owner: Any) -> None:
    """Sets methods on one instance, past the attribute tracking of Keras, and remembers whose they are."""
    for name, method in methods.items():
        object.__setattr__(target, name, method)
    known = set(vars(target).get(_HOOKS, ())) | set(methods)
    object.__setattr__(target, _HOOKS, frozenset(known))
    object.__setattr__(target, _OWNER, owner)


def unpatch(target: Any) -> None:
    """Removes what ``patch`` set."""
    for name in (*vars(target).get(_HOOKS, ()), _HOOKS, _OWNER):
        if name in vars(target):
            object.__delattr__(target, name)


def patched_by(target: Any) -> Any:
    """The owner of the methods set on this instance, or None."""
    return vars(target).get(_OWNER)


def plain(target: Any, name: str) -> Callable[..., Any]:
    """The method that the instance's class gives it, whatever was set on the instance."""
    return functools.partial(getattr(type(target), name), target)


@contextlib.contextmanager
def observe_models(attach: Callable[[Any], Any]) -> Iterator[None]:
    """Calls ``attach(model)`` for models made or compiled inside, and ``after_compile()`` of what it returns."""
    made, compiled = TensorFlowTrainer.__init__, Trainer.compile

    def on_made(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        attach(self)

    @functools.wraps(compiled)
    def on_compiled(self: Any, *args: Any, **kwargs: Any) -> None:
        replica = attach(self)
        compiled(self, *args, **kwargs)
        replica.after_compile(asked_for_xla=kwargs.get("jit_compile") is True)

    TensorFlowTrainer.__init__, Trainer.compile = on_made, on_compiled
    try:
        yield
    finally:
        TensorFlowTrainer.__init__, Trainer.compile = made, compiled
