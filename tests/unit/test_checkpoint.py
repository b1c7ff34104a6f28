"""Checkpoint files, and continuing in one process of plain Keras without a door."""

import contextlib
import os
import signal
import subprocess
import sys
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist.checkpoint import files, resize

ARRAYS = {"model/00000": np.arange(6.0).reshape(2, 3), "seed/00000": np.array([1, 2], np.uint32), "empty": np.zeros(0)}
X = np.random.default_rng(2).normal(size=(20, 3))


def written(folder, epoch=1, batch=0, **header):
    return files.write(folder, (epoch, batch), {"workers": 1, **header}, ARRAYS)


def test_what_is_written_is_read(tmp_path):
    saved = files.read(written(tmp_path / "made"))
    assert saved.header == {"workers": 1, "format": files.FORMAT}
    assert saved.arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert saved.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(saved.arrays[name], array)
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["checkpoint-e000001-b000000000.npz"]


def test_no_torn_file_is_read(tmp_path):
    """Each length that a torn file may have, and one bit of each byte changed."""
    path = written(tmp_path)
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(files.NotACheckpointError):
            files.read(path)
    changed = 0
    for position in range(0, len(whole), 5):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 4]) + whole[position + 1 :])
        try:
            saved = files.read(path)
        except files.NotACheckpointError:
            changed += 1
            continue
        # Bytes that say nothing of the content, as the time in a zip's entry.
        assert all((saved.arrays[name] == array).all() for name, array in ARRAYS.items())
    assert changed > len(whole) / 5 / 2


def test_no_code_is_executed(tmp_path):
    path = tmp_path / "checkpoint-e000001-b000000000.npz"
    np.savez(path, **{files.HEADER: np.array([{"format": 1}], object)}, allow_pickle=True)
    with pytest.raises(files.NotACheckpointError):
        files.read(path)


def test_what_is_kept(tmp_path):
    for batch in (2, 4, 6):
        last = written(tmp_path, 3, batch)
    later = written(tmp_path, 10, 0)
    later.write_bytes(b"torn")
    files.prune(tmp_path, last, keep=2)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [f"checkpoint-e{e:06d}-b{b:09d}.npz" for e, b in ((3, 4), (3, 6), (10, 0))]
    skipped = []
    assert files.newest(tmp_path, skipped.append).path == last
    assert len(skipped) == 1 and str(later) in skipped[0]


def test_a_failed_write_leaves_what_was_there(tmp_path, monkeypatch):
    before = written(tmp_path).read_bytes()
    monkeypatch.setattr(os, "fsync", lambda descriptor: (_ for _ in ()).throw(OSError("no space left")))
    with pytest.raises(OSError, match="no space left"):
        written(tmp_path, workers=2)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [before]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"folder": 3}, TypeError, "`folder` must be a path. Received: folder=3"),
        ({"folder": ""}, ValueError, "Received: folder=''"),
        ({"folder": "x", "every": 0}, ValueError, "Received: every=0"),
        ({"folder": "x", "keep": 0}, ValueError, "Received: keep=0"),
    ],
)
def test_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        kerasdist.Checkpoint(**arguments)


