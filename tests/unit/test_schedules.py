"""Learning rates: values worked out by hand, what is refused, and what is saved. One process."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from tests.callbacks import Rates

RATES = [0.125, 0.15, 0.175, 0.2, 0.2, 0.2]  # from 0.1 to 0.2 in 4 steps


pytestmark = pytest.mark.usefixtures("local_engine")


def linear(y_true, y_pred):
    return y_pred


def net(optimizer, **arguments):
    """One weight w from 0 whose gradient is the mean of x: with x = 1 and SGD, -w is the sum of the rates."""
    dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = keras.Sequential([keras.Input((1,)), dense])
    model.compile(optimizer, linear, **arguments)
    return model


def fit(model, *callbacks, epochs=3, **arguments):
    """Trains on 2 batches an epoch; the rates, and what the weight has lost."""
    rates = Rates()
    call = {"batch_size": 1, "epochs": epochs, "shuffle": False, "verbose": 0} | arguments
    data = {"x": np.ones((2, 1)), "y": np.ones((2, 1))}
    if isinstance(call.get("x"), tf.data.Dataset):
        data, _ = {}, call.pop("batch_size")
    model.fit(**data, callbacks=[*callbacks, rates], **call)
    return rates.seen, -float(model.get_weights()[0].item())


def close(value):
    return pytest.approx(value, abs=1e-6)


# The scaling rule ---------------------------------------------------------------------------------------------------


def test_scaled_learning_rate():
    assert kerasdist.scaled_learning_rate(0.1, 8) == pytest.approx(0.8)
    assert kerasdist.scaled_learning_rate(0.1) == 0.1  # one worker


def test_nothing_scales_by_itself():
    with kerasdist.DataParallelStrategy().scope():
        model = net(keras.optimizers.SGD(0.1))
        model.compile(keras.optimizers.SGD(0.1), linear)
    assert fit(model) == (close([0.1] * 6), close(0.6))


# The schedule -------------------------------------------------------------------------------------------------------


def test_schedule():
    schedule = kerasdist.WarmupSchedule(0.2, 4, start=0.1)
    assert [float(schedule(step)) for step in range(6)] == close(RATES)
    assert float(schedule(tf.constant(4, tf.int64))) == np.float32(0.2)


def test_schedule_of_one_process_starts_at_the_target():
    assert float(kerasdist.WarmupSchedule(0.2, 4)(0)) == np.float32(0.2)


def test_what_comes_after_counts_from_the_end_of_the_warmup():
    after = keras.optimizers.schedules.PiecewiseConstantDecay([1], [0.2, 0.02])  # 0.2 up to step 1, itself included
    schedule = kerasdist.WarmupSchedule(0.2, 4, start=0.0, after=after)
    assert [float(schedule(step)) for step in range(8)] == close([0.05, 0.1, 0.15, 0.2, 0.2, 0.2, 0.02, 0.02])


@pytest.mark.parametrize("mode", [{}, {"run_eagerly": True}, {"steps_per_execution": 2}], ids=str)
def test_schedule_in_fit(mode):
    model = net(keras.optimizers.SGD(kerasdist.WarmupSchedule(0.2, 4, start=0.1)), **mode)
    assert fit(model)[1] == close(sum(RATES))


def test_schedule_counts_batches_under_accumulation():
    schedule = kerasdist.WarmupSchedule(0.2, 4, start=0.1)
    model = net(keras.optimizers.SGD(schedule, gradient_accumulation_steps=2))
    assert fit(model, epochs=2)[1] == close(0.15 + 0.2)


def test_schedule_in_float64():
    keras.config.set_floatx("float64")
    try:
        assert float(kerasdist.WarmupSchedule(0.2, 3, start=0.1)(0)) == pytest.approx(0.4 / 3, abs=1e-15)
    finally:
        keras.config.set_floatx("float32")


def test_schedule_is_saved(tmp_path):
    decay = keras.optimizers.schedules.CosineDecay(0.2, 10)
    schedule = kerasdist.WarmupSchedule(0.2, 4, start=0.1, after=decay)
    model = net(keras.optimizers.SGD(schedule, momentum=0.9))
    model.compile(model.optimizer, "mse")
    fit(model, epochs=3)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    again = loaded.optimizer._learning_rate
    assert isinstance(again, kerasdist.WarmupSchedule)
    assert again.get_config() == schedule.get_config()
    assert json.loads(json.dumps(again.get_config()))["start"] == 0.1
    assert [float(again(step)) for step in range(9)] == [float(schedule(step)) for step in range(9)]
    assert int(loaded.optimizer.iterations) == 6  # goes on behind the warm-up
    assert float(loaded.optimizer.learning_rate) == close(float(decay(2)))


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"target": "a"}, TypeError, "`target` must be a number above 0. Received: target='a' of type str"),
        ({"target": 0}, ValueError, "`target` must be a number above 0. Received: target=0"),
        ({"warmup_steps": 0}, ValueError, "`warmup_steps` must be a whole number above 0. Received: warmup_steps=0"),
        ({"warmup_steps": 2.5}, TypeError, "`warmup_steps` must be a whole number .* of type float"),
        ({"warmup_steps": True}, TypeError, "`warmup_steps` must be a whole number .* of type bool"),
        ({"start": -1}, ValueError, "`start` must be a number, 0 or above. Received: start=-1"),
        ({"start": "0"}, TypeError, "`start` must be a number, 0 or above. .* of type str"),
        ({"after": 0.1}, TypeError, "`after` must be a keras.optimizers.schedules.LearningRateSchedule or None"),
    ],
    ids=str,
)
def test_schedule_refuses(arguments, error, message):
    with pytest.raises(error, match=message):
        kerasdist.WarmupSchedule(**{"target": 0.2, "warmup_steps": 4} | arguments)


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ((keras.optimizers.schedules.CosineDecay(0.1, 9),), TypeError, "`learning_rate` must be a number above 0"),
        ((-0.1,), ValueError, "`learning_rate` must be a number above 0. Received: learning_rate=-0.1"),
        ((0.1, 0), ValueError, "`size` must be a whole number above 0. Received: size=0"),
        ((0.1, 1.5), TypeError, "`size` must be a whole number above 0. .* of type float"),
    ],
    ids=str,
)
def test_scaled_learning_rate_refuses(arguments, error, message):
    with pytest.raises(error, match=message):
        kerasdist.scaled_learning_rate(*arguments)


# The callback -------------------------------------------------------------------------------------------------------


def warmup(**arguments):
    return kerasdist.LearningRateWarmup(**{"target": 0.2, "epochs": 2, "start": 0.1} | arguments)


@pytest.mark.parametrize("eager", [False, True])
def test_callback(eager):
    assert fit(net(keras.optimizers.SGD(7.0), run_eagerly=eager), warmup()) == (close(RATES), close(sum(RATES)))


def test_callback_with_several_steps_in_an_execution():
    model = net(keras.optimizers.SGD(0.1), steps_per_execution=2)
    rates = [0.125, 0.175, 0.2]  # of each execution's first step
    assert fit(model, warmup()) == (close(rates), close(2 * sum(rates)))
    model = net(keras.optimizers.SGD(0.1), steps_per_execution=2)
    fit(model, warmup(), epochs=2)
    assert float(model.optimizer.learning_rate) == np.float32(0.2)


def test_callback_under_accumulation_and_loss_scale():
    inner = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
    assert fit(net(inner), warmup(), epochs=2)[1] == close(0.15 + 0.2)
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    assert fit(net(scaled), warmup()) == (close(RATES), close(sum(RATES)))


def test_callback_twice_and_after_a_recompile():
    model = net(keras.optimizers.SGD(0.1))
    assert fit(model, warmup(), warmup())[0] == close(RATES)
    assert fit(model, warmup())[0] == close(RATES)
    model.compile(keras.optimizers.SGD(0.2), linear)
    assert fit(model, warmup())[0] == close(RATES)


def test_callback_goes_on_where_fit_begins():
    model = net(keras.optimizers.SGD(0.1))
    assert fit(model, warmup(), initial_epoch=1)[0] == close(RATES[2:])


def test_callback_leaves_the_rate_alone_after_the_warmup():
    def decay(epoch, rate):
        return 0.2 if epoch < 3 else 0.02

    decays = keras.callbacks.LearningRateScheduler(decay)
    rates = [*RATES, 0.02, 0.02, 0.02, 0.02]
    assert fit(net(keras.optimizers.SGD(0.1)), decays, warmup(), epochs=5)[0] == close(rates)
    assert fit(net(keras.optimizers.SGD(0.02)), warmup(), initial_epoch=4, epochs=5)[0] == close([0.02, 0.02])


def test_callback_on_a_stream():
    stream = tf.data.Dataset.from_generator(
        lambda: iter([(np.ones((1, 1)), np.ones((1, 1)))] * 2),
        output_signature=(tf.TensorSpec((1, 1)), tf.TensorSpec((1, 1))),
    )
    with pytest.raises(ValueError, match="rank 0: LearningRateWarmup must know how many batches .* Give `steps_per_"):
        fit(net(keras.optimizers.SGD(0.1)), warmup(), x=stream)
    assert fit(net(keras.optimizers.SGD(0.1)), warmup(steps_per_epoch=2), x=stream)[0] == close(RATES)


def test_callback_refuses_a_schedule():
    model = net(keras.optimizers.SGD(kerasdist.WarmupSchedule(0.2, 4)))
    with pytest.raises(TypeError, match=r"rank 0: LearningRateWarmup sets .* On rank\(s\) \[0\].*WarmupSchedule"):
        fit(model, warmup())


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"target": -1}, ValueError, "`target` must be a number above 0. Received: target=-1"),
        ({"target": None}, TypeError, "`target` must be a number above 0. .* of type NoneType"),
        ({"epochs": 0}, ValueError, "`epochs` must be a whole number above 0. Received: epochs=0"),
        ({"epochs": 1.5}, TypeError, "`epochs` must be a whole number above 0. .* of type float"),
        ({"start": float("nan")}, ValueError, "`start` must be a number, 0 or above. Received: start=nan"),
        ({"steps_per_epoch": 0}, ValueError, "`steps_per_epoch` must be a whole number above 0"),
    ],
    ids=str,
)
def test_callback_refuses(arguments, error, message):
    with pytest.raises(error, match=message):
        warmup(**arguments)
