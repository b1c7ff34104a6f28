"""The user's handle: models made in its scope train on all workers. Wiring only."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist import data, engine, handshake, keras_hooks, prediction
from kerasdist.callbacks import Agreement
from kerasdist.callbacks.distributed_optimizer import DistributedOptimizer
from kerasdist.config import Options, Settings
from kerasdist.helpers import gather_json
from kerasdist.optimizer import check_optimizer, distribute_optimizer, distributed_apply
from kerasdist.replica import Replica, no_xla

HOOKED = ("compile", "fit", "evaluate", "predict", "predict_step", "make_predict_function", "train_on_batch")


class DataParallelStrategy:
    """Trains Keras models on all workers of the job with the numbers of one process.

    Every rank must make one, before the first tensor. Models made or compiled in ``scope()`` average their gradients;
    ``fit``, ``evaluate`` and ``predict`` take the same whole data on every rank and share it out.

    Args:
        compression: What travels: None (default) the gradients' own dtype, ``"fp16"`` or ``"bf16"`` half of the bytes
            with the sum in float32, or a ``kerasdist.compression.Compressor``.
        bucket_mb: Size of a bucket of small gradients in MiB. Default 4.
        engine: ``"auto"`` (default: Horovod if a launcher started several processes, else one process), ``"horovod"``
            or ``"local"``.
        auto_shard: Whether kerasdist shares out the data. Default True. False: each rank gives its own part.
        global_batch: Whether batch sizes are those of all workers together. Default False: of one worker.
        options: The rarer options.

    Raises:
        ValueError: An argument is out of range, or Keras does not run on TensorFlow.
        TypeError: An argument is of the wrong type.
        EngineError: The engine is not built, or N processes were started and it sees only one.

    Example:
        ```python
        strategy = kerasdist.DataParallelStrategy()
        with strategy.scope():
            model = make_model()
            model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
        model.fit(x, y, batch_size=64, epochs=5, validation_data=(xv, yv))
        ```
    """

    def __init__(
        self,
        compression: Any = None,
        bucket_mb: float = 4.0,
        engine: str = "auto",
        auto_shard: bool = True,
        global_batch: bool = False,
        options: Options | None = None,
    ) -> None:
        self._settings = Settings.create(compression, bucket_mb, auto_shard, global_batch, options)
        self._group = _start(engine, self._settings.options)
        self._alone = False
        handshake.agree(self._settings.facts(), self._group)
        self._agree_on_seed()

    def __repr__(self) -> str:
        return f"DataParallelStrategy(rank={self.rank}, size={self.size})"

    @property
    def rank(self) -> int:
        """This process's number, 0 to ``size - 1``."""
        return self._group.rank

    @property
    def size(self) -> int:
        """The number of workers."""
        return self._group.size

    @contextlib.contextmanager
    def scope(self) -> Iterator[DataParallelStrategy]:
        """Models made or compiled inside train on all workers. Every rank must enter it."""
        with keras_hooks.observe_models(self._attach):
            yield self

    @contextlib.contextmanager
    def local(self) -> Iterator[None]:
        """Inside, ``evaluate`` and ``predict`` run on this rank alone, on all of the data they are given."""
        before, self._alone = self._alone, True
        try:
            yield
        finally:
            self._alone = before

    def shard(self, x: Any, y: Any = None, sample_weight: Any = None, **arguments: Any) -> Any:
        """``kerasdist.shard``."""
        return data.shard(x, y, sample_weight, **arguments)

    def wrap_optimizer(self, optimizer: Any) -> Any:
        """Puts the averaging before the updates of an optimizer, for loops of one's own. Every rank must call it.

        Outside of ``fit`` and ``train_on_batch`` kerasdist does not know the ranks' numbers of samples: each rank
        counts the same.

        Args:
            optimizer: A Keras 3 optimizer.

        Returns:
            The same object.

        Raises:
            TypeError: Not a Keras 3 optimizer.
            ValueError: It is averaged already.
        """
        check_optimizer(optimizer)
        if distributed_apply(optimizer) is not None:
            raise ValueError(f"rank {self.rank}: the optimizer {optimizer.name!r} is averaged already; wrap it once.")
        distribute_optimizer(optimizer, self._group, self._settings, self)
        return optimizer

    # What a model in the scope does instead of Keras' own ------------------------------------------------------------

    def _attach(self, model: Any) -> None:
        owner = keras_hooks.patched_by(model)
        if owner is self:
            return
        if owner is not None:
            raise ValueError(
                f"The model {model.name!r} already belongs to {owner!r}. One model takes one strategy, and no "
                "DistributedOptimizer callback beside it."
            )
        replica = Replica(model, self._group, self._settings, self, shares_validation=True)
        methods: dict[str, Callable[..., Any]] = {name: _bind(getattr(self, f"_{name}"), replica) for name in HOOKED}
        keras_hooks.patch(model, methods, self)

    def _compile(self, replica: Replica, *args: Any, **kwargs: Any) -> None:
        model = replica.model
        optimizer = kwargs.get("optimizer", args[0] if args else None)
        if optimizer is not None and not isinstance(optimizer, (str, dict)):
            check_optimizer(optimizer)
        keras_hooks.plain(model, "compile")(*args, **kwargs)
        if self.size > 1:
            no_xla(model, asked=kwargs.get("jit_compile") is True)
        replica.distribute_optimizers()
        replica.ready = False

    def _fit(self, replica: Replica, *args: Any, **kwargs: Any) -> Any:
        own = keras_hooks.plain(replica.model, "fit")
        if self._alone:
            raise ValueError(f"rank {self.rank}: `fit` trains on all ranks together; call it outside of local().")
        call = keras_hooks.call_arguments("fit", args, kwargs)
        callbacks, users_list = keras_hooks.make_callback_list(call.get("callbacks"))
        if any(isinstance(callback, DistributedOptimizer) for callback in callbacks):
            raise ValueError(
                f"rank {self.rank}: `callbacks` holds a DistributedOptimizer, but the model was made in the scope of a "
                "DataParallelStrategy, which averages already. Leave one of them out."
            )
        agreement = Agreement(replica)
        if users_list is not None:
            agreement.set_model(replica.model)
            users_list.append(agreement)
        else:
            call["callbacks"] = [*callbacks, agreement]
        x, y, weight = call.pop("x", None), call.pop("y", None), call.pop("sample_weight", None)
        validation = call.get("validation_data")
        split = call.pop("validation_split", 0.0)
        if split and validation is None:
            (x, y, weight), validation = keras_hooks.train_validation_split((x, y, weight), validation_split=split)
        batch_size, steps = call.pop("batch_size", None), call.get("steps_per_epoch")
        shared = [
            self._share(
                x, y, weight, batch_size, steps, shuffle=call.pop("shuffle", True),
                class_weight=call.pop("class_weight", None),
            )
        ]  # fmt: skip
        if validation is not None:
            vx, vy, vweight = keras_hooks.unpack_data(validation)
            v_batch = call.pop("validation_batch_size", None) or batch_size
            shared.append(self._share(vx, vy, vweight, v_batch, call.get("validation_steps"), training=False))
            call["validation_data"] = shared[1]
        replica.ready = replica.evaluating = False
        with _failures_of(shared):
            return own(x=shared[0], shuffle=False, **call)

    def _evaluate(self, replica: Replica, *args: Any, **kwargs: Any) -> Any:
        own = keras_hooks.plain(replica.model, "evaluate")
        if kwargs.get("_use_cached_eval_dataset"):
            return own(*args, **kwargs)
        if self._alone:
            with _alone(replica):
                return own(*args, **kwargs)
        call = keras_hooks.call_arguments("evaluate", args, kwargs)
        shared = self._share(
            call.pop("x", None), call.pop("y", None), call.pop("sample_weight", None),
            call.pop("batch_size", None), call.get("steps"), training=False,
        )  # fmt: skip
        with replica.evaluation(), _failures_of([shared]):
            return own(x=shared, **call)

    def _predict(self, replica: Replica, *args: Any, **kwargs: Any) -> Any:
        own = keras_hooks.plain(replica.model, "predict")
        if self._alone or self.size == 1:
            return own(*args, **kwargs)
        call = keras_hooks.call_arguments("predict", args, kwargs)
        shared = self._share(
            call.pop("x", None), None, None, call.pop("batch_size", None), call.get("steps"), training=False
        )
        with prediction.counting(replica.model) as counts, _failures_of([shared]):
            outputs = own(x=shared, **call)
        return prediction.whole(outputs, counts, self._group, in_turn=self._settings.auto_shard)

    def _predict_step(self, replica: Replica, batch: Any) -> Any:
        return replica.predict_step(batch)

    def _make_predict_function(self, replica: Replica, force: bool = False) -> None:
        keras_hooks.plain(replica.model, "make_predict_function")(force=force)
        prediction.split_counts(replica.model)

    def _train_on_batch(self, replica: Replica, *args: Any, **kwargs: Any) -> Any:
        own = keras_hooks.plain(replica.model, "train_on_batch")
        if not replica.ready:
            call = keras_hooks.call_arguments("train_on_batch", args, kwargs)
            replica.prepare(tf.nest.map_structure(_spec, (call.get("x"), call.get("y"), call.get("sample_weight"))))
        return own(*args, **kwargs)

    def _share(
        self, x: Any, y: Any, weight: Any, batch_size: int | None, steps: int | None, **arguments: Any
    ) -> keras_hooks.DataAdapter:
        return data.share(
            x, y, weight, batch_size=batch_size, steps=steps, group=self._group, settings=self._settings, **arguments
        )

    def _agree_on_seed(self) -> None:
        """Sets one seed on all ranks, so that they shuffle and initialise alike, unless the user set one."""
        seeds = gather_json(keras_hooks.user_seed(), self._group, "seed")
        if all(seed is None for seed in seeds) and self.size > 1:
            drawn = int(np.random.SeedSequence().generate_state(1)[0] % 2**31)
            keras.utils.set_random_seed(gather_json(drawn, self._group, "seed.drawn")[0])