def trained(*callbacks, seed=7, stops=None, epochs=3):
    """Fits plain Keras; history and state, or the exit code."""
    keras.utils.set_random_seed(7)
    tf.random.set_seed(seed)
    body = [keras.layers.Dense(4, activation="tanh"), keras.layers.BatchNormalization(), keras.layers.Dropout(0.3)]
    model = keras.Sequential([keras.Input((3,)), *body, keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.05), "mse", metrics=["mae"])

    class Stops(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.epoch = epoch

        def on_train_batch_end(self, batch, logs=None):
            if (self.epoch, batch) == stops:
                os.kill(os.getpid(), signal.SIGTERM)

    try:
        history = model.fit(X, X[:, :1], batch_size=4, epochs=epochs, verbose=0, callbacks=[Stops(), *callbacks])
    except SystemExit as ended:
        return ended.code
    return history, [np.asarray(one) for one in (*model.weights, *model.optimizer.variables)]


@pytest.mark.parametrize("seed", [7, None], ids=["seed", "no seed"])
def test_plain_keras_continues(tmp_path, seed):
    straight, expected = trained(kerasdist.Checkpoint(tmp_path, every=2, keep=100), seed=seed)
    if seed is not None:
        np.testing.assert_allclose(expected[0], trained(seed=seed)[1][0], atol=1e-6)
    for path in sorted(tmp_path.iterdir()):
        if path.name > "checkpoint-e000001-b000000002.npz":
            path.unlink()
    history, found = trained(kerasdist.Checkpoint(tmp_path), seed=seed)
    assert history.epoch == [1, 2]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
    for key, values in straight.history.items():
        assert history.history[key] == pytest.approx(values[1:], abs=1e-6)
    orders = straight.history["loss"]
    assert len(set(orders)) == 3


class Rows(keras.utils.PyDataset):
    """Batches of 4 rows; what it draws it takes from NumPy's global generator, or in ``on_epoch_end`` from its own."""

    def __init__(self, noise, own):
        super().__init__()
        self.noise, self.order = noise, np.arange(len(X))
        self.generator = np.random.default_rng(3) if own else np.random

    def __len__(self):
        return len(X) // 4

    def __getitem__(self, index):
        rows = X[self.order[4 * index : 4 * index + 4]]
        return rows + (np.random.normal(0, 0.1, rows.shape) if self.noise else 0), rows[:, :1]


class ShuffledRows(Rows):
    def on_epoch_end(self):
        self.generator.shuffle(self.order)


@pytest.mark.parametrize("batch", [0, 2])
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize(
    ("kind", "noise", "own", "exact"),
    [(Rows, True, False, True), (ShuffledRows, False, False, True), (ShuffledRows, True, True, True),
     (ShuffledRows, True, False, False)],
)  # fmt: skip
def test_what_a_dataset_draws(tmp_path, kind, noise, own, exact, shuffle, batch):
    def weights(folder):
        keras.utils.set_random_seed(7)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.05), "mse")
        checkpoint = kerasdist.Checkpoint(folder, every=2, keep=100)
        model.fit(kind(noise, own), epochs=4, shuffle=shuffle, verbose=0, callbacks=[checkpoint])
        return model.get_weights()[0]

    expected = weights(tmp_path)
    for path in sorted(tmp_path.iterdir()):
        if path.name > f"checkpoint-e000002-b{batch:09d}.npz":
            path.unlink()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = weights(tmp_path)
    assert (not any("on_epoch_end" in str(one.message) for one in caught)) == exact
    assert np.allclose(found, expected, rtol=0, atol=1e-6) == exact


@pytest.mark.parametrize("kind", ["a file", "no parent"])
def test_a_folder_where_nothing_can_be_written(tmp_path, kind):
    (tmp_path / "file").touch()
    folder = tmp_path / "file" if kind == "a file" else "/proc/nope"
    with pytest.raises(OSError, match="rank 0 cannot keep checkpoints in .*(FileExistsError|FileNotFoundError)"):
        trained(kerasdist.Checkpoint(folder))


