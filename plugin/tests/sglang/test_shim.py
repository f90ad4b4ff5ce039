"""What the shim promises of itself: it is small, it patches nothing, and it keeps no state."""

import importlib.metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
import rules
import torch

import atomc
from atomc import _atomc
from atomc.frameworks import Refused
from atomc.pages import SLACK, halves
from atomc.sglang import compat

FILES = sorted(Path(atomc.__path__[-1], "sglang").glob("*.py"))
CONSTANTS = {"ARCHITECTURES", "DRAFTS", "__getattr__", "CHOOSING", "EntryClass", "NAMES", "REQUESTS", "ROUNDED", "TESTED", "TRANSFORMERS"}
RELEASES = {"OLDER", "BEFORE", "SINCE"}
MEMORY = {"PAGE_SIZE", "HALVES", "ROWS", "SAVER", "RELEASE", "OPTIONS", "TAGS", "logger"}
ADAPTERS = {"ADAPTERS", "DRAFT", "LATENT", "KEYS_AND_VALUES"}


@pytest.mark.short
def test_size():
    assert rules.lines(FILES) < 400


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_nothing_is_patched(file):
    rules.patches_nothing(file)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_modules_have_no_state(file):
    rules.has_no_state(file, CONSTANTS | RELEASES | MEMORY | ADAPTERS)


def test_releases_are_told_apart_in_one_place():
    rules.tells_releases_apart_in_one_place(FILES, "sglang")


def test_the_environment_is_read_in_one_place():
    """Ours by what all shims share, SGLang's where the rest of SGLang is."""
    for file in FILES:
        assert file.name == "compat.py" or "environ" not in file.read_text(), file


@pytest.mark.short
def test_whatever_is_used_of_sglang_is_there():
    for name in " ".join(compat.NAMES.values()).split():
        getattr(compat, name)


def test_whatever_is_judged_is_an_option():
    from sglang.srt.server_args import ServerArgs

    options = ServerArgs(model_path="none")
    assert [name for name in _atomc.judged_sglang_options() if not hasattr(options, name)] == []


@pytest.mark.short
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


@pytest.mark.short
def test_what_is_hooked_is_there():
    from pkgutil import resolve_name

    places = [compat.PAGE_SIZE, compat.HALVES, compat.ROWS, *([] if compat.OLDER else [compat.SAVER, compat.RELEASE])]
    assert all(callable(resolve_name(place)) for place in places)


def test_a_pool_of_sglang_has_room_behind_its_last_page_on_a_processor():
    cache = SimpleNamespace(layer=0, block_tokens=16, block_bytes=16 * 128)
    pool = torch.arange(2 * 64 * 32, dtype=torch.int32).view(torch.bfloat16).view(2, 64, 2, 32)
    before, size = pool.clone(), pool.nbytes
    address, stride, blocks, table = halves(cache, True, *pool)
    assert (address, stride, blocks, table) == (pool.data_ptr(), 16 * 128, 4, 0)
    # Halves are one allocation, which may hold twice as many pages as K has bytes for.
    cache.block_bytes *= 2
    halves(cache, True, *pool)
    assert pool.untyped_storage().nbytes() == size + SLACK and torch.equal(pool.view(torch.int16), before.view(torch.int16))
    cache.block_bytes += 128
    with pytest.raises(Refused, match="4 pages of 4224 bytes, but the pool has 16640 bytes"):
        halves(cache, True, *pool)
