"""Workers that kerasdist starts: their output, their ends, and that none is left. Real processes, no TensorFlow."""

import os
import signal
import subprocess
import sys
import time
from importlib import util

import pytest
from click.testing import CliRunner

from kerasdist.cli import main
from kerasdist.launch.workers import last_traceback

NEEDS_HOROVOD = pytest.mark.skipif(util.find_spec("horovod") is None, reason="the engine is not built")
MARK = f"kerasdist-test-{os.getpid()}"


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Writes a worker's script, which knows its `rank` and `size`; a function that starts it by `kerasdist run`."""
    monkeypatch.chdir(tmp_path)
    started = []

    def start(text, *options, size=2):
        head = "import os, sys, time, signal\nrank = int(os.environ['HOROVOD_RANK'])\n"
        (tmp_path / "train.py").write_text(head + text)
        kerasdist = [sys.executable, "-c", "from kerasdist.cli import main; main()"]
        command = [*kerasdist, "run", "-np", str(size), *options, "train.py", MARK]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
            process.communicate()
    assert left() == [], "a worker was left"


def left():
    """The workers that still run."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            words = open(f"/proc/{entry}/cmdline", "rb").read().split(b"\0") if entry.isdigit() else []
        except OSError:
            continue
        if MARK.encode() in words and b"train.py" in words:
            found.append(int(entry))
    return found


def gone(seconds):
    end = time.monotonic() + seconds
    while left() and time.monotonic() < end:
        time.sleep(0.05)
    return left() == []


def until(process, text):
    """Reads the output up to a line that holds the text."""
    for line in process.stdout:
        if text in line:
            return
    raise AssertionError(process.stderr.read())


@NEEDS_HOROVOD
def test_output_has_ranks_in_front_and_is_kept(script, tmp_path):
    process = script("print(f'here {rank}'); print('und so ö', file=sys.stderr)\n", "--log-dir", "logs")
    out, error = process.communicate(timeout=60)
    assert process.returncode == 0, error
    assert sorted(out.splitlines()) == ["[0] here 0", "[1] here 1"]
    assert sorted(error.splitlines()) == ["[0] und so ö", "[1] und so ö"]
    for rank in range(2):
        assert sorted((tmp_path / "logs" / f"rank-{rank}.log").read_text().splitlines()) == [f"here {rank}", "und so ö"]


@NEEDS_HOROVOD
def test_what_the_workers_are_told(script):
    names = "('HOROVOD_SIZE', 'HOROVOD_LOCAL_RANK', 'HOROVOD_GLOO_RENDEZVOUS_ADDR', 'HOROVOD_GLOO_IFACE')"
    out, _ = script(f"print(*(os.environ[name] for name in {names}))\n").communicate(timeout=60)
    assert sorted(out.splitlines()) == ["[0] 2 0 127.0.0.1 lo", "[1] 2 1 127.0.0.1 lo"]


@NEEDS_HOROVOD
def test_the_first_failure_comes_last_and_whole(script):
    """Rank 1 fails; rank 0 learns of it and fails first in time. The cause is rank 1's, with what it is chained to."""
    text = (
        "if rank == 1:\n"
        "    time.sleep(0.5)\n"
        "    try:\n        {}['key']\n    except KeyError as error:\n        raise RuntimeError('boom') from error\n"
        "print('Traceback (most recent call last):\\n  ...', file=sys.stderr)\n"
        "print('kerasdist.errors.RankFailedError: rank 0: rank 1 failed', file=sys.stderr)\n"
        "sys.exit(1)\n"
    )
    process = script(text)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 1
    *_, last = error.split("\nrank 1 ended first, with exit code 1.")
    assert last.rstrip().endswith("RuntimeError: boom") and "KeyError: 'key'" in last, error
    assert "RankFailedError" not in last


@NEEDS_HOROVOD
def test_the_others_end_and_the_code_is_passed_on(script):
    """Rank 1 exits with 7; rank 0 would sleep, and so would its child."""
    process = script(
        "import subprocess\n"
        "if rank == 1: sys.exit(7)\n"
        f"subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)', 'train.py', {MARK!r}])\n"
        "time.sleep(60)\n"
    )
    start = time.monotonic()
    _, error = process.communicate(timeout=60)
    assert process.returncode == 7 and "rank 1 ended first, with exit code 7." in error, error
    assert time.monotonic() - start < 15
    assert gone(1)


@NEEDS_HOROVOD
def test_a_killed_rank_is_named(script):
    process = script("if rank == 1: os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(60)\n")
    _, error = process.communicate(timeout=60)
    assert process.returncode == 137 and "rank 1 ended first, by SIGKILL (exit code 137)" in error, error


