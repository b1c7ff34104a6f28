"""Small cases with values worked out by hand: the fixtures LINEAR and SCALAR, and what stands around them.

LINEAR: one weight w from 0, loss = w x, so the gradient is the mean of x. SCALAR: the same weight, squared error,
x = 1, y = 1 on rank 0 and 3 on rank 1: gradients -2 and -6, losses 1 and 9. SGD(0.1), one step.
"""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import kerasdist
from tests.parallel.cases_core_names import OPTIMIZERS

OPTIMIZED_UP_TO = 2
RANK, SIZE = kerasdist.init().rank, kerasdist.init().size
ONE = np.ones((1, 1), "float32")
TARGET = np.array([[1.0 + 2 * RANK]], "float32")  # 1, 3, 5, ...: their mean is SIZE


def own(**arguments):
    return kerasdist.DataParallelStrategy(auto_shard=False, **arguments)


def net(units=1, **arguments):
    return keras.Sequential(
        [keras.Input((1,)), keras.layers.Dense(units, use_bias=False, kernel_initializer="zeros", **arguments)]
    )


def linear(y_true, y_pred):
    return y_pred


def compiled(strategy, loss="mse", optimizer=None, make=net, **arguments):
    with strategy.scope():
        model = make()
        model.compile(optimizer or keras.optimizers.SGD(0.1), loss, **arguments)
    return model


def weight(model):
    return float(model.get_weights()[0].ravel()[0])


MODES = {"graph": {}, "eager": {"run_eagerly": True}, "two steps": {"steps_per_execution": 2}}


def case_scalar():
    """w and the logged loss through both doors in all modes."""
    strategy, found = own(), {}
    for mode, arguments in MODES.items():
        model = compiled(strategy, **arguments)
        history = model.fit(ONE, TARGET, batch_size=1, shuffle=False, verbose=0)
        found[f"scope {mode}"] = (weight(model), history.history["loss"])
        model = net()
        model.compile(keras.optimizers.SGD(0.1), "mse", **arguments)
        callback = kerasdist.DistributedOptimizer()
        history = model.fit(ONE, TARGET, batch_size=1, shuffle=False, verbose=0, callbacks=[callback])
        found[f"callback {mode}"] = (weight(model), history.history["loss"])
    model = compiled(strategy)
    model.train_on_batch(ONE, TARGET)
    found["train_on_batch"] = (weight(model), None)
    model = compiled(kerasdist.DataParallelStrategy())
    targets = 1.0 + 2 * np.arange(SIZE, dtype="float32")[:, None]
    history = model.fit(np.ones((SIZE, 1), "float32"), targets, batch_size=1, shuffle=False, verbose=0)
    found["shared out"] = (weight(model), history.history["loss"])
    return found


def case_jit_compile():
    strategy = own()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = compiled(strategy, jit_compile=True)
    model.fit(ONE, TARGET, batch_size=1, verbose=0)
    return weight(model), [str(one.message) for one in caught if "jit_compile" in str(one.message)]


class OwnStep(keras.Model):
    """Keras code with a train step of its own, and two ways to apply."""

    def __init__(self, method, **arguments):
        super().__init__(**arguments)
        self.method = method

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x) - y) ** 2)
        gradients = tape.gradient(loss, self.trainable_variables)
        if self.method == "apply":
            self.optimizer.apply(gradients, self.trainable_variables)
        else:
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"own_loss": loss}


def case_own_train_step():
    strategy, found = own(), {}
    for method in ("apply", "apply_gradients"):

        def make(method=method):
            inputs = keras.Input((1,))
            dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
            return OwnStep(method, inputs=inputs, outputs=dense(inputs))

        model = compiled(strategy, loss=None, make=make)
        history = model.fit(ONE, TARGET, verbose=0)
        found[method] = (weight(model), history.history["own_loss"], int(model.optimizer.iterations))
    return found


class Gan(keras.Model):
    """Two models whose layers have the same names, two optimizers, two discriminator steps for one of the generator."""

    def __init__(self):
        super().__init__()
        self.generator, self.discriminator = net(), net()
        self.generator_optimizer = keras.optimizers.SGD(0.1)
        self.discriminator_optimizer = keras.optimizers.SGD(0.1)

    def train_step(self, data):
        x, _ = data
        for model, optimizer, factor in (
            (self.discriminator, self.discriminator_optimizer, 10.0),
            (self.discriminator, self.discriminator_optimizer, 10.0),
            (self.generator, self.generator_optimizer, 1.0),
        ):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x)) * factor
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return {"loss": loss}


