"""Imports run downwards only, and what is not ours to rely on is relied on in one place."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "kerasdist"

# From the top down. A module imports from the layers below its own, and from its own package.
LAYERS = (
    ("cli",),
    ("strategy",),
    ("scope",),
    ("callbacks",),
    ("checkpoint", "replica"),
    ("exchange", "handshake", "prediction", "watchdog"),
    ("data", "optimizer", "saving"),
    ("algorithms",),
    ("averaging", "metrics", "helpers", "normalization", "schedules", "stats", "transport"),
    ("compression",),
    ("engine",),
    ("engine_build",),
    ("keras_hooks", "launch"),
    ("buckets", "config", "errors", "functions", "limits", "step"),
)
DEPTH = {name: depth for depth, names in enumerate(LAYERS) for name in names}

# Upward imports, each inside a function, with the reason.
ALLOWED = {
    ("config", "algorithms"): "the arguments of both doors are validated in one place, names of algorithms too",
    ("config", "compression"): "and names of compressors",
}
# The version that the handshake compares stands in the package itself.
READS_THE_PACKAGE = {"handshake"}

PRIVATE = {"keras.src": "keras_hooks", "tensorflow.python": "keras_hooks"}
# The second and third in processes of their own; the others to start workers.
HOROVOD = {"engine/horovod.py", "engine_build/probe.py", "cli/trial.py", "launch/rendezvous.py", "launch/job.py"}

FILES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))


def imports(file: str) -> list[tuple[str, int, bool]]:
    """(module, line, whether at module level) of every import, ``from a import b`` as ``a.b``."""
    tree = ast.parse((PACKAGE / file).read_text())
    lazy = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        for node in ast.walk(function)
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        found += [(name, node.lineno, id(node) not in lazy) for name in names]
    return found


def part_of(file: str) -> str:
    return file.split("/")[0].removesuffix(".py")


def test_every_module_has_a_layer():
    parts = {part_of(file) for file in FILES} - {"__init__"}
    assert parts == set(DEPTH), "LAYERS and the package differ"


@pytest.mark.parametrize("file", [file for file in FILES if file != "__init__.py"])
def test_imports_run_downwards(file):
    own = part_of(file)
    for name, line, at_top in imports(file):
        if name == "kerasdist":
            assert own in READS_THE_PACKAGE, f"{file}:{line} imports the package itself"
        if not name.startswith("kerasdist."):
            continue
        other = name.split(".")[1]
        assert other in DEPTH, f"{file}:{line} imports {name}: import it from the module where it stands"
        if other == own or DEPTH[other] > DEPTH[own]:
            continue
        assert (own, other) in ALLOWED, f"{file}:{line} imports {name}, which is not below it"
        assert not at_top, f"{file}:{line} imports {name} at module level"


def test_every_exception_is_needed():
    found = [(part_of(file), name) for file in FILES for name, _, _ in imports(file)]
    used = {(own, name.split(".")[1]) for own, name in found if name.startswith("kerasdist.")}
    assert set(ALLOWED) <= used
    assert {own for own, name in found if name == "kerasdist"} == READS_THE_PACKAGE


@pytest.mark.parametrize("file", FILES)
def test_internals_of_keras_and_tensorflow_stand_in_one_package(file):
    for name, line, _ in imports(file):
        for private, home in PRIVATE.items():
            assert not f"{name}.".startswith(f"{private}.") or part_of(file) == home, f"{file}:{line} imports {name}"
    for node in ast.walk(ast.parse((PACKAGE / file).read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and part_of(file) != "keras_hooks":
            assert (node.value.id, node.attr) not in {("keras", "src"), ("tf", "python")}, f"{file}:{node.lineno}"


def test_horovod_is_imported_by_its_engine_alone():
    found = {file for file in FILES for name, _, _ in imports(file) if name.split(".")[0] == "horovod"}
    assert found == HOROVOD


@pytest.mark.parametrize("file", FILES)
def test_what_starts_without_tensorflow(file):
    """The command line and what is read before an engine is chosen."""
    if part_of(file) not in ("cli", "engine_build", "launch", "config", "errors", "buckets", "step", "__init__"):
        return
    for name, line, at_top in imports(file):
        assert not at_top or name.split(".")[0] not in ("tensorflow", "keras"), f"{file}:{line} imports {name}"
