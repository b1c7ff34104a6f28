"""A rank that cannot say that it ends: the job ends all the same, within a known time, and says where it waited."""

import subprocess
import time

import pytest

from tests.parallel.launch import LAUNCHER, command, run

WAITED = "rank 0: waited 8 s at "
KINDS = {
    "evaluate": [WAITED + "the collective 'weights'", "strategy.local()"],
    "sleep": [
        WAITED + "training step 4 of epoch 0",
        "strategy.local()",
        "rank 1: for 4 s outside of any step, before training step 4 of epoch 0",
        "time.sleep(100)",
    ],
    "sleep in validation": [
        WAITED + "the collective 'val_loss.sum'",
        "rank 1: for 4 s outside of any step, before batch 3 of an evaluation before training step 32 of epoch 0",
        "time.sleep(100)",
    ],
    "sleep in a step": [
        WAITED
        + "training step 3 of epoch 0, waiting for the mean gradients of sequential/dense/kernel, sequential/dense",
        "data that takes that long to read",
    ],
    "kill": ["rank 0: another rank ended while this one waited for it at training step 4"],
    "wrong shape": ["rank 0: rank 1 failed: ValueError"],
    "error in a step": ["boom", "rank 0: another rank ended while this one waited for it"],
    "raise": ["rank 1: RuntimeError: boom"],
}
if LAUNCHER == "mpi":  # ends rank 0 before it can say so
    KINDS["kill"] = ["mpirun noticed that process rank 1 ", "exited on signal 9"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_job_ends(kind):
    start = time.monotonic()
    code, output = run(command(2, LAUNCHER, ["-m", "tests.parallel.stalls", kind]), 110)
    assert code not in (0, 124), output[-3000:]
    assert time.monotonic() - start < 100
    for words in KINDS[kind]:
        assert words in output, output[-3000:]
    assert "rank 0: for " not in output, "who waits for others is not who they wait for"
    left = subprocess.run(["pgrep", "-f", "tests.parallel.stalls"], capture_output=True, text=True).stdout.split()
    assert not left, "a worker is left behind"
