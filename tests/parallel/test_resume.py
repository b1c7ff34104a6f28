"""Learning rates, saving, loading and resuming at 2 workers; values from arithmetic and one process of Keras."""

import subprocess
import sys

import keras
import numpy as np
import pytest

from tests.parallel.cases_resume import DOORS, FIRST, SECOND
from tests.parallel.launch import small_cases

RATES = [0.125, 0.15, 0.175, 0.2, 0.2, 0.2]  # from 0.1 to 0.2 in 2 epochs of 2 batches, then one epoch more


@pytest.fixture(scope="module")
def job():
    return small_cases()


def close(value):
    return pytest.approx(value, abs=1e-6)


def test_exit_code(job):
    assert job.exit_code == 0, job.output[-4000:]


def test_learning_rates(job):
    expected = {
        "nothing": ([0.1] * 6, 0.6),
        "callback": (RATES, sum(RATES)),
        "callback again": (RATES, sum(RATES)),
        "executions": ([0.125, 0.175, 0.2], 2 * (0.125 + 0.175 + 0.2)),
        "accumulation": (RATES[:4], 0.15 + 0.2),
        "schedule": (None, sum(RATES)),
    }
    for found in job.ranks("case_learning_rates"):
        assert len(found) == 9
        for (name, door), (rates, lost) in found.items():
            assert rates == (expected[name][0] and close(expected[name][0])), (name, door)
            assert lost == close(expected[name][1]), (name, door)


def test_rates_on_resume(job):
    for found in job.ranks("case_rates_on_resume"):
        assert found["within the warm-up"] == (close(RATES[2:]), close(sum(RATES[2:])))
        assert found["callback"] == close([*RATES, 0.02, 0.02, 0.02, 0.02])
        # Read behind the update, a schedule gives the next step's.
        assert found["schedule"] == close([*RATES[1:], 0.02, 0.02, 0.02, 0.02, 0.02])


def test_rates_that_differ(job):
    for rank, failure in enumerate(job.failures("case_fails_rates_differ")):
        assert failure.kind == "RankMismatchError"
        assert failure.message.startswith(f"rank {rank}: LearningRateWarmup must be the same on all ranks")
        assert "rank 0: {'target': 0.1," in failure.message and "rank 1: {'target': 0.2," in failure.message
    for failure in job.failures("case_fails_schedules_differ"):
        assert failure.kind == "RankMismatchError" and "WarmupSchedule" in failure.message


def one_process():
    """The same two steps in plain Keras, on both ranks' samples."""
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.1), "mse")
    for x in (FIRST, SECOND):
        model.fit(x, x[:, :1], batch_size=2, verbose=0)
    return [np.asarray(v) for v in (*model.weights, *model.optimizer.variables)]


def equal(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_save_load_and_go_on(job):
    expected = one_process()
    assert expected[4] == 2  # iterations
    for rank, found in enumerate(job.ranks("case_save_load_and_go_on")):
        assert found.pop("files") == (["callback.keras", "scope.keras"] if rank == 0 else [])
        assert len(found) == 5
        for values in found.values():
            equal(values, expected)


def test_weights_of_rank_zero(job):
    expected = one_process()
    for found in job.ranks("case_weights_of_rank_zero"):
        equal(found, expected)


def test_files_open_where_kerasdist_is_not(job, tmp_path):
    (files, weights), (none, _) = job.ranks("case_files_of_two_workers")
    assert sorted(files) == ["model.h5", "model.keras", "only.weights.h5"] and not none
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    np.savez(tmp_path / "expected.npz", *weights)
    code = (
        "import sys; sys.modules['kerasdist'] = None; import keras, numpy as np;"
        "expected = list(np.load('expected.npz').values());"
        "same = lambda m: all((a == b).all() for a, b in zip(m.get_weights(), expected, strict=True));"
        "model = keras.models.load_model('model.keras'); o = model.optimizer;"
        "print(same(model), type(o).__name__, int(o.iterations), len(o.variables));"
        "print(same(keras.models.load_model('model.h5')));"
        "[v.assign(0 * v) for v in model.weights]; model.load_weights('only.weights.h5'); print(same(model))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == ["True Adam 1 10", "True", "True"], done.stderr


def test_files_that_cannot_be_loaded(job):
    expected = {
        "none.keras": ("FileNotFoundError", 0, "No such file"),
        "torn.keras": ("ValueError", 0, "must be a zip file"),
        "whole.txt": ("ValueError", 0, "must end in .keras"),
        "own.keras": ("TypeError", 1, "Could not locate class 'Only'"),
    }
    for rank, found in enumerate(job.ranks("case_files_that_cannot_be_loaded")):
        assert found.pop("after") == 2
        assert set(found) == set(expected)
        for name, (kind, message) in found.items():
            kind_expected, failed, text = expected[name]
            assert kind == kind_expected
            assert message.startswith(f"rank {rank}: load_model(") and f"failed on rank {failed}: " in message
            assert text in message


def test_a_large_file_travels_in_pieces(job):
    for rank, (there, loaded, saved) in enumerate(job.ranks("case_a_large_file_travels_in_pieces")):
        assert there == (rank == 0)
        np.testing.assert_equal(loaded, saved)


def test_backup(job):
    for rank, found in enumerate(job.ranks("case_backup")):
        for door in DOORS:
            there, epochs, straight, resumed = found[door]
            assert there == (rank == 0)
            assert epochs == [2, 3]
            assert straight[4] == 8  # iterations
            equal(resumed, straight)


def test_only_rank_zero_writes(job):
    """A model that was not trained on all ranks is any rank's to save."""
    every = ["exported", "function.h5", "function.keras", "function.weights.h5", "method.keras", "method.weights.h5"]
    for rank, (found, alone) in enumerate(job.ranks("case_only_rank_zero_writes")):
        assert found == dict.fromkeys(("scope", "callback"), every if rank == 0 else [])
        assert alone


def test_epochs_that_differ(job):
    for rank, failure in enumerate(job.failures("case_fails_epochs_differ")):
        assert failure.kind == "RankMismatchError"
        assert failure.message.startswith(f"rank {rank}: the ranks are to train different epochs:\n  rank 0: from ")
