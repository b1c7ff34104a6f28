"""What docs/equal.md says is equal, is not, and is refused: two samples, shared by two workers; SGD(0.1), one step."""

from __future__ import annotations

import contextlib
import warnings

import keras
import numpy as np
import tensorflow as tf

import kerasdist

STRATEGY = kerasdist.DataParallelStrategy()
ONES, TARGETS = np.ones((2, 1), "float32"), np.array([[1.0], [3.0]], "float32")


def fit(x, y, layers, loss="mse", **arguments):
    with STRATEGY.scope():
        model = keras.Sequential(layers)
        model.compile(keras.optimizers.SGD(0.1), loss, **arguments)
    history = model.fit(x, y, batch_size=1, shuffle=False, verbose=0).history
    return float(model.trainable_variables[0].numpy().ravel()[0]), history


def dense(start="zeros", **arguments):
    return keras.layers.Dense(1, use_bias=False, kernel_initializer=start, **arguments)


def case_regularizer():
    return fit(ONES, TARGETS, [keras.Input((1,)), dense("ones", kernel_regularizer=keras.regularizers.L2(0.5))])


def case_rate_of_one_rank():
    with STRATEGY.scope():
        model = keras.Sequential([keras.Input((1,)), dense()])
        model.compile(keras.optimizers.SGD(0.1 * (1 + STRATEGY.rank)), "mse")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(ONES, TARGETS, batch_size=1, shuffle=False, verbose=0)
    said = [str(one.message) for one in caught if "learning rate" in str(one.message)]
    return float(model.weights[0].numpy().ravel()[0]), float(model.optimizer.learning_rate), said


def case_coupled_loss():
    return fit(ONES, TARGETS, [keras.Input((1,)), dense()], lambda y, p: tf.reduce_max((y - p) ** 2))


def case_scalar_metric():
    def largest(y, p):
        return tf.reduce_max(tf.abs(y - p))

    return fit(ONES, TARGETS, [keras.Input((1,)), dense()], metrics=[largest])[1]["largest"]


def case_own_steps():
    """19 samples in global batches of 8, steps of one's own with a Mean: plain Keras' history, and the shared one."""

    class Own(keras.Model):
        def __init__(self, *arguments, **named):
            super().__init__(*arguments, **named)
            self.tracker = keras.metrics.Mean(name="loss")
            self.error = keras.metrics.MeanAbsoluteError(name="mae")

        @property
        def metrics(self):
            return [self.tracker, self.error]

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                y_pred = self(x, training=True)
                loss = tf.reduce_mean((y - y_pred) ** 2)
            self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
            return self.measured(loss, y, y_pred)

        def test_step(self, data):
            x, y = data
            y_pred = self(x)
            return self.measured(tf.reduce_mean((y - y_pred) ** 2), y, y_pred)

        def measured(self, loss, y, y_pred):
            self.tracker.update_state(loss)
            self.error.update_state(y, y_pred)
            return {metric.name: metric.result() for metric in self.metrics}

    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(19, 3)), rng.normal(size=(19, 1))
    found = {}
    for kind in ("plain", "shared"):
        keras.utils.set_random_seed(2)
        inputs = keras.Input((3,))
        scope = kerasdist.DataParallelStrategy(global_batch=True).scope() if kind == "shared" else local_training()
        with scope:
            model = Own(inputs, keras.layers.Dense(1)(inputs))
            model.compile(keras.optimizers.SGD(0.1))
        found[kind] = model.fit(x, y, batch_size=8, epochs=2, verbose=0, validation_data=(x[:11], y[:11])).history
    return found


def local_training():
    """Nothing around a model that each rank trains by itself; without the warning that it does."""
    warnings.filterwarnings("ignore", message="There are several workers")
    return contextlib.nullcontext()


