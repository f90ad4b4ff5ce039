"""What the shim promises of itself: it is small, it patches nothing, and it keeps no state."""

import importlib.metadata
from pathlib import Path

import pytest
import rules

import atomc
from atomc import _atomc
from atomc.sglang import compat

FILES = sorted(Path(atomc.__path__[-1], "sglang").glob("*.py"))
CONSTANTS = {"ARCHITECTURES", "DRAFTS", "__getattr__", "CHOOSING", "EntryClass", "NAMES", "REQUESTS", "ROUNDED", "TESTED", "TRANSFORMERS"}
MEMORY = {"SLACK", "GRANULE", "GPU_GRANULE", "POOLS", "SAVER", "RELEASE", "OPTIONS", "TAGS", "logger"}
ADAPTERS = {"ADAPTERS", "DRAFT", "LATENT", "KEYS_AND_VALUES"}


def test_size():
    assert rules.lines(FILES) < 400


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_nothing_is_patched(file):
    rules.patches_nothing(file)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_modules_have_no_state(file):
    rules.has_no_state(file, CONSTANTS | MEMORY | ADAPTERS)


def test_releases_are_told_apart_in_one_place():
    rules.tells_releases_apart_in_one_place(FILES, "sglang")


def test_the_environment_is_read_in_one_place():
    """Ours by what all shims share, SGLang's where the rest of SGLang is."""
    for file in FILES:
        assert file.name == "compat.py" or "environ" not in file.read_text(), file


def test_whatever_is_used_of_sglang_is_there():
    for name in compat.NAMES:
        getattr(compat, name)


def test_whatever_is_judged_is_an_option():
    from sglang.srt.server_args import ServerArgs

    options = ServerArgs(model_path="none")
    assert [name for name in _atomc.judged_sglang_options() if not hasattr(options, name)] == []


def test_entry_points():
    found = {(e.group, e.name) for e in importlib.metadata.distribution("atomc").entry_points if e.group.startswith("sglang")}
    assert found == {("sglang.srt.plugins", "atomc"), ("sglang.srt.platforms", "atomc_host")}


def test_every_architecture_has_a_class():
    from sglang.srt.models.registry import import_model_classes

    drafts = {name + draft for name in compat.ARCHITECTURES for draft in ("NextN", "MTP")}
    assert set(import_model_classes("atomc.sglang", strict=True)) == {*compat.ARCHITECTURES, *drafts, compat.TRANSFORMERS}


def test_names_of_drafts_are_reserved():
    """Those that SGLang makes of the names of models that artifacts hold."""
    from sglang.srt.models.registry import import_model_classes

    own = set(import_model_classes("sglang.srt.models"))
    assert {"DeepseekV3ForCausalLMNextN", "Qwen3NextForCausalLMMTP"} <= own & set(compat.DRAFTS)


def test_what_is_hooked_is_there():
    from pkgutil import resolve_name

    assert callable(resolve_name(compat.SAVER)) and callable(resolve_name(compat.RELEASE))
