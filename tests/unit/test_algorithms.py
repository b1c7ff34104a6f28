"""What an algorithm refuses before anything is started, and the small mathematics behind the tables of the docs."""

import keras
import numpy as np
import pytest

import kerasdist
from kerasdist import algorithms, compression
from kerasdist.algorithms import Gossip, GroupAllReduce, Hierarchical, LocalSGD, PartialSync, SlowMo
from kerasdist.algorithms.groups import schedule
from kerasdist.algorithms.hierarchical import hosts_of
from kerasdist.errors import RankMismatchError


class MostlyLost(compression.Compressor):
    """A compressor that cannot encode one tensor."""

    name = "mostly_lost"

    def mean(self, flat, bucket, group, name, state):
        return flat


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (lambda: PartialSync(0), ValueError, ["`bucket_mb`", "above 0", "Received: bucket_mb=0"]),
        (lambda: PartialSync(average_at_epoch_end=1), TypeError, ["`average_at_epoch_end`", "True or False"]),
        (lambda: LocalSGD(0), ValueError, ["`every`", "above 0", "Received: every=0"]),
        (lambda: LocalSGD(2.5), TypeError, ["`every`", "whole number", "Received: every=2.5"]),
        (lambda: LocalSGD(8, -1), ValueError, ["`warmup_steps`", "0 or more", "Received: warmup_steps=-1"]),
        (lambda: LocalSGD(8, True), TypeError, ["`warmup_steps`", "Received: warmup_steps=True"]),
        (lambda: SlowMo("local"), TypeError, ["`inner`", "LocalSGD", "Received: inner='local'"]),
        (lambda: SlowMo(slow_momentum=1), ValueError, ["`slow_momentum`", "below 1", "Received: slow_momentum=1"]),
        (lambda: SlowMo(slow_momentum="0.5"), ValueError, ["`slow_momentum`", "Received: slow_momentum='0.5'"]),
        (lambda: SlowMo(slow_learning_rate=0), ValueError, ["`slow_learning_rate`", "above 0"]),
        (lambda: Gossip("star"), ValueError, ["`topology`", "'ring', 'exponential'", "Received: topology='star'"]),
        (lambda: GroupAllReduce(0), ValueError, ["`group_size`", "above 0", "Received: group_size=0"]),
        (lambda: GroupAllReduce(2, seed=-1), ValueError, ["`seed`", "0 or more", "Received: seed=-1"]),
        (lambda: Hierarchical(0), ValueError, ["`ranks_per_host`", "above 0", "Received: ranks_per_host=0"]),
    ],
)
def test_arguments_are_refused(make, kind, words):
    with pytest.raises(kind) as caught:
        make()
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("algorithm", "size", "compressor", "words"),
    [
        (GroupAllReduce(2), 3, None, ["`group_size`", "a divisor of 3", "Received: group_size=2"]),
        (GroupAllReduce(2), 1, None, ["`group_size`", "a divisor of 1", "Received: group_size=2"]),
        (GroupAllReduce(1), 2, None, ["train alone", "2 or more", "Received: group_size=1"]),
        (Gossip(), 1, None, ["2 workers or more", "Received: 1"]),
        (Hierarchical(2), 3, None, ["`ranks_per_host`", "a divisor of 3", "Received: ranks_per_host=2"]),
        (Hierarchical(2), 4, "powersgd", ["no matrix", "Received: compression=PowerSGD(rank=2)"]),
        (Gossip(), 4, "topk", ["Gossip", "Received: compression='TopK(ratio=0.05)'"]),
        (GroupAllReduce(), 4, compression.Threshold(1.0), ["GroupAllReduce", "Threshold"]),
        (Gossip(), 4, "powersgd", ["Gossip", "PowerSGD"]),
        (Gossip(), 4, MostlyLost(), ["Gossip", "'fp16'", "Received: compression='mostly_lost'"]),
        (GroupAllReduce(), 4, MostlyLost(), ["GroupAllReduce", "Received: compression='mostly_lost'"]),
    ],
)
def test_what_cannot_work_is_refused(algorithm, size, compressor, words):
    with pytest.raises(ValueError) as caught:
        algorithm.check(size, compression.get(compressor))
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("compressor", [None, "fp16", "bf16", "int8"])
def test_what_can_work_is_not_refused(compressor):
    chosen = compression.get(compressor)
    for algorithm in (PartialSync(), LocalSGD(), SlowMo(), Hierarchical(), GroupAllReduce(1)):
        algorithm.check(1, chosen)
    for algorithm in (Gossip(), Gossip("exponential"), GroupAllReduce(), GroupAllReduce(4), Hierarchical(2)):
        algorithm.check(4, chosen)
    LocalSGD().check(4, MostlyLost())


