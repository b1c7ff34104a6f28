"""The kinds of data that fit takes, and trainings on them. Plain Keras: knows nothing of kerasdist."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import keras
import numpy as np
import tensorflow as tf

KINDS = ("arrays", "tf_data", "tf_data unknown", "py_dataset", "generator")


class Sequence(keras.utils.PyDataset):
    """Batches by index."""

    def __init__(self, ids: np.ndarray, batch_size: int) -> None:
        super().__init__()
        self.ids, self.size = ids, batch_size

    def __len__(self) -> int:
        return math.ceil(len(self.ids) / self.size)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        part = self.ids[index * self.size : (index + 1) * self.size]
        return part, part


def arguments(kind: str, samples: int, batch_size: int, shuffled: bool) -> dict[str, Any]:
    """The arguments of ``fit`` for ids 0 to samples - 1."""
    ids = np.arange(samples, dtype="float32")[:, None]
    if kind == "arrays":
        return {"x": ids, "y": ids, "batch_size": batch_size, "shuffle": shuffled}
    if kind.startswith("tf_data"):
        data = tf.data.Dataset.from_tensor_slices((ids, ids))
        data = data.shuffle(samples, seed=9) if shuffled else data
        data = data.filter(lambda x, y: x[0] >= 0) if "unknown" in kind else data
        return {"x": data.batch(batch_size)}
    if kind == "py_dataset":
        return {"x": Sequence(ids, batch_size), "shuffle": shuffled}

    def generate():
        for index in range(math.ceil(samples / batch_size)):
            part = ids[index * batch_size : (index + 1) * batch_size]
            yield part, part

    return {"x": generate(), "shuffle": False}


class OwnStep(keras.Model):
    """A train step as in Keras' guide, whose logs hold a nest of the compiled metrics."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = self.compute_loss(x, y, predicted)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        for metric in self.metrics:
            metric.update_state(loss, tf.shape(y)[0]) if metric.name == "loss" else metric.update_state(y, predicted)
        return {"batch": loss, **{metric.name: metric.result() for metric in self.metrics}}


def batches(x: Any, y: Any, sizes: list[int]) -> tf.data.Dataset:
    """So many samples in each batch, 0 too."""
    ends = np.cumsum([0, *sizes])

    def generate() -> Any:
        for begin, end in zip(ends, ends[1:], strict=False):
            yield tf.nest.map_structure(lambda part, b=begin, e=end: part[b:e], (x, y))

    spec = tf.nest.map_structure(lambda part: tf.TensorSpec([None, part.shape[1]], part.dtype), (x, y))
    return tf.data.Dataset.from_generator(generate, output_signature=spec)


