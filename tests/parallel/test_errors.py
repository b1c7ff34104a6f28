"""Bad input on two workers: the same kind of error on both, which says what was expected and what received."""

import pytest

from tests.parallel.launch import small_cases

EXPECTED = {
    "other_model_on_one_rank": ("RankMismatchError", ["variable 0", "rank 0: ", "rank 1: "]),
    "other_name_on_one_rank": ("RankMismatchError", ["head_a", "head_b"]),
    "other_optimizer_on_one_rank": ("RankMismatchError", ["SGD", "Adam"]),
    "other_options_on_one_rank": ("RankMismatchError", ["bucket_mb", "rank 1: 2.0"]),
    "synchronized_on_one_rank": ("RankMismatchError", ["synchronized normalizations", "rank 0: 0", "rank 1: 1"]),
    "other_loss_on_one_rank": ("RankMismatchError", ["losses:", '"delta": 1.0', '"delta": 2.0']),
    "other_layer_options_on_one_rank": ("RankMismatchError", ["Dense activation:", "rank 0: tanh", "rank 1: relu"]),
    "other_metrics_on_one_rank": ("RankMismatchError", ["metrics:", '"mae", "mape"', '"mape", "mae"']),
    "eager_on_one_rank": ("RankMismatchError", ["run_eagerly:", "rank 1: True"]),
    "other_batch_size_on_one_rank": ("RankMismatchError", ["float32 4x1", "float32 6x1", "batch size"]),
    "longer_data_on_one_rank": ("RankMismatchError", ["rank 0: a global batch of 4 samples", "of 3 samples"]),
    "longer_evaluation_on_one_rank": ("RankMismatchError", ["rank 0: an evaluation of 12 samples", "of 11 samples"]),
    "longer_prediction_on_one_rank": ("RankMismatchError", ["rank 0: an evaluation of 12 samples", "of 11 samples"]),
    "other_validation_steps_on_one_rank": ("RankMismatchError", ["an evaluation of 4 samples", "of 8 samples"]),
    "class_for_a_callback": ("TypeError", ["the class DistributedOptimizer", "write DistributedOptimizer()"]),
    "shard_of_nothing": ("ValueError", ["`x`", "None"]),
    "shard_of_a_shard": ("ValueError", ["shared out already"]),
    "shard_by_a_fraction": ("TypeError", ["`batch_size`", "2.5"]),
    "shard_with_a_batch_size": ("ValueError", ["batched already", "batch_size=4"]),
    "nested_scopes": ("ValueError", ["already belongs to"]),
    "other_data_on_one_rank": ("RankMismatchError", ["first batch", "auto_shard=False"]),
    "other_shuffle_on_one_rank": ("RankMismatchError", ["shuffle(n, seed=1)"]),
    "few_samples": ("ValueError", ["Expected at least 2", "Received: 1"]),
    "labels_of_another_length": ("ValueError", ["cardinality"]),
    "unbuilt_model": ("ValueError", ["build"]),
    "scope_and_callback": ("ValueError", ["DistributedOptimizer", "scope"]),
    "two_callbacks": ("ValueError", ["more than one DistributedOptimizer"]),
    "two_scopes": ("ValueError", ["already belongs to"]),
    "wrapped_twice": ("ValueError", ["wrap it once"]),
    "wrapped_and_compiled": ("ValueError", ["already averaged by"]),
    "loss_scale_around": ("ValueError", ["Wrap the outer one"]),
    "fit_in_local": ("ValueError", ["local()"]),
}


@pytest.fixture(scope="module")
def job():
    return small_cases()


@pytest.mark.parametrize("case", EXPECTED)
def test_error_on_every_rank(job, case):
    kind, words = EXPECTED[case]
    failures = job.failures(f"case_fails_{case}")
    assert len(failures) == 2
    for failure in failures:
        assert failure.kind == kind, failure.traceback
        for word in words:
            assert word in failure.message, failure.message


def test_names_that_keras_made_up_may_differ(job):
    found = job.ranks("case_same_after_a_throw_away_layer")
    assert [weight for weight, *_ in found] == [pytest.approx(0.4, abs=1e-6)] * 2
    names = {name for _, *names in found for name in names}
    assert len(names) == 1, "agreed on once, and kept"


def test_recompiling_averages_once(job):
    assert job.ranks("case_recompiled") == [[pytest.approx(0.4, abs=1e-6)] * 2] * 2


def test_frozen_between_fits(job):
    assert job.ranks("case_frozen_between_fits") == [True, True]


def test_exit_code(job):
    assert job.exit_code == 0, job.output[-3000:]
