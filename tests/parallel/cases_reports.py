"""Cases that users of data-parallel Keras have reported, as far as no other module has them (docs/cases.md).

LINEAR and SCALAR are those of cases_core: one weight from 0, SGD(0.1); the gradient is the mean of x, or -2 and -6.
"""

from __future__ import annotations

import warnings

import keras
import numpy as np
import tensorflow as tf

import kerasdist
from kerasdist import engine
from tests.parallel.cases_core import MODES, ONE, TARGET, Gan, OwnStep, compiled, linear, net, own, weight
from tests.parallel.cases_faults import caught
from tests.parallel.cases_weights import summed
from tests.parallel.reports import ACCUMULATED, FIRST_UPDATE, TWENTY, accumulated, mlp, small

RANK, SIZE = kerasdist.init().rank, kerasdist.init().size
DOORS = ("scope", "callback")
QUIET = {"verbose": 0, "shuffle": False}


def both_doors(make, *optimizer, loss="mse", strategy=None, doors=DOORS, **arguments):
    """(door, model, callbacks) of a model through the scope and through the callback."""
    for door in doors:
        keras.utils.set_random_seed(3)
        if door == "scope":
            with (strategy or own()).scope():
                model = make()
                model.compile(optimizer[0]() if optimizer else keras.optimizers.SGD(0.1), loss, **arguments)
            yield door, model, []
        else:
            model = make()
            model.compile(optimizer[0]() if optimizer else keras.optimizers.SGD(0.1), loss, **arguments)
            yield door, model, [kerasdist.DistributedOptimizer()]


def ones():
    return keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")])


def state(model):
    return [np.asarray(v) for v in (*model.weights, *model.optimizer.variables)]


class Counted:
    """While it is open, counts the all-reduces of gradients that this rank really runs, and their bytes."""

    def __enter__(self):
        self.group = engine.world()
        self.calls = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.bytes = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.group.all_reduce = self.all_reduce
        return self

    def __exit__(self, *_):
        del self.group.all_reduce

    def all_reduce(self, tensor, op, name):
        if ".bucket" in name:
            size = tf.size(tensor, out_type=tf.int64) * tensor.dtype.size
            with tf.control_dependencies([self.calls.assign_add(1), self.bytes.assign_add(size)]):
                tensor = tf.identity(tensor)
        return type(self.group).all_reduce(self.group, tensor, op, name)

    def take(self):
        """What was counted since it was last asked."""
        found = int(self.calls), int(self.bytes)
        self.calls.assign(0)
        self.bytes.assign(0)
        return found


# How a step is run --------------------------------------------------------------------------------------------------


def case_every_way_of_running():
    """EXEC-1, WR-1: one SCALAR step in every way and mode: the weight, and the reductions of the one variable."""

    def by_fit(model):
        model.fit(ONE, TARGET, batch_size=1, **QUIET)

    def by_batch(model):
        model.train_on_batch(ONE, TARGET)

    def by_loop(model, wrap=lambda step: step):
        def step(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x) - y) ** 2)
            gradients = tape.gradient(loss, model.trainable_variables)
            model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

        wrap(step)(tf.constant(ONE), tf.constant(TARGET))

    ways = {
        "fit": by_fit,
        "train_on_batch": by_batch,
        "tf.function": lambda model: by_loop(model, tf.function),
        "eager loop": by_loop,
    }
    found = {}
    for way, run in ways.items():
        for mode, arguments in MODES.items():
            if (way, mode) == ("train_on_batch", "two steps"):
                continue  # plain Keras fails there: one batch is no two steps
            with Counted() as counted:
                model = compiled(own(), **arguments)
                run(model)
                found[way, mode] = weight(model), counted.take()[0], int(model.optimizer.iterations)
    return found


def case_own_train_steps():
    """K3-3: a train step of one's own reduces the one variable once, by either method."""
    found = {}
    for method in ("apply", "apply_gradients"):

        def make(method=method):
            inputs = keras.Input((1,))
            dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
            return OwnStep(method, inputs=inputs, outputs=dense(inputs))

        with Counted() as counted:
            model = compiled(own(), loss=None, make=make)
            model.fit(ONE, TARGET, verbose=0)
            found[method] = weight(model), counted.take()[0]
    return found


