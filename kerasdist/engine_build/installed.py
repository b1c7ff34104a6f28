"""Which engine is installed, and for what was it built? Read from files; neither TensorFlow nor Horovod is imported."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

_RECORD = "horovod/kerasdist-engine.json"


@dataclass(frozen=True)
class InstalledEngine:
    """The Horovod of this environment.

    Attributes:
        version: Horovod's version.
        tensorflow: version of the TensorFlow that it was built for; "" if it was built without.
        facts: all that kerasdist built it for; `None` if kerasdist did not build it, or its files are not all there.
    """

    version: str
    tensorflow: str
    facts: Mapping[str, str] | None


def installed_engine() -> InstalledEngine | None:
    """Returns the installed engine, or `None` if there is no Horovod."""
    importlib.invalidate_caches()
    try:
        distribution = metadata.distribution("horovod")
    except metadata.PackageNotFoundError:
        return None
    return read_engine(distribution.version, Path(str(distribution.locate_file(""))))


def read_engine(version: str, site: Path) -> InstalledEngine:
    """Reads the files that Horovod and `record_engine` left in the folder of installed packages."""
    built = _json(site / "horovod" / "metadata.json")
    extension = any((site / "horovod" / "tensorflow").glob("mpi_lib*.so"))
    facts = _json(site / _RECORD)
    return InstalledEngine(
        version, str(built.get("tensorflow", "")) if extension else "", facts if extension and facts else None
    )


def record_engine(facts: Mapping[str, str]) -> None:
    """Writes down, as one of the installed Horovod's files, what it was built for, so that pip removes both."""
    importlib.invalidate_caches()
    distribution = metadata.distribution("horovod")
    Path(str(distribution.locate_file(_RECORD))).write_text(json.dumps(dict(facts), indent=1), encoding="utf-8")
    listing = Path(str(distribution.locate_file(f"horovod-{distribution.version}.dist-info/RECORD")))
    text = listing.read_text(encoding="utf-8")
    if _RECORD not in text:
        listing.write_text(f"{text.rstrip()}\n{_RECORD},,\n", encoding="utf-8")


def _json(file: Path) -> dict[str, str]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
