"""One rank does what the others do not: all of them learn of it, after the same step. 2 workers; w = -0.1 a step."""

import pytest

from tests.parallel.launch import small_cases

SOON = 30  # seconds


@pytest.fixture(scope="module")
def job():
    return small_cases()


def check(found, step=None, cause="RuntimeError: boom", own="RuntimeError"):
    """Rank 1 raised its own error, rank 0 one that names rank 1, the cause, and where rank 0 was."""
    (kind, message, *_), (own_kind, *_) = found
    assert own_kind == own
    assert kind == "RankFailedError"
    assert message.startswith(f"rank 0: rank 1 failed: {cause}"), message
    if step is not None:
        assert f"training step {step} of epoch 0" in message


@pytest.mark.parametrize("door", ["scope", "callback"])
def test_exception_in_a_callback(job, door):
    found = [rank[door] for rank in job.ranks("case_exception_in_a_callback")]
    check(found, step=3)
    for *_, seconds, weight in found:
        assert seconds < SOON
        assert weight == pytest.approx(-0.3, abs=1e-6)


HOOKS = ("on_train_begin", "on_epoch_begin", "on_test_begin", "on_epoch_end", "on_test_end", "on_train_end")


@pytest.mark.parametrize("hook", HOOKS)
def test_exception_at_the_ends(job, hook):
    check([rank[hook] for rank in job.ranks("case_exception_at_the_ends")])


def test_keyboard_interrupt(job):
    check(job.ranks("case_keyboard_interrupt"), step=3, cause="KeyboardInterrupt", own="KeyboardInterrupt")


@pytest.mark.parametrize("door", ["scope", "callback"])
def test_exception_in_the_data(job, door):
    found = [rank[door] for rank in job.ranks("case_exception_in_the_data")]
    check(found, step=3, cause="UnknownError", own="UnknownError")
    assert "no such file" in found[0][1]
    for *_, weight in found:
        assert weight == pytest.approx(-0.3, abs=1e-6)


@pytest.mark.parametrize("place", ["fit", "validation", "evaluate"])
def test_exception_in_the_first_batch(job, place):
    found = [rank[place] for rank in job.ranks("case_exception_in_the_first_batch")]
    check(found, step=0 if place == "fit" else None, cause="UnknownError", own="UnknownError")
    assert all("no such file" in message and seconds < SOON for _, message, seconds in found)


@pytest.mark.parametrize("door", ["scope", "callback"])
def test_stop_in_a_batch_hook(job, door):
    """Three steps on both ranks, in the first epoch; losses 0, -0.1, -0.2; no warning of data that ran out."""
    for found in job.ranks("case_stop_in_a_batch_hook"):
        weight, losses, epochs, ended, warned = found[door]
        assert weight == pytest.approx(-0.3, abs=1e-6)
        assert losses == pytest.approx([-0.1], abs=1e-6)
        assert epochs == [0]
        assert ended == [0, 1, 2]
        assert not [one for one in warned if "ran out" in one]


def test_stop_with_two_steps_in_one_execution(job):
    for found in job.ranks("case_stop_in_a_batch_hook"):
        weight, losses, epochs = found["two steps"]
        assert weight == pytest.approx(-0.4, abs=1e-6)
        assert losses == pytest.approx([-0.15], abs=1e-6)
        assert epochs == [0]


def test_terminate_on_nan(job):
    for is_nan, epochs in job.ranks("case_terminate_on_nan"):
        assert is_nan
        assert epochs == [0]


@pytest.mark.parametrize("door", ["scope", "callback"])
def test_sigterm(job, door):
    """Exit code 128 + 15. Each of 8 steps an epoch moves the weight by -0.1."""
    for found, handler_is_back in job.ranks("case_sigterm"):
        code, weight, ends, validations = found[door, "validation"]
        assert (code, ends, validations) == (143, [0], 1)  # before the first step of epoch 1
        assert weight == pytest.approx(-0.8, abs=1e-6)
        code, weight, ends, validations = found[door]
        assert (code, ends, validations) == (143, [0], 1)  # after the fifth step of epoch 1, whose end does not come
        assert weight == pytest.approx(-0.8 - 1.3, abs=1e-6)
        epochs, weight = found[door, "again"]
        assert epochs == [1, 2] and weight == pytest.approx(-0.8 - 2.4, abs=1e-6)
        assert handler_is_back
    assert "SIGTERM to rank 1: all ranks stopped after 5 steps of epoch 1." in job.output
    assert "SIGTERM to rank 1: all ranks stopped after 0 steps of epoch 1." in job.output


