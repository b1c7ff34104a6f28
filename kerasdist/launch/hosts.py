"""Which hosts, and how many workers on each? Read from ``-H``, a hostfile or a discovery script's output."""

from __future__ import annotations

import re
from pathlib import Path

_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def parse_hosts(text: str) -> dict[str, int]:
    """Workers by host, in order, of "host1:2,host2:2"; a host without number has 1.

    Raises:
        ValueError: a name or number makes no sense, or a host is there twice.
    """
    return _collect([one.strip() for one in text.split(",")], f"-H {text}")


def parse_hostfile(path: Path) -> dict[str, int]:
    """The same of a file with a line "host slots=2" or "host:2" for each host; "#" begins a comment.

    Raises:
        ValueError: a line makes no sense, there is none, or a host is there twice.
    """
    found = parse_lines(path.read_text(encoding="utf-8"), str(path))
    if not found:
        raise ValueError(f"{path}: no host is named.")
    return found


def parse_lines(text: str, where: str) -> dict[str, int]:
    """The same of such lines; there may be none.

    Raises:
        ValueError: a line makes no sense, or a host is there twice.
    """
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    return _collect([re.sub(r"\s+slots\s*=\s*", ":", line) for line in lines if line], where)


def _collect(entries: list[str], where: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for entry in entries:
        name, _, number = entry.partition(":")
        if not _HOST.fullmatch(name) or not re.fullmatch(r"[1-9][0-9]{0,4}", number or "1"):
            raise ValueError(f"{where}: expected NAME:WORKERS (in a file also NAME slots=WORKERS). Received: {entry!r}")
        if name in found:
            raise ValueError(f"{where}: the host {name!r} is there twice. Give it once, with all of its workers.")
        found[name] = int(number or 1)
    return found
