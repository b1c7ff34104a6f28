"""Each launcher's variables are read as what they are."""

import pytest

from kerasdist.launch.environment import LaunchEnvironment, read_environment

HOROVODRUN = {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "4", "HOROVOD_LOCAL_RANK": "1", "HOROVOD_LOCAL_SIZE": "2"}
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
}
TORCHRUN = {"TORCHELASTIC_RUN_ID": "x", "RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4"}
LIKE_TORCHRUN = {"MASTER_ADDR": "host1", "MASTER_PORT": "29500", "RANK": "1", "WORLD_SIZE": "2"}
SLURM = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "2", "SLURM_LOCALID": "0", "SLURM_STEP_TASKS_PER_NODE": "2(x2)"}
PMI = {"PMI_RANK": "0", "PMI_SIZE": "2"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (HOROVODRUN, LaunchEnvironment("horovodrun", 1, 4, 1, 2)),
        (OPENMPI, LaunchEnvironment("openmpi", 2, 3, 0, 1)),
        (TORCHRUN, LaunchEnvironment("torchrun", 3, 8, 3, 4)),
        (LIKE_TORCHRUN, LaunchEnvironment("torchrun", 1, 2)),
        ({**LIKE_TORCHRUN, **SLURM}, LaunchEnvironment("slurm", 2, 4, 0, 2)),
        (SLURM, LaunchEnvironment("slurm", 2, 4, 0, 2)),
        ({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "2(x2),1"}, LaunchEnvironment("slurm", 2, 4, 0, None)),
        (PMI, LaunchEnvironment("pmi", 0, 2)),
        ({}, LaunchEnvironment(None, None, 1)),
    ],
    ids=["horovodrun", "openmpi", "torchrun", "like torchrun", "left over", "slurm", "slurm-uneven", "pmi", "none"],
)
def test_each_launcher(environ, expected):
    assert read_environment(environ) == expected


def test_the_innermost_launcher_counts():
    assert read_environment({**SLURM, **PMI, **OPENMPI, **HOROVODRUN}).launcher == "horovodrun"
    assert read_environment({**SLURM, **PMI, **OPENMPI}).launcher == "openmpi"


@pytest.mark.parametrize(
    "environ",
    [
        {"SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"},  # a batch shell
        {"WORLD_SIZE": "4", "RANK": "0"},  # a name that others use too
        {"OMPI_COMM_WORLD_SIZE": ""},
    ],
)
def test_what_is_no_worker(environ):
    assert read_environment(environ) == LaunchEnvironment()


@pytest.mark.parametrize("value", ["four", "-1", "1.5", "²"])
def test_malformed_numbers_name_variable_and_value(value):
    with pytest.raises(ValueError, match="HOROVOD_SIZE") as error:
        read_environment({**HOROVODRUN, "HOROVOD_SIZE": value})
    assert repr(value) in str(error.value)


def test_describe():
    assert read_environment(HOROVODRUN).describe() == "horovodrun: rank 1 of 4, local rank 1 of 2"
    assert read_environment(PMI).describe() == "pmi: rank 0 of 2"
    assert read_environment({}).describe() == "no launcher: one process"
