"""Which launcher started this process, and as which rank? Read from the environment, once, without side effects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class LaunchEnvironment:
    """What a launcher says about this process; `None` where it says nothing.

    Attributes:
        launcher: "horovodrun", "openmpi", "slurm", "torchrun" or "pmi"; `None` if no launcher was seen.
        rank: number of this process among all, from 0.
        size: number of processes; 1 if no launcher was seen.
        local_rank: number of this process among those of its host.
        local_size: number of processes on this host.
    """

    launcher: str | None = None
    rank: int | None = None
    size: int | None = 1
    local_rank: int | None = None
    local_size: int | None = None

    def describe(self) -> str:
        """Returns one line for people, such as "horovodrun: rank 1 of 4, local rank 1 of 2"."""
        if self.launcher is None:
            return "no launcher: one process"
        text = f"{self.launcher}: rank {_shown(self.rank)} of {_shown(self.size)}"
        if self.local_rank is not None or self.local_size is not None:
            text += f", local rank {_shown(self.local_rank)} of {_shown(self.local_size)}"
        return text


@dataclass(frozen=True)
class _Launcher:
    """The variables of one launcher. It counts as seen when all of `marks` are set."""

    name: str
    marks: tuple[str, ...]
    rank: str
    size: str
    local_rank: str = ""
    local_size: str = ""


# The innermost first: horovodrun may itself start its workers through mpirun, and mpirun may run in a Slurm step.
# SLURM_NTASKS is no mark: the batch shell, which is no worker, has it too. SLURM_STEP_NUM_TASKS of a batch shell
# is 1, or unset, so it is harmless there.
_LAUNCHERS = (
    _Launcher(
        "horovodrun",
        ("HOROVOD_RANK", "HOROVOD_SIZE"),
        "HOROVOD_RANK",
        "HOROVOD_SIZE",
        "HOROVOD_LOCAL_RANK",
        "HOROVOD_LOCAL_SIZE",
    ),
    _Launcher(
        "openmpi",
        ("OMPI_COMM_WORLD_SIZE",),
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    _Launcher(
        "torchrun",
        ("TORCHELASTIC_RUN_ID", "WORLD_SIZE"),
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
    ),
    _Launcher("slurm", ("SLURM_STEP_NUM_TASKS",), "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
    _Launcher("pmi", ("PMI_SIZE",), "PMI_RANK", "PMI_SIZE"),
    # What platforms set that start workers as torchrun does, such as Kubernetes operators; it may be left over from
    # another job, so it comes last.
    _Launcher(
        "torchrun",
        ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"),
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
    ),
)


def read_environment(environ: Mapping[str, str]) -> LaunchEnvironment:
    """Reads which launcher started the process.

    Args:
        environ: the environment, usually `os.environ`.

    Returns:
        What the innermost launcher says; `LaunchEnvironment()` (size 1) if there was none.

    Raises:
        ValueError: a variable of that launcher does not hold a whole number of 0 or more, or two of them contradict
            each other.
    """
    for launcher in _LAUNCHERS:
        if all(environ.get(mark) for mark in launcher.marks):
            found = LaunchEnvironment(
                launcher=launcher.name,
                rank=_number(environ, launcher.rank),
                size=_number(environ, launcher.size),
                local_rank=_number(environ, launcher.local_rank),
                local_size=_number(environ, launcher.local_size) or _slurm_local_size(launcher, environ),
            )
            _below(launcher, environ, found.rank, launcher.rank, found.size, launcher.size)
            _below(launcher, environ, found.local_rank, launcher.local_rank, found.local_size, launcher.local_size)
            return found
    return LaunchEnvironment()


def _below(
    launcher: _Launcher, environ: Mapping[str, str], number: int | None, name: str, count: int | None, count_name: str
) -> None:
    if number is not None and count is not None and count_name and number >= count:
        raise ValueError(
            f"The environment variables of {launcher.name} contradict each other: {name}={environ[name]}, but "
            f"{count_name}={environ[count_name]}. Some may be left over from another job: unset them, or start the "
            "script with its launcher."
        )


def _number(environ: Mapping[str, str], variable: str) -> int | None:
    value = environ.get(variable)
    if not value:
        return None
    if not (value.isascii() and value.isdigit()):
        raise ValueError(
            f"The environment variable {variable} should hold a whole number of 0 or more, as a launcher sets it. "
            f"Received: {variable}={value!r}. Unset it, or start the script with horovodrun, mpirun or srun."
        )
    return int(value)


def _slurm_local_size(launcher: _Launcher, environ: Mapping[str, str]) -> int | None:
    """Slurm gives the tasks of each node as "2(x3),1": one node's share is known only if all have the same."""
    text = environ.get("SLURM_STEP_TASKS_PER_NODE", "") if launcher.name == "slurm" else ""
    count, _, repeat = text.partition("(")
    if count.isdigit() and "," not in text and (not repeat or repeat.startswith("x")):
        return int(count)
    return None


def _shown(number: int | None) -> str:
    return "?" if number is None else str(number)
