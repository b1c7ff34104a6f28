"""An elastic job: a worker that dies or comes costs the steps since the last checkpoint, and not the numbers."""

import contextlib
import json
import re
import sys

import keras
import numpy as np
import pytest

from tests.cluster import elastic, jobs
from tests.parallel.launch import ROOT


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """The job, after 3 starts."""
    folder = tmp_path_factory.mktemp("elastic")
    (folder / "hosts").write_text("localhost:3\n")
    options = ["--min-np", "1", "--max-np", "3", "--cooldown", "1", "--host-discovery-script", f"cat {folder}/hosts"]
    train = [sys.executable, str(ROOT / "tests" / "cluster" / "elastic.py"), str(folder)]
    return jobs.start(jobs.kerasdist_command("run", *options, *train), folder, timeout_s=300)


@pytest.fixture(scope="module")
def plain():
    """One process of plain Keras."""
    before = keras.config.floatx()
    try:
        return elastic.trained(contextlib.nullcontext())
    finally:
        keras.config.set_floatx(before)
        keras.config.set_dtype_policy(before)


def test_it_goes_on_with_other_workers(ended):
    assert ended.code == 0, ended.output[-6000:]
    began = {path.name: json.loads(path.read_text()) for path in ended.folder.glob("began.*.json")}
    # By start and rank: the number of workers, and the steps that were done after its first one.
    killed_at, stopped_at = 7, 13  # a checkpoint stands behind batch 2 of epoch 1; the agreed stop writes one
    expected = {f"began.0.{rank}.json": [3, 1] for rank in range(3)}
    expected |= {f"began.1.{rank}.json": [2, killed_at + 1] for rank in range(2)}
    expected |= {f"began.2.{rank}.json": [3, stopped_at + 1] for rank in range(3)}
    assert began == expected, ended.output[-6000:]


def test_the_numbers_are_those_of_one_process(ended, plain):
    history, values, steps = plain
    for rank in range(3):
        found = json.loads((ended.folder / f"ended.{rank}.json").read_text())
        assert found["steps"] == steps == elastic.EPOCHS * elastic.STEPS
        # The epoch that 2 workers began and 3 ended, too: its metrics are those of all of its batches.
        for epoch, logs in found["logs"].items():
            assert logs == pytest.approx({key: history[key][int(epoch)] for key in logs}, abs=1e-9), epoch
        assert sorted(found["logs"]) == ["2", "3"]
        with np.load(ended.folder / f"weights.{rank}.npz") as file:
            for name, one in zip(file.files, values, strict=True):
                np.testing.assert_allclose(file[name], one, rtol=0, atol=1e-6)


def test_each_change_has_a_line(ended):
    lines = re.findall(r"kerasdist [0-9:]{8}: (.*)", ended.output)
    starts = [line for line in lines if line.startswith("starts")]
    assert starts[0] == "starts 3 workers on localhost:3."
    assert starts[1].startswith("starts 2 workers on localhost:2, after 3 (rank 2 on localhost ended by SIGKILL")
    assert starts[1].endswith("they go on from step 7 (epoch 1, batch 2).")
    why = "there are slots for 3 workers instead of 2"
    assert starts[2] == (
        f"starts 3 workers on localhost:3, after 2 ({why}); they go on from step 13 (epoch 2, batch 3)."
    )
    assert len(starts) == 3
