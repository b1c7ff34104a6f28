"""How many cores and how much memory may this process use, its container's limits counted?

A container's limits, such as those of Docker's ``--cpus`` and ``--memory`` or of Kubernetes, are found where it sees
its own control group, of version 2 or 1.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

CONTROL_GROUP = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")


def available_cores(control_group: Path = CONTROL_GROUP) -> int:
    """The cores that this process may run on, or fewer where its container has a quota of processor time.

    A part of a core counts as none, but there is always one.
    """
    allowed = len(os.sched_getaffinity(0))
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            quota, period = " ".join((control_group / name).read_text() for name in names).split()
            if int(quota) > 0:
                return max(1, min(allowed, int(quota) // int(period)))
        except (OSError, ValueError):  # no such version; "max" is no quota
            continue
    return allowed


def available_memory_mb(control_group: Path = CONTROL_GROUP, meminfo: Path = MEMINFO) -> int:
    """The memory that is free for new processes, in MB; 0 if the system does not say.

    Of a container with a limit, what is left of it: files that are kept in memory for later do not count as used.
    """
    try:
        found = re.search(r"MemAvailable:\s+(\d+) kB", meminfo.read_text(encoding="ascii"))
    except OSError:
        found = None
    free = [int(found[1]) // 1024] if found else []
    for folder, limit_file, usage_file, reclaimable in (
        (control_group, "memory.max", "memory.current", "inactive_file"),
        (control_group / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            limit, usage = (int((folder / name).read_text()) for name in (limit_file, usage_file))
            kept = re.search(rf"^{reclaimable} (\d+)$", (folder / "memory.stat").read_text(), re.MULTILINE)
        except (OSError, ValueError):  # no such version; "max" is no limit
            continue
        free.append(max(0, limit - usage + (int(kept[1]) if kept else 0)) // 2**20)
    return min(free, default=0)
