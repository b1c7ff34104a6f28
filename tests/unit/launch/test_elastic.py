"""Elastic jobs: which slots there are, and when workers start again. Real processes, no TensorFlow."""

import os
import signal
import subprocess
import sys
import threading
import time
from importlib import util

import pytest
from click.testing import CliRunner

from kerasdist.cli import main
from kerasdist.launch import discovery
from kerasdist.launch.discovery import Rests, Script, change, placed
from kerasdist.launch.hosts import parse_lines
from kerasdist.launch.progress import Progress, heard, restarts

NEEDS_HOROVOD = pytest.mark.skipif(util.find_spec("horovod") is None, reason="the engine is not built")
HEAD = (
    "import os, signal, sys, time\n"
    "rank, again = (int(os.environ[name]) for name in ('HOROVOD_RANK', 'KERASDIST_RESTARTS'))\n"
)


def run(folder, text, *options):
    """Exit code, output, error output and seconds of an elastic job."""
    (folder / "train.py").write_text(HEAD + text)
    command = [sys.executable, "-c", "from kerasdist.cli import main; main()", "run", *options, "train.py"]
    begun = time.monotonic()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr, time.monotonic() - begun


# Jobs ------------------------------------------------------------------------------------------------------------


@NEEDS_HOROVOD
def test_the_same_error_again_ends_the_job(tmp_path):
    code, out, error, seconds = run(
        tmp_path, "print('start', again)\nraise KeyError('broken')\n", "--min-np", "1", "-np", "2"
    )
    assert code == 1 and seconds < 30, error
    assert error.rstrip().endswith("KeyError: 'broken'")
    assert "the same error came again, and no checkpoint was written in between" in error
    assert sorted(set(out.splitlines())) == ["[0] start 0", "[0] start 1", "[1] start 0", "[1] start 1"]


@NEEDS_HOROVOD
def test_failures_in_a_row_end_the_job(tmp_path):
    text = "print('start', again, flush=True)\nif rank == 0: sys.exit(3)\ntime.sleep(60)\n"
    code, out, error, seconds = run(
        tmp_path, text, "--min-np", "1", "-np", "1", "--reset-limit", "2", "--log-dir", "logs"
    )
    assert code == 3 and seconds < 30, error
    assert out.splitlines() == ["[0] start 0", "[0] start 1", "[0] start 2"]
    assert "workers failed 3 times without a new checkpoint in between (--reset-limit 2)" in error
    assert (tmp_path / "logs" / "start-2" / "rank-0.log").read_text() == "start 2\n"


@NEEDS_HOROVOD
def test_a_checkpoint_in_between_resets_the_count(tmp_path):
    """With a limit of one: the second start tells of a new checkpoint, so that the last two failures count."""
    text = (
        f"sys.path.insert(0, {os.getcwd()!r})\n"
        "from kerasdist.launch import progress\n"
        "if again == 1: progress.tell((0, 2), 2)\n"
        "if again > 1: progress.tell((0, 2), 2 * again, restored=True)\n"
        "print('start', again)\nsys.exit(3)\n"
    )
    code, out, error, _ = run(tmp_path, text, "--min-np", "1", "-np", "1", "--reset-limit", "1")
    assert code == 3, error
    assert out.splitlines() == [f"[0] start {number}" for number in range(4)], error
    assert error.count("they go on from the beginning, for no checkpoint was written.") == 1
    for steps in (2, 4):
        assert error.count(f"they go on from step {steps} (epoch 0, batch 2).") == 1


@NEEDS_HOROVOD
def test_hosts_that_change_start_it_again(tmp_path):
    """From 1 worker to 2; the signal that asks for it is SIGTERM, and the end of both is the job's."""
    (tmp_path / "hosts").write_text("localhost\n")
    text = (
        "print('of', os.environ['HOROVOD_SIZE'], flush=True)\n"
        "if again: sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n"
        "open('hosts', 'w').write('localhost:2')\n"
        "time.sleep(60)\n"
    )
    code, out, error, _ = run(tmp_path, text, "--min-np", "1", "--host-discovery-script", "cat hosts")
    assert code == 0, error
    assert sorted(out.splitlines()) == ["[0] of 1", "[0] of 2", "[1] of 2"]
    assert "starts 2 workers on localhost:2, after 1 (there are slots for 2 workers instead of 1)" in error


