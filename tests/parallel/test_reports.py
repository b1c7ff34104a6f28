"""Reported cases that no other module has, at 2 workers; values by hand, or from one process of plain Keras."""

import subprocess

import keras
import numpy as np
import pytest

from tests.parallel import reports
from tests.parallel.launch import command, mpi_missing, run, small_cases

DOORS = ("scope", "callback")


@pytest.fixture(scope="module")
def job():
    return small_cases()


def near(*values, limit=1e-6):
    return pytest.approx(values[0] if len(values) == 1 else list(values), abs=limit)


def equal(found, expected, limit, what=""):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=limit, err_msg=what)


def test_exit_code(job):
    assert job.exit_code == 0, job.output[-4000:]


# How a step is run --------------------------------------------------------------------------------------------------


def test_every_way_of_running(job):
    """EXEC-1, WR-1: 0.4 and one reduction, whatever calls the optimizer."""
    for found in job.ranks("case_every_way_of_running"):
        assert len(found) == 11
        for way, (weight, reductions, iterations) in found.items():
            assert weight == near(0.4), way
            assert (reductions, iterations) == (1, 1), way


def test_own_train_steps(job):
    """K3-3."""
    for found in job.ranks("case_own_train_steps"):
        assert found == {method: (near(0.4), 1) for method in ("apply", "apply_gradients")}


def test_many_small_variables(job):
    """PERF-2: one reduction for each dtype and step, of all bytes; the bits are those of 101 reductions."""
    ranks = job.ranks("case_many_small_variables")
    mean = (ranks[0][1] + ranks[1][1])[0] / 2
    total = 100 * 1024 + 2048
    for found, _ in ranks:
        (packed, counted), (alone, counted_alone) = found["packed"], found["alone"]
        assert counted == (2 * 2, 2 * total)
        assert counted_alone == (2 * 101, 2 * total)
        factors = [*range(1, 101), 1]
        for factor, one, other, root in zip(factors, packed, alone, ranks[0][0]["packed"][0], strict=True):
            assert one.tobytes() == other.tobytes() == root.tobytes()
            np.testing.assert_allclose(one, -0.1 * 3 * factor * mean, rtol=1e-5, atol=1e-6)


# Where ranks start, and what their optimizers hold --------------------------------------------------------------------


def set_state(model, values):
    model.optimizer.build(model.trainable_variables)
    for variable, value in zip([*model.weights, *model.optimizer.variables], values, strict=True):
        variable.assign(value)


def get_state(model):
    return [np.asarray(v) for v in (*model.weights, *model.optimizer.variables)]


def test_first_update(job):
    """WR-3: one process that starts from rank 0's weights, moments, counter and rate."""
    x, y = reports.FIRST_UPDATE
    ranks = job.ranks("case_first_update")
    for key, (start, _) in ranks[0].items():
        _, steps = key
        assert not any((mine == other).all() for mine, other in zip(start, ranks[1][key][0], strict=True))
        model = reports.small(3)
        model.compile(keras.optimizers.Adam(0.01), "mse")
        set_state(model, start)
        model.fit(x[:steps].reshape(-1, 3), y[:steps].reshape(-1, 1), batch_size=2, shuffle=False, verbose=0)
        for rank in ranks:
            equal(rank[key][1], get_state(model), 1e-6, str(key))


def test_moments(job):
    """K3-5: moments and counter of one process, on both ranks, in both doors."""
    x, y = reports.FIRST_UPDATE
    keras.utils.set_random_seed(3)
    model = reports.small(3)
    model.compile(keras.optimizers.Adam(0.1), "mse")
    scheduler = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2 if epoch else rate)
    model.fit(x[0], y[0], epochs=3, callbacks=[scheduler], verbose=0)
    expected = get_state(model)
    assert 3 in [int(value) for value in expected if value.shape == ()]
    for found in job.ranks("case_moments"):
        for door in DOORS:
            values, rates = found[door]
            equal(values, expected, 1e-6, door)
            assert rates == near(0.1, 0.1, 0.05)


@pytest.mark.parametrize(("floatx", "early", "late"), [("float64", 1e-9, 1e-9), ("float32", 1e-5, 1e-4)])
def test_twenty_steps(job, floatx, early, late):
    """WR-2: 2 workers with 4 of each batch of 8, and one with 8."""
    keras.config.set_floatx(floatx)
    keras.config.set_dtype_policy(floatx)
    try:
        model = reports.mlp()
        expected = [model.get_weights()]
        for part in (slice(0, 40), slice(40, 160)):
            data = reports.TWENTY[part]
            model.fit(data, data[:, :1], batch_size=8, shuffle=False, verbose=0)
            expected.append(model.get_weights())
    finally:
        keras.config.set_floatx("float32")
        keras.config.set_dtype_policy("float32")
    assert not any((a == b).all() for a, b in zip(expected[0][::2], expected[2][::2], strict=True))
    for found in job.ranks("case_twenty_steps"):
        for ours, one, limit in zip(found[floatx], expected, (0, early, late), strict=True):
            equal(ours, one, limit)


