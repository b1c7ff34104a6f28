"""The command line starts at once, and the doctor is right on broken installs."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
from click.testing import CliRunner

from kerasdist.cli import doctor, main
from kerasdist.cli.diagnosis import can_train, diagnose
from kerasdist.cli.evidence import Evidence
from kerasdist.engine_build.installed import InstalledEngine

GOOD = Evidence(
    python=(3, 12, 1),
    packages=(("tensorflow-cpu", "2.21.0"),),
    answers={
        "tensorflow": {"version": "2.21.0", "cuda": False, "gpus": []},
        "keras": {"version": "3.11.0", "backend": "tensorflow"},
        "horovod": {"version": "0.28.1", "gloo": True, "mpi": False, "nccl": "", "cuda": False},
    },
    engine=InstalledEngine("0.28.1", "2.21.0", None),
    horovodrun=True,
    host_name=("host", "10.0.0.1", True),
    memory_mb=8000,
    cores=4,
)


def _answers(**changes):
    return {name: changes.get(name, answer) for name, answer in GOOD.answers.items()}


def _states(evidence):
    return {finding.name: finding.state for finding in diagnose(evidence)}


@pytest.mark.parametrize(
    "arguments", [["--help"], *([name, "--help"] for name in ("build-engine", "doctor", "run", "slurm"))]
)
def test_help_imports_neither_tensorflow_nor_keras(arguments):
    script = (
        "import sys; from kerasdist.cli import main; main(sys.argv[1:], standalone_mode=False); "
        "bad = {'tensorflow', 'keras', 'horovod'} & set(sys.modules); sys.exit(f'imported: {bad}' if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout


def test_every_command_is_listed_and_loads():
    listing = CliRunner().invoke(main, ["--help"]).output
    for name in main.list_commands(None):
        assert name in listing
        assert main.get_command(None, name).name == name


def test_an_unknown_command_is_an_error():
    assert CliRunner().invoke(main, ["fly"]).exit_code == 2


def test_a_good_machine_can_train():
    findings = diagnose(GOOD)
    assert can_train(findings)
    assert {finding.state for finding in findings} <= {"good", "note"}


@pytest.mark.parametrize(
    ("name", "state", "mend", "change"),
    [
        ("Python", "wrong", "3.11", {"python": (3, 10, 2)}),
        (
            "TensorFlow",
            "missing",
            "pip install",
            {
                "packages": (),
                "answers": _answers(tensorflow={"error": "ModuleNotFoundError: No module named 'tensorflow'"}),
            },
        ),
        ("TensorFlow", "wrong", "uninstall", {"packages": (("tensorflow", "2.21.0"), ("tensorflow-cpu", "2.21.0"))}),
        (
            "TensorFlow",
            "wrong",
            "again",
            {"answers": _answers(tensorflow={"error": "crashed with SIGILL while loading"})},
        ),
        (
            "Keras",
            "missing",
            "pip install",
            {"answers": _answers(keras={"error": "ModuleNotFoundError: No module named 'keras'"})},
        ),
        ("Keras", "wrong", "3.11", {"answers": _answers(keras={"version": "3.10.0", "backend": "tensorflow"})}),
        ("Keras", "wrong", "KERAS_BACKEND", {"answers": _answers(keras={"version": "3.15.1", "backend": "torch"})}),
        ("Horovod", "missing", "build-engine", {"engine": None}),
        ("Horovod", "wrong", "build-engine", {"engine": InstalledEngine("0.28.1", "", None)}),
        ("Horovod", "wrong", "build-engine", {"engine": InstalledEngine("0.28.1", "2.20.0", None)}),
        ("Horovod", "wrong", "build-engine", {"answers": _answers(horovod={"error": "did not load within 180 s"})}),
        (
            "Controllers",
            "missing",
            "build-engine",
            {"answers": _answers(horovod={**GOOD.answers["horovod"], "gloo": False})},
        ),
        ("horovodrun", "missing", "build-engine", {"horovodrun": False}),
        ("Launcher", "wrong", "unset", {"launcher": ("HOROVOD_SIZE='x'", False)}),
        ("Network", "wrong", "127.0.0.1 host", {"host_name": ("host", "", False)}),
        ("2 processes", "wrong", "build-engine", {"trial": {"mean": 1.0, "seconds": 3.0}}),
        ("2 processes", "wrong", "build-engine", {"trial": {"error": "2 processes did not start"}}),
    ],
)
def test_what_blocks_is_named_with_its_mend(name, state, mend, change):
    findings = diagnose(replace(GOOD, **change))
    finding = next(each for each in findings if each.name == name)
    assert (finding.state, finding.blocks) == (state, True)
    assert mend in finding.mend
    assert not can_train(findings)


@pytest.mark.parametrize("host_name", [("host", "127.0.1.1", True), ("host", "10.0.0.1", False)])
def test_what_matters_on_several_hosts_only_is_a_note(host_name):
    evidence = replace(GOOD, host_name=host_name)
    assert _states(evidence)["Network"] == "note"
    assert can_train(diagnose(evidence))


def test_gpus_without_nccl_are_named_but_do_not_block():
    gpu = {"version": "2.21.0", "cuda": True, "gpus": ["GPU:0"]}
    findings = diagnose(replace(GOOD, answers=_answers(tensorflow=gpu)))
    line = next(finding for finding in findings if finding.name == "Tensor operations")
    assert (line.state, line.mend) == ("missing", "kerasdist build-engine --nccl")
    assert can_train(findings)


def test_a_trial_that_averages_is_good():
    assert _states(replace(GOOD, trial={"mean": 0.5, "seconds": 4.2}))["2 processes"] == "good"


def test_nothing_at_all_is_diagnosed_too():
    error = {"error": "ended with status 1: boom"}
    evidence = replace(GOOD, packages=(), engine=None, answers=_answers(tensorflow=error, keras=error, horovod=error))
    assert not can_train(diagnose(evidence))


@pytest.mark.parametrize(("evidence", "code"), [(GOOD, 0), (replace(GOOD, engine=None), 1)])
def test_exit_code_and_json(monkeypatch, evidence, code):
    monkeypatch.setattr(doctor, "collect", lambda environ, timeout_s: evidence)
    done = CliRunner().invoke(main, ["doctor", "--json"])
    assert done.exit_code == code
    answer = json.loads(done.output)
    assert answer["ok"] is (code == 0)
    assert {"name", "state", "value", "mend", "blocks"} == set(answer["findings"][0])


def test_check_is_not_tried_on_what_cannot_work(monkeypatch):
    monkeypatch.setattr(doctor, "collect", lambda environ, timeout_s: replace(GOOD, engine=None))
    monkeypatch.setattr(doctor, "start_two", lambda *arguments: pytest.fail("was tried"))
    assert CliRunner().invoke(main, ["doctor", "--check"]).exit_code == 1
