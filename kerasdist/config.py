"""What may be chosen, and what is refused: the strategy's arguments and the rarer options."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Callable
from typing import Any

PARTITIONS = ("batch", "contiguous")
DIVERGENCE = ("raise", "warn", "repair")


@dataclasses.dataclass(frozen=True)
class Options:
    """The rarer options, the same for ``DataParallelStrategy`` and ``DistributedOptimizer``.

    Args:
        timeout_s: Seconds that a collective may wait for missing ranks before the job is ended. Default 300. It is
            read when the engine starts.
        partition: How arrays are shared out. ``"batch"`` (default): each global batch is split among the ranks, so
            that the order is that of one process. ``"contiguous"``: each rank keeps one contiguous part of the
            arrays for the whole run and shuffles within it (SINGA's ``data_partition``).
        check_data: Whether ranks compare a hash of the first global batch, and the size of each. Default True.
        alone_kb: Gradients of at least this many KiB travel alone and in place; smaller ones are packed into
            buckets. Default 256.
        watch_every: After so many executions of the train step, and at the end of each ``fit``, the ranks compare their
            weights, optimizer state and learning rate. Default 1000; 0: never.
        on_divergence: What to do where they differ: ``"raise"`` (default) an error on every rank, ``"warn"``, or
            ``"repair"``: warn, and take the state of rank 0.

    Raises:
        ValueError: An option is outside its range.
    """

    timeout_s: float = 300.0
    partition: str = "batch"
    check_data: bool = True
    alone_kb: float = 256.0
    watch_every: int = 1000
    on_divergence: str = "raise"

    def __post_init__(self) -> None:
        positive_number("timeout_s", self.timeout_s)
        positive_number("alone_kb", self.alone_kb)
        one_of("partition", self.partition, PARTITIONS)
        one_of("on_divergence", self.on_divergence, DIVERGENCE)
        boolean("check_data", self.check_data)
        if isinstance(self.watch_every, bool) or not isinstance(self.watch_every, int):
            raise TypeError(f"`watch_every` must be a number of steps. Received: watch_every={self.watch_every!r}")
        if self.watch_every < 0:
            raise ValueError(f"`watch_every` must be 0 (never) or more. Received: watch_every={self.watch_every}")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Everything that both doors need to know about how to train, already validated."""

    compressor: Any
    algorithm: Any
    bucket_mb: float
    auto_shard: bool
    global_batch: bool
    options: Options

    def facts(self) -> dict[str, Any]:
        """What must be equal on all ranks, as JSON values."""
        options = {key: value for key, value in dataclasses.asdict(self.options).items() if key != "timeout_s"}
        own = {key: getattr(self, key) for key in ("bucket_mb", "auto_shard", "global_batch")}
        return {"compression": self.compressor.name, "algorithm": self.algorithm.name, **own, **options}

    @staticmethod
    def create(
        compression: Any = None,
        algorithm: Any = None,
        bucket_mb: float = 4.0,
        auto_shard: bool = True,
        global_batch: bool = False,
        options: Options | None = None,
    ) -> Settings:
        """Validates the arguments of either door; see ``DataParallelStrategy`` for their meaning."""
        from kerasdist import algorithms as algorithms_module
        from kerasdist import compression as compression_module

        positive_number("bucket_mb", bucket_mb)
        boolean("auto_shard", auto_shard)
        boolean("global_batch", global_batch)
        if options is None:
            options = Options()
        if not isinstance(options, Options):
            raise TypeError(f"`options` must be a kerasdist.Options. Received: options={options!r}")
        if global_batch and not auto_shard:
            raise ValueError(
                "`global_batch=True` needs kerasdist to share out the data, but auto_shard=False was given. "
                "Keep one of the two."
            )
        compressor, chosen = compression_module.get(compression), algorithms_module.get(algorithm)
        return Settings(compressor, chosen, float(bucket_mb), auto_shard, global_batch, options)


def positive_number(name: str, value: Any) -> None:
    """Refuses what is not a number above zero."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"`{name}` must be a number above 0. Received: {name}={value!r} of type {type(value).__name__}")
    if not 0 < float(value) < float("inf"):
        raise ValueError(f"`{name}` must be a number above 0. Received: {name}={value!r}")


def positive_integer(name: str, value: Any) -> None:
    """Refuses what is not a whole number above zero."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(
            f"`{name}` must be a whole number above 0. Received: {name}={value!r} of type {type(value).__name__}"
        )
    if value < 1:
        raise ValueError(f"`{name}` must be a whole number above 0. Received: {name}={value!r}")


def natural_number(name: str, value: Any) -> None:
    """Refuses what is not a whole number, 0 or more."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(
            f"`{name}` must be a whole number, 0 or more. Received: {name}={value!r} of type {type(value).__name__}"
        )
    if value < 0:
        raise ValueError(f"`{name}` must be a whole number, 0 or more. Received: {name}={value!r}")


def boolean(name: str, value: Any) -> None:
    """Refuses what is not a bool."""
    if not isinstance(value, bool):
        raise TypeError(f"`{name}` must be True or False. Received: {name}={value!r}")


def one_of(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    """Refuses what is not among the allowed strings."""
    if value not in allowed:
        raise ValueError(f"`{name}` must be one of {', '.join(map(repr, allowed))}. Received: {name}={value!r}")


def chosen(
    name: str, identifier: Any, table: dict[str, Callable[[], Any]], kind: type, default: Callable[[], Any]
) -> Any:
    """The object that an argument means: None the default, a name that of the table, an object of the kind itself."""
    if identifier is None:
        return default()
    if isinstance(identifier, kind):
        return identifier
    names = ", ".join(map(repr, table))
    if not isinstance(identifier, str):
        raise TypeError(
            f"`{name}` must be None, one of {names} or an object of class {kind.__name__}. "
            f"Received: {name}={identifier!r} of type {type(identifier).__name__}"
        )
    if identifier not in table:
        raise ValueError(f"`{name}` must be None or one of {names}. Received: {name}={identifier!r}")
    return table[identifier]()
