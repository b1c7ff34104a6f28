"""A failed build says the likely cause; a missing or wrong engine says what is wrong and how to rebuild."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from kerasdist.engine_build import check, pipeline
from kerasdist.engine_build.build import failure_text
from kerasdist.engine_build.causes import likely_cause
from kerasdist.engine_build.installed import InstalledEngine, read_engine
from kerasdist.engine_build.probe import nccl_version, read_answer
from kerasdist.engine_build.progress import BuildProgress
from kerasdist.engine_build.recipe import Options, engine_facts
from kerasdist.errors import EngineError


@pytest.mark.parametrize(
    ("line", "mend"),
    [
        ("/tmp/x.o: No space left on device", "TMPDIR"),
        ("c++: fatal error: Killed signal terminated program cc1plus", "--jobs 1"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.", "index"),
        ("NewConnectionError: Temporary failure in name resolution", "network"),
        ("ERROR: No matching distribution found for cmake<4", "pip config list"),
        ("  Could NOT find MPI_CXX (missing: MPI_CXX_HEADER_DIR)", "--no-mpi"),
        ("  Could NOT find NCCL (missing: NCCL_INCLUDE_DIR)", "--nccl-home"),
        ("Python.h: No such file or directory", "python3-dev"),
        ("fatal error: xla/client/xla_builder.h: No such file or directory", "tested with"),
        ("#error -- unsupported GNU version! gcc versions later than 12", "CXX"),
    ],
)
def test_causes(line, mend):
    assert mend in likely_cause(f"before\n{line}\nafter")


def test_an_unknown_cause_is_not_made_up():
    assert likely_cause("all is well") is None


def test_failure_text_ends_with_cause_and_log():
    tail = [f"line {number}\n" for number in range(100)] + ["No space left on device\n"]
    text = failure_text(["python", "-m", "pip", "wheel"], 1, tail, Path("/logs/x.log"))
    assert "line 99" in text and "line 50\n" not in text
    assert "`pip wheel` ended with status 1" in text
    assert text.endswith("Whole log: /logs/x.log")


def test_failure_text_shows_the_first_error_and_not_the_clean_up():
    tail = ["fine\n"] * 90 + ["a.cc:1:2: fatal error: no.h: No such file\n"] + ["clean\n"] * 90
    shown = failure_text(["python", "-m", "pip", "wheel"], 1, tail, Path("/x.log")).splitlines()
    assert "a.cc:1:2: fatal error: no.h: No such file" in shown
    assert shown.count("fine") == 12 and shown.count("clean") == 11


def _progress(lines):
    output = io.StringIO()
    with BuildProgress(Console(file=output, width=40), stages=1) as progress:
        progress.stage("compiling")
        for line in lines:
            progress.line(line)
    return output.getvalue().splitlines()


def test_progress_counts_few_lines_where_there_is_no_terminal():
    lines = _progress([f"[{percent:3}%] Building {percent}" for percent in range(101)])
    assert len(lines) == 6
    assert lines[1].startswith("[1/1] compiling: 20 %")
    assert len(_progress(["noise"] * 100)) == 1


def _site(tmp_path, tensorflow="2.21.0", extension=True):
    (tmp_path / "horovod" / "tensorflow").mkdir(parents=True)
    (tmp_path / "horovod" / "metadata.json").write_text(f'{{"tensorflow": "{tensorflow}"}}')
    if extension:
        (tmp_path / "horovod" / "tensorflow" / "mpi_lib.cpython-312-x86_64-linux-gnu.so").touch()
    return tmp_path


def test_installed_engine_is_read_from_files(tmp_path):
    assert read_engine("0.28.1", _site(tmp_path)) == InstalledEngine("0.28.1", "2.21.0", None)
    (tmp_path / "horovod" / "kerasdist-engine.json").write_text('{"arch": "x"}')
    assert read_engine("0.28.1", tmp_path).facts == {"arch": "x"}


def test_without_its_extension_an_engine_is_for_no_tensorflow(tmp_path):
    assert read_engine("0.28.1", _site(tmp_path, extension=False)) == InstalledEngine("0.28.1", "", None)


def test_only_the_very_same_engine_is_right(machine):
    facts = engine_facts(machine, Options(mpi=True))
    assert pipeline.is_right(InstalledEngine("0.28.1", "2.21.0", facts), facts)
    assert not pipeline.is_right(InstalledEngine("0.28.1", "2.20.0", facts), facts)
    assert not pipeline.is_right(InstalledEngine("0.28.1", "2.21.0", None), facts)
    for name in facts:
        assert not pipeline.is_right(InstalledEngine("0.28.1", "2.21.0", {**facts, name: "other"}), facts)


def test_an_engine_with_more_than_the_default_is_kept_unless_it_was_asked_off(machine):
    engine = InstalledEngine("0.28.1", "2.21.0", engine_facts(machine, Options(mpi=True, nccl=True)))
    for request, kept in ((pipeline.Request(), True), (pipeline.Request(nccl=False), False)):
        wanted = pipeline.at_least(Options(mpi=True), request, engine)
        assert pipeline.is_right(engine, engine_facts(machine, wanted)) is kept
    less = InstalledEngine("0.28.1", "2.21.0", engine_facts(machine, Options()))
    wanted = pipeline.at_least(Options(mpi=True), pipeline.Request(), less)
    assert not pipeline.is_right(less, engine_facts(machine, wanted))


def test_where_the_compiler_is_gone_the_installed_engine_stays_right(machine):
    facts = engine_facts(machine, Options())
    assert pipeline.is_right(InstalledEngine("0.28.1", "2.21.0", facts), {**facts, "compiler": ""})


GOOD = {"version": "0.28.1", "gloo": True, "mpi": False, "nccl": "", "cuda": False}


@pytest.mark.parametrize(
    ("engine", "built", "asked", "expected"),
    [
        (None, ImportError("no"), {}, ("not installed", "kerasdist build-engine`")),
        (
            InstalledEngine("0.28.1", "", None),
            ImportError("no"),
            {},
            ("no TensorFlow extension", "built for: TensorFlow none"),
        ),
        (InstalledEngine("0.28.1", "2.20.0", None), ImportError("no"), {}, ("another TensorFlow", "TensorFlow 2.20.0")),
        (
            InstalledEngine("0.28.1", "2.21.0", None),
            RuntimeError("symbol"),
            {},
            ("does not load (RuntimeError: symbol)", "2.21.0"),
        ),
        (InstalledEngine("0.28.1", "2.21.0", None), GOOD, {"nccl": True}, ("without the NCCL", "build-engine --nccl")),
        (InstalledEngine("0.28.1", "2.21.0", None), GOOD, {"mpi": True}, ("without the MPI", "build-engine --mpi")),
        (InstalledEngine("0.28.1", "2.21.0", None), {**GOOD, "gloo": False}, {}, ("a controller", "build-engine`")),
    ],
)
def test_check_build_names_what_is_missing(monkeypatch, engine, built, asked, expected):
    def look():
        if isinstance(built, Exception):
            raise built
        return built

    monkeypatch.setattr(check.probe, "look_at_horovod", look)
    monkeypatch.setattr(check, "installed_engine", lambda: engine)
    monkeypatch.setattr(check, "tensorflow_packages", lambda: (("tensorflow-cpu", "2.21.0"),))
    with pytest.raises(EngineError) as error:
        check.check_build(**asked)
    for text in (*expected, "running: tensorflow-cpu 2.21.0"):
        assert text in str(error.value)


def test_check_build_is_silent_on_a_good_engine(monkeypatch):
    monkeypatch.setattr(check.probe, "look_at_horovod", lambda: GOOD)
    check.check_build()


def test_a_probe_that_dies_leaves_what_it_had_said():
    answers = read_answer('noise\n{"part": "tensorflow", "version": "2.21.0"}\n', "crashed", "tensorflow,keras,horovod")
    assert answers["tensorflow"] == {"version": "2.21.0"}
    assert answers["keras"] == {"error": "crashed"}
    assert answers["horovod"]["error"].startswith("not asked")


def test_nccl_version():
    assert [nccl_version(code) for code in (23203, 22105, 2804)] == ["2.32.3", "2.21.5", "2.8.4"]