def test_one_rank_evaluates_alone(job):
    for found in job.ranks("case_one_rank_evaluates_alone"):
        kind, message, seconds = found["without"]
        assert kind == "RankMismatchError"
        assert "rank 0: the collective 'weights'" in message
        assert "rank 1: the collective 'stop_training'" in message
        assert "with strategy.local():" in message
        assert seconds < SOON
        assert found["with"][0] == "nothing"


def test_more_batches(job):
    for (kind, message, seconds), weight in job.ranks("case_more_batches"):
        assert kind == "RankMismatchError"
        assert "rank 0: the end of epoch 0, after 6 steps" in message
        assert "rank 1: training step 6 of epoch 0" in message
        assert seconds < SOON
        assert weight == pytest.approx(-0.6, abs=1e-6)


def test_other_model(job):
    for kind, message, seconds in job.ranks("case_other_model"):
        assert kind == "RankMismatchError"
        assert "Dense/kernel 1x1" in message and "Dense/kernel 1x2" in message
        assert seconds < 5


def test_another_order_of_calls(job):
    for kind, message, _ in job.ranks("case_another_order_of_calls"):
        assert kind == "RankMismatchError"
        assert "rank 0: the collective 'user.b'" in message and "rank 1: the collective 'user.a'" in message


def test_another_kind_of_value(job):
    """An error on all ranks that shows what each brought; the next collective is right."""
    ranks = job.ranks("case_another_kind_of_value")
    last, first = f"rank {len(ranks) - 1}: the collective ", "rank 0: the collective "
    for found in ranks:
        for what, one, other in (
            ("shape", "mean of float32 of shape (2,)", "mean of float32 of shape (3,)"),
            ("type", "mean of float32 of shape (2,)", "mean of float64 of shape (2,)"),
            ("op", "max of float32 of shape (2,)", "sum of float32 of shape (2,)"),
            ("rows", "rows of float32 of shape (2,)", "rows of float32 of shape (3,)"),
            ("root", "float32 of shape (2,) from rank 0", "float32 of shape (2,) from rank 1"),
        ):
            kind, message, seconds = found[what]
            assert kind == "RankMismatchError" and seconds < SOON
            lines = [line.strip() for line in message.splitlines()]
            assert any(line.startswith(first) and line.endswith(f", {one}") for line in lines), message
            assert any(line.startswith(last) and line.endswith(f", {other}") for line in lines), message
        assert found["right"] == sum(range(len(ranks)))


@pytest.mark.parametrize(("what", "variable"), [("weight", "kernel"), ("rate", "learning_rate")])
def test_watchdog(job, what, variable):
    """Changed after step 3 of 8, seen after step 4."""
    for rank, found in enumerate(job.ranks("case_watchdog")):
        (kind, message), _, weight, _ = found["raise", what]
        assert kind == "RankMismatchError"
        assert variable in message and "of rank 1" in message
        if rank == 0:
            assert weight == pytest.approx(-0.4, abs=1e-6)
        (kind, _), said, _, _ = found["warn", what]
        assert kind == "nothing"
        assert said
        (kind, _), said, weight, rate = found["repair", what]
        assert kind == "nothing"
        assert len(said) == 1
        assert weight == pytest.approx(-0.8, abs=1e-6)
        assert rate == pytest.approx(0.1)


def test_watchdog_at_the_end(job):
    for kind, message, _ in job.ranks("case_watchdog_at_the_end"):
        assert kind == "RankMismatchError"
        assert "kernel" in message and "of rank 1" in message


def test_the_ranks_go_on(job):
    """x = 1 and 3 on the ranks, 8 steps: -0.1 * 2 * 8."""
    assert job.ranks("case_goes_on") == pytest.approx([-1.6, -1.6], abs=1e-6)
