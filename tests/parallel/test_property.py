"""Proof, by drawn trainings: N workers with batch B give the numbers of one process of plain Keras with batch N B.

A few of them, the same in every run. The long run is ``python -m tests.parallel.property --examples 200 --seed 1``
(docs/equal.md).
"""

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.parallel.property.cases import Case, cases
from tests.parallel.property.pool import Pool


@pytest.fixture(scope="module")
def pool():
    with Pool() as groups:
        yield groups


# Without shrinking, which takes minutes: the case that failed is printed with the command that runs it alone.
@settings(
    max_examples=6,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(case=cases(st.sampled_from((2, 3))))
def test_equals_one_process(pool: Pool, case: Case):
    pool.check(case)
