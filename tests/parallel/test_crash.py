"""Workers that are killed at random moments: one run of ``python -m tests.parallel.crash``."""

import sys

from tests.parallel.launch import run


def test_every_run_comes_back():
    code, output = run([sys.executable, "-m", "tests.parallel.crash", "--runs", "1", "--seed", "4"], 600)
    assert code == 0, output[-6000:]
