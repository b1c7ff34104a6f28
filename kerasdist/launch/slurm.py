"""The batch script for a Slurm cluster, as a person would have written it. Pure: nothing is asked of Slurm."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field

from kerasdist.config import natural_number, positive_integer

_WORD = re.compile(r"[A-Za-z0-9_.,+@/:=-]+")
_TIME = re.compile(r"(\d+-\d{1,2}(:\d{1,2}(:\d{1,2})?)?|\d+(:\d{1,2}(:\d{1,2})?)?)")
_MEMORY = re.compile(r"[1-9]\d*[KMGT]?")
STOPPED = 143  # how a training that SIGTERM stopped ends
WARNING_S = 120
_LEAST_S = WARNING_S + 60  # what is worth starting, and telling to stop


@dataclass(frozen=True)
class Request:
    """What is asked of the cluster.

    Attributes:
        command: program and arguments of every task.
        nodes: number of nodes.
        time: limit, in one of Slurm's forms, such as "00:30:00" or "1-12".
        tasks_per_node: workers on each node. Default: one a GPU, or one.
        gpus_per_node: GPUs of each node; 0 for none.
        cpus_per_task: cores of each worker. Default: Slurm's.
        memory: of each node, such as "16G". Default: Slurm's.
        name: of the job.
        output: file of the output; "%x" is the name, "%j" the job's number.
        partition, account: where the cluster wants them.
        modules: to load.
        activate: file that is sourced, such as an environment's bin/activate.
        requeue: whether the job goes back into the queue when it is pre-empted or its time is over.
    """

    command: Sequence[str]
    nodes: int
    time: str
    tasks_per_node: int | None = None
    gpus_per_node: int = 0
    cpus_per_task: int | None = None
    memory: str | None = None
    name: str = "kerasdist"
    output: str = "%x-%j.out"
    partition: str | None = None
    account: str | None = None
    modules: Sequence[str] = field(default_factory=tuple)
    activate: str | None = None
    requeue: bool = False

    def __post_init__(self) -> None:
        positive_integer("nodes", self.nodes)
        natural_number("gpus_per_node", self.gpus_per_node)
        for name in ("tasks_per_node", "cpus_per_task"):
            if getattr(self, name) is not None:
                positive_integer(name, getattr(self, name))
        if self.gpus_per_node and self.tasks > self.gpus_per_node:
            raise ValueError(
                f"Each worker needs a GPU of its own, but {self.tasks} workers a node were asked for, and "
                f"{self.gpus_per_node} GPUs. Ask for at most {self.gpus_per_node} workers a node."
            )
        if not _TIME.fullmatch(self.time) or not re.search("[1-9]", self.time):
            raise ValueError(
                "`time` must be above 0, in one of Slurm's forms: MINUTES, MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS. "
                f"Received: time={self.time!r}"
            )
        if self.requeue and seconds(self.time) < _LEAST_S:
            raise ValueError(
                f"With `requeue` the training is told to stop {WARNING_S} s before its time is over. Expected: a time "
                f"of at least {_LEAST_S // 60} minutes. Received: time={self.time!r}"
            )
        if self.memory is not None and not _MEMORY.fullmatch(self.memory):
            raise ValueError(f"`memory` must be a number with K, M, G or T. Received: memory={self.memory!r}")
        words = {"name": self.name, "partition": self.partition, "account": self.account}
        words |= {f"module {number + 1}": module for number, module in enumerate(self.modules)}
        for name, word in words.items():
            if word is not None and (not _WORD.fullmatch(word) or word.startswith("-")):
                raise ValueError(f"`{name}` must be one word of letters, digits and _.,+@/:=-. Received: {word!r}")
        if not re.fullmatch(r"[^\s\"'\\$`]+", self.output):
            raise ValueError(f"`output` must be a file name without blanks and quotes. Received: {self.output!r}")

    @property
    def tasks(self) -> int:
        """Workers on each node."""
        return self.tasks_per_node or self.gpus_per_node or 1


def seconds(time: str) -> int:
    """A time in one of Slurm's forms, in seconds."""
    days, _, rest = time.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    hours_first = bool(days) or len(parts) == 3  # else minutes
    units = (3600, 60, 1) if hours_first else (60, 1)
    return int(days or 0) * 86400 + sum(part * unit for part, unit in zip(parts, units, strict=False))


def batch_script(request: Request) -> str:
    """The text of the script."""
    options = {
        "job-name": request.name,
        "output": request.output,
        "nodes": request.nodes,
        "ntasks-per-node": request.tasks,
        "cpus-per-task": request.cpus_per_task,
        "gres": f"gpu:{request.gpus_per_node}" if request.gpus_per_node else None,
        "mem": request.memory,
        "time": request.time,
        "partition": request.partition,
        "account": request.account,
    }
    lines = ["#!/bin/bash", *(f"#SBATCH --{name}={value}" for name, value in options.items() if value is not None)]
    if request.requeue:
        lines += [
            "#SBATCH --requeue",
            "#SBATCH --open-mode=append",
            f"# {WARNING_S} s before its time is over the training is told to stop, as by a pre-emption.",
            f"#SBATCH --signal=TERM@{WARNING_S}",
        ]
    lines.append("")
    lines += [f"module load {shlex.quote(module)}" for module in request.modules]
    if request.activate:
        lines.append(f"source {shlex.quote(request.activate)}")
    if lines[-1]:
        lines.append("")
    cpus = '--cpus-per-task="$SLURM_CPUS_PER_TASK" ' if request.cpus_per_task else ""
    # Slurm would end the others with SIGTERM: rank 0 while it saves, and a failure would look like a stop.
    kill = "" if request.requeue else "--kill-on-bad-exit=1 "
    srun = f"srun {kill}{cpus}{shlex.join(request.command)}"
    lines += ["# One task a worker; the ranks find each other from what srun tells them.", srun]
    if request.requeue:
        lines += [
            "code=$?",
            f"# {STOPPED}: SIGTERM stopped the training. A script that resumes goes on in the next run.",
            f'if [ "$code" -eq {STOPPED} ]; then',
            '    scontrol requeue "$SLURM_JOB_ID"',
            "fi",
            'exit "$code"',
        ]
    return "\n".join(lines) + "\n"


def advice(file: str, request: Request) -> str:
    """How to submit, watch, inspect and cancel."""
    output = request.output.replace("%x", request.name).replace("%j", "JOB")
    return "\n".join(
        [
            f"submit    sbatch {shlex.quote(file)}",
            f"watch     squeue --me; tail -f {output}",
            "inspect   scontrol show job JOB; sacct -j JOB --format=JobID,State,ExitCode,Elapsed,MaxRSS",
            "cancel    scancel JOB",
        ]
    )
