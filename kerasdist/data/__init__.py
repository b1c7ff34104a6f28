"""Who reads which samples? One way of sharing out a file; ``share`` picks the way that fits the data."""

from __future__ import annotations

import types
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist import engine, keras_hooks
from kerasdist.config import Settings, boolean, natural_number, positive_integer
from kerasdist.data.contiguous import ContiguousPart
from kerasdist.data.global_batches import GlobalBatches
from kerasdist.data.groups import Groups
from kerasdist.data.own_part import OwnPart
from kerasdist.data.shared import SharedData, rows_of
from kerasdist.engine import Group
from kerasdist.step import Batch

__all__ = [
    "Batch",
    "SharedData",
    "plain",
    "rows_of",
    "share",
    "shard",
    "shuffle_arrays",
    "shuffled",
    "take_training_data",
]

DEFAULT_BATCH_SIZE = 32  # Keras' own


def share(
    x: Any,
    y: Any,
    sample_weight: Any,
    *,
    batch_size: int | None,
    steps: int | None,
    group: Group,
    settings: Settings,
    shuffle: Any = False,
    class_weight: Any = None,
    training: bool = False,
    drawn_seed: int | None = None,
) -> keras_hooks.DataAdapter:
    """Keras' data adapter for this rank's part of the data. Every rank must call it.

    Args:
        x: As in ``fit``: arrays, ``tf.data.Dataset``, ``PyDataset``, generator, or what ``shard`` returned.
        y: As in ``fit``.
        sample_weight: As in ``fit``.
        batch_size: Samples of one worker in a step (of all workers, with ``global_batch``). Default 32.
        steps: ``steps_per_epoch``.
        group: The ranks.
        settings: ``auto_shard``, ``global_batch`` and the partition are read.
        shuffle: As in ``fit``.
        class_weight: As in ``fit``.
        training: Whether steps are taken together. Evaluation needs neither padding nor a fixed partition. Default
            False.
        drawn_seed: The seed that the ranks drew because the user set none. Shuffled arrays then have a new order in
            each epoch, as without a seed; under a seed Keras repeats its order. Default None.

    Returns:
        An adapter whose number of batches is the same on every rank.

    Raises:
        ValueError: Fewer samples than workers, or a combination that cannot be shared out.
    """
    if isinstance(x, SharedData):
        extra = {"y": y, "sample_weight": sample_weight, "class_weight": class_weight}
        given = [name for name, value in extra.items() if value is not None]
        if given:
            raise ValueError(
                f"rank {group.rank}: what kerasdist.shard() returned holds targets and weights already. "
                f"Received beside it: {', '.join(given)}. Give them to shard()."
            )
        return x
    arguments = {"shuffle": shuffle, "class_weight": class_weight}
    contiguous = training and settings.options.partition == "contiguous"
    arrays = keras_hooks.can_convert_arrays((x, y, sample_weight))
    if isinstance(x, types.GeneratorType) and not training and group.size > 1 and settings.auto_shard:
        raise ValueError(
            f"rank {group.rank}: a generator cannot be shared out for evaluation or prediction: how far each rank has "
            "read ahead of the last use is a matter of timing. Use a tf.data.Dataset or a keras.utils.PyDataset."
        )
    by_drawn_seed = arrays and drawn_seed is not None and shuffle is True and plain((x, y, sample_weight))
    if not settings.auto_shard:
        if by_drawn_seed and keras_hooks.user_seed() is None and training:
            each = DEFAULT_BATCH_SIZE if batch_size is None else batch_size
            order = _order((x, y, sample_weight), each, drawn_seed, steps, class_weight)
            return OwnPart(order[1](order[0]), group, steps, order)
        inner = keras_hooks.get_data_adapter(
            x=x, y=y, sample_weight=sample_weight, batch_size=batch_size, steps_per_epoch=steps, **arguments
        )
        return OwnPart(inner, group, steps) if training else inner
    check = settings.options.check_data
    if arrays:
        if training:
            _check_samples(x, group)
        if contiguous:
            each = batch_size or DEFAULT_BATCH_SIZE
            each = max(1, each // group.size) if settings.global_batch else each
            return ContiguousPart((x, y, sample_weight), each, group, **arguments)
        if batch_size is None and steps is None:
            batch_size = DEFAULT_BATCH_SIZE
        if batch_size is not None and not settings.global_batch:
            batch_size *= group.size
        if by_drawn_seed and batch_size is not None:
            order = _order((x, y, sample_weight), batch_size, drawn_seed, steps, class_weight)
            return GlobalBatches(order[1](order[0]), group, check, order=order)
        inner = keras_hooks.get_data_adapter(
            x=x, y=y, sample_weight=sample_weight, batch_size=batch_size, steps_per_epoch=steps, **arguments
        )
        return GlobalBatches(inner, group, check, smallest=inner.partial_batch_size or inner.batch_size)
    if contiguous:
        raise ValueError(
            "Options(partition='contiguous') can share out arrays only: what comes batched has no known middle. "
            f"Received: x of type {type(x).__name__}"
        )
    inner = keras_hooks.get_data_adapter(x=x, y=y, sample_weight=sample_weight, steps_per_epoch=steps, **arguments)
    kind = GlobalBatches if settings.global_batch else Groups
    return kind(inner, group, check)


def take_training_data(
    call: dict[str, Any], group: Group, settings: Settings, drawn_seed: int | None = None
) -> keras_hooks.DataAdapter:
    """Replaces the training data of a call of ``fit`` by this rank's part. Every rank must call it.

    Args:
        call: The call's arguments by name; changed in place. A ``validation_split`` becomes ``validation_data``.
        group: The ranks.
        settings: How it is shared out.
        drawn_seed: As in ``share``.

    Returns:
        The adapter that now stands in the call.
    """
    x, y, weight = call.pop("x", None), call.pop("y", None), call.pop("sample_weight", None)
    split = call.pop("validation_split", 0.0)
    if split and call.get("validation_data") is None:
        parts, held = keras_hooks.train_validation_split((x, y, weight), validation_split=split)
        (x, y, weight), call["validation_data"] = parts, held
    # Keras' default, without its warning that a stream is not shuffled where nobody asked for that.
    shuffle = call.pop("shuffle", not isinstance(x, tf.data.Dataset))
    batch_size = call.pop("batch_size", None)
    if isinstance(x, SharedData) and batch_size is not None:
        raise ValueError(
            f"rank {group.rank}: what kerasdist.shard() returned is batched already. Received beside it: "
            f"batch_size={batch_size}. Give it to shard()."
        )
    if call.get("validation_batch_size") is None and batch_size is not None:
        call["validation_batch_size"] = batch_size
    call["x"] = share(
        x, y, weight, batch_size=batch_size, steps=call.get("steps_per_epoch"), group=group, settings=settings,
        shuffle=shuffle, class_weight=call.pop("class_weight", None), training=True, drawn_seed=drawn_seed,
    )  # fmt: skip
    call["shuffle"] = False
    return call["x"]


def shard(
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    batch_size: int | None = None,
    shuffle: bool = True,
    seed: int | None = None,
) -> SharedData:
    """Shares out data among all ranks, for ``fit`` and its ``validation_data``. Every rank must call it.

    Both doors take the result as ``x`` and share nothing out again.

    Args:
        x: Arrays (nests too), the same on every rank; or a batched ``tf.data.Dataset`` or ``PyDataset``, of whose
            every N consecutive batches each rank takes one. A generator too, made anew for each ``fit``.
        y: Targets, for arrays.
        sample_weight: Sample weights, for arrays.
        batch_size: For arrays: samples of one worker in a step. Must not be given for what is batched.
        shuffle: For arrays: whether each epoch has a new order. Default True.
        seed: For arrays: the seed of the order. Default: one that the ranks agree on.

    Returns:
        A Keras data adapter.

    Raises:
        ValueError: Bad sizes, or arguments that do not fit the kind of data.
    """
    group = engine.world()
    boolean("shuffle", shuffle)
    if x is None or isinstance(x, SharedData):
        got = "what shard() returned, which is shared out already" if x is not None else "None"
        raise ValueError(f"rank {group.rank}: `x` must be arrays or batched data. Received: {got}.")
    if not keras_hooks.can_convert_arrays((x, y, sample_weight)):
        if batch_size is not None or seed is not None:
            raise ValueError(
                "`batch_size` and `seed` are for arrays; what is batched keeps its own. "
                f"Received: x of type {type(x).__name__}, batch_size={batch_size}, seed={seed}"
            )
        inner = keras_hooks.get_data_adapter(x=x, y=y, sample_weight=sample_weight, shuffle=False)
        return Groups(inner, group, check=True)
    if batch_size is None:
        raise ValueError("`batch_size`, the samples of one worker in a step, is needed for arrays. Received: None")
    positive_integer("batch_size", batch_size)
    if seed is not None:
        natural_number("seed", seed)
    _check_samples(x, group)
    keras_hooks.get_data_adapter(x=x, y=y, sample_weight=sample_weight)  # Keras' own checks of the lengths
    if seed is None:
        drawn = np.random.SeedSequence().generate_state(1)[0]
        seed = int(np.asarray(group.broadcast(np.array([drawn], np.int64), 0, "shard.seed"))[0])
    parts, each = (x, y, sample_weight), int(batch_size) * group.size
    if not shuffle:
        return GlobalBatches(keras_hooks.get_data_adapter(x=shuffled(parts, each, None)), group, check=True)
    order = _order(parts, each, seed, None, None)
    return GlobalBatches(order[1](seed), group, check=True, order=order)


def _order(parts: Any, batch_size: int, seed: Any, steps: int | None, class_weight: Any) -> Any:
    """A seed, and what makes Keras' adapter for arrays in the order of one."""

    def make(seed: int) -> keras_hooks.DataAdapter:
        dataset = shuffled(parts, batch_size, seed)
        return keras_hooks.get_data_adapter(x=dataset, steps_per_epoch=steps, shuffle=False, class_weight=class_weight)

    return seed, make


def shuffle_arrays(call: dict[str, Any], seed: int) -> bool:
    """Replaces arrays that a call of ``fit`` would shuffle by batches in an order that the seed decides.

    Args:
        call: The call's arguments by name; changed in place. A ``validation_split`` becomes ``validation_data``.
        seed: Of the order, which is new in each epoch.

    Returns:
        Whether it did: not where the data is none of arrays, or is not to be shuffled.
    """
    parts: Any = tuple(call.get(name) for name in ("x", "y", "sample_weight"))
    batch_size = call.get("batch_size")
    if batch_size is None and call.get("steps_per_epoch") is None:
        batch_size = DEFAULT_BATCH_SIZE
    if call.get("shuffle", True) is not True or batch_size is None or parts[0] is None:
        return False
    if not (keras_hooks.can_convert_arrays(parts) and plain(parts)):
        return False
    split = call.pop("validation_split", 0.0)
    if split and call.get("validation_data") is None:
        parts, call["validation_data"] = keras_hooks.train_validation_split(parts, validation_split=split)
    keras_hooks.get_data_adapter(x=parts[0], y=parts[1], sample_weight=parts[2])  # Keras' own checks of the lengths
    if call.get("validation_batch_size") is None:
        call["validation_batch_size"] = batch_size
    for name in ("y", "sample_weight", "batch_size"):
        call.pop(name, None)
    call["x"], call["shuffle"] = shuffled(parts, batch_size, seed), False
    return True


def shuffled(parts: tuple[Any, Any, Any], batch_size: int, seed: int | None) -> tf.data.Dataset:
    """Batches of arrays, in a new order in each epoch that the seed decides; in their own order without one."""
    x, y, weight = parts
    given = (x,) if y is None else (x, y) if weight is None else (x, y, weight)
    tensors = tf.nest.map_structure(_as_keras_reads_it, given)
    samples = len(tf.nest.flatten(tensors)[0])
    order = tf.data.Dataset.range(samples)
    if seed is not None:
        order = order.shuffle(samples, seed=seed, reshuffle_each_iteration=True)
    return order.batch(batch_size).map(
        lambda rows: tf.nest.map_structure(lambda tensor: tf.gather(tensor, rows), tensors)
    )


def _as_keras_reads_it(array: Any) -> Any:
    """The array as a tensor; floating ones in Keras' ``floatx``, as its own adapter for arrays gives them."""
    tensor = tf.convert_to_tensor(array)
    return tf.cast(tensor, keras.config.floatx()) if tensor.dtype.is_floating else tensor


def plain(data: Any) -> bool:
    """Whether a nest holds NumPy arrays and tensors alone, and no list, which a dataset would make one tensor of."""
    if isinstance(data, (tuple, dict)):
        return all(plain(part) for part in (data.values() if isinstance(data, dict) else data))
    return data is None or isinstance(data, (np.ndarray, tf.Tensor))


def _check_samples(x: Any, group: Group) -> None:
    samples = next((leaf.shape[0] for leaf in tf.nest.flatten(x) if leaf is not None), None)
    if samples is None:
        raise ValueError(f"rank {group.rank}: there is no data to share out. Received: x={x!r}")
    if samples < group.size:
        raise ValueError(
            f"rank {group.rank}: the data has fewer samples than there are workers, so some would never train. "
            f"Expected at least {group.size} samples. Received: {samples}"
        )
