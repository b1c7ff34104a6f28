"""The tested range is stated once, and outside of it a warning names it."""

import warnings

import pytest

from kerasdist import keras_hooks


@pytest.mark.parametrize("name", ["Python", "TensorFlow", "Keras"])
def test_outside_of_the_range(monkeypatch, name):
    monkeypatch.setitem(keras_hooks.TESTED, name, ((1, 2), (1, 10)))
    with pytest.warns(UserWarning, match=rf"tested with {name} 1\.2 to 1\.10\. Running: {name} [0-9]"):
        keras_hooks.check_versions()


def test_inside_of_the_range():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        keras_hooks.check_versions()