def structures(workers: int, scope: Any = None) -> dict[str, Any]:
    """Weights and history of trainings on nested data, in float64, global batch 12, 31 samples."""
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")  # else the first one made stays
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(31, 2)), rng.normal(size=(31, 3))
    y, z = rng.normal(size=(31, 1)), rng.normal(size=(31, 2))
    weight, labels = rng.uniform(size=31), rng.integers(0, 2, 31)
    found = {}

    def train(name: str, outputs: str, x: Any, target: Any, compile_arguments: dict, **fit_arguments: Any) -> None:
        keras.utils.set_random_seed(4)
        with scope() if scope else contextlib.nullcontext():
            ins = {"a": keras.Input((2,), name="a"), "b": keras.Input((3,), name="b")}
            hidden = keras.layers.Dense(4, activation="tanh")(keras.layers.Concatenate()(list(ins.values())))
            one = keras.layers.Dense(1, name="one", activation="sigmoid" if "class" in name else None)(hidden)
            two = keras.layers.Dense(2, name="two")(hidden)
            outs = {"one": one, "two": two}
            kind = OwnStep if name.startswith("own step") else keras.Model
            model = kind(list(ins.values()) if isinstance(x, tuple) else ins, outs if outputs == "dict" else one)
            model.compile(keras.optimizers.SGD(0.05, momentum=0.9), **compile_arguments)
        if target is not None:
            fit_arguments |= {"y": target, "batch_size": 12 // workers, "shuffle": True}
        history = model.fit(x, epochs=2, verbose=0, **fit_arguments)
        found[name] = (model.get_weights(), history.history)

    both = {"a": a, "b": b}
    train("dict", "one", both, y, {"loss": "mse", "metrics": ["mae"]})
    train("tuple", "one", (a, b), y, {"loss": "mse"})
    losses = {"loss": {"one": "mse", "two": "mae"}, "metrics": {"one": ["mae"]}}
    train("two outputs", "dict", both, {"one": y, "two": z}, losses)
    train("sample weight", "one", both, y, {"loss": "mse", "weighted_metrics": ["mae"]}, sample_weight=weight)
    train("class weight", "one", both, labels[:, None], {"loss": "binary_crossentropy"}, class_weight={0: 1.0, 1: 3.0})
    train("split", "one", both, y, {"loss": "mse", "metrics": ["mae"]}, validation_split=0.3)
    held = {"validation_data": (both, y, weight)}
    train("weighted validation", "one", both, y, {"loss": "mse", "weighted_metrics": ["mae"]}, **held)
    train("few in the last batch", "one", {"a": a[:25], "b": b[:25]}, y[:25], {"loss": "mse", "metrics": ["mae"]})
    train("steps", "one", both, y, {"loss": "mse"}, steps_per_epoch=2)
    train("own step", "one", both, y, {"loss": "mse", "metrics": ["mae"]})
    mean = {"loss": "mse", "metrics": ["mae"]}
    sizes = [12, 0, 6, 5] if workers == 1 else [6, 6, 0, 0, 0, 6, 5]
    train("batches without samples", "one", batches(both, y, sizes), None, mean)
    sizes = [12, 7, 0] if workers == 1 else [6, 6, 0, 7, 0, 0]
    train("own step without samples at the end", "one", batches(both, y, sizes), None, mean)
    sizes = [12, 6, 5] if workers == 1 else [6, 6, 0, 6, 5]
    train("eager batches without samples", "one", batches(both, y, sizes), None, {**mean, "run_eagerly": True})
    return found


def evaluations(workers: int, scope: Any = None) -> dict[str, Any]:
    """What evaluate and predict return, in float64, for every kind of data."""
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")  # else the first one made stays
    keras.utils.set_random_seed(4)
    with scope() if scope else contextlib.nullcontext():
        inputs = keras.Input((1,))
        hidden = keras.layers.Dense(3, activation="tanh")(inputs)
        model = keras.Model(inputs, {"p": keras.layers.Dense(1, activation="sigmoid", name="p")(hidden), "q": hidden})
        model.compile("sgd", {"p": "mse", "q": "mae"}, metrics={"p": [keras.metrics.AUC(num_thresholds=20), "mae"]})
    labels = (np.arange(19) % 3 == 0).astype("float64")[:, None]
    ids = np.linspace(-2, 2, 19)[:, None]
    targets = {"p": labels, "q": np.zeros((19, 3))}
    found = {}
    for kind, x, call in (
        ("arrays", ids, {"batch_size": 6 // workers}),
        ("tf_data", tf.data.Dataset.from_tensor_slices(ids).batch(6 // workers), {}),
        ("py_dataset", Sequence(ids, 6 // workers), {}),
    ):
        found[f"predict {kind}"] = model.predict(x, verbose=0, **call)
    found["predict without samples"] = model.predict(batches(ids, labels, [0, 4, 4, 11]), verbose=0)
    found["predict steps"] = model.predict(ids, batch_size=6 // workers, steps=2, verbose=0)
    pairs = tf.data.Dataset.from_tensor_slices((ids, targets)).batch(6 // workers)
    found["evaluate arrays"] = model.evaluate(ids, targets, batch_size=6 // workers, verbose=0, return_dict=True)
    found["evaluate tf_data"] = model.evaluate(pairs, verbose=0, return_dict=True)
    return found
