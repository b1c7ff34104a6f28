"""A wheel is taken for exactly the facts that it was built for, whole, or not at all."""

import json
from pathlib import Path

import pytest

from kerasdist.engine_build.cache import cache_folder, find_wheel, keep_wheel
from kerasdist.engine_build.recipe import Options, engine_facts, engine_key


@pytest.fixture
def facts(machine):
    return engine_facts(machine, Options(mpi=True))


@pytest.fixture
def kept(tmp_path, facts):
    wheel = tmp_path / "horovod-0.28.1-cp312-cp312-linux_x86_64.whl"
    wheel.write_bytes(b"binary")
    return keep_wheel(tmp_path / "cache", facts, wheel)


def test_a_kept_wheel_is_found(tmp_path, facts, kept):
    assert find_wheel(tmp_path / "cache", facts) == kept
    assert kept.read_bytes() == b"binary"


def test_another_engine_is_never_taken(tmp_path, facts, kept):
    for name in facts:
        assert find_wheel(tmp_path / "cache", {**facts, name: "other"}) is None


def test_a_folder_that_was_moved_to_another_key_is_not_taken(tmp_path, facts, kept):
    other = {**facts, "tensorflow": "tensorflow 2.20.0"}
    kept.parent.rename(kept.parent.parent / engine_key(other))
    assert find_wheel(tmp_path / "cache", other) is None


@pytest.mark.parametrize("damage", [b"bin", b""])
def test_a_damaged_wheel_is_not_taken(tmp_path, facts, kept, damage):
    kept.write_bytes(damage)
    assert find_wheel(tmp_path / "cache", facts) is None


def test_a_broken_record_is_not_taken(tmp_path, facts, kept):
    (kept.parent / "engine.json").write_text(json.dumps(["no", "record"]))
    assert find_wheel(tmp_path / "cache", facts) is None


def test_keeping_again_replaces_and_leaves_nothing_behind(tmp_path, facts, kept):
    fresh = tmp_path / kept.name
    fresh.write_bytes(b"newer")
    assert keep_wheel(tmp_path / "cache", facts, fresh).read_bytes() == b"newer"
    assert [entry.name for entry in kept.parent.parent.iterdir()] == [engine_key(facts)]


def test_cache_folder():
    assert cache_folder({"KERASDIST_CACHE": "/c"}) == Path("/c")
    assert cache_folder({"XDG_CACHE_HOME": "/x"}) == Path("/x/kerasdist")
    assert cache_folder({}) == Path.home() / ".cache" / "kerasdist"
