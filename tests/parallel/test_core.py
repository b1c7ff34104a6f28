"""The small cases, at 2 and 3 workers; values from arithmetic."""

import os

import numpy as np
import pytest

from tests.parallel.cases_core_names import OPTIMIZERS
from tests.parallel.launch import LAUNCHER, run_cases, three_workers


@pytest.fixture(params=[2, 3], ids=lambda size: f"{size} workers", scope="module")
def job(request):
    return run_cases("cases_core", request.param, three_workers() if request.param == 3 else LAUNCHER)


def count(job, case="case_helpers"):
    return len(job.results[case])


def test_exit_code(job):
    assert job.exit_code == 0, job.output[-4000:]


def test_scalar(job):
    size = count(job)
    targets = 1.0 + 2 * np.arange(size)
    for rank in job.ranks("case_scalar"):
        assert len(rank) == 8
        for name, (weight, loss) in rank.items():
            assert weight == pytest.approx(0.2 * targets.mean(), abs=1e-6), name  # 0.4 for two
            if loss is not None:
                assert loss == [pytest.approx((targets**2).mean(), abs=1e-6)], name  # 5.0 for two


def test_jit_compile(job):
    for weight, messages in job.ranks("case_jit_compile"):
        assert weight == pytest.approx(0.2 * count(job), abs=1e-6)
        assert len(messages) == 1


def test_own_train_step(job):
    size = count(job)
    loss = ((1.0 + 2 * np.arange(size)) ** 2).mean()
    for rank in job.ranks("case_own_train_step"):
        for method, (weight, logged, iterations) in rank.items():
            assert weight == pytest.approx(0.2 * size, abs=1e-6), method
            assert logged == [pytest.approx(loss, abs=1e-6)]
            assert iterations == 1


def test_gan(job):
    mean = count(job)  # of 1, 3, 5, ...
    for generator, discriminator, g_steps, d_steps in job.ranks("case_gan"):
        assert generator == pytest.approx(-0.1 * mean, abs=1e-5)
        assert discriminator == pytest.approx(-0.1 * mean * 10 * 2, abs=1e-5)
        assert (g_steps, d_steps) == (1, 2)


def test_unwrapped_optimizer_is_an_error(job):
    for rank, failure in enumerate(job.failures("case_fails_unwrapped_optimizer")):
        assert failure.kind == "RuntimeError"
        assert f"rank {rank}" in failure.message and "wrap_optimizer" in failure.message


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer(name):
    ranks = [rank[name] for rank in run_cases("cases_core", 2).ranks("case_every_optimizer")]
    for weights, iterations in ranks:
        assert iterations == 5
        for ours, theirs in zip(weights, ranks[0][0], strict=True):
            assert ours.tobytes() == theirs.tobytes()
            assert np.isfinite(ours).all()


def test_linear(job):
    size = count(job)
    # Rank 0 has other data than the others, which are all alike.
    rest = size - 1
    unequal = (4 * 1 + rest * 2 * 4) / (4 + rest * 2)
    clipped = np.sign(10 - 8 * rest)
    accumulated = ((1 + 3 * rest) / size + (2 + 6 * rest) / size) / 2
    for rank in job.ranks("case_linear"):
        for door in ("scope", "callback"):
            assert rank[f"unequal batches {door}"] == (pytest.approx(-0.1 * unequal, abs=1e-6), 1)  # -0.20 for two
            assert rank[f"clipnorm {door}"] == (pytest.approx(-0.1 * clipped, abs=1e-6), 1)
            assert rank[f"clipvalue {door}"] == (pytest.approx(-0.1 * clipped, abs=1e-6), 1)
            for kind in ("accumulation", "scaled accumulation"):
                assert rank[f"{kind} {door}"][0] == pytest.approx(-0.1 * accumulated, abs=1e-6), kind  # -0.3 for two
        assert rank["uneven lengths"] == (pytest.approx(-1.0, abs=1e-6), 10)


def test_loss_scale(job):
    """Gradient 1 on each of N ranks; under mixed_float16 a rank's part of it, the scale / N, is in half precision."""
    ranks = job.ranks("case_loss_scale")
    for rank in ranks:
        for name, ((w1, scale1), (w2, _)) in rank.items():
            assert (w1, scale1) == (0.0, 16384.0), name
            part = np.float16(scale1 / len(ranks)) if name.startswith("automatic") else scale1 / len(ranks)
            assert w2 == pytest.approx(-0.1 * len(ranks) * float(part) / scale1, abs=1e-6), name


def test_half_precision(job):
    for rank in job.ranks("case_half_precision"):
        assert len(rank) == 8
        for (compression, value, units), weights in rank.items():
            expected = 39936.0 if compression == "bf16" and value == 40000.0 else value  # bf16 has 8 bits
            np.testing.assert_array_equal(weights, np.full(units, -expected, "float32"), f"{compression} {value}")


