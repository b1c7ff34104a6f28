"""BatchNormalization(synchronized=True) on two and three workers."""

import numpy as np
import pytest

from tests.parallel.launch import run_cases, small_cases


@pytest.fixture(scope="module")
def job():
    return small_cases()


@pytest.fixture(scope="module", params=[2, 3], ids=lambda size: f"{size} workers")
def each(request):
    return small_cases() if request.param == 2 else run_cases("cases_three", 3)


def test_by_hand(each):
    ranks = each.ranks("case_by_hand")
    size = len(ranks)
    mean, variance = 4 * (size - 1) / size, 16 * (size - 1) / size**2
    if size == 2:
        assert (mean, variance) == (2, 4)
    for found in ranks:
        assert len(found) == (6 if size == 2 else 2)
        for door, moving in found.items():
            assert moving == pytest.approx([mean / 2, (1 + variance) / 2], abs=1e-6), door


def test_input_gradient(job):
    for found in job.ranks("case_input_gradient"):
        for kind, (gradient, expected, weights, expected_weights) in found.items():
            np.testing.assert_allclose(gradient, expected, rtol=0, atol=1e-12, err_msg=kind)
            close(weights, expected_weights, 1e-12, kind)


def test_equals_one_process(each):
    ranks = each.ranks("case_trainings")
    for found in ranks:
        assert len(found) == (6 if len(ranks) == 2 else 2)
        for name, (weights, expected, steps, expected_steps) in found.items():
            close(weights, expected, 1e-9, name)
            assert len(steps) == len(expected_steps)
            close(steps, expected_steps, 1e-9, f"statistics by step: {name}")


def test_all_ranks_hold_the_same_statistics_after_each_step(each):
    first, *others = each.ranks("case_trainings")
    for other in others:
        for name, (*_, steps, _) in first.items():
            close(steps, other[name][2], 1e-14, name)


def test_large_mean(job):
    for found, expected in job.ranks("case_large_mean"):
        np.testing.assert_allclose(found, expected, rtol=1e-3)


def test_half_precision(job):
    for weights, expected, steps, expected_steps in job.ranks("case_half_precision"):
        assert all(one.dtype == np.float32 for one in steps)
        np.testing.assert_allclose(steps, expected_steps, rtol=1e-4)
        for ours, theirs in zip(weights, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=5e-4)


def test_rank_without_samples(job):
    *empty, owner = job.ranks("case_empty_rank")
    assert not np.array_equal(owner[-1], owner[-2])
    for steps in empty:
        np.testing.assert_array_equal(steps[-1], steps[-2])


def test_second_derivative(job):
    for failure in job.failures("case_fails_second_derivative"):
        assert failure.kind == "NotImplementedError", failure.traceback


def test_exit_code(job):
    assert job.exit_code == 0, job.output[-3000:]


def close(ours, expected, limit, what):
    for mine, one in zip(ours, expected, strict=True):
        np.testing.assert_allclose(mine, one, rtol=0, atol=limit, err_msg=what)
