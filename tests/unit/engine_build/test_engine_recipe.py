"""Options, key and environment of the build are pure functions of the machine."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from kerasdist.engine_build.machine import Tool
from kerasdist.engine_build.recipe import (
    FORWARDING_HEADERS,
    Options,
    build_environment,
    choose,
    engine_facts,
    engine_key,
)


def test_options_follow_the_machine(machine):
    assert choose(machine) == Options(mpi=True, nccl=True, jobs=8)
    assert choose(replace(machine, mpi=None, nccl=None)) == Options(mpi=False, nccl=False, jobs=8)
    assert choose(replace(machine, memory_mb=4000)).jobs == 2
    assert choose(machine, mpi=False, nccl=False, jobs=3) == Options(mpi=False, nccl=False, jobs=3)


def test_cuda_of_another_major_version_is_used_only_if_asked_for(machine):
    other = replace(machine, cuda=Tool("cuda", "13.0", Path("/usr/local/cuda")))
    assert not choose(other).nccl
    assert choose(other, nccl=True).nccl


@pytest.mark.parametrize(
    "change",
    [
        {"python": (3, 13)},
        {"tensorflow": (("tensorflow", "2.20.0"),)},
        {"tensorflow": (("tensorflow-cpu", "2.21.0"),)},
        {"compiler": Tool("gcc", "13.1.0", Path("/usr/bin/g++"))},
        {"arch": "aarch64"},
        {"mpi": Tool("openmpi", "5.0.1", Path("/usr/bin/mpicc"))},
        {"cuda": Tool("cuda", "12.9", Path("/usr/local/cuda"))},
    ],
    ids=lambda change: next(iter(change)),
)
def test_whatever_changes_the_binary_changes_the_key(machine, change):
    options = choose(machine)
    keys = {engine_key(engine_facts(each, options)) for each in (machine, replace(machine, **change))}
    assert len(keys) == 2


def test_options_change_the_key_and_jobs_do_not(machine):
    keys = [engine_key(engine_facts(machine, Options(mpi, nccl))) for mpi in (True, False) for nccl in (True, False)]
    assert len(set(keys)) == 4
    assert engine_key(engine_facts(machine, Options(True, True, jobs=7))) == keys[0]


def test_key_is_a_readable_folder_name(machine):
    key = engine_key(engine_facts(machine, Options(mpi=True)))
    assert re.fullmatch(r"[A-Za-z0-9._-]+", key)
    assert key.startswith("horovod0.28.1-cp312-tensorflow_2.21.0-gcc_12.2.0-gloo-openmpi_4.1.4-x86_64-")


def test_build_environment(machine):
    tools = Path("/t")
    environ = {"PATH": "/bin", "CPATH": "/mine", "HOROVOD_WITHOUT_TENSORFLOW": "1", "MAKEFLAGS": "-n"}
    result = build_environment(environ, machine, Options(jobs=2), tools)
    assert result["CPATH"].split(":") == [
        str(FORWARDING_HEADERS),
        "/tf/include/external/highwayhash",
        "/tf/include/external/farmhash_archive/src",
        "/mine",
    ]
    assert "HOROVOD_WITHOUT_TENSORFLOW" not in result
    assert (result["HOROVOD_WITHOUT_MPI"], result["MAKEFLAGS"], result["PATH"]) == ("1", "-j2", "/t/bin:/bin")
    assert not any("NCCL" in name for name in result)
    with_all = build_environment(environ, machine, Options(mpi=True, nccl=True), tools, Path("/n"))
    assert with_all["HOROVOD_WITH_MPI"] == "1" and "HOROVOD_WITHOUT_MPI" not in with_all
    assert with_all["HOROVOD_GPU_OPERATIONS"] == "NCCL" and with_all["HOROVOD_NCCL_HOME"] == "/n"


def test_headers_are_shipped():
    assert len(list(FORWARDING_HEADERS.rglob("*.h"))) == 2
