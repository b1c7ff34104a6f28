"""BatchNormalization(synchronized=True): the statistics of the global batch, through both doors.

The one process that the workers are compared with is plain Keras on all of the data, in each worker by itself.
"""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

import kerasdist

RANK, SIZE = kerasdist.init().rank, kerasdist.init().size
BATCH = 6 // SIZE
EAGER = {"run_eagerly": True}
MODES = {"graph": {}, "eager": EAGER, "two steps": {"steps_per_execution": 2}} if SIZE == 2 else {"eager": EAGER}


class Statistics(keras.callbacks.Callback):
    """Keeps the first normalisation's moving mean and variance after every step."""

    def __init__(self):
        super().__init__()
        self.found = []

    def on_train_batch_end(self, batch, logs=None):
        self.found.append(statistics(self.model))


def statistics(model):
    layer = next(one for one in model.layers if isinstance(one, keras.layers.BatchNormalization))
    return np.stack([np.asarray(layer.moving_mean), np.asarray(layer.moving_variance)])


def norm(**arguments):
    return keras.layers.BatchNormalization(synchronized=True, **arguments)


def floats(name):
    keras.config.set_floatx(name)
    keras.config.set_dtype_policy(name)


def fit(door, make, x, y, batch_size=BATCH, epochs=1, share=True, loss="mse", optimizer=None, **arguments):
    """Trains through a door, or in one process where the door is "alone"; the model, and its statistics by step.

    Without ``share`` each rank gives its own data.
    """
    keras.utils.set_random_seed(5)
    optimizer = optimizer() if optimizer else keras.optimizers.SGD(0.1, momentum=0.9)
    kept = Statistics()
    call = {"epochs": epochs, "verbose": 0, "callbacks": [kept]}
    if door == "scope":
        with kerasdist.DataParallelStrategy(auto_shard=share).scope():
            model = make()
            model.compile(optimizer, loss, **arguments)
        model.fit(x, y, batch_size=batch_size, shuffle=False, **call)
        return model, kept.found
    model = make()
    eager = EAGER if door == "alone" else {}  # a few steps are done before a graph is made
    model.compile(optimizer, loss, **{**arguments, **eager})
    if door == "alone":
        model.fit(x, y, batch_size=batch_size * SIZE, shuffle=False, **call)
    else:
        call["callbacks"].append(kerasdist.DistributedOptimizer())
        data = kerasdist.shard(x, y, batch_size=batch_size, shuffle=False) if share else x
        rest = {} if share else {"y": y, "batch_size": batch_size, "shuffle": False}
        model.fit(data, **rest, **call)
    return model, kept.found


def case_by_hand():
    """BN-2: rank 0 has zeros, the others fours. The statistics after the one step, not after the epoch."""
    found = {}
    x = np.full((2, 1), 0.0 if RANK == 0 else 4.0, "float32")
    for door in ("scope", "callback"):
        for mode, arguments in MODES.items():

            def make():
                return keras.Sequential([keras.Input((1,)), norm(momentum=0.5), keras.layers.Dense(1)])

            model, steps = fit(door, make, x, x, 2, share=False, **arguments)
            found[door, mode] = steps[0][:, 0]
            if RANK == 0:
                model(x, training=True)  # outside of a train step nothing is collective
                model.layers[0](x, training=True)
    return found


class OwnStep(keras.Model):
    """A train step of its own, which keeps the gradient with respect to the inputs."""

    scales = True

    def train_step(self, data):
        x, y = data
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([x, *[v.value for v in self.trainable_variables]])
            loss = tf.reduce_mean(y * self(x, training=True))
            if self.scales:
                loss = self.optimizer.scale_loss(loss)
        sources = [x, *[v.value for v in self.trainable_variables]]
        self.input_gradient, *gradients = tape.gradient(loss, sources)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}


class Unscaled(OwnStep):
    scales = False


