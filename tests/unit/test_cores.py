"""How many cores a process may use, by what its control group says in real files of both versions."""

import os

import pytest

from kerasdist.cores import available_cores

ALLOWED = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, ALLOWED),
        ({"cpu.max": "100000 100000\n"}, 1),
        ({"cpu.max": "50000 100000\n"}, 1),  # half a core
        ({"cpu.max": "max 100000\n"}, ALLOWED),
        ({"cpu.max": f"{(ALLOWED + 3) * 100000} 100000\n"}, ALLOWED),
        ({"cpu/cpu.cfs_quota_us": "150000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, ALLOWED),
        ({"cpu.max": "nonsense\n"}, ALLOWED),
    ],
)
def test_a_quota_counts(tmp_path, files, cores):
    (tmp_path / "cpu").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert available_cores(tmp_path) == cores


def test_so_does_what_the_process_may_run_on(tmp_path):
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert available_cores(tmp_path) == 1
    finally:
        os.sched_setaffinity(0, before)