def case_gan():
    strategy = own()
    with strategy.scope():
        model = Gan()
        model.compile(loss=None)
    model.fit(ONE * (1 + 2 * RANK), ONE, verbose=0)
    return (
        weight(model.generator), weight(model.discriminator),
        int(model.generator_optimizer.iterations), int(model.discriminator_optimizer.iterations),
    )  # fmt: skip


def case_fails_unwrapped_optimizer():
    """An optimizer that is nobody's attribute: the ranks would train apart."""
    hidden = keras.optimizers.SGD(0.1)

    class Apart(keras.Model):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(self(x))
            hidden.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
            return {"loss": loss}

    def make():
        inputs = keras.Input((1,))
        return Apart(inputs, keras.layers.Dense(1)(inputs))

    return compiled(own(), loss=None, make=make).fit(ONE, TARGET, verbose=0)


def case_every_optimizer():
    """Five steps on data that differs by rank, with every optimizer of Keras: the weights of each of 2 ranks."""
    found = {}
    for name in OPTIMIZERS if SIZE == 2 else ():
        rng = np.random.default_rng(RANK)
        x, y = rng.normal(size=(10, 4)).astype("float32"), rng.normal(size=(10, 1)).astype("float32")
        keras.utils.set_random_seed(RANK)  # so that the ranks start apart
        inner = keras.optimizers.Adam(0.01) if name == "LossScaleOptimizer" else None
        arguments = {"exclude_layers": ["last"]} if name == "Muon" else {}
        optimizer = getattr(keras.optimizers, name)(*([inner] if inner else []), **arguments)

        def make():
            return keras.Sequential(
                [keras.Input((4,)), keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(1, name="last")]
            )

        model = compiled(own(), optimizer=optimizer, make=make)
        model.fit(x, y, batch_size=2, shuffle=False, verbose=0)
        found[name] = (model.get_weights(), int(model.optimizer.iterations))
    return found


def case_linear():
    """Unequal batches, uneven lengths, clipping, accumulation, loss scaling: the weight after each."""
    strategy, found = own(), {}

    def fit(x, optimizer=None, batch_size=None, epochs=1, door="scope", **arguments):
        x = np.asarray(x, "float32").reshape(-1, 1)
        optimizer = optimizer or keras.optimizers.SGD(0.1)
        call = {"batch_size": batch_size or len(x), "epochs": epochs, "shuffle": False, "verbose": 0}
        if door == "scope":
            model = compiled(strategy, linear, optimizer, **arguments)
            model.fit(x, x, **call)
        else:
            model = net()
            model.compile(optimizer, linear, **arguments)
            model.fit(x, x, callbacks=[kerasdist.DistributedOptimizer()], **call)
        return weight(model), int(model.optimizer.iterations)

    sgd = keras.optimizers.SGD
    for door in ("scope", "callback"):
        found[f"unequal batches {door}"] = fit([1, 1, 1, 1] if RANK == 0 else [4, 4], door=door)
        found[f"clipnorm {door}"] = fit([10 if RANK == 0 else -8], sgd(0.1, clipnorm=1.0), door=door)
        found[f"clipvalue {door}"] = fit([10 if RANK == 0 else -8], sgd(0.1, clipvalue=1.0), door=door)
        accumulating = sgd(0.1, gradient_accumulation_steps=2)
        found[f"accumulation {door}"] = fit([1, 2] if RANK == 0 else [3, 6], accumulating, batch_size=1, door=door)
        scaling = keras.optimizers.LossScaleOptimizer(sgd(0.1, gradient_accumulation_steps=2))
        found[f"scaled accumulation {door}"] = fit([1, 2] if RANK == 0 else [3, 6], scaling, batch_size=1, door=door)
    found["uneven lengths"] = fit([1] * (5 if RANK == 0 else 4), batch_size=1, epochs=2)
    return found


def case_loss_scale():
    """inf on one rank in the first step: skipped on all (MP-1); by hand and under mixed_float16."""
    strategy, found = own(), {}
    x = np.array([[np.inf if RANK == SIZE - 1 else 1.0], [1.0]], "float32")
    for name in ("explicit", "automatic"):
        for mode, arguments in {"graph": {}, "eager": {"run_eagerly": True}}.items():
            if name == "automatic":
                keras.config.set_dtype_policy("mixed_float16")
            optimizer = keras.optimizers.SGD(0.1)
            if name == "explicit":
                optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
            model = compiled(strategy, linear, optimizer, **arguments)
            steps = []
            for one in x:
                model.train_on_batch(one[None], one[None])
                steps.append((weight(model), float(model.optimizer.dynamic_scale)))
            found[f"{name} {mode}"] = steps
            keras.config.set_dtype_policy("float32")
    return found


