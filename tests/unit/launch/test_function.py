"""kerasdist.run: a function on several processes of this host. No TensorFlow is needed for what is asked here."""

import os
import signal
from importlib import util

import pytest

import kerasdist
from kerasdist.errors import EngineError, RankFailedError

pytestmark = pytest.mark.skipif(util.find_spec("horovod") is None, reason="the engine is not built")


def test_results_come_in_rank_order():
    large = "x" * 300_000  # more than a pipe holds

    def fn(number, text, *, more):
        rank = int(os.environ["HOROVOD_RANK"])
        return rank, number + more, text * (rank + 1), os.environ["HOROVOD_SIZE"]

    found = kerasdist.run(fn, (3, large), {"more": 4}, num_workers=2)
    assert found == [(0, 7, large, "2"), (1, 7, 2 * large, "2")]


def test_what_a_rank_prints_has_its_rank_in_front(capfd):
    kerasdist.run(lambda: print("here", os.environ["HOROVOD_RANK"]), num_workers=2)
    assert sorted(capfd.readouterr().out.splitlines()) == ["[0] here 0", "[1] here 1"]


def test_an_exception_names_its_rank_and_ends_the_others():
    def fn():
        import time

        if os.environ["HOROVOD_RANK"] == "1":
            raise LookupError("boom")
        time.sleep(60)

    with pytest.raises(RankFailedError, match="(?s)rank 1 failed: LookupError: boom.*Traceback.*in fn"):
        kerasdist.run(fn)


def test_a_killed_rank_and_one_that_exits():
    def fn(number):
        if os.environ["HOROVOD_RANK"] == "0":
            os.kill(os.getpid(), number)

    with pytest.raises(RankFailedError, match="rank 0 ended by signal SIGKILL"):
        kerasdist.run(fn, (signal.SIGKILL,))
    with pytest.raises(RankFailedError, match="rank 0 failed: SystemExit: 3"):
        kerasdist.run(lambda: exit(3), num_workers=1)


def test_what_is_refused(monkeypatch):
    with pytest.raises(TypeError, match="must be a function"):
        kerasdist.run("train.py")
    with pytest.raises(ValueError, match="num_workers=0"):
        kerasdist.run(print, num_workers=0)
    monkeypatch.setenv("HOROVOD_RANK", "0")
    monkeypatch.setenv("HOROVOD_SIZE", "2")
    with pytest.raises(EngineError, match="itself one of 2 that horovodrun started"):
        kerasdist.run(print)