def test_both_doors_refuse(local_engine):
    with pytest.raises(ValueError, match="Gossip needs neighbours"):
        kerasdist.DataParallelStrategy(algorithm=Gossip())
    with pytest.raises(ValueError, match="`group_size` must divide"):
        kerasdist.DistributedOptimizer(algorithm=GroupAllReduce(2))


def test_a_loss_scale_is_refused(local_engine):
    strategy = kerasdist.DataParallelStrategy(algorithm=LocalSGD())
    with pytest.raises(ValueError, match="loss scale"):
        strategy.wrap_optimizer(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()))


def test_names_tell_the_arguments():
    names = [
        LocalSGD().name, LocalSGD(9).name, LocalSGD(8, 1).name, LocalSGD(average_at_epoch_end=False).name,
        SlowMo().name, SlowMo(LocalSGD(9)).name, SlowMo(slow_momentum=0.1).name, SlowMo(slow_learning_rate=2).name,
        PartialSync().name, PartialSync(8).name, Gossip().name, Gossip("exponential").name,
        GroupAllReduce().name, GroupAllReduce(4).name, GroupAllReduce(seed=1).name,
        Hierarchical().name, Hierarchical(2).name,
    ]  # fmt: skip
    assert len(set(names)) == len(names)
    assert isinstance(algorithms.get("hierarchical"), Hierarchical)


@pytest.mark.parametrize("topology", ["ring", "exponential"])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 13])
def test_mixing_matrices(topology, size):
    matrix = algorithms.mixing_matrix(topology, size)
    np.testing.assert_allclose(matrix.sum(axis=0), 1)
    np.testing.assert_allclose(matrix.sum(axis=1), 1)
    assert (matrix >= 0).all() and (np.diag(matrix) > 0).all()
    if topology == "ring":
        np.testing.assert_array_equal(matrix, matrix.T)


def test_spectral_gaps():
    """Of a ring with weights of a third: 1 - (1 + 2 cos(2 pi / P)) / 3, for P above 3."""
    for size in (4, 8, 16):
        gap = algorithms.spectral_gap(algorithms.mixing_matrix("ring", size))
        np.testing.assert_allclose(gap, 1 - (1 + 2 * np.cos(2 * np.pi / size)) / 3)
        assert algorithms.spectral_gap(algorithms.mixing_matrix("exponential", size)) > gap - 1e-12
    for size in (1, 2, 3):
        np.testing.assert_allclose(algorithms.spectral_gap(algorithms.mixing_matrix("ring", size)), 1)


def test_groups_of_a_round_do_not_overlap():
    rounds = schedule(8, 2, seed=0)
    assert (np.sort(rounds.reshape(len(rounds), -1), axis=1) == np.arange(8)).all()
    together = np.zeros((8, 8), bool)
    for groups in rounds[:100]:
        for group in groups:
            together[np.ix_(group, group)] = True
    assert together.all(), "each meets each"
    assert (schedule(8, 2, seed=1) != rounds).any()


def test_hosts():
    assert hosts_of([[0, 2], [0, 2], [1, 2], [1, 2]]) == [[0, 1], [2, 3]]
    assert hosts_of([[0, 2], [1, 2], [0, 2], [1, 2]]) == [[0, 2], [1, 3]]
    with pytest.raises(RankMismatchError) as caught:
        hosts_of([[0, 2], [0, 2], [1, 1]])
    for word in ("equally many", "rank 0: one of 2", "rank 2: one of 1", "ranks_per_host"):
        assert word in str(caught.value)