def case_mask():
    """A sequence with one valid step of four, target 1, and one with four, target 3."""
    steps = np.array([[1, 0, 0, 0], [1, 1, 1, 1]])
    embedding = keras.layers.Embedding(2, 1, mask_zero=True, embeddings_initializer="ones", trainable=False)
    layers = [keras.Input((4,), dtype="int32"), embedding, dense()]
    return fit(steps, np.repeat(TARGETS[:, None], 4, axis=1), layers)


def case_fails_no_reduction():
    fit(ONES, TARGETS, [keras.Input((1,)), dense()], keras.losses.MeanSquaredError("none"))


def case_keras_metrics():
    """Every metric of Keras in ``evaluate``, shared out, beside plain Keras at the global batch; 19 samples."""
    strategy = kerasdist.DataParallelStrategy()
    x = np.linspace(-2, 2.3, 19)[:, None]
    classes = np.arange(19) % 3
    found = {}
    for name, (width, activation, labels, metrics) in keras_metrics(classes).items():
        for where in ("shared", "plain"):
            with strategy.scope() if where == "shared" else contextlib.nullcontext():
                keras.utils.set_random_seed(5)
                model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(width, activation=activation)])
                model.compile(
                    "sgd", "mse" if labels.shape[1] == width else "sparse_categorical_crossentropy", metrics=metrics()
                )
            batch_size = 2 if where == "shared" else 2 * strategy.size
            values = model.evaluate(x, labels, batch_size=batch_size, verbose=0, return_dict=True)
            found[name, where] = {key: np.asarray(value, "float64") for key, value in values.items()}
    return found


def keras_metrics(classes):
    """By kind of output: width, activation, labels, and a function that makes the metrics."""
    m = keras.metrics
    binary = (classes == 1).astype("float64")[:, None]
    onehot = np.eye(3)[classes]
    values = 0.1 + np.abs(np.sin(np.arange(19.0)))[:, None]

    def of_probabilities():
        plain = [m.AUC, m.BinaryAccuracy, m.BinaryCrossentropy, m.Precision, m.Recall]
        counts = [m.TruePositives, m.TrueNegatives, m.FalsePositives, m.FalseNegatives]
        at = [m.PrecisionAtRecall, m.RecallAtPrecision, m.SensitivityAtSpecificity, m.SpecificityAtSensitivity]
        return [*(one() for one in [*plain, *counts]), *(one(0.4) for one in at), m.BinaryIoU()]

    def of_classes():
        plain = [m.CategoricalAccuracy, m.CategoricalCrossentropy, m.CategoricalHinge, m.KLDivergence]
        rest = [m.CosineSimilarity(), m.F1Score(), m.FBetaScore(), m.Poisson(), m.PearsonCorrelation()]
        rest.append(m.TopKCategoricalAccuracy(k=2))
        overlap = [m.OneHotIoU(num_classes=3, target_class_ids=[0, 2]), m.OneHotMeanIoU(num_classes=3)]
        return [*(one() for one in plain), *rest, *overlap, m.ConcordanceCorrelation()]

    def of_numbered_classes():
        overlap = [m.IoU(num_classes=3, target_class_ids=[0], sparse_y_pred=False)]
        overlap.append(m.MeanIoU(num_classes=3, sparse_y_pred=False))
        sparse = [m.SparseCategoricalAccuracy(), m.SparseCategoricalCrossentropy()]
        return [*sparse, m.SparseTopKCategoricalAccuracy(k=2), *overlap]

    def of_values():
        plain = [m.MeanAbsoluteError, m.MeanSquaredError, m.RootMeanSquaredError, m.MeanAbsolutePercentageError]
        plain += [m.MeanSquaredLogarithmicError, m.LogCoshError, m.Hinge, m.SquaredHinge, m.R2Score, m.Accuracy]
        return [one() for one in plain]

    return {
        "probabilities": (1, "sigmoid", binary, of_probabilities),
        "classes": (3, "softmax", onehot, of_classes),
        "numbered classes": (3, "softmax", classes[:, None], of_numbered_classes),
        "values": (1, None, values, of_values),
    }