def case_many_small_variables():
    """PERF-2: 100 variables of 1 kB and one in float64; the reductions of two steps after the first."""

    class Many(keras.layers.Layer):
        def build(self, shape):
            self.parts = [self.add_weight(shape=(256,), initializer="zeros", name=f"part{n}") for n in range(100)]
            self.wide = self.add_weight(shape=(256,), initializer="zeros", name="wide", dtype="float64")

        def call(self, x):
            total = sum((n + 1.0) * tf.reduce_sum(part * x, axis=-1) for n, part in enumerate(self.parts))
            return total + tf.cast(tf.reduce_sum(self.wide * tf.cast(x, "float64"), axis=-1), "float32")

    x = np.random.default_rng(RANK).integers(-8, 9, size=(1, 256)).astype("float32")
    found = {}
    for name, bucket_mb in (("packed", 1.0), ("alone", 1e-4)):
        with Counted() as counted:
            make = lambda: keras.Sequential([keras.Input((256,)), Many()])  # noqa: E731
            model = compiled(own(bucket_mb=bucket_mb), linear, make=make, run_eagerly=True)
            model.train_on_batch(x, x[:, :1])
            counted.take()
            for _ in range(2):
                model.train_on_batch(x, x[:, :1])
            found[name] = model.get_weights(), counted.take()
    return found, x


# Where ranks start, and what their optimizers hold --------------------------------------------------------------------


def case_first_update():
    """WR-3: ranks whose weights, moments, counters and rates differ, and that have called their models before."""
    found = {}
    x, y = FIRST_UPDATE
    x, y = x[:, RANK], y[:, RANK]
    adam = lambda: keras.optimizers.Adam(0.01)  # noqa: E731
    for only, steps in (("scope", 4), ("callback", 1)):
        for door, model, callbacks in both_doors(lambda: small(3), adam, doors=[only], steps_per_execution=steps):
            rng = np.random.default_rng(50 + RANK)
            for variable in model.weights:
                variable.assign(rng.normal(size=variable.shape))
            model(x)
            model.optimizer.build(model.trainable_variables)
            for variable in model.optimizer.variables:
                if variable.shape == ():
                    variable.assign(5 + RANK if "iteration" in variable.path else 0.01 * (1 + RANK))
                else:
                    variable.assign(np.abs(rng.normal(size=variable.shape)))
            start = state(model)
            model.fit(x[:steps], y[:steps], batch_size=1, callbacks=callbacks, **QUIET)
            found[door, steps] = start, state(model)
    return found


def case_moments():
    """K3-5: Adam, three steps under a scheduler that halves the rate it is given: states, and the rates it saw."""
    found = {}
    x, y = FIRST_UPDATE
    for door, model, callbacks in both_doors(lambda: small(3), lambda: keras.optimizers.Adam(0.1)):
        seen = []

        def halve(epoch, rate, seen=seen):
            seen.append(rate)
            return rate / 2 if epoch else rate

        scheduler = keras.callbacks.LearningRateScheduler(halve)
        model.fit(x[0, RANK][None], y[0, RANK][None], epochs=3, callbacks=[scheduler, *callbacks], **QUIET)
        found[door] = state(model), seen
    return found