class Penalized(OwnStep):
    """A gradient penalty: the gradient is differentiated again."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                inner.watch(x)
                out = self(x, training=True) * y
            loss = tf.reduce_sum(inner.gradient(out, x) ** 2)
        outer.gradient(loss, self.trainable_variables)
        return {"loss": loss}


def case_input_gradient():
    """Ranks with 2, 3, ... samples: the gradient with respect to the inputs, and that of one process."""
    floats("float64")
    rng = np.random.default_rng(1)
    x, y = rng.normal(3.0, 2.0, (20, 2)), rng.normal(size=(20, 2))
    ends = np.cumsum([2 + rank for rank in range(SIZE)])
    own, total = slice(ends[RANK] - 2 - RANK, ends[RANK]), ends[-1]
    found = {}
    for kind in (OwnStep, Unscaled):

        def make(kind=kind):
            inputs = keras.Input((2,))
            return kind(inputs, norm(gamma_initializer=keras.initializers.Constant(0.7))(inputs))

        call = {"loss": None, **EAGER}
        alone, _ = fit("alone", make, x[:total], y[:total], 20, **call)
        ours, _ = fit("scope", make, x[own], y[own], 20, share=False, **call)
        gradient = np.asarray(ours.input_gradient)
        if not kind.scales:
            gradient = gradient * (2 + RANK) / total
        found[kind.__name__] = (
            gradient,
            np.asarray(alone.input_gradient)[own],
            ours.get_weights(),
            alone.get_weights(),
        )
    return found


def cnn(synchronized=True):
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((5, 4, 1)),
            layers.Conv2D(3, 2, use_bias=False),
            layers.BatchNormalization(momentum=0.8, synchronized=synchronized),
            layers.Activation("tanh"),
            layers.Flatten(),
            layers.Dense(4),
            layers.BatchNormalization(axis=1, synchronized=synchronized),
            layers.Dense(1),
        ]
    )


def existing():
    """Layers of a model that is there already are told to synchronise."""
    model = cnn(synchronized=False)
    for layer in model.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.synchronized = True
    return model


def own_step():
    inputs = keras.Input((5, 4, 1))
    x = norm(momentum=0.8)(keras.layers.Conv2D(2, 2)(inputs))
    return Unscaled(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(keras.activations.tanh(x))))


def masked():
    inputs = keras.Input((5, 4))
    x = norm(momentum=0.8)(keras.layers.Masking()(inputs))
    x = norm(momentum=0.8)(keras.layers.Activation("tanh")(x))
    return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.GlobalAveragePooling1D()(x)))


def accumulating():
    return keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)


TRAININGS = {
    "cnn": ("scope", cnn, {}),
    "two steps": ("scope", cnn, {"steps_per_execution": 2}),
    "existing layers": ("callback", existing, {}),
    "accumulation": ("scope", cnn, {"optimizer": accumulating, **EAGER}),
    "own step": ("scope", own_step, {"loss": None, **EAGER}),
    "mask": ("scope", masked, EAGER),
}
if SIZE > 2:
    TRAININGS = {name: TRAININGS[name] for name in ("cnn", "mask")}


def case_trainings():
    """25 samples in global batches of 6: the last one is of one sample. Ours, and that of one process, in float64."""
    floats("float64")
    rng = np.random.default_rng(2)
    x, y = rng.normal(1.0, 2.0, (25, 5, 4, 1)), rng.normal(size=(25, 1))
    words = x[..., 0].copy()
    for row in range(len(words)):
        words[row, 1 + row % 5 :] = 0.0
    found = {}
    for name, (door, make, arguments) in TRAININGS.items():
        data = words if name == "mask" else x
        model, steps = fit(door, make, data, y, epochs=2, **arguments)
        alone, expected = fit("alone", make, data, y, epochs=2, **arguments)
        found[name] = (model.get_weights(), alone.get_weights(), steps, expected)
    return found


def case_large_mean():
    """Inputs of mean 1e4 and deviation 1 in float32: variance of the one batch, and NumPy's in float64."""
    x = np.random.default_rng(3).normal(1e4, 1.0, (300, 2)).astype("float32")

    def make():
        return keras.Sequential([keras.Input((2,)), norm(momentum=0.0), keras.layers.Dense(1)])

    model, steps = fit("scope", make, x, x[:, :1], len(x) // SIZE, **EAGER)
    wide = x.astype("float64")
    return steps[0], np.stack([wide.mean(0), wide.var(0)])


def case_half_precision():
    """mixed_float16: statistics in float32, and the loss scale's own way of weighing."""
    keras.config.set_dtype_policy("mixed_float16")
    x = np.random.default_rng(4).normal(300.0, 30.0, (6, 2)).astype("float32")
    y = x[:, :1] / 300

    def make():
        layers = [norm(momentum=0.5), keras.layers.Dense(3, activation="tanh"), norm(), keras.layers.Dense(1)]
        return keras.Sequential([keras.Input((2,)), *layers])

    def scaled():
        return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=256)

    alone, expected = fit("alone", make, x, y, epochs=2, optimizer=scaled)
    model, steps = fit("scope", make, x, y, epochs=2, optimizer=scaled)
    return model.get_weights(), alone.get_weights(), steps, expected


def case_empty_rank():
    """The last batch has one sample. A local normalisation of a rank without it stays as it is."""
    x = np.arange(7, dtype="float32")[:, None]

    def make():
        return keras.Sequential([keras.Input((1,)), keras.layers.BatchNormalization(momentum=0.5), norm()])

    _, steps = fit("scope", make, x, x, **EAGER)
    return steps


def case_fails_second_derivative():
    def make():
        inputs = keras.Input((2,))
        return Penalized(inputs, norm()(inputs))

    x = np.random.default_rng(1).normal(size=(6, 2))
    fit("scope", make, x, x, loss=None, **EAGER)
