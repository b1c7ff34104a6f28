"""Every obstacle is one line that names the mend."""

from dataclasses import replace
from pathlib import Path

import pytest

from kerasdist.engine_build.machine import Tool
from kerasdist.engine_build.preflight import problems
from kerasdist.engine_build.recipe import Options

ALL = Options(mpi=True, nccl=True)


def test_a_good_machine_has_none(machine):
    assert problems(machine, ALL) == []


@pytest.mark.parametrize(
    ("change", "mend"),
    [
        ({"python": (3, 10)}, "3.11 to 3.13"),
        ({"python": (3, 14)}, "3.11 to 3.13"),
        ({"pip": False}, "ensurepip"),
        ({"tensorflow": (), "tensorflow_include": None}, "pip install 'kerasdist[cpu]'"),
        (
            {"tensorflow": (("tensorflow", "2.21.0"), ("tensorflow-cpu", "2.21.0"))},
            "pip uninstall tensorflow tensorflow-cpu",
        ),
        ({"compiler": None}, "apt-get install g++"),
        ({"compiler": Tool("gcc", "8.3.0", Path("/usr/bin/g++"))}, "set CXX"),
        ({"compiler": Tool("clang", "11.0.1", Path("/usr/bin/clang++"))}, "set CXX"),
        ({"make": None}, "apt-get install make"),
        ({"free_mb": {Path("/tmp"): 90_000, Path("/cache"): 1200}}, "KERASDIST_CACHE"),
        ({"mpi": None}, "libopenmpi-dev"),
        ({"cuda": None}, "--cuda-home"),
        ({"nccl": None}, "--nccl-home"),
        ({"tensorflow_cuda": None}, "tensorflow[and-cuda]"),
    ],
)
def test_each_problem_is_one_line_with_its_mend(machine, change, mend):
    (line,) = problems(replace(machine, **change), ALL)
    assert mend in line
    assert "\n" not in line


def test_what_is_not_asked_for_is_not_missed(machine):
    assert problems(replace(machine, mpi=None, cuda=None, nccl=None), Options()) == []
