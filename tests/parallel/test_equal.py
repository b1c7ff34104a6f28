"""docs/equal.md, sentence by sentence where no other test stands for it. By hand: what one process gives, and two."""

import inspect

import keras
import numpy as np
import pytest

from tests.parallel.launch import small_cases


@pytest.fixture(scope="module")
def job():
    return small_cases()


def close(value):
    return pytest.approx(value, abs=1e-6)


def test_regularizer(job):
    """w = 1: errors 0 and 2, losses 0 and 4, and 0.5 w^2 once; gradient -2 + 1."""
    for weight, history in job.ranks("case_regularizer"):
        assert (weight, history["loss"]) == (close(1.1), [close(2.5)])


def test_coupled_loss(job):
    """The maximum over the rank's own sample: 1 and 9. One process: 9, and w = 0.6."""
    for weight, history in job.ranks("case_coupled_loss"):
        assert (weight, history["loss"]) == (close(0.4), [close(5.0)])


def test_scalar_metric(job):
    """Errors 1 and 3, each the largest of its rank's batch. One process: 3."""
    assert job.ranks("case_scalar_metric") == [[close(2.0)], [close(2.0)]]


def test_own_steps(job):
    for found in job.ranks("case_own_steps"):
        assert found["shared"].keys() == found["plain"].keys() == {"loss", "mae", "val_loss", "val_mae"}
        for key, values in found["plain"].items():
            np.testing.assert_allclose(found["shared"][key], values, rtol=0, atol=1e-9, err_msg=key)


def test_mask(job):
    """Gradients -2 and -6, losses 1 and 9, with 1 and 4 valid steps."""
    for weight, history in job.ranks("case_mask"):
        assert (weight, history["loss"]) == (close(0.1 * 26 / 5), [close(37 / 5)])


def test_rate_of_one_rank(job):
    """The mean gradient is -4; the rate is rank 0's, who says so."""
    (*first, said), (*second, unsaid) = job.ranks("case_rate_of_one_rank")
    np.testing.assert_allclose([first, second], [[0.4, 0.1]] * 2, rtol=1e-6)
    assert len(said) == 1 and "(rank 0: 0.1, rank 1: 0.2)" in said[0] and not unsaid


def test_no_reduction(job):
    for failure in job.failures("case_fails_no_reduction"):
        assert failure.kind == "ValueError"
        assert "Expected reduction='sum_over_batch_size'" in failure.message
        assert "Received: 'none'" in failure.message


def test_exit_code(job):
    assert job.exit_code == 0, job.output[-3000:]


# Those that take values one by one, and the bases of others.
NOT_FOR_OUTPUTS = {"Metric", "Mean", "Sum", "MeanMetricWrapper"}


def test_keras_metrics(job):
    """All metrics that Keras has are in the list, and give what one process gives."""
    from tests.parallel.cases_equal import keras_metrics

    listed = {type(one).__name__ for *_, make in keras_metrics(np.arange(19) % 3).values() for one in make()}
    classes = {one for name, one in vars(keras.metrics).items() if inspect.isclass(one) and name[0].isupper()}
    there = {one.__name__ for one in classes if issubclass(one, keras.metrics.Metric)}
    assert there - listed <= NOT_FOR_OUTPUTS, there - listed
    for found in job.ranks("case_keras_metrics"):
        for kind in {kind for kind, _ in found}:
            ours, expected = found[kind, "shared"], found[kind, "plain"]
            assert len(ours) == len(expected)
            for (name, value), right in zip(ours.items(), expected.values(), strict=True):
                np.testing.assert_allclose(value, right, rtol=1e-6, atol=1e-6, err_msg=name)
