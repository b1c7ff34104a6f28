"""In a run of many tests the groups of workers run in the background, behind the tests that need none of them."""

from __future__ import annotations

import signal

import pytest

from tests.parallel import background
from tests.parallel.launch import LAUNCHER, cases_run, mpi_missing, three_workers

MANY = 300
# Start what they need by themselves.
ALONE = ("tests/unit/", "test_stall.py", "test_examples.py", "test_property.py", "test_crash.py")
GROUPS = (
    ("tests.contracts.cases_local", 1, "python"),
    ("tests.contracts.cases_horovod", 1, "python"),
    ("tests.contracts.cases_horovod", 2, "gloo"),
    ("tests.contracts.cases_horovod", 3, "gloo"),
    ("tests.contracts.cases_launchers", 2, "mpi"),
    ("tests.contracts.cases_horovod", 4, "gloo"),
    ("cases_core", 2, LAUNCHER),
    ("cases_core", 3, "three"),
    ("cases_reference", 1, "python"),
    ("cases_data", 2, LAUNCHER),
    ("cases_three", 3, LAUNCHER),
    ("cases_small", 2, LAUNCHER),
    ("cases_equality", 1, "python"),
    ("cases_equality", 2, LAUNCHER),
    ("cases_equality", 3, LAUNCHER),
    ("cases_equality", 4, LAUNCHER),
)


def pytest_configure():
    # Like Ctrl-C: no group of workers outlives a run that `timeout` ends.
    signal.signal(signal.SIGTERM, lambda *_: pytest.exit("SIGTERM", returncode=143))


def pytest_collection_modifyitems(items):
    if len(items) >= MANY:
        items.sort(key=lambda item: not any(part in item.nodeid for part in ALONE))


def pytest_collection_finish(session):
    if len(session.items) < MANY or session.config.option.collectonly:
        return
    launchers = {"three": three_workers()}
    groups = [(module, size, launchers.get(launcher, launcher)) for module, size, launcher in GROUPS]
    possible = [group for group in groups if group[2] != "mpi" or mpi_missing() is None]
    background.start({group: cases_run(*group) for group in possible})
