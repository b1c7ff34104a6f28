"""Every algorithm against a NumPy simulation of its definition, on one worker (plain Keras) and on several."""

import numpy as np
import pytest

from tests.contracts import simulation as sim


def size_of(job):
    return len(job.results["case_runs"])


def schedule(size, seed, rounds):
    """The documented one: NumPy's permutations, cut into groups."""
    rng = np.random.default_rng(seed)
    return np.stack([rng.permutation(size) for _ in range(rounds)]).reshape(rounds, -1, 2 if size % 2 == 0 else size)


def expected(name, size):
    """What a run must give on every rank."""
    if size == 1 and name != "accumulated":
        return sim.train(1, sim.alone, 0.0 if name in ("every 1", "group of all") else 0.875)
    return {
        "all_reduce": lambda: sim.all_reduce(size, 0.875),
        "partial": lambda: sim.partial(size, 0.875),
        "local": lambda: sim.local(size, 0.875, every=4),
        "local warmup": lambda: sim.local(size, 0.875, every=3, warmup=5),
        "slowmo": lambda: sim.slowmo(size, 0.875, every=3, slow=0.6, rate=0.9, warmup=5),
        "hierarchical": lambda: sim.all_reduce(size, 0.875),
        "one host": lambda: sim.all_reduce(size, 0.875),
        "groups": lambda: sim.groups(size, 0.875, schedule(size, 3, 32)),
        "accumulated": lambda: sim.accumulated(size, 0.875, every=2),
        "every 1": lambda: sim.all_reduce(size, 0.0),
        "group of all": lambda: sim.all_reduce(size, 0.0),
        "gossip ring": lambda: sim.gossip(size, 0.875, "ring"),
        "gossip exponential": lambda: sim.gossip(size, 0.875, "exponential"),
    }[name]()


RUNS = (
    "all_reduce", "partial", "local", "local warmup", "slowmo", "hierarchical", "one host", "groups", "accumulated",
    "every 1", "group of all", "gossip ring", "gossip exponential",
)  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
def test_20_steps(algorithms, name):
    if size_of(algorithms) == 1 and name.startswith("gossip"):
        return  # refused: tests/unit/test_algorithms.py
    for rank, wanted in enumerate(expected(name, size_of(algorithms))):
        for found, one in zip(algorithms.ranks("case_runs")[rank][name], wanted, strict=True):
            np.testing.assert_allclose(found, one, rtol=0, atol=1e-12, err_msg=f"rank {rank}")


@pytest.mark.parametrize(("name", "atol"), [("local", 1e-3), ("partial", 1e-3), ("hierarchical", 1e-3)])
def test_half_precision_stays_near(algorithms, name, atol):
    for rank, wanted in enumerate(expected(name, size_of(algorithms))):
        for found, one in zip(algorithms.ranks("case_runs")[rank][f"{name} fp16"], wanted, strict=True):
            np.testing.assert_allclose(found, one, rtol=0, atol=atol, err_msg=f"rank {rank}")


def near(found, wanted, atol=1e-12):
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=atol)


def test_in_a_scope(fits):
    replicas = sim.local(size_of(fits), 0.875, every=3)
    for found, wanted in zip(fits.ranks("case_scope"), replicas, strict=True):
        near(found["seen"], wanted)
        near(found["weights"], wanted)
        near(found["evaluated"], sim.mean(replicas))


def test_one_model_at_the_end_of_an_epoch(fits):
    replicas = sim.local(size_of(fits), 0.875, every=100)
    for found in fits.ranks("case_epoch_end"):
        near(found["seen"], sim.mean(replicas))
        near(found["weights"], sim.mean(replicas))
        assert all(np.abs(one).max() > 0 for one in found["momentum"])


def test_by_the_callback(fits):
    replicas = sim.local(size_of(fits), 0.875, every=3)
    for found, wanted in zip(fits.ranks("case_callback"), replicas, strict=True):
        near(found["together"], sim.mean(replicas))
        near(found["apart"], wanted)


def test_small_changes_of_large_values(algorithms):
    size = size_of(algorithms)
    change = 1e-3 * (np.arange(5.0) + (size - 1) / 2)
    for rank, found in enumerate(algorithms.ranks("case_small_changes_of_large_values")):
        exact = change if size > 1 else 1e-3 * (rank + np.arange(5.0))
        for value in found.values():
            np.testing.assert_allclose(value - 1000 - np.arange(5.0), exact, rtol=0, atol=1e-5)


def test_rounding_keeps_the_mean(algorithms):
    size, results = size_of(algorithms), algorithms.ranks("case_rounding_keeps_the_mean")
    for name in results[0]:
        before, after = (np.stack([result[name][k] for result in results]) for k in (0, 1))
        np.testing.assert_allclose(after.mean(axis=0), before.mean(axis=0), rtol=0, atol=1e-14, err_msg=name)
        matrix = np.eye(size) if size == 1 else sim.weights_of(name, size) if name != "groups" else None
        if matrix is None:
            matrix = np.zeros((size, size))
            for group in schedule(size, 0, 2)[1]:
                matrix[np.ix_(group, group)] = 1 / len(group)
        np.testing.assert_allclose(after, matrix @ before, rtol=0, atol=4e-3, err_msg=name)
        assert size == 1 or np.abs(after - matrix @ before).max() > 1e-6, "half precision was not used"


def test_subgroup(algorithms):
    size = size_of(algorithms)
    for rank, found in enumerate(algorithms.ranks("case_subgroup")):
        members = [one for one in range(size) if (one - rank) % 2 == 0] if size == 4 else list(range(size))
        assert found["rank"] == members.index(rank)
        for length in (1, 5):
            stacked = np.stack([np.arange(length) * (one + 1.0) for one in members])
            for op in ("sum", "mean", "min", "max"):
                np.testing.assert_allclose(found[f"{op} {length}"], getattr(stacked, op)(axis=0), rtol=1e-15)
        np.testing.assert_array_equal(found["gather"], np.concatenate([np.full((one + 1, 2), one) for one in members]))
        np.testing.assert_array_equal(found["broadcast"], np.full((2, 2), members[-1]))
