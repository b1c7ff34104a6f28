"""Every compressor against its definition, step after step, with what it remembers."""

import math

import numpy as np
import pytest

from tests.contracts import definitions, inputs
from tests.contracts.cases_compressors import CONFIGURATIONS

# In a bucket of inputs.TENSORS, the last one first: 1 and 7 values, then (3, 3, 4, 5), whose axes are parted as 9 and
# 20, then (12, 10).
MATRICES = ((8, 9, 20), (188, 12, 10))

ROUNDED = {"fp16": 2.0**-10, "fp16 or float32": 2.0**-10, "bf16": 2.0**-7}
# PowerSGD feeds its rounding back, and it grows some hundred times in 20 steps: float64 shows that nothing else does.
EXACT = {"float32": 2e-5, "float64": 1e-11}
FED_BACK = {"float32": 2e-3, "float64": 1e-11}


def count(steps):
    return len(steps.results["case_who"])


def simulation(name, first):
    """What the configuration must do, by its definition."""
    residual = "without residual" not in name
    if name in ("topk", "topk without residual"):
        return definitions.Largest(0.1, residual)
    if name in ("threshold", "threshold without residual"):
        return definitions.AtLeast(2.5, residual)
    if name in ("powersgd", "powersgd without residual"):
        q = first["q"].astype("float64")
        return definitions.LowRank(MATRICES, (q[:40].reshape(20, 2), q[40:].reshape(10, 2)), residual)
    return definitions.Blocks(16) if name == "int8" else definitions.Exact()


def values(size, step, dtype):
    return np.stack([inputs.flat(inputs.gradients(rank, step, dtype)) for rank in range(size)]).astype("float64")


def assert_mean(name, found, expected, ranks, dtype):
    """Within the rounding that the configuration's definition leaves open."""
    if name == "int8":
        # A value half between two levels may go either way.
        error = np.abs(found - expected) / definitions.Blocks(16).level(expected)
        assert error.max() < 1.1 and (error > 1e-3).mean() < 0.02
        return
    rtol = ROUNDED.get(name) or (FED_BACK if name == "powersgd" else EXACT)[dtype]
    np.testing.assert_array_less(np.abs(found - expected), rtol * (np.abs(ranks).mean(axis=0) + np.abs(expected) + 1))


@pytest.mark.parametrize("dtype", inputs.FLOATS)
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_twenty_steps(steps, name, dtype):
    size = count(steps)
    ranks = [rank[name, dtype] for rank in steps.ranks("case_steps")]
    for means, first, _ in ranks:
        assert means.dtype == np.dtype(dtype)
        assert means.tobytes() == ranks[0][0].tobytes(), "the same bits on every rank"
        assert all(first[key].tobytes() == value.tobytes() for key, value in ranks[0][1].items())
    defined = simulation(name, ranks[0][1]) if size > 1 else definitions.Exact()
    for step, found in enumerate(ranks[0][0]):
        given = values(size, step, dtype)
        assert_mean(name, found.astype("float64"), defined.step(given), given, dtype)
        if size == 1:
            np.testing.assert_array_equal(found, given[0], "on one rank it is the identity")


@pytest.mark.parametrize("name", ["topk", "threshold", "powersgd"])
def test_what_was_sent_tracks_the_sum_of_the_means(steps, name):
    size, dtype = count(steps), "float64"
    ranks = [rank[name, dtype] for rank in steps.ranks("case_steps")]
    sent = ranks[0][0].sum(axis=0)
    wanted = sum(values(size, step, dtype).mean(axis=0) for step in range(inputs.STEPS))
    if size == 1:
        np.testing.assert_allclose(sent, wanted, rtol=1e-12)
        return
    left = np.mean([state["residual"] for _, _, state in ranks], axis=0)
    whole = np.zeros_like(sent)
    whole[len(sent) - len(left) :] = left  # PowerSGD keeps none of what goes dense, which comes first
    np.testing.assert_allclose(sent + whole, wanted, rtol=0, atol=1e-11)
    # Not all of it is left: without feedback the error would grow with the steps.
    assert np.linalg.norm(sent - wanted) < 0.5 * np.linalg.norm(wanted)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_bytes(steps, name):
    """What the engine counted is what the compressor promises; fp16 sends half of float32."""
    size = count(steps)
    for rank, found in enumerate(steps.ranks("case_bytes")):
        for dtype in inputs.FLOATS:
            sent, promised = found[name, dtype]
            if size == 1:
                assert sent == 0
            elif name.startswith("threshold"):
                assert promised is None and sent > 0
            else:
                # The parts of an all-to-all differ by a value or a block, and a flag may travel beside it.
                slack = {"fp16 or float32": 12, "fp16": 4, "bf16": 4, "int8": 20 * size}.get(name, 0)
                assert abs(sent - promised) <= slack + 1, f"rank {rank} {dtype}"
        if size > 1:
            assert found["fp16", "float32"][0] <= 1.02 * found["none", "float32"][0] / 2


