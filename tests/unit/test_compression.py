"""Compressors without workers: what is refused, names, encodings and promised bytes."""

import numpy as np
import pytest
import tensorflow as tf

from kerasdist.buckets import Bucket
from kerasdist.compression import Cast, Int8, PowerSGD, Threshold, TopK
from kerasdist.compression.quantizer import part_sizes


def test_halves_of_many_values():
    """Every value of 16 bits, on both ranks, where the average is compiled: to the bit, inf and NaN too."""
    halves = np.tile(np.arange(2**16, dtype="uint16").view("float16"), 8)
    parts = [halves, np.roll(halves, 12345)]
    with np.errstate(invalid="ignore"):
        expected = (parts[0].astype("float32") + parts[1].astype("float32")) / np.float32(2)
    found = tf.function(Cast("float16")._mean_of_parts)(tf.constant(np.concatenate(parts)), len(halves), 2).numpy()
    np.testing.assert_array_equal(found, expected)
    assert found[np.isfinite(found)].tobytes() == expected[np.isfinite(expected)].tobytes()


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (lambda: Cast("float8"), ValueError, ["`dtype`", "'float16'", "'bfloat16'", "Received: dtype='float8'"]),
        (lambda: Cast("float16", overflow="clip"), ValueError, ["`overflow`", "'inf'", "Received: overflow='clip'"]),
        (lambda: Int8(block=0), ValueError, ["`block`", "above 0", "Received: block=0"]),
        (lambda: Int8(block=2.5), TypeError, ["`block`", "whole number", "Received: block=2.5", "float"]),
        (lambda: Int8(block=True), TypeError, ["`block`", "Received: block=True"]),
        (lambda: TopK(ratio=0), ValueError, ["`ratio`", "above 0 and at most 1", "Received: ratio=0"]),
        (lambda: TopK(ratio=1.5), ValueError, ["`ratio`", "at most 1", "Received: ratio=1.5"]),
        (lambda: TopK(ratio=float("nan")), ValueError, ["`ratio`", "Received: ratio=nan"]),
        (lambda: TopK(ratio="0.1"), TypeError, ["`ratio`", "Received: ratio='0.1'", "str"]),
        (lambda: TopK(residual=1), TypeError, ["`residual`", "True or False", "Received: residual=1"]),
        (lambda: Threshold(-1.0), ValueError, ["`value`", "0 or more", "Received: value=-1.0"]),
        (lambda: Threshold(float("inf")), ValueError, ["`value`", "Received: value=inf"]),
        (lambda: Threshold(None), TypeError, ["`value`", "Received: value=None"]),
        (lambda: Threshold(1, residual="yes"), TypeError, ["`residual`", "Received: residual='yes'"]),
        (lambda: PowerSGD(rank=0), ValueError, ["`rank`", "above 0", "Received: rank=0"]),
        (lambda: PowerSGD(rank="2"), TypeError, ["`rank`", "Received: rank='2'"]),
        (lambda: PowerSGD(residual=None), TypeError, ["`residual`", "Received: residual=None"]),
    ],
)
def test_refused(make, kind, words):
    with pytest.raises(kind) as caught:
        make()
    for word in words:
        assert word in str(caught.value)


def test_names_tell_the_arguments():
    made = [
        Cast("float16"), Cast("bfloat16", overflow="float32"), Int8(), TopK(), TopK(0.1, residual=False),
        Threshold(2), Threshold(0.5, residual=False), PowerSGD(), PowerSGD(4, residual=False),
    ]  # fmt: skip
    assert [one.name for one in made] == [
        "fp16", "bf16(overflow='float32')", "Int8(block=256)", "TopK(ratio=0.05)", "TopK(ratio=0.1, residual=False)",
        "Threshold(value=2.0)", "Threshold(value=0.5, residual=False)", "PowerSGD(rank=2)",
        "PowerSGD(rank=4, residual=False)",
    ]  # fmt: skip
    assert [one.remembers for one in made] == [False, False, False, True, False, True, False, True, True]
    assert [one.takes_unscaled for one in made] == [False, False, False, True, False, True, True, True, False]


