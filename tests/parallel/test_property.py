"""Proof, by drawn trainings: N workers with batch B give the numbers of one process of plain Keras with batch N B.

A few of them, the same in every run. The long run is ``python -m tests.parallel.property --examples 200 --seed 1``.
"""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.parallel.property.cases import Case, cases
from tests.parallel.property.pool import Pool


@pytest.fixture(scope="module")
def pool():
    with Pool() as groups:
        yield groups


@settings(
    max_examples=8, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck)
)  # fmt: skip
@given(case=cases(st.sampled_from((2, 3))))
def test_equals_one_process(pool: Pool, case: Case):
    pool.check(case)
