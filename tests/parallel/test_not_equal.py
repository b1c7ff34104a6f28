"""docs/equal.md, what is not equal and not noticed. By hand; targets 1 and 3 give gradients -2 and -6 at 0."""

import keras
import pytest

from tests.parallel.launch import small_cases


@pytest.fixture(scope="module")
def job():
    return small_cases()


def close(value):
    return pytest.approx(value, abs=1e-6)


def test_steps_by_hand(job):
    """Clipped at 3 on each rank: -2 and -3. One process: the mean -4, clipped to -3. Losses 1 and 9, added up."""
    for weight, total in job.ranks("case_steps_by_hand"):
        assert (weight, total) == (close(0.25), [close(10.0)])


def test_sums_of_layers(job):
    """Loss gradient 1 on each rank, whose mean is 1; one process: 2. What was seen: 1 and 1; one process: 2."""
    for weight, seen in job.ranks("case_sums_of_layers"):
        assert (weight, seen) == (close(0.1 * (4 - 1)), close(1.0))


def test_overflow_of_a_sum(job):
    """Errors of -1: the mean's gradient is -2; plain Keras skips the step."""
    assert job.ranks("case_overflow_of_a_sum") == [(pytest.approx(0.2, abs=1e-3), 0.0)] * 2


def test_rows_of_one_token(job):
    """Adagrad's first step is its rate, for a gradient that is one; plain Keras squares each occurrence."""
    for found in job.ranks("case_rows_of_one_token"):
        assert found["shared"] == close(0.1)
        assert abs(found["plain"] - 0.1) > 1e-3


def test_updates_of_a_stream(job):
    for found in job.ranks("case_updates_of_a_stream"):
        assert found["shared"] == 2
        assert found["plain"] == (3 if keras.__version__ >= "3.15" else found["plain"])


def test_saved_between_updates(job):
    """Half of -2 and of -6: together the gradient of one process."""
    (every, saved), (others, _) = job.ranks("case_saved_between_updates")
    assert every == others == [close(-1.0), close(-3.0)]
    assert saved == close(-1.0)
