"""Reported cases of epochs, validation, callbacks and unequal parts of data, at 2 workers; values by hand."""

import keras
import numpy as np
import pytest

from tests.parallel import reports
from tests.parallel.launch import small_cases
from tests.parallel.test_reports import DOORS, near


@pytest.fixture(scope="module")
def job():
    return small_cases()


def test_statistics_in_time(job):
    """BN-1: 0 and 2 on the ranks within the epoch, 1 from its end on."""
    for rank, found in enumerate(job.ranks("case_statistics_in_time")):
        for door in DOORS:
            assert found[door] == {"batch": near(2.0 * rank), "validation": near(1.0), "epoch": near(1.0)}, door


def test_evaluation_of_the_same_samples(job):
    """WR-4: all ranks alone, together, and the formula without dropout: one value."""
    x, y = (part.astype("float64") for part in reports.VALIDATION)
    ranks = job.ranks("case_evaluation_of_the_same_samples")
    kernel, bias, gamma, beta, mean, variance, last, last_bias = ranks[0][2]
    hidden = (x @ kernel + bias - mean) / np.sqrt(variance + 1e-3) * gamma + beta
    expected = float(((hidden @ last + last_bias - y) ** 2).mean())
    for alone, together, _ in ranks:
        assert alone == pytest.approx(expected, rel=1e-6)
        assert together == pytest.approx(expected, rel=1e-6)


def test_validation_of_unequal_parts(job):
    """MET-1: 100 samples of 1.0 and 10 of 2.1; 9 of 10 and 0 of 2. MET-2: 2 true of 5 positives, AUC of the union."""
    ranks = job.ranks("case_validation_of_unequal_parts")
    auc = keras.metrics.AUC()
    auc.update_state(*(np.concatenate([rank["seen"][part] for rank in ranks]) for part in (0, 1)))
    for found in ranks:
        assert found["loss"] == {"val_loss": near(1.1)}
        assert found["loss, unknown length"] == {"val_loss": near(1.1)}
        assert found["accuracy"]["val_accuracy"] == near(0.75)
        assert found["metrics"]["val_precision"] == near(0.4)
        assert found["metrics"]["val_auc"] == near(float(auc.result()))


@pytest.mark.parametrize("door", ["scope", "callback"])
def test_evaluation_within_an_epoch(job, door):
    for found in job.ranks("case_evaluation_within_an_epoch"):
        assert found[door].keys() == found["plain"].keys()
        for key, values in found["plain"].items():
            np.testing.assert_allclose(found[door][key], values, rtol=0, atol=1e-9, err_msg=key)


def test_statistics_of_own_steps(job):
    """Rank 0: 1/2, then 3/4, of 12 samples; rank 1: 5/2, of 8."""
    expected = (12 * 0.75 + 8 * 2.5) / 20
    assert job.ranks("case_statistics_of_own_steps") == [pytest.approx(expected, abs=1e-5)] * 2


def test_plateau(job):
    """CB-1, CB-2: no improvement on both ranks in the second epoch: half of the rate, once, and the stop."""
    for found in job.ranks("case_plateau"):
        assert found == {door: ([0, 1], near(1.0, 1.0), near(0.05)) for door in DOORS}


@pytest.mark.parametrize("position", ["before", "after"])
@pytest.mark.parametrize("door", DOORS)
def test_one_rank_stops_at_an_epochs_end(job, door, position):
    """CB-1: two epochs of x = 1 on both ranks."""
    for found in job.ranks("case_one_rank_stops_at_an_epochs_end"):
        kind, message, weight = found[door, position]
        assert weight == near(-0.2)
        assert kind == "nothing", message


def test_callbacks_on_rank_zero(job):
    """CB-4: they change nothing of the step, and keep their files."""
    for rank, found in enumerate(job.ranks("case_callbacks_on_rank_zero")):
        assert found == {door: (near(0.4), [near(5.0)], rank == 0) for door in DOORS}


def test_validation_on_rank_zero(job):
    """CB-4: an error on both ranks that names what only one of them computes."""
    for found in job.ranks("case_validation_on_rank_zero"):
        for door in DOORS:
            kind, message, seconds = found[door]
            assert kind == "RankMismatchError", door
            assert ("`validation_data`" if door == "scope" else "val_loss") in message, message
            assert seconds < 30


def test_uneven_through_the_callback(job):
    """UNEV-1: 5 and 4 batches of x = 1, twice: 5 steps, the last of them of one sample. The generators have 5 each."""
    uneven, even = -0.1 * (0 + 2 * 1 + 2 * 2 + 2 * 3 + 4) / 9, -0.1 * (0 + 1 + 2 + 3 + 4) / 5
    ranks = job.ranks("case_uneven_through_the_callback")
    assert ranks[0][1].count("The ranks bring different batches, by rank: [5, 4]") == 2
    assert all(log == "" for _, log in ranks[1:])
    for found, _ in ranks:
        for kind, (weight, losses) in found.items():
            first = even if kind == "generator" else uneven
            assert weight == near(-1.0), kind
            assert losses == near(first, first - 0.5), kind


def test_resumed_shards(job):
    """SAVE-5: epochs 2 and 3 on both ranks, and in each of them every sample once."""
    ranks = job.ranks("case_resumed_shards")
    for epochs, seen in ranks:
        assert epochs == [2, 3]
        assert len(seen) == 4
    for steps in (slice(0, 2), slice(2, 4)):
        together = sum((sum(seen[steps], []) for _, seen in ranks), [])
        assert sorted(together) == list(range(8))
