"""What every algorithm is asked, on real workers."""

from __future__ import annotations

import types

import keras
import numpy as np
import tensorflow as tf

import kerasdist
import kerasdist.engine
from kerasdist.algorithms import Gossip, GroupAllReduce, Hierarchical, LocalSGD, PartialSync, SlowMo
from kerasdist.averaging import Averager
from kerasdist.config import Settings
from kerasdist.engine.subgroup import SubGroup
from kerasdist.optimizer import distribute_optimizer
from kerasdist.stats import Tally
from tests.contracts import simulation as sim

GROUP_OF_ALL = kerasdist.engine.world()
RANK, SIZE = GROUP_OF_ALL.rank, GROUP_OF_ALL.size
GROUP = 2 if SIZE % 2 == 0 else SIZE

# name: the algorithm, the compressor, the optimizer's momentum, passes to an update.
RUNS = {
    "all_reduce": ("all_reduce", None, 0.875),
    "partial": (PartialSync(sim.SMALL_MB, average_at_epoch_end=False), None, 0.875),
    "local": (LocalSGD(4, average_at_epoch_end=False), None, 0.875),
    "local warmup": (LocalSGD(3, 5, average_at_epoch_end=False), None, 0.875),
    "slowmo": (SlowMo(LocalSGD(3, 5, average_at_epoch_end=False), 0.6, 0.9), None, 0.875),
    "hierarchical": (Hierarchical(GROUP), None, 0.875),
    "one host": ("hierarchical", None, 0.875),
    "groups": (GroupAllReduce(GROUP, seed=3, average_at_epoch_end=False), None, 0.875),
    "accumulated": (LocalSGD(2, average_at_epoch_end=False), None, 0.875, 2),
    "every 1": (LocalSGD(1), None, 0.0),
    "group of all": (GroupAllReduce(SIZE), None, 0.0),
    "local fp16": (LocalSGD(4, average_at_epoch_end=False), "fp16", 0.875),
    "partial fp16": (PartialSync(sim.SMALL_MB, average_at_epoch_end=False), "fp16", 0.875),
    "hierarchical fp16": (Hierarchical(GROUP), "fp16", 0.875),
}
if SIZE > 1:
    RUNS["gossip ring"] = (Gossip("ring", average_at_epoch_end=False), None, 0.875)
    RUNS["gossip exponential"] = (Gossip("exponential", average_at_epoch_end=False), None, 0.875)


def case_runs():
    """Every rank's weights after 20 steps on its own data, in a loop of one's own. All runs are steps of one graph."""
    steps = {name: make_step(*arguments) for name, arguments in RUNS.items()}

    @tf.function(autograph=False)
    def train_step(x, y):
        for _, step in steps.values():
            step(x, y)

    for batch in dataset():
        train_step(*batch)
    return {name: [np.asarray(variable) for variable in variables] for name, (variables, _) in steps.items()}


def make_step(algorithm, compression, momentum, accumulate=None):
    """The variables of one run, and its train step."""
    settings = Settings.create(compression, algorithm)
    settings.algorithm.check(SIZE, settings.compressor)
    variables = [keras.Variable(value, dtype="float64") for value in sim.initial()]
    optimizer = keras.optimizers.SGD(sim.RATE, momentum, gradient_accumulation_steps=accumulate)
    optimizer.build(variables)
    owner = types.SimpleNamespace(tally=Tally(GROUP_OF_ALL, settings))
    distribute_optimizer(optimizer, GROUP_OF_ALL, settings, owner)

    def step(x, y):
        with tf.GradientTape() as tape:
            values = [variable.value for variable in variables]
            w1, b1, w2, b2 = values
            loss = tf.reduce_mean(((x @ w1 + b1) @ w2 + b2 - y) ** 2)
        optimizer.apply(tape.gradient(loss, values), variables)

    return variables, step


def dataset():
    return tf.data.Dataset.from_tensor_slices(sim.data(RANK)).batch(sim.ROWS)


def make_model():
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(2)])
    model.set_weights(sim.initial())
    return model


class Weights(keras.callbacks.Callback):
    """Keeps the weights that a callback sees at the end of each epoch."""

    def __init__(self):
        super().__init__()
        self.found = []

    def on_epoch_end(self, epoch, logs=None):
        self.found.append(self.model.get_weights())


