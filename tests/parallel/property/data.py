"""A case's data: as each worker is given it, and as one process with the global batch is. Plain Keras."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.parallel.property.cases import Case

VOCABULARY = 5
CLASSES = 3
ORDER_SEED = 11

Parts = tuple[np.ndarray, ...]


def training_parts(case: Case) -> Parts:
    """(x, y) or (x, y, sample_weight) to train on."""
    return _parts(case, case.samples, case.seed, case.nan)


def held_parts(case: Case) -> Parts:
    """The same for validation and evaluation; the training's where nothing is held."""
    return _parts(case, case.held, case.seed + 1000, False) if case.held else training_parts(case)


def _parts(case: Case, rows: int, seed: int, nan: bool) -> Parts:
    rng = np.random.default_rng(seed)
    if case.inputs == "tokens":
        x = rng.integers(0, VOCABULARY, (rows, 3))
    else:
        x = rng.normal(size=(rows, 3) if case.inputs == "vector" else (rows, 4, 4, 1))
    y = rng.normal(size=(rows, 2)) if case.loss == "mse" else rng.integers(0, CLASSES, rows)
    if nan:
        x[rng.integers(rows)] = np.nan
    # A weight of 0 now and then: whole parts that count nothing must not become NaN.
    weight = rng.uniform(0.1, 2, rows) * (rng.uniform(size=rows) > 0.2)
    return (x, y, weight) if case.weighted else (x, y)


# Streams of batches ---------------------------------------------------------------------------------------------------


def ends(case: Case, rows: int) -> list[tuple[int, int]]:
    """First and last row of each batch of a stream; the last batch may be ragged."""
    found, start = [], 0
    while start < rows:
        size = 1 if case.uneven and len(found) % 2 else case.batch
        found.append((start, min(start + size, rows)))
        start = found[-1][1]
    return found


class Batches(keras.utils.PyDataset):
    """Batches by index."""

    def __init__(self, parts: Parts, slices: list[tuple[int, int]]) -> None:
        super().__init__()
        self.parts, self.slices = parts, slices

    def __len__(self) -> int:
        return len(self.slices)

    def __getitem__(self, index: int) -> Parts:
        start, end = self.slices[index]
        return tuple(part[start:end] for part in self.parts)


def stream_of_a_worker(case: Case, parts: Parts, shuffle: bool) -> Any:
    """What a script gives to ``fit`` on every rank: batches of B."""
    slices = ends(case, len(parts[0]))
    if case.data == "py_dataset":
        return Batches(parts, slices)
    return _order(slices, shuffle).map(lambda pair: tuple(part[pair[0] : pair[1]] for part in _constants(parts)))


def stream_of_one_process(case: Case, parts: Parts, shuffle: bool) -> tf.data.Dataset:
    """N consecutive batches of that stream in one."""
    slices = ends(case, len(parts[0]))
    if case.data == "tf_data":

        def joined(pairs: Any) -> Any:
            rows = tf.ragged.range(pairs[:, 0], pairs[:, 1]).values
            return tuple(tf.gather(part, rows) for part in _constants(parts))

        return _order(slices, shuffle).batch(case.workers).map(joined)

    def groups() -> Any:
        # Keras draws the order of a PyDataset anew in each epoch, by Python's own seeded generator.
        order = list(range(len(slices)))
        if shuffle:
            random.shuffle(order)
        for first in range(0, len(order), case.workers):
            rows = np.concatenate([np.arange(*slices[index]) for index in order[first : first + case.workers]])
            yield tuple(part[rows] for part in parts)

    spec = tuple(tf.TensorSpec((None, *part.shape[1:]), part.dtype) for part in parts)
    steps = -(-len(slices) // case.workers)
    stream = tf.data.Dataset.from_generator(groups, output_signature=spec)
    return stream.apply(tf.data.experimental.assert_cardinality(steps))


def sharded_arrays_of_one_process(case: Case, parts: Parts, shuffle: bool) -> tf.data.Dataset:
    """The global batches of arrays that went through ``kerasdist.shard``, in the order that its seed gives."""
    rows = tf.data.Dataset.range(len(parts[0]))
    rows = rows.shuffle(len(parts[0]), seed=ORDER_SEED) if shuffle else rows
    batches = rows.batch(case.batch * case.workers)
    return batches.map(lambda some: tuple(tf.gather(part, some) for part in _constants(parts)))


def _order(slices: list[tuple[int, int]], shuffle: bool) -> tf.data.Dataset:
    order = tf.data.Dataset.from_tensor_slices(np.array(slices))
    return order.shuffle(len(slices), seed=ORDER_SEED) if shuffle else order


def _constants(parts: Parts) -> list[Any]:
    return [tf.constant(part) for part in parts]


# Arguments ------------------------------------------------------------------------------------------------------------

Shard = Callable[..., Any]


def arguments_of_a_worker(case: Case, shard: Shard) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a script gives to ``fit`` and to ``evaluate``, on every rank."""
    train, held = training_parts(case), held_parts(case)
    arrays = case.data == "arrays"
    if arrays:
        fit, evaluate = _named(train), {**_named(held), "batch_size": case.batch}
    else:
        fit = {"x": stream_of_a_worker(case, train, case.shuffle)}
        evaluate = {"x": stream_of_a_worker(case, held, False)}
    validation = held if arrays else evaluate["x"]
    if case.door == "callback":
        own = {"batch_size": case.batch, "shuffle": case.shuffle, "seed": ORDER_SEED}
        fit = {"x": shard(*train, **own) if arrays else shard(fit["x"])}
        if case.shard_held:
            validation = shard(*held, batch_size=case.batch, shuffle=False) if arrays else shard(validation)
    elif arrays:
        fit |= {"batch_size": case.batch, "shuffle": case.shuffle}
    elif case.data == "py_dataset":
        fit["shuffle"] = case.shuffle
    return fit | _validation(case, validation), evaluate


def arguments_of_one_process(case: Case) -> tuple[dict[str, Any], dict[str, Any]]:
    """What plain Keras is given for the same global batches."""
    train, held = training_parts(case), held_parts(case)
    size = case.batch * case.workers
    evaluate = {**_named(held), "batch_size": size}
    if case.data != "arrays":
        fit = {"x": stream_of_one_process(case, train, case.shuffle)}
        evaluate = {"x": stream_of_one_process(case, held, False)}
    elif case.door == "callback":
        fit = {"x": sharded_arrays_of_one_process(case, train, case.shuffle)}
    else:
        fit = {**_named(train), "batch_size": size, "shuffle": case.shuffle}
    return fit | _validation(case, held if case.data == "arrays" else evaluate["x"]), evaluate


def _named(parts: Parts) -> dict[str, Any]:
    return dict(zip(("x", "y", "sample_weight"), parts, strict=False))


def _validation(case: Case, validation: Any) -> dict[str, Any]:
    return {"validation_data": validation} if case.held else {}
