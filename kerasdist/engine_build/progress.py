"""How far is the build? A bar on a terminal, counted lines elsewhere."""

from __future__ import annotations

import re
import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

_CMAKE_PERCENT = re.compile(r"^\s*\[\s*(\d+)%\]")
_LINE_EVERY_PERCENT = 20


class BuildProgress:
    """Shows stages and, within one, the percentage that CMake prints. A context manager.

    Args:
        console: where to; a terminal gets a bar, anything else at most six lines a stage.
        stages: how many stages there will be.
        verbose: every line of the tools' output is shown too.
    """

    def __init__(self, console: Console, stages: int, verbose: bool = False) -> None:
        self._console = console
        self._stages = stages
        self._verbose = verbose
        self._stage = 0
        self._name = ""
        self._percent = 0
        self._start = time.monotonic()
        self._bar: Progress | None = None
        if console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
            self._bar = Progress(*columns, console=console, transient=True)

    def __enter__(self) -> BuildProgress:
        if self._bar:
            self._bar.start()
            self._task = self._bar.add_task("", total=100)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar:
            self._bar.stop()

    def stage(self, name: str) -> None:
        """Begins the next stage."""
        self._stage += 1
        self._name = name
        self._percent = 0
        if self._bar:
            self._bar.reset(self._task, description=f"[{self._stage}/{self._stages}] {name}", total=100)
        else:
            self._print(f"[{self._stage}/{self._stages}] {name}")

    def line(self, text: str) -> None:
        """Takes one line of output of the tool that runs."""
        if self._verbose:
            self._console.print(text.rstrip(), markup=False, highlight=False, soft_wrap=True)
        found = _CMAKE_PERCENT.match(text)
        if not found:
            return
        percent = int(found[1])
        if self._bar:
            self._bar.update(self._task, completed=percent)
        elif percent // _LINE_EVERY_PERCENT > self._percent // _LINE_EVERY_PERCENT:
            self._print(f"[{self._stage}/{self._stages}] {self._name}: {percent} %")
        self._percent = max(self._percent, percent)

    def _print(self, text: str) -> None:
        seconds = round(time.monotonic() - self._start)
        self._console.print(f"{text} ({seconds} s)", markup=False, highlight=False, soft_wrap=True)
