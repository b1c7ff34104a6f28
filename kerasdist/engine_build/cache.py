"""Where are finished engines kept? One folder a key: the wheel, and the facts that it was built for."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from kerasdist.engine_build.recipe import engine_key

_RECORD = "engine.json"


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Returns KERASDIST_CACHE, or `kerasdist` in the user's cache folder. It need not exist yet."""
    if environ.get("KERASDIST_CACHE"):
        return Path(environ["KERASDIST_CACHE"]).expanduser().absolute()
    base = environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache").absolute() / "kerasdist"


def find_wheel(cache: Path, facts: Mapping[str, str]) -> Path | None:
    """Returns the whole, unchanged wheel that was built for exactly these facts, or `None`."""
    folder = _folder(cache, facts)
    try:
        record = json.loads((folder / _RECORD).read_text(encoding="utf-8"))
        wheel = folder / record["wheel"]
        if record["facts"] == dict(facts) and record["sha256"] == _sha256(wheel):
            return wheel
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None


def keep_wheel(cache: Path, facts: Mapping[str, str], wheel: Path) -> Path:
    """Copies a finished wheel into the cache, whole or not at all, and returns its new place."""
    folder = _folder(cache, facts)
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=".new-", dir=folder.parent))
    try:
        shutil.copy2(wheel, fresh / wheel.name)
        record = {"facts": dict(facts), "wheel": wheel.name, "sha256": _sha256(wheel)}
        (fresh / _RECORD).write_text(json.dumps(record, indent=1), encoding="utf-8")
        fresh.chmod(0o755)
        if folder.exists():
            shutil.rmtree(folder)
        os.rename(fresh, folder)
    except OSError:
        if find_wheel(cache, facts) is None:  # else another build with the same key was faster
            raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return folder / wheel.name


def log_file(cache: Path, facts: Mapping[str, str]) -> Path:
    """Returns where the log of a build goes, beside the engines."""
    return cache / "logs" / f"{engine_key(facts)}.log"


def _folder(cache: Path, facts: Mapping[str, str]) -> Path:
    return cache / "engines" / engine_key(facts)


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
