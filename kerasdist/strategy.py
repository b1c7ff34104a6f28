"""The user's handle: models made in its scope train on all workers. Wiring only."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist import data, engine, handshake, keras_hooks
from kerasdist.config import Options, Settings
from kerasdist.engine.meeting import gather_json
from kerasdist.optimizer import check_optimizer, distribute_optimizer, distributed_apply
from kerasdist.scope import ScopedReplica
from kerasdist.stats import Stats, Tally


class DataParallelStrategy:
    """Trains Keras models on all workers of the job with the numbers of one process.

    Every rank must make one, before the first tensor. Models made or compiled in ``scope()`` average their gradients;
    ``fit``, ``evaluate`` and ``predict`` take the same whole data on every rank and share it out.

    Args:
        compression: What travels: None (default) the gradients' own dtype, ``"fp16"`` or ``"bf16"`` half of the bytes
            with the sum in float32, ``"int8"``, ``"topk"`` or ``"powersgd"`` fewer, or a
            ``kerasdist.compression.Compressor``.
        algorithm: What the workers share and when: None or ``"all_reduce"`` (default) the mean gradient of each step,
            ``"hierarchical"`` the same in two levels, or a ``kerasdist.algorithms.Algorithm``.
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
        algorithm: Any = None,
        bucket_mb: float = 4.0,
        engine: str = "auto",
        auto_shard: bool = True,
        global_batch: bool = False,
        options: Options | None = None,
    ) -> None:
        self._settings = Settings.create(compression, algorithm, bucket_mb, auto_shard, global_batch, options)
        self._group = _start(engine, self._settings.options)
        self._settings.algorithm.check(self._group.size, self._settings.compressor)
        self._is_local = False
        self._drawn_seed: int | None = None
        self.tally = Tally(self._group, self._settings)
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
        before, self._is_local = self._is_local, True
        try:
            yield
        finally:
            self._is_local = before

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

    def stats(self) -> Stats:
        """What this rank has done since the strategy was made: steps, bytes sent, overflows. Not collective."""
        return self.tally.stats()

    @property
    def is_local(self) -> bool:
        """Whether this rank is inside ``local()``."""
        return self._is_local

    @property
    def drawn_seed(self) -> int | None:
        """The seed that the ranks agreed on because the user had set none; None once the user sets one."""
        return self._drawn_seed if keras_hooks.user_seed() == self._drawn_seed else None

    def take_drawn_seed(self, seed: int) -> None:
        """Takes the seed that the ranks agreed on in a run that is resumed, in the place of this run's."""
        self._drawn_seed = seed
        tf.random.set_seed(seed)

    def _attach(self, model: Any) -> ScopedReplica:
        """Gives a model its replica; the one it has if it is this strategy's."""
        replica = keras_hooks.patched_by(model)
        if replica is None:
            return ScopedReplica(model, self._group, self._settings, self)
        if replica.owner is not self:
            name = getattr(model, "name", type(model).__name__)  # Keras has not named it yet where scopes are nested
            raise ValueError(
                f"The model {name!r} already belongs to {replica.owner!r}. One model takes one strategy, and no "
                "DistributedOptimizer callback beside it."
            )
        return replica

    def _agree_on_seed(self) -> None:
        """Sets one seed on all ranks, so that they shuffle and initialise alike, unless the user set one."""
        seeds = gather_json(keras_hooks.user_seed(), self._group, "seed")
        if all(seed is None for seed in seeds) and self.size > 1:
            drawn = int(np.random.SeedSequence().generate_state(1)[0] % 2**31)
            self._drawn_seed = gather_json(drawn, self._group, "seed.drawn")[0]
            keras.utils.set_random_seed(self._drawn_seed)


def _start(name: str, options: Options) -> engine.Group:
    engine.init(name, options)
    return engine.world()
