"""One process: the same script as plain Keras, to the last bit, with no engine built; and what is refused there."""

import os
import subprocess
import sys
from importlib import util
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist import engine, keras_hooks
from kerasdist.keras_hooks import patching

ROOT = Path(__file__).parents[2]


pytestmark = pytest.mark.usefixtures("local_engine")


def make():
    return keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(8, activation="tanh"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(1),
        ]
    )


def data(kind):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(19, 3)).astype("float32"), rng.normal(size=(19, 1)).astype("float32")
    if kind == "arrays":
        return {"x": x, "y": y, "batch_size": 4, "validation_split": 0.3, "sample_weight": rng.uniform(size=19)}
    batches = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(19, seed=2).batch(4)
    return {"x": batches, "validation_data": (x[:5], y[:5]), "shuffle": False}


def train(door, kind, optimizer, **compile_arguments):
    keras.utils.set_random_seed(5)
    callbacks = []
    if door == "plain":
        model = make()
    elif door == "callback":
        model = make()
        callbacks = [kerasdist.DistributedOptimizer()]
    else:
        with kerasdist.DataParallelStrategy(auto_shard=door == "scope").scope():
            model = make()
    model.compile(optimizer(), "mse", metrics=["mae"], jit_compile=False, **compile_arguments)
    history = model.fit(**data(kind), epochs=2, callbacks=callbacks, verbose=0).history
    x = data("arrays")["x"]
    results = [*model.get_weights(), *[np.asarray(v) for v in model.optimizer.variables]]
    return results, history, model.evaluate(x, x[:, :1], verbose=0), model.predict(x, verbose=0)


OPTIMIZERS = {
    "adamw": lambda: keras.optimizers.AdamW(0.01, global_clipnorm=0.5),
    "accumulating": lambda: keras.optimizers.SGD(0.1, momentum=0.9, gradient_accumulation_steps=2, use_ema=True),
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)),
}
MODES = {"graph": {}, "eager": {"run_eagerly": True}, "two steps": {"steps_per_execution": 2}}


@pytest.mark.parametrize(
    ("kind", "optimizer", "mode"),
    [
        ("arrays", "adamw", "graph"),
        ("arrays", "adamw", "eager"),
        ("arrays", "adamw", "two steps"),
        ("tf_data", "adamw", "graph"),
        ("tf_data", "accumulating", "graph"),
        ("arrays", "scaled", "graph"),
    ],
)
def test_the_bits_of_plain_keras(kind, optimizer, mode):
    expected = train("plain", kind, OPTIMIZERS[optimizer], **MODES[mode])
    for door in ("scope", "own part", "callback"):
        got = train(door, kind, OPTIMIZERS[optimizer], **MODES[mode])
        for ours, plain in zip(got[0], expected[0], strict=True):
            assert ours.tobytes() == plain.tobytes(), door
        assert got[1] == expected[1], door
        assert got[2] == expected[2], door
        assert got[3].tobytes() == expected[3].tobytes(), door


def test_no_engine_is_needed():
    """Neither Horovod's presence nor its absence is noticed."""
    code = (
        "import sys; sys.modules['horovod'] = None; import kerasdist, numpy as np;"
        "assert kerasdist.DataParallelStrategy().size == 1; assert kerasdist.all_reduce(3, 'sum') == 3;"
        "assert kerasdist.rank() == 0 and kerasdist.local_rank() == 0; kerasdist.barrier();"
        "assert kerasdist.broadcast(np.arange(3)).tolist() == [0, 1, 2]; print('fine')"
    )
    done = python(code)
    assert done.stdout.strip() == "fine", done.stderr


# What is refused -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_another_backend_of_keras(monkeypatch, backend):
    monkeypatch.setattr(keras.config, "backend", lambda: backend)
    kerasdist.shutdown()
    for door in (kerasdist.DataParallelStrategy, kerasdist.DistributedOptimizer, kerasdist.init):
        with pytest.raises(ValueError, match=f"TensorFlow backend. Received: backend='{backend}'.*KERAS_BACKEND"):
            door()
    assert engine._current is None


class TorchLike:
    """Has what torch.optim.Optimizer has."""

    param_groups = ()

    def step(self):
        """Nothing."""


def foreign(module):
    return type("SGD", (), {"__module__": module, "apply_gradients": lambda self: None})()


