"""The groups of workers that all contracts run in: one for each engine."""

from importlib import util

import pytest

from tests.parallel.launch import mpi_missing, run_cases

ENGINES = (
    ("local", 1, "python"),
    ("horovod", 1, "python"),
    ("horovod", 2, "gloo"),
    ("horovod", 3, "gloo"),
    ("horovod", 2, "mpi"),
)


@pytest.fixture(params=ENGINES, ids=lambda row: f"{row[0]} {row[1]} {row[2]}", scope="package")
def job(request):
    name, size, launcher = request.param
    if name == "horovod" and util.find_spec("horovod") is None:
        pytest.skip("the engine is not built: `kerasdist build-engine`")
    if launcher == "mpi" and mpi_missing():
        pytest.skip(mpi_missing())
    job = run_cases(f"tests.contracts.cases_{name}", size, launcher)
    assert job.exit_code == 0, job.output[-4000:]
    assert [who[0] for who in job.ranks("case_who")] == [name] * size
    return job
