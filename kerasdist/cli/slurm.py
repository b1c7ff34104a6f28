"""`kerasdist slurm`: write the batch script for a cluster."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import click

from kerasdist.launch.slurm import Request, advice, batch_script


@click.command("slurm", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--nodes", default=1, show_default=True, type=int, help="Number of nodes.")
@click.option("--gpus-per-node", default=0, show_default=True, type=int, help="GPUs of each node.")
@click.option("--tasks-per-node", type=int, help="Workers on each node.  [default: one a GPU, or one]")
@click.option("--cpus-per-task", type=int, help="Cores of each worker.")
@click.option("--mem", "memory", help="Memory of each node, such as 16G.")
@click.option("--time", "time_limit", required=True, help="Limit: HH:MM:SS, or another of Slurm's forms.")
@click.option("--partition", help="Partition.")
@click.option("--account", help="Account.")
@click.option("--module", "modules", multiple=True, help="Module to load; may be given again.")
@click.option("--activate", help="File to source.  [default: bin/activate of this environment, if it has one]")
@click.option("--job-name", "name", help="Name of the job.  [default: the script's]")
@click.option("--output", default="%x-%j.out", show_default=True, help="File of the output; %x name, %j number.")
@click.option("--requeue", is_flag=True, help="Queue the job again when it is pre-empted or its time is over.")
@click.option(
    "-o",
    "--script-file",
    "target",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file to write.  [default: NAME.sbatch]",
)
@click.option("--force", is_flag=True, help="Overwrite that file.")
@click.argument("command_line", metavar="SCRIPT.py [ARGUMENTS]...", nargs=-1, required=True, type=click.UNPROCESSED)
def command(
    nodes: int,
    gpus_per_node: int,
    tasks_per_node: int | None,
    cpus_per_task: int | None,
    memory: str | None,
    time_limit: str,
    partition: str | None,
    account: str | None,
    modules: tuple[str, ...],
    activate: str | None,
    name: str | None,
    output: str,
    requeue: bool,
    target: Path | None,
    force: bool,
    command_line: tuple[str, ...],
) -> None:
    """Write the batch script that runs SCRIPT.py on a Slurm cluster, and say how to submit it. Nothing is submitted."""
    script, *arguments = command_line
    if not Path(script).is_file():
        raise click.ClickException(f"There is no script {script} in {Path.cwd()}.")
    own = Path(sys.prefix) / "bin" / "activate"
    if activate is None and sys.prefix != sys.base_prefix and own.is_file():
        activate = str(own)
    if activate is not None and not Path(activate).is_file():
        raise click.ClickException(f"There is no file {activate} to source.")
    # The environment's own python, once it is activated; else this very one.
    python = "python" if activate else sys.executable
    try:
        request = Request(
            command=[python, script, *arguments],
            nodes=nodes,
            time=time_limit,
            tasks_per_node=tasks_per_node,
            gpus_per_node=gpus_per_node,
            cpus_per_task=cpus_per_task,
            memory=memory,
            name=name or Path(script).stem,
            output=output,
            partition=partition,
            account=account,
            modules=modules,
            activate=activate,
            requeue=requeue,
        )
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    target = target or Path(f"{request.name}.sbatch")
    try:
        with target.open("w" if force else "x", encoding="utf-8") as file:
            file.write(batch_script(request))
    except FileExistsError as error:
        raise click.ClickException(f"{target} is there already. Give --force to overwrite it.") from error
    except OSError as error:
        raise click.ClickException(f"{target} cannot be written: {error.strerror}.") from error
    workers = request.nodes * request.tasks
    click.echo(f"{target}: {workers} worker{'s' * (workers > 1)} run {shlex.join(request.command)}")
    click.echo(advice(os.fspath(target), request))
