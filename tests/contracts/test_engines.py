"""One table: every engine and every compressor passes the same checks, against NumPy.

A new engine is one row of ENGINES (``conftest.py``) and one module that starts it; a new compressor one row of ROUNDING
or of LARGEST.
"""

import numpy as np
import pytest

from kerasdist.compression import COMPRESSORS
from tests.contracts import definitions, inputs

# Largest error of a mean, relative to the mean of the magnitudes. 16 bits on the wire round twice: each addend, and the
# result; a rounding is half a unit in the last of 11 (fp16) or 8 (bf16) significant bits. None: one rounding for each
# addition and one for the share, in the dtype itself; so too what compresses none of these buckets.
ROUNDING = {"none": None, "fp16": 2.0**-10, "bf16": 2.0**-7, "topk": None, "powersgd": None}
# The same relative to the mean of the largest magnitudes in each block of 256: half of one of 127 levels, twice.
LARGEST = {"int8": 1.02 / 127}


def count(job):
    return len(job.results["case_who"])


def same_bits(job, case):
    """The results by key, which must be the same on every rank, dtype and shape included."""
    first, *others = job.ranks(case)
    for other in others:
        assert other.keys() == first.keys()
        for key, value in first.items():
            assert (other[key].dtype, other[key].shape) == (value.dtype, value.shape), key
            assert other[key].tobytes() == value.tobytes(), key
    return first


def test_every_compressor_has_a_row():
    assert {*ROUNDING, *LARGEST} == set(COMPRESSORS)
    names = [create().name for create in COMPRESSORS.values()]
    assert names == ["none", "fp16", "bf16", "Int8(block=256)", "TopK(ratio=0.05)", "PowerSGD(rank=2)"]


def test_who(job):
    size = count(job)
    for rank, (_, *numbers) in enumerate(job.ranks("case_who")):
        assert numbers == [rank, size, rank, size, size]


def test_all_reduce(job):
    found = same_bits(job, "case_all_reduce")
    assert len(found) == 2 * 3 * (2 * 4 + 3)
    for (mode, dtype, shape, op), value in found.items():
        stacked = np.stack([inputs.whole_numbers(rank, shape, dtype) for rank in range(count(job))])
        assert (value.dtype, value.shape) == (np.dtype(dtype), shape), (mode, op)
        expected = inputs.OPS[op](stacked.astype("float64"), axis=0)
        rtol = {"float32": 1e-6, "float64": 1e-15, "int32": 0}[dtype] if op == "mean" else 0
        np.testing.assert_allclose(value, expected, rtol=rtol, atol=0, err_msg=f"{mode} {dtype} {op}")


def test_all_gather(job):
    for (mode, dtype, least), value in same_bits(job, "case_all_gather").items():
        expected = np.concatenate([inputs.rows_to_gather(rank, dtype, least) for rank in range(count(job))])
        assert value.dtype == expected.dtype, mode
        np.testing.assert_array_equal(value, expected, mode)


def test_all_to_all(job):
    size = count(job)
    for rank, found in enumerate(job.ranks("case_all_to_all")):
        for (mode, dtype), value in found.items():
            expected = inputs.rows_received(rank, size, dtype)
            assert value.dtype == expected.dtype, mode
            np.testing.assert_array_equal(value, expected, f"rank {rank} {mode}")


def test_broadcast(job):
    found = same_bits(job, "case_broadcast")
    assert len(found) == 2 * 3 * count(job)
    for (mode, dtype, root), value in found.items():
        expected = inputs.whole_numbers(root, (4,), dtype)
        assert value.dtype == expected.dtype, mode
        np.testing.assert_array_equal(value, expected, f"{mode} root {root}")


def test_barrier(job):
    times = job.ranks("case_barrier")
    last = max(came for came, _ in times)
    assert all(through >= last for _, through in times)


def allowed(name, stacked, dtype):
    if name in LARGEST:
        return LARGEST[name] * 127 * np.mean([definitions.Blocks(256).level(rank) for rank in stacked], axis=0)
    magnitude = np.abs(stacked).mean(axis=0)
    unit = np.finfo(dtype).eps
    return magnitude * (ROUNDING[name] if ROUNDING[name] is not None else unit * (len(stacked) + 1))


@pytest.mark.parametrize("name", COMPRESSORS)
def test_compressor(steps, name):
    found = {key: value for key, value in same_bits(steps, "case_compressors").items() if key[0] == name}
    assert len(found) == len(inputs.FLOATS) * 2 * len(inputs.LENGTHS)
    for (_, dtype, length, mode), value in found.items():
        assert (value.dtype, value.shape) == (np.dtype(dtype), (length,)), mode
        exact = np.stack([inputs.bucket(rank, length, dtype) for rank in range(count(steps))])
        if count(steps) == 1:
            np.testing.assert_array_equal(value, exact[0], "on one rank it is the identity")
            continue
        exact = exact.astype("float64")
        expected = definitions.Largest(0.05).step(exact) if name == "topk" else exact.mean(axis=0)
        error = np.abs(value.astype("float64") - expected)
        assert (error <= allowed(name, exact, dtype)).all(), f"{dtype} {length} {mode}: {error.max()}"


@pytest.mark.parametrize("name", COMPRESSORS)
def test_the_ends_of_the_range(steps, name):
    for large, infinite in (rank[name] for rank in steps.ranks("case_ends_of_the_range")):
        rtol = LARGEST.get(name) or ROUNDING[name] or 1e-6
        np.testing.assert_allclose(large, 40000.0, rtol=rtol)
        assert not np.isfinite(infinite).any(), "inf reaches every rank, for the loss scale to see"


@pytest.mark.parametrize("name", COMPRESSORS)
def test_averager(steps, name):
    size = count(steps)
    first, *others = [rank[name] for rank in steps.ranks("case_averager")]
    weights = np.arange(1, size + 1) / (size * (size + 1) / 2)
    wanted = [(dtype, shape) for dtype in (*inputs.FLOATS, "float16") for shape in inputs.SHAPES]
    assert len(first) == len(wanted)
    for position, ((dtype, shape), value) in enumerate(zip(wanted, first, strict=True)):
        assert (value.dtype, value.shape) == (np.dtype(dtype), shape)
        assert all(other[position].tobytes() == value.tobytes() for other in others)
        stacked = np.stack([inputs.whole_numbers(rank, shape, dtype).astype("float64") for rank in range(size)])
        expected = np.tensordot(weights, stacked, axes=1)
        # One more rounding than the compressor's: the weight's, in the tensor's dtype.
        unit = max(LARGEST.get(name) or ROUNDING[name] or 0, 4 * np.finfo(dtype).eps)
        np.testing.assert_allclose(value, expected, rtol=0, atol=2 * unit * np.abs(stacked).max() + 1e-12)
