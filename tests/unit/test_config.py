"""What may be chosen and what is refused: each error names argument, expected and received."""

import dataclasses

import pytest

from kerasdist import compression
from kerasdist.config import Options, Settings


def test_defaults():
    settings = Settings.create()
    assert settings.compressor.name == "none"
    assert (settings.bucket_mb, settings.auto_shard, settings.global_batch) == (4.0, True, False)
    assert settings.options == Options(timeout_s=300, partition="batch", check_data=True, alone_kb=256)


@pytest.mark.parametrize("name", sorted(compression.COMPRESSORS))
def test_a_compressor_by_name_and_by_object(name):
    by_name = Settings.create(compression=name).compressor
    assert by_name.name == compression.COMPRESSORS[name]().name
    assert Settings.create(compression=by_name).compressor is by_name


def test_none_is_no_compression():
    assert isinstance(compression.get(None), compression.NoCompression)


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"compression": "fp8"}, ValueError, ["`compression`", "'fp16'", "'bf16'", "Received: compression='fp8'"]),
        ({"compression": 16}, TypeError, ["`compression`", "'fp16'", "Received: compression=16"]),
        ({"bucket_mb": 0}, ValueError, ["`bucket_mb`", "above 0", "Received: bucket_mb=0"]),
        ({"bucket_mb": -1}, ValueError, ["`bucket_mb`", "Received: bucket_mb=-1"]),
        ({"bucket_mb": float("inf")}, ValueError, ["`bucket_mb`", "Received: bucket_mb=inf"]),
        ({"bucket_mb": float("nan")}, ValueError, ["`bucket_mb`", "Received: bucket_mb=nan"]),
        ({"bucket_mb": "4"}, TypeError, ["`bucket_mb`", "Received: bucket_mb='4'", "str"]),
        ({"bucket_mb": True}, TypeError, ["`bucket_mb`", "Received: bucket_mb=True"]),
        ({"auto_shard": 1}, TypeError, ["`auto_shard`", "True or False", "Received: auto_shard=1"]),
        ({"global_batch": "yes"}, TypeError, ["`global_batch`", "Received: global_batch='yes'"]),
        ({"global_batch": True, "auto_shard": False}, ValueError, ["`global_batch=True`", "auto_shard=False"]),
        ({"options": {"timeout_s": 5}}, TypeError, ["`options`", "kerasdist.Options", "Received: options={"]),
    ],
    ids=str,
)
def test_settings_refuse(arguments, kind, words):
    with pytest.raises(kind) as caught:
        Settings.create(**arguments)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"timeout_s": 0}, ValueError, ["`timeout_s`", "above 0", "Received: timeout_s=0"]),
        ({"timeout_s": "300"}, TypeError, ["`timeout_s`", "Received: timeout_s='300'"]),
        ({"partition": "random"}, ValueError, ["`partition`", "'contiguous'", "Received: partition='random'"]),
        ({"check_data": 0}, TypeError, ["`check_data`", "Received: check_data=0"]),
        ({"alone_kb": -256}, ValueError, ["`alone_kb`", "Received: alone_kb=-256"]),
    ],
    ids=str,
)
def test_options_refuse(arguments, kind, words):
    with pytest.raises(kind) as caught:
        Options(**arguments)
    for word in words:
        assert word in str(caught.value)


def test_options_and_settings_are_frozen():
    for made, name in ((Options(), "timeout_s"), (Settings.create(), "bucket_mb")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(made, name, 1.0)
