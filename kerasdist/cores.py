"""How many cores may this process use?"""

from __future__ import annotations

import os
from pathlib import Path

CONTROL_GROUP = Path("/sys/fs/cgroup")


def available_cores(control_group: Path = CONTROL_GROUP) -> int:
    """The cores that this process may run on, or fewer where its container has a quota of processor time.

    A quota, such as that of Docker's ``--cpus`` or of a limit in Kubernetes, is found where a container sees its own
    control group: version 2's ``cpu.max``, version 1's ``cpu/cpu.cfs_quota_us``. A part of a core counts as none, but
    there is always one.
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
