"""Existing Keras code on several workers: one more callback."""

from __future__ import annotations

from typing import Any

from kerasdist import data, engine, keras_hooks
from kerasdist.callbacks.agreement import Agreement
from kerasdist.callbacks.checkpoint import warn_if_it_begins_anew
from kerasdist.config import Options, Settings
from kerasdist.optimizer import distributed_apply
from kerasdist.replica import Replica, no_xla
from kerasdist.stats import Stats, Tally


class DistributedOptimizer(Agreement):
    """Averages the gradients of this ``fit`` over all ranks, and makes its epoch logs global.

    Every rank must give one to the same ``fit``. It averages for the compiled optimizer (and others that are
    attributes of the model), broadcasts the state of rank 0 before the first step, and takes itself off at the end.
    It cannot share out the data that ``fit`` was already given: each rank trains on what it is given. Use
    ``kerasdist.shard`` to share data out. Validation data not made by ``shard`` must be the same on all ranks.

    Args:
        compression: None (default), ``"fp16"``, ``"bf16"``, ``"int8"``, ``"topk"``, ``"powersgd"`` or a ``Compressor``.
        algorithm: None or ``"all_reduce"`` (default), ``"hierarchical"``, or an ``Algorithm``.
        bucket_mb: Size of a bucket of small gradients in MiB. Default 4.
        engine: ``"auto"`` (default), ``"horovod"`` or ``"local"``.
        options: The rarer options.

    Raises:
        TypeError: An optimizer was given: ``strategy.wrap_optimizer`` is the way for loops of one's own.
        ValueError: An argument is out of range, or the model was made in a strategy's scope.

    Example:
        ```python
        model.fit(dataset, epochs=5, callbacks=[kerasdist.DistributedOptimizer()])
        ```
    """

    def __init__(
        self,
        compression: Any = None,
        algorithm: Any = None,
        bucket_mb: float = 4.0,
        engine: str = "auto",
        options: Options | None = None,
    ) -> None:
        if hasattr(compression, "apply_gradients") or hasattr(compression, "param_groups"):
            raise TypeError(
                "DistributedOptimizer is a callback for `fit` and takes no optimizer. For loops of your own use "
                f"strategy.wrap_optimizer(optimizer). Received: {type(compression).__name__}"
            )
        self._settings = Settings.create(compression, algorithm, bucket_mb, auto_shard=False, options=options)
        self._had_xla = False
        group = _start_engine(engine, options)
        self._settings.algorithm.check(group.size, self._settings.compressor)
        self.tally = Tally(group, self._settings)
        super().__init__(replica=None)  # type: ignore[arg-type]

    def __repr__(self) -> str:
        return "a DistributedOptimizer callback"

    def take_data(self, call: dict[str, Any]) -> None:
        """Before ``fit`` reads its data: each rank's own part, padded to the steps of the longest rank. Collective."""
        callbacks, users_list = keras_hooks.make_callback_list(call.get("callbacks"))
        listed = callbacks if users_list is None else users_list.callbacks
        if sum(isinstance(one, DistributedOptimizer) for one in listed) > 1:
            raise ValueError(
                f"rank {engine.rank()}: `callbacks` holds more than one DistributedOptimizer. Gradients are averaged "
                "once: leave the others out."
            )
        warn_if_it_begins_anew(call.get("callbacks"))
        if engine.size() > 1:
            data.take_training_data(call, engine.world(), self._settings)

    def stats(self) -> Stats:
        """What this rank has done since the callback was made: steps, bytes sent, overflows. Not collective."""
        return self.tally.stats()

    def on_train_begin(self, logs: Any = None) -> None:
        model = self.model
        replica = keras_hooks.patched_by(model)
        leftover = replica.owner if replica is not None else None
        if leftover is not None and not isinstance(leftover, DistributedOptimizer):
            raise ValueError(
                f"The model {model.name!r} was made in the scope of {leftover!r}, which averages already. "
                "Leave out the DistributedOptimizer callback, or make the model outside of the scope."
            )
        if leftover is not None:
            leftover.take_off(model)
        for optimizer in keras_hooks.own_optimizers(model):
            applied = distributed_apply(optimizer)
            if applied is not None and isinstance(applied.owner, DistributedOptimizer):
                applied.remove()
        self._had_xla = engine.size() > 1 and no_xla(model)
        self.replica = Replica(model, engine.world(), self._settings, self, shares_validation=False)
        self.replica.distribute_optimizers()
        model.test_function = None
        model.make_train_function(force=True)
        super().on_train_begin(logs)

    def on_train_end(self, logs: Any = None) -> None:
        """Gives model and optimizer back as they were."""
        super().on_train_end(logs)
        self.take_off(self.model)

    def take_off(self, model: Any) -> None:
        """Removes the averaging from model and optimizers, also after a ``fit`` that an exception ended."""
        for optimizer in keras_hooks.own_optimizers(model):
            applied = distributed_apply(optimizer)
            if applied is not None and applied.owner is self:
                applied.remove()
        keras_hooks.unpatch(model)
        model.jit_compile = self._had_xla or model.jit_compile
        model.train_function = model.test_function = None


def _start_engine(name: str, options: Options | None) -> engine.Group:
    engine.init(name, options)
    return engine.world()