def fit_in_scope(algorithm, epochs=1, **arguments):
    own = kerasdist.DataParallelStrategy(
        algorithm=algorithm, auto_shard=False, options=kerasdist.Options(watch_every=3)
    )
    with own.scope():
        model = make_model()
        model.compile(keras.optimizers.SGD(sim.RATE, 0.875), "mse")
    seen = Weights()
    model.fit(dataset().take(sim.STEPS // epochs), epochs=epochs, verbose=0, callbacks=[seen], **arguments)
    return model, seen.found


def case_scope():
    """Local SGD by ``fit`` in a scope: apart at the end of the epoch, one model where it is evaluated."""
    model, seen = fit_in_scope(LocalSGD(3, average_at_epoch_end=False))
    apart = model.get_weights()
    model.evaluate(*sim.data(0), verbose=0)
    return {"seen": seen[-1], "weights": apart, "evaluated": model.get_weights()}


def case_epoch_end():
    """Replicas that never meet in the epoch are one at its end, and after ``fit`` their optimizers are one too."""
    model, seen = fit_in_scope(LocalSGD(100))
    kerasdist.assert_replicas_in_sync(model)
    return {"seen": seen[-1], "weights": model.get_weights(), "momentum": momentum_of(model.optimizer)}


def momentum_of(optimizer):
    return [np.asarray(v) for v in optimizer.variables if v.path.endswith("momentum")]


def case_callback():
    """The other door, over two epochs with validation; the same data in each."""
    found = {}
    for name, together in (("together", True), ("apart", False)):
        model = make_model()
        model.compile(keras.optimizers.SGD(sim.RATE, 0.875), "mse")
        seen = Weights()
        door = kerasdist.DistributedOptimizer(
            algorithm=LocalSGD(3, average_at_epoch_end=together), options=kerasdist.Options(watch_every=3)
        )
        model.fit(dataset(), verbose=0, validation_data=sim.data(0), callbacks=[door, seen])
        found[name] = seen.found[-1]
    return found


def direct(name, algorithm, compression, values, step):
    """What the ranks hold after the communication that follows one update, from given values."""
    settings = Settings.create(compression, algorithm)
    averager = Averager(GROUP_OF_ALL, settings, f"direct.{name}", shares=False)
    before, after = values
    variable = keras.Variable(before, dtype="float64")
    algorithm.start([variable], averager)

    @tf.function(autograph=False)
    def share():
        variable.assign(after)
        algorithm.after_update([variable], tf.constant(step, tf.int64), averager)

    share()
    return np.asarray(variable)


def case_small_changes_of_large_values():
    """1000 and some, changed by thousandths: half precision has no bits for that in the values themselves."""
    before = 1000.0 + np.arange(5.0)
    after = before + 1e-3 * (RANK + np.arange(5.0))
    found = {}
    for name, algorithm in {
        "local": LocalSGD(2), "partial": PartialSync(), "slowmo": SlowMo(LocalSGD(2), 0.5),
    }.items():  # fmt: skip
        found[name] = direct(name, algorithm, "fp16", (before, after), 2)
    return found


def case_rounding_keeps_the_mean():
    """Neighbours exchange half precision; what rounding takes from one it gives to the other."""
    value = np.random.default_rng(RANK).normal(size=7)
    algorithms = {"groups": GroupAllReduce(GROUP)}
    if SIZE > 1:
        algorithms |= {"ring": Gossip("ring"), "exponential": Gossip("exponential")}
    return {name: (value, direct(f"mean.{name}", one, "fp16", (value, value), 1)) for name, one in algorithms.items()}


def case_subgroup():
    """Groups that are a tensor: even and odd ranks at 4 workers, else all."""
    members = [rank for rank in range(SIZE) if (rank - RANK) % 2 == 0] if SIZE == 4 else list(range(SIZE))

    @tf.function(input_signature=[tf.TensorSpec([len(members)], tf.int32)], autograph=False)
    def exchange(chosen):
        group = SubGroup(GROUP_OF_ALL, chosen)
        found = {"rank": group.rank}
        for length in (1, 5):
            value = tf.range(length, dtype=tf.float64) * (RANK + 1)
            for op in ("sum", "mean", "min", "max"):
                found[f"{op} {length}"] = group.all_reduce(value, op, f"sub.{op}.{length}")
        found["gather"] = group.all_gather(tf.fill([RANK + 1, 2], RANK), "sub.gather")
        found["broadcast"] = group.broadcast(tf.fill([2, 2], RANK), group.size - 1, "sub.broadcast")
        return found

    return {name: np.asarray(value) for name, value in exchange(tf.constant(members[::-1], tf.int32)).items()}


if SIZE == 4:
    del case_scope, case_epoch_end, case_callback  # a fit takes long where four processes share two cores