@NEEDS_HOROVOD
def test_a_killed_rank_is_named_though_its_output_stays_open(script):
    """Its end is known late: when rank 0, which followed, is gone, and it was asked to end."""
    process = script(
        "import subprocess\n"
        "if rank == 1:\n"
        "    subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(9)'], start_new_session=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "time.sleep(0.5)\n"
        "print('kerasdist.errors.RankFailedError: rank 0: rank 1 ended', file=sys.stderr)\n"
        "sys.exit(1)\n"
    )
    _, error = process.communicate(timeout=60)
    assert process.returncode == 137 and "rank 1 ended first, by SIGKILL (exit code 137)" in error, error


@NEEDS_HOROVOD
def test_a_rank_that_was_done_before_is_named(script):
    process = script("if rank == 0:\n    time.sleep(1)\n    sys.exit(3)\n")
    _, error = process.communicate(timeout=60)
    wanted = "rank 0 failed first, with exit code 3; before it rank 1 had ended with exit code 0."
    assert process.returncode == 3 and wanted in error, error


@NEEDS_HOROVOD
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_end_all(script, number, code):
    process = script("print('ready', flush=True); time.sleep(60)\n")
    until(process, "[0] ready"), time.sleep(0.3)
    process.send_signal(number)
    process.communicate(timeout=20)
    assert process.returncode == code and gone(1)


@NEEDS_HOROVOD
def test_sigterm_leaves_time_to_save(script):
    save = "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1), print('saved', flush=True), sys.exit(143)))\n"
    process = script(save + "print('ready', flush=True); time.sleep(60)\n")
    until(process, "[0] ready"), time.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 143 and sorted(out.splitlines()[-2:]) == ["[0] saved", "[1] saved"], out


@NEEDS_HOROVOD
def test_a_worker_that_ignores_sigterm_is_killed(script):
    text = "signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)\n"
    process = script(text, "--grace", "1")
    until(process, "[0] ready"), time.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert process.returncode == 137 and gone(1)


@NEEDS_HOROVOD
def test_workers_end_when_the_launcher_is_killed(script):
    process = script("print('ready', flush=True); time.sleep(60)\n")
    until(process, "[0] ready"), time.sleep(0.3)
    process.kill()
    process.communicate()
    assert gone(5)


@NEEDS_HOROVOD
def test_dry_run_starts_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("raise SystemExit('was run')")
    done = CliRunner().invoke(main, ["run", "-np", "3", "--dry-run", "train.py", "--epochs", "3 or so"])
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert [line.split(":")[0] for line in lines] == [f"rank {rank} on localhost" for rank in range(3)]
    assert "HOROVOD_RANK=2" in lines[2] and lines[2].endswith("train.py --epochs '3 or so'")


@NEEDS_HOROVOD
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-np", "2", "no.py"], "no script no.py"),
        (["-np", "2", "no-such-program"], "no program 'no-such-program'"),
        (["-np", "2", "-m"], "name of a module"),
        (["train.py"], "How many workers?"),
        (["-np", "0", "train.py"], "0"),
        (["-np", "5", "-H", "localhost:4", "train.py"], "5 workers were asked for"),
        (["-H", "a:2,a:2", "train.py"], "'a' is there twice"),
        (["-H", "a:x", "train.py"], "'a:x'"),
        (["-H", "a;reboot:1", "train.py"], "NAME:WORKERS"),
        (["-H", "-oProxyCommand=x:1", "train.py"], "NAME:WORKERS"),
        (["-H", "no-such-host.invalid:1", "train.py"], "no-such-host.invalid"),
        (["-np", "2", "--no-such-option", "train.py"], "no option --no-such-option"),
    ],
)
def test_what_is_refused(arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    done = CliRunner().invoke(main, ["run", "--dry-run", *arguments])
    assert done.exit_code != 0 and said in done.output, done.output


def test_a_hostfile(tmp_path, monkeypatch):
    from kerasdist.launch.hosts import parse_hostfile

    file = tmp_path / "hosts"
    file.write_text("# two\nhost1 slots=2\n\nhost2:3  # more\nhost3\n")
    assert parse_hostfile(file) == {"host1": 2, "host2": 3, "host3": 1}
    file.write_text("# none\n")
    with pytest.raises(ValueError, match="no host is named"):
        parse_hostfile(file)


def test_the_last_traceback():
    head = "Traceback (most recent call last):\n"
    chain = ["\n", "During handling of the above exception, another exception occurred:\n", "\n"]
    first, second = [head, "  a\n", "KeyError: 1\n"], [head, "  b\n", "ValueError: 2\n"]
    assert last_traceback([*first, "and on\n", *second]) == "".join(second)
    assert last_traceback([*first, "and on\n", *second, *chain, *first]) == "".join([*second, *chain, *first])
    assert last_traceback(["only\n", "words\n"]) == "only\nwords\n"
