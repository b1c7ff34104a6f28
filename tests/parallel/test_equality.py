"""Proof: N workers with batch B give the weights and the history of one Keras process with batch N B."""

import numpy as np
import pytest

from tests.parallel.launch import LAUNCHER, run_cases
from tests.parallel.training import names

SIZES = (1, 2, 3, 4)


def close(ours, expected, limit, what):
    for mine, one in zip(ours, expected, strict=True):
        np.testing.assert_allclose(mine, one, rtol=0, atol=limit, err_msg=what)


@pytest.mark.parametrize(("size", "name"), [(size, name) for size in SIZES for name in names(size)])
def test_equals_one_process(name, size):
    expected = run_cases("cases_reference", 1, "python").ranks("case_trainings")[0][name]
    ranks = run_cases("cases_equality", size, "python" if size == 1 else LAUNCHER).ranks("case_trainings")
    assert len(ranks) == size
    exact = name.startswith("float64")
    for got in (rank[name] for rank in ranks):
        assert got.keys() == expected.keys()
        close(got["early"], expected["early"], 1e-9 if exact else 1e-5, "weights after 4 steps")
        if exact:
            close(got["weights"], expected["weights"], 1e-9, "weights after 3 epochs")
        limit = 1e-9 if exact else 1e-4
        assert got["history"].keys() == expected["history"].keys()
        for key, values in expected["history"].items():
            close(got["history"][key], values, limit, key)
        if "evaluation" in expected:
            close(got["evaluation"], expected["evaluation"], limit, "evaluate")
            close(got["predictions"], expected["predictions"], 1e-9 if exact else 1e-3, "predict")


@pytest.mark.parametrize("size", SIZES[1:])
def test_all_ranks_hold_the_same_bits(size):
    ranks = run_cases("cases_equality", size, LAUNCHER).ranks("case_trainings")
    for name in names(size):
        for other in ranks[1:]:
            for ours, theirs in zip(ranks[0][name]["weights"], other[name]["weights"], strict=True):
                assert ours.tobytes() == theirs.tobytes(), name