@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        (foreign("tf_keras.src.optimizers.sgd"), ["keras.optimizers.Optimizer", "tf_keras is Keras 2"]),
        (foreign("horovod.keras"), ["keras.optimizers.Optimizer", "Received", "horovod.keras.SGD"]),
        (TorchLike(), ["keras.optimizers.Optimizer", "Received", "TorchLike"]),
    ],
    ids=["tf_keras", "horovod", "torch"],
)
def test_a_foreign_optimizer(optimizer, words):
    strategy = kerasdist.DataParallelStrategy()
    with strategy.scope():
        model = make()

    def compiled():
        model.compile(optimizer, "mse")

    for use in (compiled, lambda: strategy.wrap_optimizer(optimizer)):
        with pytest.raises(TypeError) as caught:
            use()
        for word in words:
            assert word in str(caught.value)


def test_strings_and_configs_are_optimizers():
    with kerasdist.DataParallelStrategy().scope():
        for optimizer in ("adam", keras.optimizers.serialize(keras.optimizers.SGD(0.1))):
            model = make()
            model.compile(optimizer, "mse")
            assert isinstance(model.optimizer, keras.optimizers.Optimizer)


@pytest.mark.parametrize("optimizer", [keras.optimizers.SGD(), foreign("tf_keras"), TorchLike()], ids=["3", "2", "t"])
def test_the_callback_takes_no_optimizer(optimizer):
    with pytest.raises(TypeError, match=r"strategy\.wrap_optimizer\(optimizer\)\. Received: "):
        kerasdist.DistributedOptimizer(optimizer)


@pytest.mark.parametrize("door", [kerasdist.DataParallelStrategy, kerasdist.DistributedOptimizer])
@pytest.mark.parametrize(
    ("arguments", "kind", "word"),
    [
        ({"compression": "fp8"}, ValueError, "compression='fp8'"),
        ({"bucket_mb": 0}, ValueError, "bucket_mb=0"),
        ({"bucket_mb": -1}, ValueError, "bucket_mb=-1"),
        ({"engine": "mpi"}, ValueError, "engine='mpi'"),
        ({"options": "fast"}, TypeError, "options='fast'"),
    ],
    ids=str,
)
def test_both_doors_refuse(door, arguments, kind, word):
    with pytest.raises(kind, match=f"Received: {word}"):
        door(**arguments)


def test_an_optimizer_wrapped_twice():
    strategy = kerasdist.DataParallelStrategy()
    optimizer = strategy.wrap_optimizer(keras.optimizers.SGD())
    assert type(optimizer) is keras.optimizers.SGD
    with pytest.raises(ValueError, match="wrap it once"):
        strategy.wrap_optimizer(optimizer)


def test_scope_and_callback_together():
    with kerasdist.DataParallelStrategy().scope():
        model = make()
        model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="DistributedOptimizer.*scope"):
        model.fit(np.ones((4, 3)), np.ones((4, 1)), verbose=0, callbacks=[kerasdist.DistributedOptimizer()])


def test_a_model_that_is_not_built_has_no_state_to_send():
    model = keras.Sequential([keras.layers.Dense(1)])
    with pytest.raises(ValueError, match="`model` must be built"):
        kerasdist.broadcast_state(model)
    with pytest.raises(ValueError, match="`optimizer` must be built"):
        kerasdist.broadcast_state(optimizer=keras.optimizers.Adam())


def test_helpers_refuse():
    with pytest.raises(ValueError, match="`op` must be one of.*Received: op='prod'"):
        kerasdist.all_reduce(1.0, "prod")
    with pytest.raises(ValueError, match="needs floating values. Received: dtype int32"):
        kerasdist.all_reduce(np.int32(1), "mean")
    with pytest.raises(ValueError, match="`root` must be a rank, 0 to 0. Received: root=1"):
        kerasdist.broadcast(1.0, root=1)


def test_shard_refuses():
    with pytest.raises(ValueError, match="`batch_size`, the samples of one worker .* Received: None"):
        kerasdist.shard(np.ones((4, 1)))
    with pytest.raises(TypeError, match="`seed` must be a whole number, 0 or more. Received: seed='a'"):
        kerasdist.shard(np.ones((4, 1)), batch_size=2, seed="a")
    with pytest.raises(ValueError, match="`batch_size` and `seed` are for arrays"):
        kerasdist.shard(tf.data.Dataset.range(4).batch(2), batch_size=2)
    with pytest.raises(TypeError, match="`shuffle` must be True or False. Received: shuffle=1"):
        kerasdist.shard(np.ones((4, 1)), batch_size=2, shuffle=1)


# Nothing stays behind ------------------------------------------------------------------------------------------------


