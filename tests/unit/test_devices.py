"""Which GPU a worker takes, with device lists that are made up: no GPU is needed."""

import pytest
import tensorflow as tf

from kerasdist.engine.devices import claim_devices
from kerasdist.errors import EngineError


@pytest.fixture
def gpus(monkeypatch):
    """Makes TensorFlow list GPUs; what was chosen of them."""
    chosen = []

    def have(count, visible=None, cuda=None, started=False):
        listed = [f"GPU:{number}" for number in range(count)]

        def take(device, kind):
            if started:
                raise RuntimeError("Visible devices cannot be modified after being initialized")
            chosen.append(("visible", device))

        monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: listed)
        monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind=None: visible or listed)
        monkeypatch.setattr(tf.config, "set_visible_devices", take)
        monkeypatch.setattr(
            tf.config.experimental, "set_memory_growth", lambda device, on: chosen.append(("growth", device, on))
        )
        monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "1")  # threads are asked for elsewhere
        monkeypatch.setenv("TF_NUM_INTEROP_THREADS", "1")
        if cuda is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        else:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", cuda)
        return chosen

    return have


@pytest.mark.parametrize("local_rank", [0, 3])
def test_each_worker_takes_that_of_its_local_rank(gpus, local_rank):
    chosen = gpus(4)
    claim_devices(local_rank, 4)
    assert chosen == [("visible", f"GPU:{local_rank}"), ("growth", f"GPU:{local_rank}", True)]


def test_more_gpus_than_workers(gpus):
    chosen = gpus(4)
    claim_devices(1, 2)
    assert chosen[0] == ("visible", "GPU:1")


def test_one_visible_gpu_for_each_task_is_taken_as_it_is(gpus):
    """As `srun --gpus-per-task=1` shows them: every task sees one, whatever its local rank."""
    chosen = gpus(1, cuda="2")
    claim_devices(2, 4)
    assert chosen == []


def test_no_gpu(gpus):
    chosen = gpus(0)
    claim_devices(1, 2)
    assert chosen == []


@pytest.mark.parametrize(("count", "cuda"), [(1, None), (2, None), (2, "0,1")])
def test_too_few(gpus, count, cuda):
    gpus(count, cuda=cuda)
    with pytest.raises(EngineError, match=f"local rank 2: this host has {count} visible GPUs for 3 workers"):
        claim_devices(2, 3)


def test_one_that_was_chosen_already(gpus):
    chosen = gpus(2, visible=["GPU:1"])
    claim_devices(1, 2)
    assert chosen == []


def test_too_late(gpus):
    gpus(2, started=True)
    with pytest.raises(EngineError, match="local rank 1.*kerasdist.init.*CUDA_VISIBLE_DEVICES"):
        claim_devices(1, 2)