@NEEDS_HOROVOD
def test_fewer_slots_than_workers_needed(tmp_path):
    (tmp_path / "hosts").write_text("localhost:1\n")
    options = ["--min-np", "2", "--start-timeout", "1", "--host-discovery-script", "cat hosts"]
    code, out, error, seconds = run(tmp_path, "", *options)
    assert code == 1 and seconds < 15
    assert "waits for slots: 1 of 2 (localhost:1), for 1 s at most." in error
    assert "Expected slots for at least 2 workers (--min-np). Found: 1 (localhost:1), after 1 s" in error


@NEEDS_HOROVOD
def test_a_slot_rests_when_its_worker_was_killed(tmp_path):
    text = "print('of', os.environ['HOROVOD_SIZE'], flush=True)\nif not again and rank: os.kill(os.getpid(), 9)\n"
    code, out, error, _ = run(tmp_path, text, "--min-np", "1", "--max-np", "2")
    assert code == 0, error
    assert sorted(out.splitlines()) == ["[0] of 1", "[0] of 2", "[1] of 2"]
    assert "leaves out 1 of 2 slots of localhost for 60 s." in error


@NEEDS_HOROVOD
@pytest.mark.parametrize(
    ("number", "smallest", "line", "code"),
    [(signal.SIGTERM, "1", "[0] start 0", 143), (signal.SIGINT, "2", "waits for slots", 130)],
)
def test_a_signal_ends_the_job(tmp_path, number, smallest, line, code):
    """While workers run, and while it waits for slots; nothing is started again."""
    (tmp_path / "train.py").write_text(HEAD + "print('start', again, flush=True)\ntime.sleep(60)\n")
    (tmp_path / "hosts").write_text("localhost:1\n")
    options = ["--min-np", smallest, "--host-discovery-script", "cat hosts", "train.py"]
    command = [sys.executable, "-c", "from kerasdist.cli import main; main()", "run", *options]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    late = threading.Timer(20, process.kill)
    late.start()
    said = []
    for text in process.stdout:
        said.append(text)
        if line in text:
            time.sleep(0.3)
            process.send_signal(number)
    late.cancel()
    assert process.wait(20) == code, said
    assert sum("start 0" in one for one in said) == (smallest == "1") and not any("start 1" in one for one in said)