def case_twenty_steps():
    """WR-2: half of each batch of 8 on each rank: the weights after 5 steps and after 20."""
    found = {}
    for floatx in ("float64", "float32"):
        keras.config.set_floatx(floatx)
        keras.config.set_dtype_policy(floatx)
        with kerasdist.DataParallelStrategy().scope():
            model = mlp()
        found[floatx] = [model.get_weights()]
        for part in (slice(0, 40), slice(40, 160)):
            model.fit(TWENTY[part], TWENTY[part, :1], batch_size=8 // SIZE, **QUIET)
            found[floatx].append(model.get_weights())
    return found


# Accumulation, clipping, precision ------------------------------------------------------------------------------------


def case_accumulation_by_pass():
    """ACC-1: weight, reductions and counter after each of two passes, x = 1, 2 and 3, 6."""
    found = {}
    for mode in ("graph", "eager"):
        with Counted() as counted:
            optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
            model = compiled(own(), linear, optimizer, **MODES[mode])
            passes = []
            for value in (1.0, 2.0) if RANK == 0 else (3.0, 6.0):
                model.train_on_batch(ONE * value, ONE)
                passes.append((weight(model), counted.take()[0], int(optimizer.iterations)))
            found[mode] = passes
    return found


def case_accumulated_adamw():
    """ACC-2: AdamW with decay and clipping: 3 batches of 4 accumulated, and batches of 12, on each rank."""
    found = {}
    for floatx in ("float64", "float32"):
        keras.config.set_floatx(floatx)
        keras.config.set_dtype_policy(floatx)
        for passes in (3, 1):
            with kerasdist.DataParallelStrategy().scope():
                model = accumulated(passes)
            x = ACCUMULATED.astype(floatx)
            model.fit(x, x[:, :1], batch_size=12 // passes, **QUIET)
            found[floatx, passes] = model.get_weights(), int(model.optimizer.iterations)
    return found


class Two(keras.layers.Layer):
    """a x0 + b x1: two variables whose gradients are the means of the columns."""

    def build(self, shape):
        self.a, self.b = (self.add_weight(shape=(), initializer="zeros", name=name) for name in "ab")

    def call(self, x):
        return self.a * x[:, :1] + self.b * x[:, 1:]


def case_global_clipnorm():
    """CLIP-1: gradients (6, 0) and (0, 8) of two variables."""
    found = {}
    x = np.array([[6.0, 0.0] if RANK == 0 else [0.0, 8.0]], "float32")
    sgd = lambda: keras.optimizers.SGD(0.1, global_clipnorm=1.0)  # noqa: E731
    for door, model, callbacks in both_doors(lambda: keras.Sequential([keras.Input((2,)), Two()]), sgd, loss=linear):
        model.fit(x, x[:, :1], callbacks=callbacks, **QUIET)
        found[door] = [float(v) for v in model.get_weights()]
    return found


def case_loss_scale_in_both_orders():
    """MP-1: inf on one rank in the first of two steps: wrapped inside the loss scale, outside, and by the callback."""
    found = {}
    x = np.array([[np.inf if RANK else 1.0], [1.0]], "float32")
    scaled = keras.optimizers.LossScaleOptimizer
    for order in ("wrapped inside", "wrapped outside", "callback"):
        strategy, sgd = own(), keras.optimizers.SGD(0.1)
        steps = []

        class Note(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None, steps=steps):
                steps.append((weight(self.model), float(self.model.optimizer.dynamic_scale)))

        if order == "callback":
            model, callbacks = net(), [kerasdist.DistributedOptimizer()]
            model.compile(scaled(sgd), linear)
        else:
            inside = order == "wrapped inside"
            optimizer = scaled(strategy.wrap_optimizer(sgd)) if inside else strategy.wrap_optimizer(scaled(sgd))
            model, callbacks = compiled(strategy, linear, optimizer), []
        model.fit(x, x, batch_size=1, callbacks=[*callbacks, Note()], **QUIET)
        found[order] = steps
    return found


def case_overflow_on_the_wire():
    """FP16-1: gradients of 4 under a scale of 2**15 pass fp16's range: two steps are skipped, the third is applied."""
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    model, steps = compiled(own(compression="fp16"), linear, optimizer), []
    for _ in range(3):
        model.train_on_batch(ONE * 4, ONE)
        steps.append((weight(model), float(optimizer.dynamic_scale)))
    return steps


# Sparse gradients, frozen layers, several models ----------------------------------------------------------------------


def case_other_numbers_of_tokens():
    """SPARSE-2: two tokens on rank 0 and three on rank 1, dense and as rows."""
    found = {}
    x = np.array([[1, 1]] if RANK == 0 else [[1, 2, 2]], "int32")
    for path, rows, options in (("dense", 3, kerasdist.Options()), ("rows", 1000, kerasdist.Options(alone_kb=1))):
        with own(options=options).scope():
            table = keras.layers.Embedding(rows, 1, embeddings_initializer="zeros")
            model = keras.Sequential([keras.Input((None,)), table])
            model.compile(keras.optimizers.SGD(1.0), summed)
        model.fit(x, x, **QUIET)
        found[path] = model.get_weights()[0].ravel()[:3].tolist()
    return found


def case_frozen_layer():
    """NONE-1: a layer in float64, alone in its bucket, trains for an epoch and is frozen in the next."""

    def make():
        first = keras.layers.Dense(2, dtype="float64", name="first")
        return keras.Sequential([keras.Input((1,)), first, keras.layers.Dense(1, name="second")])

    x = np.full((2, 1), 1.0 + RANK, "float32")
    with Counted() as counted:
        model = compiled(own(), optimizer=keras.optimizers.Adam(0.1), make=make)
        model.fit(x, x, batch_size=2, **QUIET)
        every, before = counted.take(), model.get_weights()
        model.layers[0].trainable = False
        model.compile(keras.optimizers.Adam(0.1), "mse")
        model.fit(x, x, batch_size=2, **QUIET)
        return every, counted.take(), before, model.get_weights()


def case_both_orders_of_a_gan():
    """GAN-1: G has gradients 1 and 3, D 10 and 30, each a Dense called "dense"; D twice for one G, before or after."""
    found = {}
    for order in ("D D G", "G D D"):

        class Ordered(Gan):
            def __init__(self):
                super().__init__()
                self.generator, self.discriminator = (net(name="dense") for _ in range(2))

            def train_step(self, data, order=order):
                x, _ = data
                for which in order.split():
                    part, factor = (self.generator, 1.0) if which == "G" else (self.discriminator, 10.0)
                    optimizer = self.generator_optimizer if which == "G" else self.discriminator_optimizer
                    with tf.GradientTape() as tape:
                        loss = tf.reduce_mean(part(x)) * factor
                    optimizer.apply(tape.gradient(loss, part.trainable_variables), part.trainable_variables)
                return {"loss": loss}

        with own().scope():
            model = Ordered()
            model.compile(loss=None)
        model.fit(ONE * (1 + 2 * RANK), ONE, verbose=0)
        found[order] = (
            weight(model.generator), weight(model.discriminator),
            int(model.generator_optimizer.iterations), int(model.discriminator_optimizer.iterations),
        )  # fmt: skip
    return found


class Heads(keras.Model):
    """Two heads of one shape, made in the opposite order on rank 1; names given by the user or by Keras."""

    def __init__(self, names):
        super().__init__()
        for name in ("left", "right") if RANK == 0 else ("right", "left"):
            head = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros", name=name if names else None)
            setattr(self, name, head)

    def call(self, x):
        return self.left(x[:, :1]) + self.right(x[:, 1:])


def case_heads_in_opposite_order():
    """NAME-1: what the ranks are told, or the weights: (left, right) have gradients 1 and 10 on both ranks."""
    found = {}
    x = np.array([[1.0, 10.0]], "float32")
    for names in ("given", "made up"):
        keras.backend.clear_session()
        model = compiled(own(), linear, make=lambda n=names: Heads(n == "given"))
        kind, message, _ = caught(model.fit, x, x[:, :1], **QUIET)
        heads = None if kind != "nothing" else [float(getattr(model, n).kernel[0, 0]) for n in ("left", "right")]
        found[names] = kind, message, heads
    return found


def case_plain_model():
    """WR-7: a model that no door knows: who is warned."""
    model = net()
    model.compile(keras.optimizers.SGD(0.1), "mse")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model.fit(ONE, TARGET, **QUIET)
    return [str(one.message) for one in told if "trains on each of them alone" in str(one.message)]
