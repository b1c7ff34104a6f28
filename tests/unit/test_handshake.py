"""Which differences between the ranks' models the handshake sees, and which it leaves alone."""

import sys

import keras
import numpy as np
import pytest

from kerasdist import handshake

L = keras.layers


def function_of(file):
    """The same function, as another host may have it in another file."""
    return eval(compile("lambda x: x * 2", file, "eval"))


def facts(*layers, loss="mse", metrics=(), **compiled):
    model = keras.Sequential([keras.Input((4,)), *layers])
    model.compile("sgd", loss, metrics=list(metrics), **compiled)
    return handshake.signature(model, None)


def different(one, other):
    return [key for key in one.keys() | other.keys() if one.get(key) != other.get(key)]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (L.Dense(2, "tanh"), L.Dense(2, "relu")),
        (L.Dense(2, kernel_regularizer=keras.regularizers.L2(0.1)), L.Dense(2, kernel_regularizer="l2")),
        (L.Dropout(0.1), L.Dropout(0.5)),
        (L.Dropout(0.1), L.GaussianNoise(0.1)),
        (L.Bidirectional(L.LSTM(2, dropout=0.1)), L.Bidirectional(L.LSTM(2, dropout=0.2))),
        (L.Normalization(mean=np.ones(4), variance=np.ones(4)), L.Normalization(mean=np.zeros(4), variance=np.ones(4))),
        (keras.Sequential([L.Dense(2, "tanh")]), keras.Sequential([L.Dense(2, "relu")])),
    ],
)
def test_options_of_layers_are_seen(one, other):
    head = [L.Reshape((2, 2))] if isinstance(one, L.Bidirectional) else []
    assert different(facts(*head, one), facts(*head, other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda: L.Dense(2), lambda: (L.Dense(3), L.Dense(2))[1]),
        (lambda: L.Dropout(0.1, seed=1), lambda: L.Dropout(0.1, seed=2)),
        (lambda: L.Lambda(function_of("/here/a.py")), lambda: L.Lambda(function_of("/there/a.py"))),
        (lambda: L.TimeDistributed(L.Dense(2)), lambda: (L.Dense(3), L.TimeDistributed(L.Dense(2)))[1]),
    ],
)
def test_what_ranks_may_have_apart(one, other):
    first = one()
    head = [L.Reshape((2, 2))] if isinstance(first, L.TimeDistributed) else []
    assert different(facts(*head, first), facts(*head, other())) == []


def test_metrics_and_execution_are_seen():
    plain = facts(L.Dense(1), metrics=["mae", "mape"])
    assert different(plain, facts(L.Dense(1), metrics=["mape", "mae"])) == ["metrics"]
    accuracy = keras.metrics.BinaryAccuracy
    thresholds = [facts(L.Dense(1), metrics=[accuracy(threshold=one)]) for one in (0.1, 0.6)]
    assert different(*thresholds) == ["metrics"]
    eager = facts(L.Dense(1), metrics=["mae", "mape"], run_eagerly=True)
    assert different(plain, eager) == ["run_eagerly"]
    two = facts(L.Dense(1), metrics=["mae", "mape"], steps_per_execution=2)
    assert different(plain, two) == ["steps_per_execution"]


class Scale(L.Layer):
    """A layer of one's own, whose arguments Keras notes where it can."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def call(self, x):
        return x * getattr(self.factor, "value", self.factor)


def test_layers_of_ones_own():
    class Factor:
        value = 2.0

    assert different(facts(Scale(1.0)), facts(Scale(2.0))) == ["layer 2 Scale factor"]
    assert different(facts(Scale(Factor())), facts(Scale(Factor()))) == []


def scaled(factor, also=None):
    """A function whose numbers stand in its closure; ``also`` is there and not compared."""

    def inner(x):
        return x * factor

    def outer(*values):
        return inner(values[-1]), also

    return outer


def test_functions_are_seen():
    """Other code of the same name, and other numbers in a default, a closure, and in a function that it closes over."""
    twice, thrice = function_of("a.py"), eval("lambda x: x * 3")
    default, other = (lambda x, k=k: x for k in (1, 2))
    arrays = [np.arange(3), np.arange(1, 4)]
    for one, another in [(twice, thrice), (default, other), (scaled(1), scaled(2)), map(scaled, arrays)]:
        assert different(facts(L.Dense(1), loss=one), facts(L.Dense(1), loss=another)) == ["losses"]
        assert different(facts(L.Dense(1), metrics=[one]), facts(L.Dense(1), metrics=[another])) == ["metrics"]
    assert different(facts(L.Lambda(twice)), facts(L.Lambda(thrice))) == ["layer 2 Lambda function"]
    assert different(facts(L.Dense(1, twice)), facts(L.Dense(1, thrice))) == ["layer 2 Dense activation"]


def test_functions_that_do_the_same():
    """From another file, with another text in the closure, or made anew."""
    one, another = function_of("/here/a.py"), function_of("/there/a.py")
    assert different(facts(L.Dense(1), loss=one), facts(L.Dense(1), loss=another)) == []
    assert different(facts(L.Dense(1, one)), facts(L.Dense(1, another))) == []
    closures = [scaled(1, f"log.{rank}") for rank in range(2)]
    assert different(*(facts(L.Dense(1), loss=loss) for loss in closures)) == []
    assert facts(L.Dense(1), loss=scaled(1)) == facts(L.Dense(1), loss=scaled(1))


RATE = 1.0


def test_code_that_is_not_seen(monkeypatch):
    """What a function reads of its module, and the steps of a model of one's own: docs/equal.md says so."""

    def signature():
        model = own([keras.Input((4,)), L.Dense(1)])
        model.compile("sgd", loss=lambda y, p: p * RATE)
        return handshake.signature(model, None)

    own = type("Own", (keras.Sequential,), {"train_step": lambda self, data: {"loss": 0.0}})
    one = signature()
    own = type("Own", (keras.Sequential,), {"train_step": lambda self, data: {"loss": 1.0}})
    monkeypatch.setattr(sys.modules[__name__], "RATE", 2.0)
    assert different(one, signature()) == []