def _start(name: str, options: Options) -> engine.Group:
    engine.init(name, options)
    return engine.world()


def _bind(method: Callable[..., Any], replica: Replica) -> Callable[..., Any]:
    def bound(*args: Any, **kwargs: Any) -> Any:
        return method(replica, *args, **kwargs)

    bound.__name__ = method.__name__.lstrip("_")
    return bound


def _spec(value: Any) -> Any:
    if value is None:
        return None
    tensor = tf.convert_to_tensor(value)
    return tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype)


@contextlib.contextmanager
def _alone(replica: Replica) -> Iterator[None]:
    """Evaluates with Keras' own end of an evaluation."""
    keep = vars(replica.model)[keras_hooks.METRICS]
    object.__setattr__(replica.model, keras_hooks.METRICS, keras_hooks.plain(replica.model, keras_hooks.METRICS))
    try:
        yield
    finally:
        object.__setattr__(replica.model, keras_hooks.METRICS, keep)


@contextlib.contextmanager
def _failures_of(adapters: list[Any]) -> Iterator[None]:
    """Raises what a data adapter found wrong, not the error that TensorFlow makes of it."""
    try:
        yield
    except tf.errors.OpError as error:
        for adapter in adapters:
            failure = getattr(adapter, "failure", None)
            if failure is not None:
                raise failure from None
        raise error
