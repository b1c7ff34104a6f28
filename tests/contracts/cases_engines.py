"""What every engine and every compressor is asked, on real workers. One module for each engine imports these."""

from __future__ import annotations

import time

import numpy as np
import tensorflow as tf

from kerasdist import engine
from kerasdist.averaging import Averager
from kerasdist.buckets import Bucket
from kerasdist.compression import COMPRESSORS, TopK
from kerasdist.config import Settings
from tests.contracts import inputs

MODES = ("eager", "function")
# Where all values must arrive.
COMPLETE = {**COMPRESSORS, "topk": lambda: TopK(ratio=1)}


def run(mode, operation, *tensors):
    """The operation's result, eager or as part of a graph."""
    tensors = [tf.constant(tensor) for tensor in tensors]
    return np.asarray((operation if mode == "eager" else tf.function(operation, autograph=False))(*tensors))


def case_who():
    running = engine.current()
    return running.name, running.rank, running.size, running.local_rank, running.local_size, engine.world().size


def case_all_reduce():
    group, found = engine.world(), {}
    for mode in MODES:
        for dtype in inputs.DTYPES:
            for shape in inputs.SHAPES:
                for op in inputs.OPS:
                    if op == "mean" and dtype == "int32":
                        continue  # the mean of whole numbers is refused above the engine
                    name = f"all_reduce.{mode}.{dtype}.{len(shape)}.{op}"
                    value = inputs.whole_numbers(group.rank, shape, dtype)
                    found[mode, dtype, shape, op] = run(mode, lambda t, o=op, n=name: group.all_reduce(t, o, n), value)
    return found


def case_all_gather():
    group, found = engine.world(), {}
    for mode in MODES:
        for dtype in inputs.DTYPES:
            for least in (0, 1):
                value = inputs.rows_to_gather(group.rank, dtype, least)
                name = f"all_gather.{mode}.{dtype}.{least}"
                found[mode, dtype, least] = run(mode, lambda t, n=name: group.all_gather(t, n), value)
    return found


def case_all_to_all():
    group, found = engine.world(), {}
    for mode in MODES:
        for dtype in inputs.DTYPES:
            value, splits = inputs.rows_to_send(group.rank, group.size, dtype), inputs.splits(group.rank, group.size)
            name = f"all_to_all.{mode}.{dtype}"
            found[mode, dtype] = run(mode, lambda t, s, n=name: group.all_to_all(t, s, n), value, splits)
    return found


def case_broadcast():
    group, found = engine.world(), {}
    for mode in MODES:
        for dtype in inputs.DTYPES:
            for root in range(group.size):
                value = inputs.whole_numbers(group.rank, (4,), dtype)
                name = f"broadcast.{mode}.{dtype}.{root}"
                found[mode, dtype, root] = run(mode, lambda t, r=root, n=name: group.broadcast(t, r, n), value)
    return found


def case_barrier():
    """When the last rank came, which is late, and when this one was let through."""
    group = engine.world()
    group.barrier()
    if group.rank == group.size - 1:
        time.sleep(0.5)
    came = time.time()
    group.barrier()
    return came, time.time()


def case_compressors():
    """The mean of buckets of every length by every compressor, in its own convention."""
    group, found = engine.world(), {}
    for name, create in COMPRESSORS.items():
        compressor, values = create(), {}
        for dtype in inputs.FLOATS:
            for length in inputs.LENGTHS:
                value = inputs.bucket(group.rank, length, dtype)
                share = np.asarray(group.size if compressor.takes_shares else 1, dtype)
                values[f"{dtype}.{length}"] = tf.constant(value / share)
        for mode in MODES:

            def means(tensors, compressor=compressor, prefix=f"{name}.{mode}"):
                return {key: mean_of(compressor, flat, f"{prefix}.{key}") for key, flat in tensors.items()}

            for key, mean in (means if mode == "eager" else tf.function(means, autograph=False))(values).items():
                dtype, length = key.split(".")
                found[name, dtype, int(length), mode] = np.asarray(mean)
    return found


def mean_of(compressor, flat, name):
    """A compressor's mean of a bucket of one tensor, in its first step."""
    bucket = Bucket(0, flat.dtype.name, (0,), (tuple(flat.shape),))
    state = {key: tf.constant(value) for key, value in compressor.initial_state(bucket).items()}
    return compressor.mean(flat, bucket, engine.world(), name, state)


def case_ends_of_the_range():
    """40000 on every rank: its sum is above the largest fp16. inf on the last rank alone."""
    group, found = engine.world(), {}
    for name, create in COMPLETE.items():
        compressor = create()
        share = 1 / group.size if compressor.takes_shares else 1.0
        large = np.full(5, 40000.0 * share, "float32")
        infinite = np.full(5, np.inf if group.rank == group.size - 1 else 1.0, "float32")
        found[name] = (
            np.asarray(mean_of(compressor, tf.constant(large), f"{name}.large")),
            np.asarray(mean_of(compressor, tf.constant(infinite), f"{name}.infinite")),
        )
    return found


def case_averager():
    """Tensors of several shapes and dtypes through buckets and compressor, each rank weighted by its samples."""
    group, found = engine.world(), {}
    rows, total = group.rank + 1, group.size * (group.size + 1) // 2
    for name, create in COMPLETE.items():
        averager = Averager(group, Settings.create(compression=create(), bucket_mb=1e-4), f"averager.{name}")
        tensors = []
        for dtype in (*inputs.FLOATS, "float16"):
            for shape in inputs.SHAPES:
                value = tf.constant(inputs.whole_numbers(group.rank, shape, dtype))
                tensors.append(value * averager.weight(rows, total, dtype))
        found[name] = [np.asarray(tensor) for tensor in averager.average(tensors)]
    return found
