"""The groups of workers that all contracts run in: one for each engine."""

from importlib import util

import pytest

from tests.parallel.launch import mpi_missing, run_cases

ENGINES = (
    ("local", 1, "python"),
    ("horovod", 1, "python"),
    ("horovod", 2, "gloo"),
    ("horovod", 3, "gloo"),
    ("horovod", 4, "gloo"),
)
LAUNCHERS = (("launchers", 2, "mpi"),)


def name_of(row):
    return " ".join(map(str, row))


@pytest.fixture(params=(*ENGINES, *LAUNCHERS), ids=name_of, scope="package")
def job(request):
    """The groups that are asked what the engine must do."""
    return start(*request.param)


@pytest.fixture(params=ENGINES, ids=name_of, scope="package")
def steps(request):
    """The groups that are asked what compressors do in many steps."""
    return start(*request.param)


@pytest.fixture(params=(ENGINES[0], *ENGINES[2:]), ids=name_of, scope="package")
def algorithms(request):
    """The groups that are asked what algorithms do: one of each size."""
    return start(*request.param)


@pytest.fixture(params=(ENGINES[0], *ENGINES[2:-1]), ids=name_of, scope="package")
def fits(request):
    """The groups whose trainings by ``fit`` are looked at."""
    return start(*request.param)


def start(name, size, launcher):
    if name != "local" and util.find_spec("horovod") is None:
        pytest.skip("the engine is not built: `kerasdist build-engine`")
    if launcher == "mpi" and mpi_missing():
        pytest.skip(mpi_missing())
    job = run_cases(f"tests.contracts.cases_{name}", size, launcher)
    assert job.exit_code == 0, job.output[-4000:]
    assert [who[0] for who in job.ranks("case_who")] == ["local" if name == "local" else "horovod"] * size
    return job
