"""Continuing from a checkpoint at 2 workers: equal to the training that was not interrupted."""

import numpy as np
import pytest

from tests.parallel.cases_checkpoint import BETWEEN, EPOCHS, TRAININGS, WITHIN
from tests.parallel.launch import small_cases


@pytest.fixture(scope="module")
def job():
    return small_cases()


def equal(found, expected, first):
    """The same state, and the same logs in the epochs from the first on."""
    assert found["epochs"] == list(range(first, EPOCHS))
    for one, other in zip(found["values"], expected["values"], strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-9)
    for key, values in expected["logs"].items():
        assert found["logs"][key] == pytest.approx(values[first:], abs=1e-9), key


@pytest.mark.parametrize("name", [name for name, (*_, place) in TRAININGS.items() if place])
def test_continued(job, name):
    place = TRAININGS[name][-1]
    for rank, every in enumerate(job.ranks("case_continued")):
        found = every[name]
        assert found["straight"]["epochs"] == [0, 1, 2]
        assert (f"checkpoint-e{WITHIN[0]:06d}-b{WITHIN[1]:09d}.npz" in found["files"]) == (rank == 0)
        if rank:
            assert found["files"] == []  # rank 0 alone needs a disk
        equal(found["continued"], found["straight"], place[0])
    assert place in (WITHIN, BETWEEN)


def test_numbers_are_those_without(job):
    for every in job.ranks("case_continued"):
        equal(every["without"], every["PyDataset"]["straight"], 0)


@pytest.mark.parametrize("name", ["arrays, accumulation of 3", "own data of unknown length"])
def test_sigterm_writes(job, name):
    trainings = job.ranks("case_continued")
    for rank, found in enumerate(job.ranks("case_sigterm_writes")):
        code, files, continued = found[name]
        assert code == 143
        written = ["checkpoint-e000001-b000000002.npz", "checkpoint-e000001-b000000003.npz"]
        assert files == (written if rank == 0 else [])
        equal(continued, trainings[rank][name]["straight"], 1)


def test_skipped(job):
    trainings = job.ranks("case_continued")
    for rank, found in enumerate(job.ranks("case_not_continued")):
        result, messages, files = found["torn"]
        # The one after two epochs is the last that is whole.
        equal(result, trainings[rank]["arrays, accumulation of 3"]["straight"], 2)
        if rank:
            assert messages == [] and files == []
            continue
        for place, why in (
            ("8-b000000000", "torn"),
            ("7-b000000000", "not written by kerasdist"),
            ("3-b000000000", ""),
            ("2-b000000002", "torn"),
        ):
            (message,) = [one for one in messages if f"checkpoint-e00000{place}.npz is not used" in one]
            assert why in message and "The one before it is tried." in message
        assert not [name for name in files if name.endswith(".tmp")]


def test_refused(job):
    expected = {
        "another model": ("ValueError", "is of another training:", "variable 1:", "    received: "),
        "another batch size": ("ValueError", "batches of an epoch:\n    expected: 5\n    received: 4"),
        "another seed": ("ValueError", "Expected: 7. Received: 8. Begin the script with keras.utils.set_random_seed"),
        "arguments that differ": ("RankMismatchError", "rank 0: [1, 3]\n", "rank 1: [2, 3]"),
    }
    for rank, found in enumerate(job.ranks("case_not_continued")):
        for name, (kind, *parts) in expected.items():
            assert found[name][0] == kind, name
            assert found[name][1].startswith(f"rank {rank}: "), name
            for part in parts:
                assert part in found[name][1], name
        result, messages = found["another number of workers"]
        assert result is None
        assert rank or [one for one in messages if "was written at a size of 3 workers, and the size is 2 now" in one]
        assert found["after"] == 2


def test_nothing_left(job):
    why = {"epochs": "3 epochs are done", "stopped": "a callback had set stop_training"}
    trainings = job.ranks("case_continued")
    for rank, found in enumerate(job.ranks("case_nothing_left")):
        for kind, (straight, again, messages) in found.items():
            assert again["epochs"] == []
            straight = straight or trainings[rank]["PyDataset"]["straight"]
            for one, other in zip(again["values"], straight["values"], strict=True):
                np.testing.assert_allclose(one, other, rtol=0, atol=1e-9)
            assert len(messages) == (1 if rank == 0 else 0)
            assert rank or (why[kind] in messages[0] and "nothing is left to train" in messages[0])


def test_a_generator_is_named(job):
    messages = job.ranks("case_generator")[0]
    assert len(messages) == 1 and "`x` is a Python generator" in messages[0]


def test_what_is_kept_for_each_rank(job):
    own = job.ranks("case_ranks_hold_their_own")[0]
    within = own["checkpoint-e000000-b000000002.npz"]
    assert {name.split("/")[0] for name in within} >= {"model", "optimizer0", "seed", "metric"}
    between = own["checkpoint-e000001-b000000000.npz"]
    assert {"optimizer0", "seed"} <= {name.split("/")[0] for name in between} <= {"optimizer0", "seed", "random"}
