"""Planning of buckets: pure, complete, the same on every rank; packing gives back what it was given."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerasdist.buckets import Bucket, pack, plan_buckets, unpack

ITEM = {"float16": 2, "float32": 4, "float64": 8}
SPECS = st.lists(
    st.tuples(st.lists(st.integers(0, 40), max_size=3).map(tuple), st.sampled_from(sorted(ITEM))), max_size=30
)


def nbytes(spec):
    shape, dtype = spec
    return int(np.prod(shape, dtype=int)) * ITEM[dtype]


@settings(deadline=None)
@given(SPECS, st.integers(1, 4000), st.integers(1, 4000))
def test_every_tensor_once_within_the_limits(specs, bucket_bytes, alone_bytes):
    plan = plan_buckets(specs, bucket_bytes, alone_bytes)
    assert sorted(member for bucket in plan for member in bucket.members) == list(range(len(specs)))
    assert [bucket.index for bucket in plan] == list(range(len(plan)))
    for bucket in plan:
        assert {specs[member][1] for member in bucket.members} == {bucket.dtype}
        assert bucket.shapes == tuple(specs[member][0] for member in bucket.members)
        assert list(bucket.members) == sorted(bucket.members, reverse=True), "the last gradients are ready first"
        sizes = [nbytes(specs[member]) for member in bucket.members]
        assert bucket.size * ITEM[bucket.dtype] == sum(sizes)
        if len(sizes) > 1:
            assert max(sizes) < alone_bytes, "a large tensor travels alone"
            assert sum(sizes) <= bucket_bytes
    firsts = [bucket.members[0] for bucket in plan]
    assert firsts == sorted(firsts, reverse=True)


def test_values_by_hand():
    specs = [((10,), "float32"), ((1000,), "float32"), ((3,), "float64"), ((2, 5), "float32"), ((), "float32")]
    plan = plan_buckets(specs, bucket_bytes=60, alone_bytes=4000)
    assert [(bucket.dtype, bucket.members, bucket.sizes) for bucket in plan] == [
        ("float32", (4, 3), (1, 10)),  # 44 bytes; the next 40 do not fit
        ("float64", (2,), (3,)),
        ("float32", (1,), (1000,)),
        ("float32", (0,), (10,)),
    ]


def test_a_large_tensor_between_small_ones_does_not_part_them():
    specs = [((1,), "float32"), ((1000,), "float32"), ((1,), "float32")]
    assert [bucket.members for bucket in plan_buckets(specs, 1e6, 4000)] == [(2, 0), (1,)]


def test_one_tensor_above_the_bucket_size_is_a_bucket():
    assert [bucket.members for bucket in plan_buckets([((100,), "float32")] * 2, 8, 1e9)] == [(1,), (0,)]


def test_nothing_to_plan():
    assert plan_buckets([], 1, 1) == ()


def test_an_unknown_dimension_is_refused():
    with pytest.raises(ValueError, match=r"Gradient 1 has shape \(None, 3\)"):
        plan_buckets([((2,), "float32"), ((None, 3), "float32")], 1e6, 1e6)


def test_a_bucket_is_frozen():
    bucket = Bucket(0, "float32", (0,), ((2, 3),))
    with pytest.raises(AttributeError):
        bucket.index = 1


@pytest.mark.parametrize("members", [(2, 1, 0), (1,)])
def test_unpack_undoes_pack(members):
    rng = np.random.default_rng(0)
    tensors = [rng.normal(size=shape).astype("float32") for shape in [(2, 3), (), (4,)]]
    bucket = Bucket(0, "float32", members, tuple(tensors[member].shape for member in members))
    flat = pack(bucket, tensors)
    assert flat.shape == (bucket.size,)
    for member, part in zip(members, unpack(bucket, flat), strict=True):
        np.testing.assert_array_equal(part, tensors[member])