# Accumulation, clipping, precision ------------------------------------------------------------------------------------


def test_accumulation_by_pass(job):
    """ACC-1: nothing travels in the first pass; then the mean of 1, 2, 3 and 6, once."""
    for found in job.ranks("case_accumulation_by_pass"):
        for mode in ("graph", "eager"):
            assert found[mode] == [(0.0, 0, 0), (near(-0.3), 1, 1)], mode


@pytest.mark.parametrize(("floatx", "limit"), [("float64", 1e-9), ("float32", 1e-5)])
def test_accumulated_adamw(job, floatx, limit):
    """ACC-2: 4 updates of 24 samples each, accumulated, at once, and in one process."""
    keras.config.set_floatx(floatx)
    keras.config.set_dtype_policy(floatx)
    try:
        model = reports.accumulated(1)
        x = reports.ACCUMULATED.astype(floatx)
        model.fit(x, x[:, :1], batch_size=24, shuffle=False, verbose=0)
        expected = model.get_weights()
    finally:
        keras.config.set_floatx("float32")
        keras.config.set_dtype_policy("float32")
    for found in job.ranks("case_accumulated_adamw"):
        for passes in (3, 1):
            weights, iterations = found[floatx, passes]
            assert iterations == 4
            equal(weights, expected, limit, f"{passes} passes")


def test_global_clipnorm(job):
    """CLIP-1: the mean (3, 4) has the norm 5."""
    for found in job.ranks("case_global_clipnorm"):
        assert found == {door: near(-0.06, -0.08) for door in DOORS}


def test_loss_scale_in_both_orders(job):
    """MP-1: the first step is skipped by both, the second applied by both."""
    for found in job.ranks("case_loss_scale_in_both_orders"):
        assert len(found) == 3
        for order, (first, second) in found.items():
            assert first == (0.0, 16384.0), order
            assert second == (near(-0.1), 16384.0), order


def test_overflow_on_the_wire(job):
    """FP16-1: 4 * 2**15 and 4 * 2**14 are above 65504; 4 * 2**13 is not."""
    for steps in job.ranks("case_overflow_on_the_wire"):
        assert steps == [(0.0, 16384.0), (0.0, 8192.0), (near(-0.4), 8192.0)]


# Sparse gradients, frozen layers, several models ----------------------------------------------------------------------


def test_other_numbers_of_tokens(job):
    """SPARSE-2: rank 0 has token 1 twice, rank 1 has 1 once and 2 twice; means -(2 + 1)/2 and -(0 + 2)/2."""
    for found in job.ranks("case_other_numbers_of_tokens"):
        assert found == {path: near(0.0, -1.5, -1.0) for path in ("dense", "rows")}


def test_frozen_layer(job):
    """NONE-1: 4 weights of 8 bytes and 3 of 4 travel, then the 3; the frozen ones keep their bits."""
    ranks = job.ranks("case_frozen_layer")
    for every, frozen, before, after in ranks:
        assert every == (2, 44)
        assert frozen == (1, 12)
        for one, other in zip(before[:2], after[:2], strict=True):
            assert one.tobytes() == other.tobytes()
        assert (before[2] != after[2]).all()
        for one, root in zip(after, ranks[0][3], strict=True):
            assert one.tobytes() == root.tobytes()


def test_both_orders_of_a_gan(job):
    """GAN-1."""
    for found in job.ranks("case_both_orders_of_a_gan"):
        assert len(found) == 2
        for order, values in found.items():
            assert values == (near(-0.2), near(-4.0, limit=1e-5), 1, 2), order


def test_heads_in_opposite_order(job):
    """NAME-1: an error on both ranks that shows both orders, or left = -0.1 and right = -1; never a mixture."""
    for found in job.ranks("case_heads_in_opposite_order"):
        kind, message, _ = found["given"]
        assert kind == "RankMismatchError"
        assert "left/kernel" in message and "right/kernel" in message
        kind, message, heads = found["made up"]
        assert (kind == "RankMismatchError" and "left" in message) or heads == near(-0.1, -1.0), found["made up"]


def test_plain_model(job):
    """WR-7."""
    for told in job.ranks("case_plain_model"):
        assert len(told) == 1


# Whole jobs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("launcher", ["gloo", "mpi"])
def test_an_exception_in_a_callback_ends_the_job(launcher):
    """FAULT-1: rank 1 raises at the end of a step; its error is the visible cause; no process is left."""
    if launcher == "mpi" and mpi_missing():
        pytest.skip(mpi_missing())
    code, output = run(command(2, launcher, ["-m", "tests.parallel.stalls", "boom"]), 100)
    assert code not in (0, 124), output[-3000:]
    assert "rank 1: RuntimeError: boom" in output, output[-3000:]
    assert "rank 0: rank 1 failed: RuntimeError: boom" in output, output[-3000:]
    left = subprocess.run(["pgrep", "-f", "tests.parallel.stalls boom"], capture_output=True, text=True).stdout
    assert not left.split(), "a worker is left behind"
