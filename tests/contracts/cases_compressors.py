"""Steps of every compressor through the averager, on real workers."""

from __future__ import annotations

import warnings
from unittest import mock

import numpy as np
import tensorflow as tf

from kerasdist import engine
from kerasdist.averaging import Averager
from kerasdist.buckets import plan_buckets
from kerasdist.compression import COMPRESSORS, Cast, Int8, PowerSGD, Threshold, TopK, quantizer
from kerasdist.config import Settings
from kerasdist.step import Step, step_scope
from tests.contracts import inputs

CONFIGURATIONS = {
    "none": COMPRESSORS["none"],
    "fp16": COMPRESSORS["fp16"],
    "fp16 or float32": lambda: Cast("float16", overflow="float32"),
    "bf16": COMPRESSORS["bf16"],
    "int8": lambda: Int8(block=16),
    "topk": lambda: TopK(ratio=0.1),
    "topk without residual": lambda: TopK(ratio=0.1, residual=False),
    "topk of all": lambda: TopK(ratio=1),
    "threshold": lambda: Threshold(2.5),
    "threshold without residual": lambda: Threshold(2.5, residual=False),
    "threshold of 0": lambda: Threshold(0),
    "powersgd": lambda: PowerSGD(rank=2),
    "powersgd without residual": lambda: PowerSGD(rank=2, residual=False),
    "powersgd of full rank": lambda: PowerSGD(rank=100),
}


def averaging(name, configurations=tuple(CONFIGURATIONS)):
    """Averagers by configuration, and a function of one step of them all, in one graph: tracing costs most."""
    averagers = {
        one: Averager(
            engine.world(), Settings.create(compression=CONFIGURATIONS[one]()), f"{name}.{number}", shares=False
        )
        for number, one in enumerate(configurations)
    }

    @tf.function(autograph=False)
    def average(tensors):
        return {one: averager.average(tensors) for one, averager in averagers.items()}

    def step(tensors):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            means = average([tf.constant(tensor) for tensor in tensors])
        return {one: inputs.flat([np.asarray(mean) for mean in list_]) for one, list_ in means.items()}

    return averagers, step


def kept(averager):
    """What is remembered, without the bucket's name."""
    return {name.rpartition(".")[2]: variable.numpy() for name, variable in averager.variables.items()}


def bucket(dtype):
    """The one bucket that is planned for these tensors."""
    (one,) = plan_buckets([(shape, dtype) for shape in inputs.TENSORS], 2**22, 2**18)
    return one


def case_steps():
    """20 steps: by configuration and dtype the means, the first state and the last."""
    rank, found = engine.rank(), {}
    for dtype in inputs.FLOATS:
        averagers, step = averaging(f"steps.{dtype}")
        means = [step(inputs.gradients(rank, number, dtype)) for number in range(inputs.STEPS)]
        for one, averager in averagers.items():
            first = averager.compressor.initial_state(bucket(dtype))
            found[one, dtype] = np.stack([mean[one] for mean in means]), first, kept(averager)
    return found


def case_bytes():
    """By configuration and dtype: the bytes that the engine counts in a step, and those that are promised."""
    group, found = engine.world(), {}
    for one, create in CONFIGURATIONS.items():
        for dtype in inputs.FLOATS:
            averager = Averager(group, Settings.create(compression=create()), f"bytes.{dtype}", shares=False)
            before = group.sent_bytes()
            with step_scope(Step(1, group.size)), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                averager.average([tf.constant(tensor) for tensor in inputs.gradients(group.rank, 0, dtype)])
            sent = group.sent_bytes() - before
            found[one, dtype] = sent, averager.compressor.sent_bytes(bucket(dtype), group.size)
    return found


def case_steps_that_are_skipped():
    """5 steps, one in which the last rank has an inf and one in which it has a NaN, 5 more steps."""
    group = engine.world()
    averagers, step = averaging("skipped")
    means, bad, states = [], [], []
    for number in range(10):
        if number == 5:
            states.append({one: kept(averager) for one, averager in averagers.items()})
            for value in (np.inf, np.nan):
                tensors = inputs.gradients(group.rank, 99, "float64")
                if group.rank == group.size - 1:
                    tensors[1][2, 1, 0, 3] = value
                bad.append(step(tensors))
            states.append({one: kept(averager) for one, averager in averagers.items()})
        means.append(step(inputs.gradients(group.rank, number, "float64")))
    return {one: tuple([each[one] for each in part] for part in (means, bad, states)) for one in averagers}


def case_overflow():
    """100000 in one place on rank 0: what comes out, and how many overflows each rank has counted."""
    averagers, step = averaging("overflow", ("fp16", "fp16 or float32", "bf16"))
    results = []
    for value in (1.0, 1e5, np.inf, 1.0):
        tensors = inputs.gradients(engine.rank(), 0, "float32")
        if engine.rank() == 0:
            tensors[2][4] = value
        results.append(step(tensors))
    return {one: ([each[one] for each in results], kept(a).get("overflows")) for one, a in averagers.items()}


def case_in_pieces():
    """One step as between hosts, in messages of at most 64 bytes: the means, and in how many pieces each went."""
    group, found = engine.world(), {}
    for one in ("fp16", "bf16", "int8"):
        with (
            mock.patch.object(quantizer, "MESSAGE_BYTES", 64),
            mock.patch.object(group, "crosses_hosts", True),
            mock.patch.object(group, "all_gather", wraps=group.all_gather) as sent,
        ):
            _, step = averaging(f"pieces.{one}", (one,))
            mean = step(inputs.gradients(group.rank, 0, "float32"))[one]
            found[one] = mean, len({call.args[1] for call in sent.call_args_list})
    return found


def case_low_rank():
    """A mean matrix of rank 2, of which PowerSGD(2) loses nothing, though no rank's own is of rank 2."""
    group = engine.world()
    _, step = averaging("low_rank", ("powersgd without residual",))
    rng = np.random.default_rng(3)
    mean = rng.normal(size=(12, 2)) @ rng.normal(size=(2, 10))
    noise = rng.normal(size=(group.size, 12, 10))
    own = mean + (noise - noise.mean(axis=0))[group.rank]
    return step([own])["powersgd without residual"], mean.ravel()


def case_other_tensors():
    """A residual of one set of tensors, then another set, then the first again: each begins without."""
    group, found = engine.world(), []
    settings = Settings.create(compression=CONFIGURATIONS["topk"]())
    averager = Averager(group, settings, "other_tensors", shares=False)
    for count in (4, 3, 4):
        tensors = inputs.gradients(group.rank, 0, "float64")[:count]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found.append(inputs.flat([np.asarray(mean) for mean in averager.average(tensors)]))
    return found


def case_more_than_dense():
    """The warnings of averagers that would send more than no compression, and of those that would not."""
    group, found = engine.world(), {}
    for name, ratio in (("less", 0.9 / group.size), ("more", min(1, 1.1 / group.size))):
        settings = Settings.create(compression=TopK(ratio=ratio))
        averager = Averager(group, settings, f"more_than_dense.{name}", shares=False)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                averager.average([tf.ones([1000])])
        found[name] = [str(one.message) for one in caught]
    return found
