"""`kerasdist run`: start a script on several workers, here or on several hosts."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import click

from kerasdist.errors import KerasdistError
from kerasdist.launch.hosts import parse_hostfile, parse_hosts
from kerasdist.launch.job import Job, describe, plan, run_job
from kerasdist.launch.workers import Ssh

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "-np", "--num-workers", "size", type=click.IntRange(min=1), help="How many workers.  [default: all slots]"
)
@click.option("-H", "--hosts", help="Hosts with the number of workers on each: host1:2,host2:2.  [default: this host]")
@click.option("--hostfile", type=_FILE, help="The same from a file, a line `host1 slots=2` for each host.")
@click.option("--interface", help="Network interface, with several hosts.  [default: the one on the route]")
@click.option("--ssh-port", type=click.IntRange(1, 65535), help="Port of the hosts' ssh.")
@click.option("--ssh-identity-file", help="Key for the hosts' ssh.")
@click.option("--log-dir", type=click.Path(file_okay=False, path_type=Path), help="Keep each rank's output here.")
@click.option(
    "--grace", default=30.0, show_default=True, type=click.FloatRange(min=0),
    help="Seconds between SIGTERM and SIGKILL for the workers, when the job is told to end.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Print what would be started, and start nothing.")
@click.argument("command_line", metavar="SCRIPT.py [ARGUMENTS]...", nargs=-1, required=True, type=click.UNPROCESSED)
def command(
    size: int | None,
    hosts: str | None,
    hostfile: Path | None,
    interface: str | None,
    ssh_port: int | None,
    ssh_identity_file: str | None,
    log_dir: Path | None,
    grace: float,
    dry_run: bool,
    command_line: tuple[str, ...],
) -> None:
    """Start SCRIPT.py (or another program) on several workers, over Gloo.

    Each line of output has its rank in front. If a rank fails, all end, and the traceback of the first one that failed
    comes last; its exit code is the command's. SIGTERM is passed on to all workers; Ctrl-C ends them.
    """
    if hosts and hostfile:
        raise click.UsageError("Give -H or --hostfile, not both.")
    try:
        slots = parse_hosts(hosts) if hosts else parse_hostfile(hostfile) if hostfile else None
        if size is None:
            if slots is None:
                raise click.UsageError("How many workers? Give -np, -H or --hostfile.")
            size = sum(slots.values())
        job = Job(
            command=worker_command(command_line),
            size=size,
            hosts=slots,
            interface=interface,
            ssh=Ssh(ssh_port, ssh_identity_file),
            log_dir=log_dir,
            grace_s=grace,
        )
        if dry_run:
            click.echo(describe(job, plan(job)))
            return
        code = run_job(job)
    except (ValueError, KerasdistError) as error:
        raise click.ClickException(str(error)) from error
    raise SystemExit(code)


def worker_command(command_line: tuple[str, ...]) -> list[str]:
    """What each worker runs: a script or ``-m MODULE`` by this Python, anything else as it is.

    Raises:
        ValueError: there is no such script or program.
    """
    first = command_line[0]
    if first == "-m":
        if len(command_line) < 2:
            raise ValueError("-m needs the name of a module after it.")
        return [sys.executable, *command_line]
    if first.startswith("-"):
        raise ValueError(f"There is no option {first}. See `kerasdist run --help`.")
    if first.endswith(".py"):
        if not Path(first).is_file():
            raise ValueError(f"There is no script {first} in {Path.cwd()}.")
        return [sys.executable, *command_line]
    if shutil.which(first) is None:
        raise ValueError(f"There is no program {first!r}, and it is not a Python script (SCRIPT.py).")
    return list(command_line)
