"""The examples, started as their pages say, under every launcher that is there."""

import functools
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.parallel.launch import ROOT, command, mpi_missing, run, three_workers

MNIST = ROOT.parent / "shared" / "data" / "mnist.npz"


def start(launcher, size, *arguments, timeout_s=300):
    if launcher == "mpi" and mpi_missing():
        pytest.skip(mpi_missing())
    code, output = run(command(size, launcher, list(arguments)), timeout_s)
    assert code == 0, output[-4000:]
    return output


def accuracies(output):
    return [float(found) for found in re.findall(r"held-out digits ([0-9.]+)", output)]


def accuracy(output):
    (found,) = accuracies(output)
    return found


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """Trains the digits for 3 epochs, once in each way: the output and the file of the weights."""
    folder = tmp_path_factory.mktemp("digits")

    @functools.cache
    def train(launcher, size):
        target = folder / f"{launcher}.{size}.npz"
        return start(launcher, size, "examples/digits.py", "--epochs", "3", "--save", str(target)), target

    return train


@pytest.mark.parametrize(("launcher", "size"), [("horovodrun", 2), (three_workers(), 3)])
def test_digits_reach_the_weights_of_one_process(launcher, size, digits):
    output, weights = digits(launcher, size)
    expected, one_process = digits("python", 1)
    assert len(re.findall(r"Epoch 1/3", output)) == 1, "one progress line set"
    assert accuracy(output) == pytest.approx(accuracy(expected), abs=0.01)
    with np.load(weights) as ours, np.load(one_process) as one:
        for name in one.files:
            np.testing.assert_allclose(ours[name], one[name], rtol=0, atol=1e-3)


HALF = """
import runpy, sys
for compression in ("fp16", "bf16"):
    sys.argv[1:] = ["--epochs", "3", "--compression", compression]
    runpy.run_path("examples/digits.py", run_name="__main__")
"""


def test_digits_with_half_precision(digits, tmp_path):
    float32 = accuracy(digits("horovodrun", 2)[0])
    assert float32 > 0.85
    (tmp_path / "both.py").write_text(HALF)
    fp16, bf16 = accuracies(start("gloo", 2, str(tmp_path / "both.py")))
    assert fp16 == pytest.approx(float32, abs=0.01)
    assert bf16 == pytest.approx(float32, abs=0.01)


def test_mnist_learns():
    if not MNIST.is_file():
        pytest.skip("the MNIST file is not beside the checkout; it cannot be downloaded in a test")
    output = start("gloo", 2, "examples/mnist_cnn.py", "--data", str(MNIST), "--epochs", "1", "--samples", "19200")
    # SINGA's network after 150 of an epoch's 469 steps; a whole epoch gives 0.96 (docs/benchmarks.md).
    assert float(re.search(r"by epoch \[([0-9.]+)\]", output).group(1)) > 0.9


def test_a_missing_file_is_said_in_one_line():
    code, output = run([sys.executable, "examples/mnist_cnn.py", "--data", str(Path("no") / "such.npz")], 60)
    assert code == 1
    assert "no such file" in output