@NEEDS_HOROVOD
def test_dry_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("raise SystemExit('was run')")
    done = CliRunner().invoke(main, "run --min-np 1 --max-np 3 -H localhost:2 --dry-run train.py".split())
    first, *lines = done.output.splitlines()
    assert done.exit_code == 0 and first == "elastic: 1 to 3 workers, at first 2 on localhost:2"
    assert [line.split(":")[0] for line in lines] == ["rank 0 on localhost", "rank 1 on localhost"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--min-np 3 --max-np 2", "--min-np 3 is more than --max-np 2."),
        ("--min-np 2 -np 1", "-np 1 is less than --min-np 2."),
        ("--min-np 1 --max-np 2 -np 3", "-np 3 is more than --max-np 2."),
        ("--min-np 3 -H localhost:2", "--min-np 3 is more than the slots of the hosts: localhost:2."),
        ("--min-np 1 -np 3 -H localhost:2", "-np 3 is more than the slots of the hosts: localhost:2."),
        ("--min-np 1", "How many workers? Give --max-np"),
        ("--max-np 2", "need --min-np"),
        ("-np 2 --reset-limit 0", "need --min-np"),
        ("--host-discovery-script true", "need --min-np"),
        ("--min-np 1 --host-discovery-script ./none.sh", "no such program, or it is not executable: './none.sh'"),
        ("--min-np 1 --host-discovery-script true -H localhost", "Give one of -H, --hostfile"),
    ],
)
def test_what_is_refused(arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    done = CliRunner().invoke(main, ["run", "--dry-run", *arguments.split(), "train.py"])
    assert done.exit_code != 0 and said in done.output, done.output


# Slots -----------------------------------------------------------------------------------------------------------


def test_what_a_discovery_script_prints():
    assert parse_lines("# all\nhost1:2\n\nhost2\nhost3 slots=4  # fast\n", "s") == {"host1": 2, "host2": 1, "host3": 4}
    assert parse_lines("\n", "s") == {}
    for text, said in (("a:x", "'a:x'"), ("a:0", "'a:0'"), ("a b", "'a b'"), ("a\na:2", "'a' is there twice")):
        with pytest.raises(ValueError, match=said):
            parse_lines(text, "s")


def test_a_bad_answer_changes_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(discovery, "SCRIPT_TIMEOUT_S", 0.5)
    said, path = [], tmp_path / "hosts"
    script = Script(["sh", str(path)], said.append)
    path.write_text("echo localhost:3; echo no-such-host.invalid:2")
    assert script.ask() == {"localhost": 3}
    assert len(said) == 1 and "no-such-host.invalid" in said[0]
    for text, words in (
        ("echo gone >&2; exit 4", "failed with exit code 4: gone"),
        ("sleep 9", "took longer than 0.5 s"),
        ("echo a:x", "Received: 'a:x'"),
    ):
        path.write_text(text)
        assert script.ask() is None and script.ask() is None
        assert words in said[-1]
    assert len(said) == 4, said  # each once


def test_an_answer_counts_when_it_came_twice(tmp_path):
    path = tmp_path / "hosts"
    script, held = Script(["sh", str(path)]), []
    for answer in (
        "exit 1",
        "echo localhost:2",
        "echo localhost:3",
        "exit 1",
        "echo localhost:3",
        "echo localhost",
        ":",
        ":",
    ):
        path.write_text(answer)
        script.look()
        held.append(script.hosts().get("localhost", 0))
    assert held == [0, 2, 2, 2, 3, 3, 3, 0]


def test_a_script_is_asked_again_and_again(tmp_path, monkeypatch):
    monkeypatch.setattr(discovery, "POLL_S", 0.02)
    path = tmp_path / "hosts"
    script = Script(["cat", str(path)])
    path.write_text("localhost:2")
    script.start()
    try:
        assert script.hosts() == {"localhost": 2}
        path.write_text("localhost:3")
        end = time.monotonic() + 10
        while script.hosts() == {"localhost": 2} and time.monotonic() < end:
            time.sleep(0.02)
        assert script.hosts() == {"localhost": 3}
    finally:
        script.stop()
    path.write_text("localhost:4")
    time.sleep(0.2)
    assert script.hosts() == {"localhost": 3}


def test_slots_rest_after_deaths():
    now = [0.0]
    rests = Rests(60.0, lambda: now[0])
    hosts = {"a": 2, "b": 4}
    assert rests.without(hosts) == hosts
    assert rests.note("a", 0) == 60 and rests.note("b", 3) == 60
    assert rests.without(hosts) == {"b": 3}
    assert rests.without({"b": 2}) == {"b": 2}
    now[0] = 61.0
    assert rests.without(hosts) == hosts
    assert [rests.note("a", 1) for _ in range(7)] == [120, 240, 480, 960, 1920, 3600, 3600]
    assert rests.without(hosts) == {"a": 1, "b": 4}


def test_where_workers_are():
    assert placed({"a": 2, "b": 2}, {}, 3) == {"a": 2, "b": 1}
    assert placed({"a": 2, "b": 2}, {"b": 2}, 3) == {"b": 2, "a": 1}  # rank 0 stays where it was
    assert placed({"a": 2, "b": 2}, {"b": 2}, 2) == {"b": 2}
    assert placed({"a": 1}, {"b": 2}, None) == {"a": 1}


@pytest.mark.parametrize(
    ("running", "available", "largest", "expected"),
    [
        ({"a": 2}, {"a": 2}, None, None),
        ({"a": 2}, {"a": 2, "b": 2}, 2, None),
        ({"a": 2}, {"a": 2, "b": 2}, 3, "there are slots for 3 workers instead of 2"),
        ({"a": 2}, {"a": 3}, None, "there are slots for 3 workers instead of 2"),
        ({"a": 2, "b": 1}, {"a": 2}, None, "b is gone"),
        ({"a": 2}, {"a": 1, "b": 5}, 2, "a has room for 1 instead of 2"),
    ],
)
def test_when_workers_make_room(running, available, largest, expected):
    assert change(running, available, largest) == expected


def test_what_a_worker_tells():
    good = b'{"steps": 7, "epoch": 1, "batch": 2, "restored": false}'
    assert heard(good) == Progress(7, 1, 2, False) and str(heard(good)) == "step 7 (epoch 1, batch 2)"
    changed = [good[:-1], good.replace(b"7", b"-7"), good.replace(b"7", b"true"), good.replace(b"false", b"0")]
    for bad in (b"", b"[]", b"7", *changed):
        assert heard(bad) is None, bad
    assert [restarts({}), restarts({"KERASDIST_RESTARTS": "2"}), restarts({"KERASDIST_RESTARTS": "x"})] == [0, 2, 0]
