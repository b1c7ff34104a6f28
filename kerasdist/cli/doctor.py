"""`kerasdist doctor`: is everything here that training on several workers needs?"""

from __future__ import annotations

import dataclasses
import json
import os

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kerasdist.cli.diagnosis import Finding, can_train, diagnose
from kerasdist.cli.evidence import collect
from kerasdist.cli.trial import start_two

_STYLES = {"good": "green", "note": "dim", "missing": "yellow", "wrong": "red"}
_PIPE_COLUMNS = 160


@click.command("doctor")
@click.option("--check", is_flag=True, help="Also start 2 processes that average their ranks.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=180.0,
    show_default=True,
    help="Seconds that loading, or --check, may take.",
)
def command(check: bool, as_json: bool, timeout: float) -> None:
    """Say what is good, missing or wrong for training on several workers, and how to mend it.

    The exit code is 1 if training on 2 workers could not start.
    """
    evidence = collect(os.environ, timeout)
    findings = diagnose(evidence)
    if check and can_train(findings):
        controller = "gloo" if evidence.answers["horovod"]["gloo"] else "mpi"
        trial = start_two(os.environ, timeout, controller)
        findings = diagnose(dataclasses.replace(evidence, trial=trial))
    fit = can_train(findings)
    if as_json:
        click.echo(json.dumps({"ok": fit, "findings": [finding.as_dict() for finding in findings]}, indent=2))
    else:
        _show(findings, fit)
    raise SystemExit(0 if fit else 1)


def _show(findings: list[Finding], fit: bool) -> None:
    table = Table(box=None, header_style="bold")
    for title in ("", "state", "found", "mend"):
        table.add_column(title, overflow="fold")
    for finding in findings:
        state = Text(finding.state, style=_STYLES[finding.state])
        table.add_row(finding.name, state, Text(finding.value), Text(finding.mend))
    console = Console()
    if not console.is_terminal:
        console.width = _PIPE_COLUMNS
    console.print(table)
    console.print("2 workers can train here." if fit else "2 workers cannot train here yet.")