def case_half_precision():
    """Gradients at the ends of fp16's range, alone and packed (FP16-1)."""
    found = {}
    for compression in ("fp16", "bf16"):
        for value in (40000.0, 2.0**-24):
            for units in (1, 3):
                strategy, rate = own(compression=compression), keras.optimizers.SGD(1.0)
                model = compiled(strategy, linear, rate, lambda u=units: net(u))
                x = np.full((1, 1), value * units, "float32")  # the loss is a mean over the units
                model.fit(x, np.zeros((1, units), "float32"), verbose=0)
                found[compression, value, units] = model.get_weights()[0].ravel()
    return found


def case_initial_state():
    """Ranks that start apart, with an optimizer that has state; models built early and late."""
    found = {}
    for built in (True, False):
        keras.utils.set_random_seed(100 + RANK)

        def make(built=built):
            first = [keras.Input((3,))] if built else []
            return keras.Sequential([*first, keras.layers.Dense(2, activation="tanh"), keras.layers.Dense(1)])

        for door in ("scope", "callback"):
            seen = []

            class See(keras.callbacks.Callback):
                def on_train_batch_end(self, batch, logs=None, seen=seen):
                    seen.append(self.model.get_weights())

            model = make()
            call = {"batch_size": 1, "shuffle": False, "verbose": 0}
            if door == "scope":
                model = compiled(own(), optimizer=keras.optimizers.SGD(0.0, momentum=0.9), make=make)
                initial = model.get_weights() if built else None
                model.fit(ONE * np.ones((2, 3), "float32"), np.ones((2, 1)), callbacks=[See()], **call)
            else:
                model.compile(keras.optimizers.SGD(0.0, momentum=0.9), "mse")
                initial = model.get_weights() if built else None
                callbacks = [See(), kerasdist.DistributedOptimizer()]
                model.fit(ONE * np.ones((2, 3), "float32"), np.ones((2, 1)), callbacks=callbacks, **call)
            found[built, door] = (initial, seen[0], seen[-1])
    return found


