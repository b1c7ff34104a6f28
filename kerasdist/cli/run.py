"""`kerasdist run`: start a script on several workers, here or on several hosts."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import click

from kerasdist.errors import KerasdistError
from kerasdist.launch.discovery import FixedHosts, Script
from kerasdist.launch.elastic import Elastic, describe_elastic, run_elastic
from kerasdist.launch.hosts import parse_hostfile, parse_hosts
from kerasdist.launch.job import THIS_HOST, Job, describe, plan, run_job
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
@click.option("--min-np", "smallest", type=click.IntRange(min=1), help="Elastic: go on with so many workers or more.")
@click.option("--max-np", "largest", type=click.IntRange(min=1), help="Elastic: never more.  [default: all slots]")
@click.option("--host-discovery-script", help="Elastic: prints the hosts there are, a line `host1:2` for each.")
@click.option(
    "--reset-limit", type=click.IntRange(min=0),
    help="Elastic: so many failures in a row without a new checkpoint are started again.  [default: 3]",
)  # fmt: skip
@click.option(
    "--start-timeout", type=click.FloatRange(min=0), help="Elastic: seconds to wait for slots.  [default: 600]"
)
@click.option(
    "--cooldown", type=click.FloatRange(min=0),
    help="Elastic: seconds for which the slot of a worker that died is left out.  [default: 60]",
)  # fmt: skip
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
    smallest: int | None,
    largest: int | None,
    host_discovery_script: str | None,
    reset_limit: int | None,
    start_timeout: float | None,
    cooldown: float | None,
    log_dir: Path | None,
    grace: float,
    dry_run: bool,
    command_line: tuple[str, ...],
) -> None:
    """Start SCRIPT.py (or another program) on several workers, over Gloo.

    Each line of output has its rank in front. If a rank fails, all end, and the traceback of the first one that failed
    comes last; its exit code is the command's. SIGTERM is passed on to all workers; Ctrl-C ends them.

    With --min-np the job is elastic: when a worker dies, or hosts come or go, all end, and as many as can be start
    again; kerasdist.Checkpoint continues the training. -np is then the number to wait for at the start.
    """
    if sum(map(bool, (hosts, hostfile, host_discovery_script))) > 1:
        raise click.UsageError("Give one of -H, --hostfile and --host-discovery-script.")
    options: dict[str, Any] = {"reset_limit": reset_limit, "start_timeout_s": start_timeout, "rest_s": cooldown}
    given = {name: value for name, value in options.items() if value is not None}
    if smallest is None and (given or largest or host_discovery_script):
        raise click.UsageError("--max-np and the other options of an elastic job need --min-np.")
    try:
        slots = parse_hosts(hosts) if hosts else parse_hostfile(hostfile) if hostfile else None
        elastic = None
        if smallest is not None:
            source = _source(host_discovery_script, slots, largest or size)
            elastic = Elastic(source, smallest, largest, size, **given)
        elif size is None:
            if slots is None:
                raise click.UsageError("How many workers? Give -np, -H or --hostfile.")
            size = sum(slots.values())
        job = Job(
            command=worker_command(command_line),
            size=size or 0,
            hosts=slots,
            interface=interface,
            ssh=Ssh(ssh_port, ssh_identity_file),
            log_dir=log_dir,
            grace_s=grace,
        )
        if dry_run:
            click.echo(describe_elastic(job, elastic) if elastic else describe(job, plan(job)))
            return
        code = run_elastic(job, elastic) if elastic else run_job(job)
    except (ValueError, KerasdistError) as error:
        raise click.ClickException(str(error)) from error
    raise SystemExit(code)


def _source(script: str | None, slots: dict[str, int] | None, here: int | None) -> FixedHosts | Script:
    """Where an elastic job finds its hosts; without a script and names, on this host.

    Raises:
        ValueError: there is no such script, or nothing says how many workers.
    """
    if script is not None:
        command = shlex.split(script)
        if not command or shutil.which(command[0]) is None:
            raise ValueError(f"--host-discovery-script: there is no such program, or it is not executable: {script!r}.")
        return Script(command)
    if slots is None and here is None:
        raise click.UsageError("How many workers? Give --max-np, -np, -H, --hostfile or --host-discovery-script.")
    return FixedHosts(slots or {THIS_HOST: here or 0})


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
