"""Every sample once, in the order of one process, for every kind of data."""

import math

import numpy as np
import pytest

from tests.parallel.data_kinds import KINDS
from tests.parallel.launch import run_cases

SAMPLES, EACH = 19, 2


@pytest.fixture(params=[2, 3], ids=lambda size: f"{size} workers", scope="module")
def job(request):
    return run_cases("cases_data" if request.param == 2 else "cases_three", request.param)


@pytest.fixture(scope="module")
def reference():
    return run_cases("cases_reference", 1, "python")


def size(job):
    return len(job.results["case_contiguous"])


def epochs(job, per_rank, steps):
    """The global batches, each rank's rows after another's, split into epochs; copies in empty steps left out."""
    count = len(per_rank[0])
    assert all(len(seen) == count for seen in per_rank), "all ranks take the same steps"
    assert count % steps == 0
    batches = [[seen[step] for seen in per_rank] for step in range(count)]
    return [batches[start : start + steps] for start in range(0, count, steps)]


@pytest.mark.parametrize("shuffled", [False, True], ids=["in order", "shuffled"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_sample_once(job, kind, shuffled):
    ranks = [rank[kind, shuffled] for rank in job.ranks("case_every_sample_once")]
    workers = size(job)
    steps = -(-SAMPLES // (workers * EACH))
    found = epochs(job, ranks, steps)
    assert len(found) == (1 if kind == "generator" else 2)
    for epoch in found:
        for step, parts in enumerate(epoch[:-1]):
            if not shuffled or kind == "generator":
                first = step * workers * EACH
                assert sum(parts, []) == list(range(first, first + workers * EACH)), "the order of one process"
        last = list(dict.fromkeys(sum(epoch[-1], [])))  # a rank without samples repeats another's
        assert sorted(sum((sum(parts, []) for parts in epoch[:-1]), last)) == list(range(SAMPLES))
    if shuffled and kind != "generator":
        assert sum((sum(parts, []) for parts in found[0]), []) != list(range(SAMPLES))
    if shuffled and kind in ("tf_data", "py_dataset"):  # Keras itself repeats the order of arrays where a seed is set
        assert found[0] != found[1], "a new order in each epoch"


def test_new_orders(job):
    """Without a seed each epoch has its own order, of every sample once; under a seed Keras repeats it."""
    ranks = job.ranks("case_new_orders")
    for kind in ("drawn", "set"):
        first, second = epochs(job, [rank[kind] for rank in ranks], -(-SAMPLES // (size(job) * EACH)))
        assert (first == second) == (kind == "set"), kind
        for epoch in (first, second):
            # A rank without samples in the last step repeats another's.
            assert sorted({one for parts in epoch for part in parts for one in part}) == list(range(SAMPLES))
            assert sum(len(part) for parts in epoch[:-1] for part in parts) == (len(epoch) - 1) * size(job) * EACH


def test_contiguous(job):
    workers = size(job)
    for rank, seen in enumerate(job.ranks("case_contiguous")):
        mine = range(SAMPLES * rank // workers, SAMPLES * (rank + 1) // workers)
        assert len(seen) == math.ceil(math.ceil(SAMPLES / workers) / EACH), "all ranks take the same steps"
        assert set(sum(seen, [])) == set(mine)


def test_global_batch(job):
    workers = size(job)
    for rank, found in enumerate(job.ranks("case_global_batch")):
        for kind, seen in found.items():
            assert len(seen) == 4, kind
            for step in range(3):
                start = step * 6 + rank * 6 // workers
                assert seen[step] == list(range(start, start + 6 // workers)), kind


def test_shard(job):
    ranks = job.ranks("case_shard")
    for key, (_, losses, expected) in ranks[0].items():
        seen = [rank[key][0] for rank in ranks]
        for epoch in epochs(job, seen, -(-SAMPLES // (size(job) * EACH))):
            assert set(sum((sum(parts, []) for parts in epoch), [])) == set(range(SAMPLES)), key
        for rank in ranks:
            assert rank[key][1] == losses
            np.testing.assert_allclose(losses, expected, rtol=1e-5, err_msg=str(key))


def test_structures(reference):
    expected = reference.ranks("case_structures")[0]
    for rank in run_cases("cases_data", 2).ranks("case_structures"):
        assert rank.keys() == expected.keys()
        for name, (weights, history) in expected.items():
            for ours, one in zip(rank[name][0], weights, strict=True):
                np.testing.assert_allclose(ours, one, rtol=0, atol=1e-9, err_msg=name)
            assert rank[name][1].keys() == history.keys()
            for key, values in history.items():
                np.testing.assert_allclose(rank[name][1][key], values, rtol=0, atol=1e-9, err_msg=f"{name} {key}")


def test_evaluate_and_predict(job, reference):
    expected = reference.ranks("case_evaluate_and_predict")[0]
    for rank in job.ranks("case_evaluate_and_predict"):
        for name, values in expected.items():
            for key, value in values.items():
                limit = 1e-6 if "auc" in key else 1e-9
                np.testing.assert_allclose(rank[name][key], value, rtol=0, atol=limit, err_msg=name)


def test_own_batches_without_samples():
    """2 of 5 samples have the loss 4, the others 1."""
    for losses in run_cases("cases_data", 2).ranks("case_own_batches_without_samples"):
        assert losses == pytest.approx([11 / 5, 11 / 5], abs=1e-6)


def test_own_parts(job):
    values = np.repeat(np.arange(size(job)), np.arange(size(job)) + 1)
    for evaluation, predictions in job.ranks("case_own_parts"):
        np.testing.assert_allclose(evaluation, [(values**2).mean(), values.mean()], rtol=1e-6)
        np.testing.assert_allclose(predictions.ravel(), values)


def test_validation_through_the_callback(job):
    for losses in job.ranks("case_validation_is_compared"):
        assert losses == [pytest.approx(1.0)]
    for failure in job.failures("case_fails_validation_differs"):
        assert "kerasdist.shard" in failure.message


def test_early_stopping(job):
    for stopped, losses, together in job.ranks("case_early_stopping"):
        assert together == 2
        if size(job) == 2:
            assert (stopped, losses) == (2, [1.0, 1.0])


def test_odd_calls(job):
    for found in job.ranks("case_odd_calls"):
        np.testing.assert_array_equal(found["one"], [3.0])
        np.testing.assert_array_equal(found["seven"], np.arange(7))
        np.testing.assert_array_equal(found["labelled"], np.arange(7))
        assert found["loss"] == pytest.approx(4.0)
        assert found["averages"] == "method"


def test_one_model_is_evaluated(job):
    for predictions, loss in job.ranks("case_apart_before_predict"):
        np.testing.assert_array_equal(predictions, np.arange(4))
        assert loss == 0


def test_a_metric_that_is_no_sum_is_named(job):
    for messages in job.ranks("case_a_metric_that_is_no_sum"):
        assert len(messages) == 1
        assert "['widest']" in messages[0]


def test_optimizers_in_a_dict(job):
    for weights in job.ranks("case_optimizers_in_a_dict"):
        assert weights == [pytest.approx(-0.1 * size(job), abs=1e-6)] * 2


def test_weights_beside_shard(job):
    for failure in job.failures("case_fails_weights_beside_shard"):
        assert "class_weight" in failure.message