def case_optimizer_state():
    """An Adam that has trained on rank 0 alone: its moments and its counter reach all ranks."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.Adam(0.01)
    optimizer.build(model.trainable_variables)
    if RANK == 0:
        for step in range(3):
            gradients = [tf.fill(v.shape, 1.0 + step) for v in model.trainable_variables]
            optimizer.apply(gradients, model.trainable_variables)
    kerasdist.broadcast_state(model, optimizer)
    return [np.asarray(v) for v in (*model.weights, *optimizer.variables)]


def case_moving_statistics():
    """BN-1: rank 0 sees zeros, the others fours."""
    found = {}
    for door in ("scope", "callback"):

        def make():
            normalize = keras.layers.BatchNormalization(momentum=0.5)
            return keras.Sequential([keras.Input((1,)), normalize, keras.layers.Dense(1)])

        x = np.full((2, 1), 0.0 if RANK == 0 else 4.0, "float32")
        if door == "scope":
            model = compiled(own(), make=make)
            model.fit(x, x, verbose=0)
        else:
            model = make()
            model.compile("sgd", "mse")
            model.fit(x, x, verbose=0, callbacks=[kerasdist.DistributedOptimizer()])
        found[door] = float(model.layers[0].moving_mean[0])
    return found


def case_dropout_masks():
    """DATA-3: kernels equal, masks not, the same again with the same seed."""
    masks = []
    for _ in range(2):
        keras.utils.set_random_seed(11)
        dense = compiled(
            kerasdist.DataParallelStrategy(),
            make=lambda: keras.Sequential([keras.Input((1000,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)]),
        )
        dense.fit(np.ones((SIZE, 1000), "float32"), np.ones((SIZE, 1)), batch_size=1, verbose=0)
        masks.append(np.asarray(dense.layers[0](np.ones((1, 1000), "float32"), training=True)) > 0)
    return masks[0].ravel(), masks[1].ravel(), dense.get_weights()


def case_wrap_optimizer():
    """A loop of one's own, eager and in a tf.function, on data of one's own."""
    strategy, found = own(), {}
    for mode in ("eager", "function"):
        model = net()
        optimizer = strategy.wrap_optimizer(keras.optimizers.SGD(0.1))

        def step(x, y, model=model, optimizer=optimizer):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x) - y) ** 2)
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

        (tf.function(step) if mode == "function" else step)(tf.constant(ONE), tf.constant(TARGET))
        found[mode] = weight(model)
    return found


def case_callback_takes_itself_off():
    """After the fit the optimizer is plain: a step that one rank takes alone does not wait for the others."""
    model = net()
    model.compile(keras.optimizers.SGD(0.1), "mse")
    model.fit(ONE, TARGET, verbose=0, callbacks=[kerasdist.DistributedOptimizer()])
    hooks = [name for name in (*vars(model), *vars(model.optimizer)) if name.startswith("_kerasdist")]

    class Breaks(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            raise RuntimeError("boom")

    try:
        model.fit(ONE, TARGET, verbose=0, callbacks=[Breaks(), kerasdist.DistributedOptimizer()])
    except RuntimeError as error:
        left = str(error)
    model.fit(ONE, TARGET, verbose=0, callbacks=[kerasdist.DistributedOptimizer()])  # takes over the leftover
    after = weight(model)
    if RANK == 0:
        model.fit(ONE, ONE, verbose=0)
    return hooks, left, after, weight(model)


def case_save_and_load():
    """Only rank 0 writes; plain Keras opens the file, optimizer state included."""
    folder = Path(tempfile.mkdtemp())
    model = compiled(own(), optimizer=keras.optimizers.Adam(0.1))
    checkpoint = keras.callbacks.ModelCheckpoint(folder / "checkpoint.keras")
    writers = [checkpoint, keras.callbacks.CSVLogger(folder / "log.csv"), keras.callbacks.TensorBoard(folder / "board")]
    backup = keras.callbacks.BackupAndRestore(folder / "backup")
    model.fit(ONE, TARGET, epochs=2, verbose=0, callbacks=[*writers, backup])
    model.save(folder / "model.keras")
    model.save_weights(folder / "only.weights.h5")
    written = sorted(path.name for path in folder.iterdir())
    if RANK:
        return written, None
    loaded = keras.models.load_model(folder / "model.keras")
    return written, (type(loaded.optimizer).__name__, int(loaded.optimizer.iterations), weight(loaded), weight(model))


def case_helpers():
    return {
        "mean": kerasdist.all_reduce(np.array([1.0, RANK])),
        "sum": kerasdist.all_reduce(RANK + 1, "sum"),
        "tensor": bool(tf.is_tensor(kerasdist.all_reduce(tf.constant(1.0)))),
        "gather": kerasdist.all_gather(np.full(RANK + 1, RANK)),
        "broadcast": kerasdist.broadcast(np.array([RANK]), root=SIZE - 1),
        "ranks": (kerasdist.rank(), kerasdist.size(), kerasdist.local_rank()),
    }


def case_rank_zero_first():
    number = kerasdist.broadcast(np.array([np.random.default_rng().integers(10**9)]))[0]
    path = Path(tempfile.gettempdir()) / f"kerasdist-first-{number}"
    with kerasdist.rank_zero_first():
        found = path.exists()
        path.touch()
    kerasdist.barrier()
    path.unlink(missing_ok=True)
    return found


def case_fails_rank_zero_first():
    with kerasdist.rank_zero_first():
        raise OSError(f"rank {RANK} cannot")


def case_fails_in_sync():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, name="head", kernel_initializer="ones")])
    kerasdist.assert_replicas_in_sync(model)
    if RANK == SIZE - 1:
        model.layers[0].kernel.assign_add([[0.0], [1e-3]])
    kerasdist.assert_replicas_in_sync(model)


def case_progress_from_rank_zero():
    """What one rank prints while it trains, and how its threads are set."""
    import contextlib
    import io

    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        compiled(own()).fit(ONE, TARGET, verbose=2)
    get = tf.config.threading
    return out.getvalue(), (get.get_intra_op_parallelism_threads(), get.get_inter_op_parallelism_threads())


def case_local():
    """Rank 0 evaluates and predicts alone, as in ``if rank == 0:``; all of the data."""
    strategy = kerasdist.DataParallelStrategy()
    model = compiled(strategy)
    x, y = np.ones((3, 1), "float32"), np.arange(3, dtype="float32")[:, None]
    together = model.evaluate(x, y, verbose=0)
    alone = None
    if RANK == 0:
        with strategy.local():
            alone = model.evaluate(x, y, verbose=0), model.predict(x, verbose=0).shape
    return together, alone


def case_two_runs():
    """PERF-3: many buckets on their way at the same time; the bits of the weights after each of three runs."""
    rng = np.random.default_rng(RANK)
    x, y = rng.normal(size=(32, 64)).astype("float32"), rng.normal(size=(32, 1)).astype("float32")

    def make():
        layers = [keras.layers.Dense(48, activation="tanh") for _ in range(6)]
        return keras.Sequential([keras.Input((64,)), *layers, keras.layers.Dense(1)])

    found = []
    for _ in range(3):
        keras.utils.set_random_seed(5)
        model = compiled(own(bucket_mb=0.004), optimizer=keras.optimizers.SGD(0.05), make=make)
        model.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0)
        found.append([value.tobytes() for value in model.get_weights()])
    return found