def test_the_scope_leaves_keras_as_it_was():
    before = (patching.TensorFlowTrainer.__init__, patching.Trainer.compile)
    strategy = kerasdist.DataParallelStrategy()
    with pytest.raises(KeyError), strategy.scope():
        raise KeyError
    assert (patching.TensorFlowTrainer.__init__, patching.Trainer.compile) == before
    model = make()
    model.compile("sgd", "mse")
    assert keras_hooks.patched_by(model) is None and keras_hooks.patched_by(model.optimizer) is None


def test_saved_from_the_scope_and_loaded_without_kerasdist(tmp_path):
    keras.utils.set_random_seed(1)
    with kerasdist.DataParallelStrategy().scope():
        model = make()
        model.compile(keras.optimizers.Adam(0.1), "mse")
    x = np.ones((4, 3), "float32")
    model.fit(x, x[:, :1], verbose=0)
    model.save(tmp_path / "model.keras")
    np.save(tmp_path / "expected.npy", model.predict(x, verbose=0))
    code = (
        "import sys; sys.modules['kerasdist'] = None; import keras, numpy as np;"
        f"model = keras.models.load_model({str(tmp_path / 'model.keras')!r});"
        f"expected = np.load({str(tmp_path / 'expected.npy')!r});"
        "np.testing.assert_allclose(model.predict(np.ones((4, 3), 'float32'), verbose=0), expected, rtol=1e-6);"
        "print(type(model.optimizer).__name__, int(model.optimizer.iterations))"
    )
    done = python(code)
    assert done.stdout.strip().splitlines()[-1:] == ["Adam 1"], done.stderr


# LNCH-1: a launcher started N processes, and each would train alone ---------------------------------------------------

FOUND = "import kerasdist; kerasdist.init(); print('size', kerasdist.size())"
NEEDS_HOROVOD = pytest.mark.skipif(util.find_spec("horovod") is None, reason="the engine is not built")


def python(code, **environment):
    launched = ("HOROVOD_", "OMPI_", "PMI_", "PMIX_", "SLURM_", "WORLD_SIZE", "RANK", "LOCAL_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(launched)}
    kept |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", "import tests.lean\n" + code],
        cwd=ROOT,
        env={**kept, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


@NEEDS_HOROVOD
@pytest.mark.parametrize(
    "environment",
    [
        {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"},
        {"PMI_SIZE": "2", "PMI_RANK": "0"},
    ],
    ids=lambda one: next(iter(one)),
)
def test_processes_that_do_not_see_each_other(environment):
    done = python(FOUND, **environment)
    assert done.returncode != 0 and "size" not in done.stdout, done.stdout
    assert "EngineError" in done.stderr, done.stderr
    assert "started 2 processes, but Horovod sees 1" in done.stderr
    assert "Built controllers" in done.stderr and "horovodrun -np 2" in done.stderr


@NEEDS_HOROVOD
def test_a_step_whose_other_process_does_not_come():
    step = {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "node1", "SLURMD_NODENAME": "node1"}
    waiting = FOUND.replace("init()", "init(options=kerasdist.Options(timeout_s=1))")
    done = python(waiting, SLURM_STEP_NUM_TASKS="2", SLURM_PROCID="0", **step)
    assert done.returncode != 0 and "size" not in done.stdout, done.stdout
    assert "EngineError: rank 0: waited 1 s" in done.stderr and "for rank 1 to start" in done.stderr, done.stderr


@NEEDS_HOROVOD
def test_variables_of_a_step_that_are_left_over():
    done = python(FOUND, SLURM_STEP_NUM_TASKS="2", SLURM_PROCID="0")
    assert done.returncode != 0 and "size" not in done.stdout, done.stdout
    assert "SLURM_JOB_ID is not set" in done.stderr and "each would train alone" in done.stderr, done.stderr


def test_a_batch_shell_is_one_process():
    more = "import os; os.environ.update({}); kerasdist.shutdown(); kerasdist.init(); print('size', kerasdist.size())"
    one_task = more.format({"SLURM_STEP_NUM_TASKS": "1"})
    done = python("\n".join([FOUND, more.format({"SLURM_NTASKS": "2"}), "del os.environ['SLURM_NTASKS']", one_task]))
    assert done.stdout.split() == ["size", "1"] * 3, done.stderr


def test_the_local_engine_is_refused_where_a_launcher_started_two():
    done = python("import kerasdist; kerasdist.init('local')", OMPI_COMM_WORLD_SIZE="2")
    assert "EngineError" in done.stderr and "openmpi started 2 processes" in done.stderr


def test_another_engine_while_one_runs():
    with pytest.raises(kerasdist.errors.EngineError, match="'local' engine already runs.*engine='horovod'"):
        kerasdist.init("horovod")
