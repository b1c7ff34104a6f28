"""Trainings with compressors at 2 workers, against NumPy simulations of what they do."""

import numpy as np
import pytest

from tests.contracts import definitions
from tests.parallel.cases_compression import BATCHES, EPOCHS, GRADIENTS, TRAININGS
from tests.parallel.launch import small_cases

WEIGHTS = 8 * 16 + 16 + 16 + 1


@pytest.fixture(scope="module")
def job():
    return small_cases()


def test_each_compressor_trains(job):
    ranks = job.ranks("case_fit_with_each_compressor")
    plain, plain_weights, _ = ranks[0]["none", "scope"]
    for key, (losses, weights, _) in ranks[0].items():
        assert losses[-1] < 0.5 * losses[0], key
        assert losses[-1] < 1.5 * plain[-1], key
        for mine, other in zip(weights, ranks[1][key][1], strict=True):
            assert mine.tobytes() == other.tobytes(), key
        if key[0] not in ("none", "fp16 or float32"):
            assert any((a != b).any() for a, b in zip(weights, plain_weights, strict=True)), f"{key} did nothing"


def test_stats(job):
    names = {"topk": "TopK(ratio=0.2)", "fp16 or float32": "fp16(overflow='float32')", "int8": "Int8(block=64)"}
    # At 2 workers, as a ring.
    sent = {"none": 4 * WEIGHTS, "fp16": 2 * WEIGHTS, "int8": WEIGHTS + 4 * 3, "topk": 8 * 32, "bf16": 2 * WEIGHTS}
    for found in job.ranks("case_fit_with_each_compressor"):
        for (name, _), (_, _, stats) in found.items():
            assert stats.steps == EPOCHS * BATCHES
            assert stats.sent_bytes_per_step == stats.sent_bytes / stats.steps
            assert (stats.algorithm, stats.overflows) == ("all_reduce", 0)
            assert stats.compression == names.get(name, stats.compression)
            if name in sent:
                # What was sent once, before the first step, is among it; a part may have a block more than the other.
                slack = 68 if name == "int8" else 3
                assert stats.sent_bytes_per_step == pytest.approx(sent[name], abs=slack), name
        assert found["none", "scope"][2].compression == "none"
    assert len(TRAININGS) + 2 == len(found)


@pytest.mark.parametrize("passes", [None, 2])
@pytest.mark.parametrize("name", ["topk", "threshold"])
def test_residual_under_a_loss_scale(job, name, passes):
    defined = definitions.Largest(0.5) if name == "topk" else definitions.AtLeast(2.7, residual=False)
    expected, weights = [], np.zeros(2)
    for step in range(8):
        skipped = step == 3 and passes is None
        if not skipped and (passes is None or step % passes == passes - 1):
            weights = weights - 0.1 * defined.step(GRADIENTS[:, 0].astype("float64"))
        expected.append(weights)
    for rank in job.ranks("case_residual_under_a_loss_scale"):
        found, scale = rank[name, passes]
        assert scale == (64.0 * 2**6 if passes is None else 64.0 * 2**8)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_overflows_are_counted(job):
    for rank, found in enumerate(job.ranks("case_overflows_are_counted")):
        for name, (weights, overflows) in found.items():
            assert overflows == (2 if rank == 1 else 0), name
            expected = -60000.0 if "or" in name else -np.inf
            np.testing.assert_array_equal(weights, np.full(2, expected), name)