@pytest.fixture
def no_handler():
    """SIGTERM as in a script that has no handler for it, while pytest has one."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


def test_sigterm_in_one_process(tmp_path, no_handler):
    _, expected = trained()
    assert trained(kerasdist.Checkpoint(tmp_path), stops=(1, 2)) == 143
    assert "checkpoint-e000001-b000000003.npz" in {path.name for path in tmp_path.iterdir()}
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    history, found = trained(kerasdist.Checkpoint(tmp_path))
    assert history.epoch == [1, 2]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_one_that_continues_is_enough(tmp_path):
    for other in (kerasdist.Checkpoint(tmp_path / "b"), keras.callbacks.BackupAndRestore(tmp_path / "c")):
        with pytest.raises(ValueError, match="continues a training, and so does"):
            trained(kerasdist.Checkpoint(tmp_path / "a"), other)


def test_a_shuffle_without_a_seed_is_told(tmp_path):
    tf.random.set_seed(None)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    for shuffled, told in ((True, 1), (False, 0)):
        data = tf.data.Dataset.from_tensor_slices((X, X[:, :1]))
        data = data.shuffle(20).batch(4) if shuffled else data.batch(4)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.fit(data, verbose=0, callbacks=[kerasdist.Checkpoint(tmp_path / str(shuffled))])
        assert sum("keras.utils.set_random_seed(1)" in str(one.message) for one in caught) == told


def test_a_checkpoint_of_other_workers():
    """Each value by hand, from 2 workers to 3 and from 3 to 1."""
    arrays = {
        "model/0": np.array([1.0, 2.0]),
        "rank0/model/1": np.array([1.0], "float32"), "rank1/model/1": np.array([4.0], "float32"),
        "rank0/metric/0": np.array(3.0), "rank1/metric/0": np.array(6.0), "metric/1": np.array([5.0]),
        "metric/2": np.array([2], "int32"),
        "rank0/seed/0": np.array([5, 9], "uint32"), "rank1/seed/0": np.array([1_000_008, 9], "uint32"),
        "rank0/random/numpy": np.zeros(3, "uint8"), "rank1/random/numpy": np.ones(3, "uint8"),
        "rank0/compressor0/sent": np.array(7), "rank1/compressor0/sent": np.array(8),
        "rank0/part/0": np.zeros(2), "rank1/part/0": np.ones(2),
    }  # fmt: skip
    own = ["model/1", "metric/0", "seed/0", "random/numpy", "compressor0/sent", "part/0"]
    sums = {"metric/0", "metric/1", "metric/2"}
    found = resize.resized(arrays, own, 2, 3, sums, left_out=("part/",))
    expected = {"model/0": [1.0, 2.0], "model/1": [2.5]}
    for rank, seed in enumerate((5, 1_000_008, 2_000_011)):
        expected |= {f"rank{rank}/metric/0": 3.0, f"rank{rank}/metric/1": [10 / 3], f"rank{rank}/seed/0": [seed, 9]}
        expected |= {f"rank{rank}/metric/2": [4 if rank == 0 else 0], f"rank{rank}/compressor0/sent": [7, 8, 7][rank]}
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-15, err_msg=name)
        like = arrays.get(name, arrays.get(f"rank0/{name}", arrays.get(name.partition("/")[2])))
        assert like is None or found[name].dtype == like.dtype, name
    again = resize.resized(found, [name[6:] for name in found if name.startswith("rank0/")], 3, 1, sums)
    assert again["rank0/metric/0"] == 9 and again["rank0/metric/1"] == 10 and again["rank0/metric/2"] == 4
    np.testing.assert_array_equal(again["rank0/seed/0"], [5, 9])


@pytest.mark.parametrize(
    ("batch", "before", "now", "execution", "expected"),
    [(6, 3, 2, 1, 9), (6, 2, 3, 1, 4), (7, 2, 3, 1, 4), (1, 1, 4, 1, 0), (7, 2, 3, 3, 3), (4, 1, 1, 2, 4)],
)
def test_the_place_in_steps_of_other_workers(batch, before, now, execution, expected):
    assert resize.batch_now(batch, before, now, execution) == expected


def test_what_counts_in_other_steps_is_replaced(tmp_path):
    for place in ((1, 3), (2, 4), (2, 6), (2, 8), (3, 0)):
        written(tmp_path, *place)
    files.drop_between(tmp_path, (2, 4), (2, 6))
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [f"checkpoint-e{e:06d}-b{b:09d}.npz" for e, b in ((1, 3), (2, 4), (2, 8), (3, 0))]


def test_a_fit_of_other_workers_is_continued(tmp_path):
    """2 workers of a rate of 0.1 had lowered it to 0.02 after 3 batches; the script's is 0.05 now, as 1 worker's."""
    keras.utils.set_random_seed(7)
    begun = []

    class Lowered(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            begun.append((batch, float(self.model.optimizer.learning_rate)))

        def on_train_batch_end(self, batch, logs=None):
            self.model.optimizer.learning_rate = 0.02

    def fit(rate, folder, **call):
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(rate), "mse")
        return model.fit(X, X[:, :1], verbose=0, callbacks=[kerasdist.Checkpoint(folder, 3, keep=9), Lowered()], **call)

    fit(0.1, tmp_path, batch_size=2, epochs=1)
    (tmp_path / "checkpoint-e000001-b000000000.npz").unlink()
    saved = [files.read(path) for path in sorted(tmp_path.iterdir())]
    assert saved[0].header["rates"] == [pytest.approx(0.1)] and tuple(saved[0].header["place"]) == (0, 3)
    for one in saved:
        one.path.unlink()
    files.write(tmp_path, (0, 3), {**saved[0].header, "workers": 2}, saved[0].arrays)
    begun.clear()
    with pytest.warns(UserWarning, match="was written at a size of 2 workers, and the size is 1 now"):
        fit(0.05, tmp_path, batch_size=2, epochs=1)
    assert begun == [(6, pytest.approx(0.01)), *((batch, pytest.approx(0.02)) for batch in (7, 8, 9))]


@pytest.mark.parametrize("door", ["scope", "callback"])
def test_workers_that_were_started_again_need_one(tmp_path, monkeypatch, door):
    def said(*callbacks):
        with contextlib.ExitStack() as stack:
            if door == "scope":
                stack.enter_context(kerasdist.DataParallelStrategy().scope())
            else:
                callbacks = (kerasdist.DistributedOptimizer(), *callbacks)
            model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.fit(X, X[:, :1], verbose=0, callbacks=[*callbacks])
        return ["has no kerasdist.Checkpoint" in str(one.message) for one in caught].count(True)

    found = [said()]
    monkeypatch.setenv("KERASDIST_RESTARTS", "2")
    found += [said(), said(kerasdist.Checkpoint(tmp_path))]
    assert found == [0, 1, 0]


def test_a_callback_that_is_made_within_the_call_surrounds_it(tmp_path):
    """In a process of its own, where nothing has surrounded `fit` before."""
    script = (
        "import keras, kerasdist, numpy as np\n"
        "model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])\n"
        "model.compile('sgd', 'mse')\n"
        f"model.fit(np.ones((4, 3)), np.ones((4, 1)), verbose=0, callbacks=[kerasdist.Checkpoint({str(tmp_path)!r})])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-e000001-b000000000.npz"]
