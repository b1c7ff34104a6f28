"""A job whose ranks do not meet ends, and says where it waited."""

import time

import pytest

from tests.parallel.launch import LAUNCHER, command, run


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("evaluate", ["rank 0: waited 6 s in the collective", "strategy.local()"]),
        ("stop", ["rank 0: waited 6 s in the collective", "left the epoch early"]),
        ("raise", ["boom"]),
    ],
)
def test_the_job_ends(kind, words):
    start = time.monotonic()
    code, output = run(command(2, LAUNCHER, ["-m", "tests.parallel.stalls", kind]), 110)
    assert code not in (0, 124), output[-3000:]
    assert time.monotonic() - start < 100
    for word in words:
        assert word in output, output[-3000:]
