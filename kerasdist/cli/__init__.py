"""The command `kerasdist`: one file a command, each imported only when it is called."""

from __future__ import annotations

import importlib

import click

# Command -> module of the same meaning; its `command` is the click command. The text is what `--help` lists.
_COMMANDS = {
    "build-engine": ("kerasdist.cli.build_engine", "Build Horovod for the TensorFlow that is installed."),
    "doctor": ("kerasdist.cli.doctor", "Say what is good, missing or wrong for training on several workers."),
    "run": ("kerasdist.cli.run", "Start a script on several workers, on this host or by ssh on several."),
    "slurm": ("kerasdist.cli.slurm", "Write the batch script that runs a script on a Slurm cluster."),
}


class _LazyGroup(click.Group):
    """Imports a command's module when the command is called, not to list it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = importlib.import_module(_COMMANDS[cmd_name][0]).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _COMMANDS[name][1]) for name in self.list_commands(ctx)])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="kerasdist")
def main() -> None:
    """Train Keras 3 models on several workers."""
