"""What each rank's gradients count for, with values worked out by hand. 2 workers."""

import pytest

from tests.parallel.launch import small_cases


@pytest.fixture(scope="module")
def job():
    return small_cases()


def near(*values):
    return pytest.approx(list(values), abs=1e-6)


def test_unknown_lengths(job):
    """UNEV-1: 5 and 4 batches of x = 1, twice. Losses: the mean of w over 9 samples, 2 in each step but the last."""
    first = -0.1 * (0 + 2 * 1 + 2 * 2 + 2 * 3 + 4) / 9
    for found in job.ranks("case_unknown_lengths"):
        assert found["scope"][0] == pytest.approx(-1.0, abs=1e-6)
        assert found["scope"][1] == near(first, first - 0.5)


def test_missing_gradients(job):
    """Each head has a gradient of 1 on one of two ranks: 0.5. Nobody's head stays, its weight decay too."""
    for found in job.ranks("case_missing_gradients"):
        for mode, weights in found.items():
            assert weights == near(-0.05, -0.05, 1.0), mode


def test_own_step_with_weights(job):
    for found in job.ranks("case_own_step_with_weights"):
        assert len(found["hidden"]) == 1 and "calls none of Keras' losses" in found["hidden"][0]
        assert found["known"] == []


def test_masks(job):
    """WR-5, x = 1, 1, 1, 1 and 4, 4, with two entries that do not count beside them."""
    right = {"default": -0.15, "weighted": -0.2, "sum": -1.2}
    for found in job.ranks("case_masks"):
        for door in ("scope", "callback"):
            for name, value in right.items():
                assert found[door, name] == pytest.approx(value, abs=1e-6), (door, name)
            weight, losses = found[door, "mask"]
            assert weight == pytest.approx(-0.4, abs=1e-6)
            assert losses == near(0, -0.4)


def test_sparse(job):
    """SPARSE-1 and SPARSE-2."""
    for found in job.ranks("case_sparse"):
        for path in ("dense", "rows"):
            assert found[path, "overlap"] == near(-1.0, -0.5, -0.5)
            assert found[path, "twice"] == near(0.0, -1.5, -0.5)


def test_same_batches_are_warned_of(job):
    found = job.ranks("case_same_batches_everywhere")[0]
    for door in ("scope", "callback"):
        assert len(found[door, "same"]) == 1
        assert "kerasdist.shard" in found[door, "same"][0]
        assert not found[door, "own"]
