"""How many cores and how much memory a process may use, by what its control group says in files of both versions."""

import os

import pytest

from kerasdist.limits import available_cores, available_memory_mb

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


GB = 2**30
STAT = "inactive_anon 5\ninactive_file {0}\ntotal_inactive_file {0}\n"


@pytest.mark.parametrize(
    ("files", "memory_mb"),
    [
        ({}, 8192),
        ({"memory.max": f"{4 * GB}\n", "memory.current": f"{3 * GB}\n", "memory.stat": STAT.format(0)}, 1024),
        ({"memory.max": f"{4 * GB}\n", "memory.current": f"{3 * GB}\n", "memory.stat": STAT.format(2 * GB)}, 3072),
        ({"memory.max": "max\n", "memory.current": f"{3 * GB}\n", "memory.stat": STAT.format(0)}, 8192),
        ({"memory.max": f"{64 * GB}\n", "memory.current": "0\n", "memory.stat": STAT.format(0)}, 8192),
        (
            {
                "memory/memory.limit_in_bytes": f"{4 * GB}\n",
                "memory/memory.usage_in_bytes": f"{3 * GB}\n",
                "memory/memory.stat": STAT.format(GB),
            },
            2048,
        ),
        ({"memory/memory.limit_in_bytes": "9223372036854771712\n", "memory/memory.usage_in_bytes": "0\n"}, 8192),
    ],
)
def test_a_limit_of_memory_counts(tmp_path, files, memory_mb):
    (tmp_path / "memory").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(f"MemTotal: {16 * 2**20} kB\nMemAvailable:   {8 * 2**20} kB\n")
    assert available_memory_mb(tmp_path, meminfo) == memory_mb


def test_memory_that_nobody_tells(tmp_path):
    assert available_memory_mb(tmp_path, tmp_path / "none") == 0
