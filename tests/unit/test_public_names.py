"""The public names: each has a docstring and a line in docs/api.md, and importing them starts nothing."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import kerasdist

ROOT = Path(__file__).parents[2]
API = (ROOT / "docs" / "api.md").read_text()


@pytest.mark.parametrize("name", kerasdist.__all__)
def test_is_in_the_api_page(name):
    assert re.search(rf"`kerasdist\.{name}[`(]", API), f"docs/api.md has no line for `kerasdist.{name}`"


def test_the_api_page_names_nothing_else():
    named = set(re.findall(r"`kerasdist\.(\w+)[`(]", API))
    assert named <= {*kerasdist.__all__, "algorithms", "compression", "errors"}


@pytest.mark.parametrize("name", kerasdist.__all__)
def test_the_arguments_in_the_api_page(name):
    """A signature in the page names the arguments that there are, in their order, with their defaults."""
    written = re.search(rf"`kerasdist\.{name}\(([^`]*)\)`", API)
    if written is None:
        return
    parameters = inspect.signature(getattr(kerasdist, name)).parameters.values()
    expected = [one.name if one.default is one.empty else f"{one.name}={one.default!r}" for one in parameters]
    found = [part.strip().replace('"', "'") for part in written[1].split(",") if part.strip() not in ("", "*")]
    assert found == expected


@pytest.mark.parametrize("name", kerasdist.__all__)
def test_has_a_docstring(name):
    assert inspect.getdoc(getattr(kerasdist, name))
    if inspect.isclass(getattr(kerasdist, name)):
        for method, value in vars(getattr(kerasdist, name)).items():
            if not method.startswith(("_", "on_")) and (callable(value) or isinstance(value, property)):
                assert inspect.getdoc(value), f"{name}.{method}"


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'fit'"):
        kerasdist.fit  # noqa: B018


def test_dir_shows_them_all():
    assert set(kerasdist.__all__) <= set(dir(kerasdist))


def test_importing_starts_nothing():
    code = (
        "import os, sys; before = dict(os.environ); import kerasdist, kerasdist.cli, kerasdist.cli.doctor;"
        "kerasdist.Options();"
        "loaded = {'keras', 'tensorflow', 'horovod'} & set(sys.modules);"
        "assert not loaded, loaded; assert dict(os.environ) == before"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
