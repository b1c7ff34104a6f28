"""Proof: N workers with batch B give the weights and the history of one Keras process with batch N B."""

import numpy as np
import pytest

from tests.parallel.launch import LAUNCHER, run_cases
from tests.parallel.training import FLOAT32, FLOAT64

SIZES = (1, 2, 3, 4)


def names():
    return [f"float64 {' '.join(one)}" for one in FLOAT64] + [
        f"{kind} {' '.join(one)}" for one in FLOAT32 for kind in ("float32", "float32 short")
    ]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", names())
def test_equals_one_process(name, size):
    expected = run_cases("cases_reference", 1, "python").ranks("case_trainings")[0][name]
    ranks = run_cases("cases_equality", size, "python" if size == 1 else LAUNCHER).ranks("case_trainings")
    assert len(ranks) == size
    exact = name.startswith("float64")
    for got in (rank[name] for rank in ranks):
        if exact or "short" in name:
            limit = 1e-9 if exact else 1e-5
            for ours, one in zip(got["weights"], expected["weights"], strict=True):
                np.testing.assert_allclose(ours, one, rtol=0, atol=limit)
        limit = 1e-9 if exact else 1e-4
        assert got["history"].keys() == expected["history"].keys()
        for key, values in expected["history"].items():
            np.testing.assert_allclose(got["history"][key], values, rtol=0, atol=limit, err_msg=key)
        np.testing.assert_allclose(got["evaluation"], expected["evaluation"], rtol=0, atol=limit)
        np.testing.assert_allclose(got["predictions"], expected["predictions"], rtol=0, atol=1e-9 if exact else 1e-3)


@pytest.mark.parametrize("size", SIZES[1:])
def test_all_ranks_hold_the_same_bits(size):
    ranks = run_cases("cases_equality", size).ranks("case_trainings")
    for name in names():
        for other in ranks[1:]:
            for ours, theirs in zip(ranks[0][name]["weights"], other[name]["weights"], strict=True):
                assert ours.tobytes() == theirs.tobytes(), name