def test_initial_state(job):
    ranks = job.ranks("case_initial_state")
    for key, (initial, _, _) in ranks[0].items():
        for rank in ranks:
            _, first, last = rank[key]
            for mine, root in zip(first, ranks[0][key][1], strict=True):
                assert mine.tobytes() == root.tobytes(), key
            for mine, root in zip(last, initial or first, strict=True):  # the rate is 0
                np.testing.assert_array_equal(mine, root)
    built = ranks[1][True, "scope"][0]
    root = ranks[0][True, "scope"][0]
    assert any((a != b).any() for a, b in zip(built, root, strict=True)), "the ranks started alike"


def test_optimizer_state(job):
    ranks = job.ranks("case_optimizer_state")
    assert 3 in [int(v) for v in ranks[0] if v.shape == ()], "the counter"
    for rank in ranks[1:]:
        for mine, root in zip(rank, ranks[0], strict=True):
            assert mine.tobytes() == root.tobytes()


def test_moving_statistics(job):
    rest = count(job) - 1
    for rank in job.ranks("case_moving_statistics"):
        for door, mean in rank.items():
            assert mean == pytest.approx(2.0 * rest / (rest + 1), abs=1e-5), door  # 1.0 for two


def test_dropout_masks(job):
    ranks = job.ranks("case_dropout_masks")
    first = ranks[0]
    for again, repeated, weights in ranks:
        np.testing.assert_array_equal(again, repeated, "the same seed gives the same masks")
        for mine, root in zip(weights, first[2], strict=True):
            assert mine.tobytes() == root.tobytes()
    for other in ranks[1:]:
        assert 0.35 < (other[0] == first[0]).mean() < 0.65


def test_wrap_optimizer(job):
    for rank in job.ranks("case_wrap_optimizer"):
        assert rank == {mode: pytest.approx(0.2 * count(job), abs=1e-6) for mode in ("eager", "function")}


def test_callback_takes_itself_off(job):
    size = count(job)
    first = 0.2 * size
    second = first + 0.2 * (size - first)
    for rank, (hooks, left, after, alone) in enumerate(job.ranks("case_callback_takes_itself_off")):
        assert hooks == []
        assert left == "boom"
        assert after == pytest.approx(second, abs=1e-5)
        assert alone == pytest.approx(second + 0.2 * (1 - second) if rank == 0 else second, abs=1e-5)


def test_save_and_load(job):
    ranks = job.ranks("case_save_and_load")
    written, (optimizer, iterations, loaded, saved) = ranks[0]
    assert written == ["board", "checkpoint.keras", "log.csv", "model.keras", "only.weights.h5"]
    assert (optimizer, iterations) == ("Adam", 2)
    assert loaded == saved
    for written, _ in ranks[1:]:
        assert written == []


def test_helpers(job):
    size = count(job)
    for number, rank in enumerate(job.ranks("case_helpers")):
        np.testing.assert_allclose(rank["mean"], [1.0, (size - 1) / 2])
        assert rank["sum"] == size * (size + 1) // 2
        assert rank["tensor"] is True
        np.testing.assert_array_equal(rank["gather"], np.repeat(np.arange(size), np.arange(size) + 1))
        assert rank["broadcast"] == [size - 1]
        assert rank["ranks"] == (number, size, number)


def test_rank_zero_first(job):
    assert job.ranks("case_rank_zero_first") == [False] + [True] * (count(job) - 1)
    for failure in job.failures("case_fails_rank_zero_first"):
        assert "rank 0 cannot" in failure.message


def test_in_sync(job):
    for failure in job.failures("case_fails_in_sync"):
        assert failure.kind == "RankMismatchError"
        assert "head/kernel" in failure.message and f"rank(s) {count(job) - 1}" in failure.message
        assert "0.001" in failure.message


def test_progress_from_rank_zero(job):
    ranks = job.ranks("case_progress_from_rank_zero")
    assert "loss" in ranks[0][0]
    for printed, _ in ranks[1:]:
        assert printed == ""
    cores = max(1, len(os.sched_getaffinity(0)) // len(ranks)) if len(ranks) > 1 else 0  # 0: as TensorFlow does
    assert all(threads == (cores, cores + 1 if cores else 0) for _, threads in ranks)


def test_local(job):
    ranks = job.ranks("case_local")
    (alone, shape) = ranks[0][1]
    for together, _ in ranks:
        assert together == pytest.approx(alone, abs=1e-6)
    assert shape == (3, 1)


def test_two_runs(job):
    """PERF-3: the same bits, whichever buckets were ready first."""
    ranks = job.ranks("case_two_runs")
    for runs in ranks:
        assert runs == [ranks[0][0]] * 3