def test_int8_levels():
    compressor = Int8(block=4)
    values = np.array([1.0, 2, 3, -4, 127, 0.4, -0.6], "float32")
    wire = compressor.encode(tf.constant(values))
    assert (wire.dtype, wire.shape) == (tf.uint8, (4 * 2 + 7,))
    expected = np.concatenate([np.rint(values[:4] * 127 / 4) * 4 / 127, [127, 0, -1]])
    np.testing.assert_allclose(compressor.decode(wire, 7), expected, rtol=1e-6)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, -np.nan])
def test_int8_of_what_is_not_finite(value):
    compressor = Int8(block=4)
    values = tf.constant(np.array([1, 2, value, 0, 5, 6], "float32"))
    for encode in (compressor.encode, tf.function(compressor.encode)):
        found = compressor.decode(encode(values), 6).numpy()
        assert np.isnan(found[:4]).all(), "the whole block"
        np.testing.assert_allclose(found[4:], [5, 6], rtol=0.01)


@pytest.mark.parametrize("compressor", [Cast("float16"), Cast("bfloat16"), Int8(block=4)], ids=lambda one: one.name)
@pytest.mark.parametrize("count", [0, 1, 4, 11])
def test_encodings_of_pieces_are_the_encoding_of_the_whole(compressor, count):
    values = tf.constant(np.random.default_rng(0).normal(size=count).astype("float32"))
    whole = compressor.encode(values)
    assert whole.shape == (compressor.wire_items(count),)
    sizes = part_sizes(count, compressor.block, 3)
    assert sum(sizes) == count
    joined = tf.concat([compressor.encode(piece) for piece in tf.split(values, sizes)], axis=0)
    np.testing.assert_array_equal(joined.numpy(), whole.numpy())
    decoded = compressor.decode(whole, count)
    assert decoded.dtype == tf.float32
    np.testing.assert_allclose(decoded, values, rtol=0, atol=0.02)


def bucket(*shapes, dtype="float32"):
    return Bucket(0, dtype, tuple(range(len(shapes))), shapes)


@pytest.mark.parametrize(
    ("shape", "rows", "columns"),
    [((100, 50), 100, 50), ((3, 3, 64, 128), 576, 128), ((512, 8, 64), 512, 512), ((8, 64, 512), 512, 512)],
)
def test_matrices_of_powersgd(shape, rows, columns):
    """Dense; Conv2D, before its outputs; the projections of attention into heads and out of them."""
    assert PowerSGD(rank=3).sent_bytes(bucket(shape), 2) == 4 * 3 * (rows + columns)


def test_what_powersgd_sends_dense():
    compressor = PowerSGD(rank=2)
    dense = bucket((7,), (), (4, 4), (2, 3))  # 2 (4 + 4) is no less than 4 * 4
    assert compressor.sent_bytes(dense, 2) == 4 * (7 + 1 + 16 + 6)
    assert compressor.initial_state(dense) == {}
    state = compressor.initial_state(bucket((7,), (20, 30), dtype="float64"))
    assert {key: (value.dtype, value.shape) for key, value in state.items()} == {
        "q": (np.dtype("float64"), (60,)),
        "residual": (np.dtype("float64"), (600,)),
    }


def test_break_even():
    """All-gathered entries of 8 bytes are fewer than a dense ring's while ratio < 1 / workers."""
    flat = bucket((1000,))
    for workers in (2, 4, 10):
        dense = 2 * (workers - 1) / workers * 4 * 1000
        assert TopK(ratio=0.99 / workers).sent_bytes(flat, workers) < dense
        assert TopK(ratio=1.01 / workers).sent_bytes(flat, workers) > dense
        assert TopK(ratio=1 / workers).sent_bytes(flat, workers) == pytest.approx(dense)
    assert TopK().sent_bytes(bucket((3,)), 2) == 8, "at least one entry"
    assert Threshold(0.1).sent_bytes(flat, 2) is None
