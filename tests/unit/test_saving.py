"""load_model in one process: Keras' own, and what is said of files that cannot be loaded."""

import subprocess
import sys

import keras
import numpy as np
import pytest

import kerasdist
from kerasdist import keras_hooks

pytestmark = pytest.mark.usefixtures("local_engine")


@pytest.fixture
def trained():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.1), keras.losses.MeanSquaredError())  # Keras reads no "mse" from .h5
    model.fit(np.ones((4, 2)), np.ones((4, 1)), batch_size=2, verbose=0)
    return model


@pytest.mark.parametrize("suffix", [".keras", ".h5", ".hdf5"])
@pytest.mark.parametrize("in_scope", [False, True])
def test_model_and_optimizer(trained, tmp_path, suffix, in_scope):
    trained.save(tmp_path / f"model{suffix}")
    if in_scope:
        with kerasdist.DataParallelStrategy().scope():
            model = kerasdist.load_model(tmp_path / f"model{suffix}")
    else:
        model = kerasdist.load_model(str(tmp_path / f"model{suffix}"))
    assert (keras_hooks.patched_by(model) is not None) == in_scope
    np.testing.assert_equal(model.get_weights(), trained.get_weights())
    assert int(model.optimizer.iterations) == 2
    if suffix == ".keras":
        for found, expected in zip(model.optimizer.variables, trained.optimizer.variables, strict=True):
            np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))


def test_arguments_are_kerass(trained, tmp_path):
    trained.save(tmp_path / "model.keras")
    assert not kerasdist.load_model(tmp_path / "model.keras", compile=False).compiled

    class Twice(keras.layers.Layer):
        def call(self, inputs):
            return 2 * inputs

    keras.Sequential([keras.Input((2,)), Twice()]).save(tmp_path / "own.keras")
    with pytest.raises(TypeError, match="(?s)failed on rank 0: TypeError: .*Twice"):
        kerasdist.load_model(tmp_path / "own.keras")
    model = kerasdist.load_model(tmp_path / "own.keras", custom_objects={"Twice": Twice})
    assert model.predict(np.ones((1, 2)), verbose=0).tolist() == [[2.0, 2.0]]

    keras.Sequential([keras.Input((2,)), keras.layers.Lambda(lambda x: 2 * x)]).save(tmp_path / "code.keras")
    with pytest.raises(ValueError, match="failed on rank 0: ValueError: .*safe_mode=False"):
        kerasdist.load_model(tmp_path / "code.keras")
    kerasdist.load_model(tmp_path / "code.keras", safe_mode=False)


def test_files_that_cannot_be_loaded(trained, tmp_path):
    for suffix in (".keras", ".h5"):
        trained.save(tmp_path / f"whole{suffix}")
        content = (tmp_path / f"whole{suffix}").read_bytes()
        (tmp_path / f"torn{suffix}").write_bytes(content[: len(content) // 2])
    trained.save_weights(tmp_path / "model.weights.h5")
    (tmp_path / "folder.keras").mkdir()
    for name, error, message in (
        ("none.keras", FileNotFoundError, "FileNotFoundError: .*No such file.*none.keras"),
        ("folder.keras", OSError, "IsADirectoryError"),
        ("torn.keras", ValueError, r"ValueError: a .keras file must be a zip file, and these \d+ bytes are none"),
        ("torn.h5", OSError, "OSError: .*truncated file"),
        ("model.weights.h5", ValueError, "weights alone.* call model.load_weights"),
        ("model.pt", ValueError, r"`path` must end in .keras, .h5 or .hdf5. Received: 'model.pt'"),
    ):
        with pytest.raises(error, match=rf"rank 0: load_model\('.*{name}'\) failed on rank 0: .*{message}"):
            kerasdist.load_model(tmp_path / name)
    with pytest.raises(TypeError, match=r"load_model\('5'\) failed on rank 0: TypeError"):
        kerasdist.load_model(5)


def test_a_saved_warmup_where_kerasdist_is_not(tmp_path):
    """The file needs kerasdist, or compile=False; with the callback it does not."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(kerasdist.WarmupSchedule(0.2, 4)), "mse")
    model.save(tmp_path / "schedule.keras")
    model.compile(keras.optimizers.SGD(0.2), "mse")
    warmup = kerasdist.LearningRateWarmup(0.2, 2)
    model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0, callbacks=[warmup])
    model.save(tmp_path / "callback.keras")
    code = (
        "import sys; sys.modules['kerasdist'] = None; import keras; load = keras.models.load_model;"
        "print(float(load('callback.keras').optimizer.learning_rate));"
        "print(load('schedule.keras', compile=False).compiled); load('schedule.keras')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == [str(float(np.float32(0.2))), "False"]
    assert done.returncode == 1 and "Could not locate class 'WarmupSchedule'" in done.stderr
