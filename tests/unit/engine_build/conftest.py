"""A machine on which the build can start."""

from pathlib import Path

import pytest

from kerasdist.engine_build.machine import Machine, Nccl, Tool


@pytest.fixture
def machine():
    return Machine(
        python=(3, 12),
        arch="x86_64",
        tensorflow=(("tensorflow", "2.21.0"),),
        tensorflow_include=Path("/tf/include"),
        tensorflow_cuda="12.5.1",
        compiler=Tool("gcc", "12.2.0", Path("/usr/bin/g++")),
        make="/usr/bin/make",
        mpi=Tool("openmpi", "4.1.4", Path("/usr/bin/mpicc")),
        cuda=Tool("cuda", "12.6", Path("/usr/local/cuda")),
        nccl=Nccl("nccl", "2.27.3", Path("/site/nvidia/nccl/lib/libnccl.so.2"), Path("/site/include"), from_pip=True),
        free_mb={Path("/tmp"): 50_000},
        cores=8,
        memory_mb=32_000,
    )