def test_bytes_by_hand(steps):
    """In float32 at P workers, of 308 values."""
    size, total = count(steps), 308
    if size == 1:
        return
    ring = 2 * (size - 1) / size
    expected = {
        "none": ring * 4 * total,
        "fp16": ring * 2 * total,
        "int8": ring * (total + 4 * math.ceil(total / 16)),
        "topk": (size - 1) * 8 * 31,
        "powersgd": ring * 4 * (8 + 2 * (9 + 20) + 2 * (12 + 10)),
    }
    for name, number in expected.items():
        assert steps.ranks("case_bytes")[0][name, "float32"][1] == pytest.approx(number), name


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_step_that_is_not_finite_leaves_nothing_behind(steps, name):
    size = count(steps)
    ranks = [rank[name] for rank in steps.ranks("case_steps_that_are_skipped")]
    first = steps.ranks("case_steps")[0][name, "float64"][1]
    defined = simulation(name, first) if size > 1 else definitions.Exact()
    for means, bad, (before, after) in ranks:
        assert all(not np.isfinite(one).all() for one in bad), "every rank sees it, for the loss scale"
        assert before.keys() == after.keys()
        assert all(before[key].tobytes() == after[key].tobytes() for key in before)
        assert np.isfinite(means).all()
    for step, found in enumerate(ranks[0][0]):
        given = values(size, step, "float64")
        assert_mean(name, found, defined.step(given), given, "float64")


def test_overflow(steps):
    size = count(steps)
    for rank, found in enumerate(steps.ranks("case_overflow")):
        place = 1 + 4  # the fifth value of the tensor of 7, after one of 1
        others = sum(inputs.flat(inputs.gradients(other, 0, "float32"))[place] for other in range(1, size))
        for name, (results, counted) in found.items():
            kept, large, infinite, again = (one[place] for one in results)
            if size == 1:
                assert (kept, large, infinite, again, counted) == (1.0, 1e5, np.inf, 1.0, None)
                continue
            assert np.isinf(infinite), "what was inf stays inf"
            assert kept == again == pytest.approx((1 + others) / size, rel=0.02)
            if name == "fp16":
                assert np.isinf(large)
            else:
                assert large == pytest.approx((1e5 + others) / size, rel=1e-6 if "or" in name else 0.01)
            # Not the one that was inf before, and on the rank that sent it.
            assert counted == (1 if rank == 0 and name != "bf16" else 0), name


def test_messages_between_hosts_are_small(steps):
    """Pieces of whole blocks, in which nothing is averaged otherwise; of 308 values."""
    size = count(steps)
    wire = {"fp16": 2 * 308, "bf16": 2 * 308, "int8": 308 + 4 * 20}
    for found in steps.ranks("case_in_pieces"):
        for name, (mean, pieces) in found.items():
            given = values(size, 0, "float32")
            defined = definitions.Blocks(16) if name == "int8" and size > 1 else definitions.Exact()
            assert_mean(name, mean.astype("float64"), defined.step(given), given, "float32")
            receivers = 1 if size == 2 else size  # of one message each
            assert pieces == (0 if size == 1 else math.ceil(wire[name] / (64 * receivers)))


def test_low_rank_is_exact(steps):
    for found, mean in steps.ranks("case_low_rank"):
        np.testing.assert_allclose(found, mean, rtol=0, atol=1e-10)


def test_other_tensors_begin_without_a_residual(steps):
    for first, other, again in steps.ranks("case_other_tensors"):
        assert first.tobytes() == again.tobytes()
        assert len(other) == len(first) - 1 and np.isfinite(other).all()


def test_more_than_dense_is_a_warning(steps):
    for found in steps.ranks("case_more_than_dense"):
        assert found["less"] == []
        if count(steps) == 1:
            assert found["more"] == []
            continue
        (message,) = found["more"]
        assert "TopK(ratio=" in message and "MiB" in message and f"{count(steps)} workers" in message
