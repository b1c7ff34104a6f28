"""Bad input: an error on every rank that names argument, expected and received; no rank is left waiting."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

import kerasdist
from kerasdist.optimizer import distributed_apply

RANK, SIZE = kerasdist.init().rank, kerasdist.init().size
IDS = np.arange(12, dtype="float32")[:, None]


def net(name="kernel", units=1, **options):
    return keras.Sequential([keras.Input((1,)), keras.layers.Dense(units, name=name, **options)])


def compiled(strategy=None, make=net, loss="mse", optimizer=None, **arguments):
    with (strategy or kerasdist.DataParallelStrategy()).scope():
        model = make()
        model.compile(optimizer or keras.optimizers.SGD(0.1), loss, **arguments)
    return model


def case_fails_other_model_on_one_rank():
    compiled(make=lambda: net(units=2 if RANK == 1 else 1)).fit(IDS, IDS, verbose=0)


def case_fails_other_name_on_one_rank():
    compiled(make=lambda: net("head_a" if RANK == 1 else "head_b")).fit(IDS, IDS, verbose=0)


def case_fails_other_optimizer_on_one_rank():
    optimizer = keras.optimizers.Adam() if RANK == 1 else keras.optimizers.SGD(0.1)
    compiled(optimizer=optimizer).fit(IDS, IDS, verbose=0)


def case_fails_other_options_on_one_rank():
    strategy = kerasdist.DataParallelStrategy(bucket_mb=2.0 if RANK == 1 else 1.0)
    compiled(strategy).fit(IDS, IDS, verbose=0)


def case_fails_synchronized_on_one_rank():
    def make():
        normalize = keras.layers.BatchNormalization(synchronized=RANK == 1)
        return keras.Sequential([keras.Input((1,)), normalize, keras.layers.Dense(1)])

    compiled(make=make).fit(IDS, IDS, verbose=0)


def case_fails_other_loss_on_one_rank():
    loss = keras.losses.Huber(1.0 + RANK)
    compiled(loss=loss).fit(IDS, IDS, verbose=0)


def case_fails_other_layer_options_on_one_rank():
    compiled(make=lambda: net(activation="relu" if RANK == 1 else "tanh")).fit(IDS, IDS, verbose=0)


def case_fails_other_metrics_on_one_rank():
    compiled(metrics=["mae", "mape"][:: 1 - 2 * RANK]).fit(IDS, IDS, verbose=0)


def case_fails_eager_on_one_rank():
    compiled(run_eagerly=RANK == 1).fit(IDS, IDS, verbose=0)


def case_fails_other_batch_size_on_one_rank():
    compiled().fit(IDS, IDS, batch_size=2 + RANK, verbose=0)


def case_fails_longer_data_on_one_rank():
    """The same first batches: the last ones have 4 and 3 samples."""
    compiled().fit(IDS[: 12 - RANK], IDS[: 12 - RANK], batch_size=4, shuffle=False, verbose=0)


def case_fails_longer_evaluation_on_one_rank():
    compiled().evaluate(IDS[: 12 - RANK], IDS[: 12 - RANK], batch_size=4, verbose=0)


def case_fails_longer_prediction_on_one_rank():
    compiled().predict(IDS[: 12 - RANK], batch_size=4, verbose=0)


def case_fails_other_validation_steps_on_one_rank():
    compiled().fit(IDS, IDS, batch_size=2, verbose=0, validation_data=(IDS, IDS), validation_steps=1 + RANK)


def case_fails_class_for_a_callback():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(IDS, IDS, verbose=0, callbacks=[kerasdist.DistributedOptimizer])


def case_fails_shard_of_nothing():
    kerasdist.shard(None, batch_size=2)


def case_fails_shard_of_a_shard():
    kerasdist.shard(kerasdist.shard(IDS, IDS, batch_size=2))


def case_fails_shard_by_a_fraction():
    kerasdist.shard(IDS, IDS, batch_size=2.5)


def case_fails_shard_with_a_batch_size():
    compiled().fit(kerasdist.shard(IDS, IDS, batch_size=2), batch_size=4, verbose=0)


def case_fails_nested_scopes():
    with kerasdist.DataParallelStrategy().scope(), kerasdist.DataParallelStrategy().scope():
        keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])


def case_fails_other_data_on_one_rank():
    compiled().fit(IDS + RANK, IDS, verbose=0)


def case_fails_other_shuffle_on_one_rank():
    data = tf.data.Dataset.from_tensor_slices((IDS, IDS)).shuffle(12, seed=RANK + 1).batch(2)
    compiled().fit(data, verbose=0)


def case_fails_few_samples():
    compiled().fit(IDS[: SIZE - 1], IDS[: SIZE - 1], verbose=0)


def case_fails_labels_of_another_length():
    compiled().fit(IDS, IDS[:-1], verbose=0)


def case_fails_unbuilt_model():
    class Never(keras.Model):
        def call(self, x):
            raise KeyError("needs more than a batch")

    compiled(make=Never).fit(IDS, IDS, verbose=0)


def case_fails_scope_and_callback():
    compiled().fit(IDS, IDS, verbose=0, callbacks=[kerasdist.DistributedOptimizer()])


def case_fails_two_callbacks():
    model = net()
    model.compile("sgd", "mse")
    model.fit(IDS, IDS, verbose=0, callbacks=[kerasdist.DistributedOptimizer() for _ in range(2)])


def case_fails_two_scopes():
    model = compiled()
    with kerasdist.DataParallelStrategy().scope():
        model.compile("sgd", "mse")


def case_fails_wrapped_twice():
    strategy = kerasdist.DataParallelStrategy()
    strategy.wrap_optimizer(strategy.wrap_optimizer(keras.optimizers.SGD(0.1)))


def case_fails_wrapped_and_compiled():
    wrapped = kerasdist.DataParallelStrategy().wrap_optimizer(keras.optimizers.SGD(0.1))
    compiled(optimizer=wrapped)


def case_fails_loss_scale_around():
    optimizer = kerasdist.DataParallelStrategy().wrap_optimizer(keras.optimizers.SGD(0.1))
    optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    variable = keras.Variable([1.0])
    optimizer.build([variable])
    optimizer.apply([tf.constant([1.0])], [variable])


def case_fails_fit_in_local():
    strategy = kerasdist.DataParallelStrategy()
    model = compiled(strategy)
    with strategy.local():
        model.fit(IDS, IDS, verbose=0)


def case_same_after_a_throw_away_layer():
    """NAME-1 (a): names that Keras made up may differ, and those of collectives where a rank made another optimizer."""
    strategy = kerasdist.DataParallelStrategy(auto_shard=False)
    if RANK == 0:
        keras.layers.Dense(3)
        strategy.wrap_optimizer(keras.optimizers.SGD())

    def make():
        return keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])

    model = compiled(strategy, make=make)
    model.fit(np.ones((1, 1)), np.full((1, 1), 1.0 + 2 * RANK), verbose=0)
    weight, name = float(model.get_weights()[0][0, 0]), distributed_apply(model.optimizer).averager.name
    if RANK == 0:
        strategy.wrap_optimizer(keras.optimizers.SGD())
    model.fit(np.ones((1, 1)), np.full((1, 1), 1.0 + 2 * RANK), verbose=0)
    return weight, name, distributed_apply(model.optimizer).averager.name


def case_recompiled():
    """Compiling again in the scope or outside of it averages once."""
    found = []
    strategy = kerasdist.DataParallelStrategy(auto_shard=False)
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
        optimizer = keras.optimizers.SGD(0.1)
        model.compile(optimizer, "mse")
        model.compile(optimizer, "mse")
    for _ in range(2):
        model.set_weights([np.zeros((1, 1))])
        model.fit(np.ones((1, 1)), np.full((1, 1), 1.0 + 2 * RANK), verbose=0)
        found.append(float(model.get_weights()[0][0, 0]))
        model.compile(keras.optimizers.SGD(0.1), "mse")
    return found


def case_frozen_between_fits():
    """NONE-1: a layer that is frozen after the first fit stays as it is, and the other is in sync."""
    strategy = kerasdist.DataParallelStrategy(auto_shard=False)
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(2), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.1), "mse")
    x = np.full((2, 1), 1.0 + RANK)
    model.fit(x, x, verbose=0)
    before = [w.tobytes() for w in model.layers[0].get_weights()]
    model.layers[0].trainable = False
    with strategy.scope():
        model.compile(keras.optimizers.Adam(0.1), "mse")
    model.fit(x, x, verbose=0)
    kerasdist.assert_replicas_in_sync(model)
    return before == [w.tobytes() for w in model.layers[0].get_weights()]
