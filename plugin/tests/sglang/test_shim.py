"""What the shim promises of itself: it is small, it patches nothing, and it keeps no state."""

import importlib.metadata
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import rules
import torch

import atomc
from atomc import _atomc
from atomc.frameworks import Refused
from atomc.pages import SLACK, fits, halves
from atomc.sglang import compat, pool
from atomc.sglang.model import live
from atomc.sglang.rings import Rings

FILES = sorted(Path(atomc.__path__[-1], "sglang").glob("*.py"))
CONSTANTS = {
    "ARCHITECTURES",
    "CALLED",
    "ONE_ROPE",
    "DRAFTS",
    "__getattr__",
    "BESIDE",
    "CHOOSING",
    "COMPILING",
    "EntryClass",
    "NAMES",
    "REQUESTS",
    "ROUNDED",
    "TESTED",
    "TRANSFORMERS",
}
DRAFTS = (compat.DRAFT_BACKEND, compat.GUESS_BACKENDS)
RELEASES = {"OLDER", "BEFORE", "SINCE"}
MEMORY = {
    "PAGE_SIZE",
    "MODEL_CONFIG",
    "HAS_INDEXERS",
    "RINGS",
    "HALVES",
    "ROWS",
    "STATE",
    "STATES",
    "DECODE",
    "WINDOW",
    "DRAFT",
    "WRAPPER",
    "SAVER",
    "CHECKER",
    "RELEASE",
    "CACHE_TAG",
    "OPTIONS",
    "TAGS",
    "logger",
}
ADAPTERS = {"ADAPTERS", "LATENT", "KEYS_AND_VALUES"}
GUESSES = {
    "EAGLE",
    "NONE",
    "KERNELS",
    "DRAFT_BACKEND",
    "GUESS_BACKENDS",
    "LIKELIEST",
    "SAMPLE",
    "THRESHOLDS",
    "LATER",
    "LAST_SLOT",
    "SLOTS",
    "GUESS_SLOTS",
    "CHAIN",
    "VERIFY",
    "BONUS",
}


@pytest.mark.short
def test_size():
    """Fifty lines of these are the names of what is used of SGLang, and 140 stand in for kernels."""
    assert rules.lines(FILES) < 1250


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_nothing_is_patched(file):
    rules.patches_nothing(file)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_modules_have_no_state(file):
    rules.has_no_state(file, CONSTANTS | RELEASES | MEMORY | ADAPTERS | GUESSES)


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


def test_every_option_has_a_place_in_the_table():
    from argparse import ArgumentParser

    from sglang.srt.server_args import ServerArgs

    parser = ArgumentParser()
    ServerArgs.add_cli_args(parser)
    assert {action.dest for action in parser._actions} - {"help", "config"} - set(
        _atomc.known_sglang_options()
    ) == set()


@pytest.mark.short
def test_entry_points():
    found = {
        (e.group, e.name)
        for e in importlib.metadata.distribution("atomc").entry_points
        if e.group.startswith("sglang")
    }
    assert found == {("sglang.srt.plugins", "atomc"), ("sglang.srt.platforms", "atomc_host")}


def test_every_architecture_has_a_class():
    from sglang.srt.models.registry import import_model_classes

    drafts = {name + draft for name in compat.ARCHITECTURES for draft in ("NextN", "MTP")}
    drafts.add("LlamaForCausalLMEagle3")
    assert set(import_model_classes("atomc.sglang", strict=True)) == {
        *compat.ARCHITECTURES,
        *drafts,
        compat.TRANSFORMERS,
    }


def test_names_of_drafts_are_reserved():
    """Those that SGLang makes of the names of models that artifacts hold."""
    from sglang.srt.models.registry import import_model_classes

    own = set(import_model_classes("sglang.srt.models"))
    assert {
        "DeepseekV3ForCausalLMNextN",
        "LlamaForCausalLMEagle3",
        "Qwen3NextForCausalLMMTP",
    } <= own & set(compat.DRAFTS)


def hooked() -> list[str]:
    """Whatever of SGLang's has a hook of the plugin's on a machine without a GPU."""
    from atomc.sglang import guesses

    always = [compat.PAGE_SIZE, compat.WRAPPER, compat.CHECKER]
    if compat.OLDER:
        return [*always, compat.HALVES, compat.ROWS]
    indexers = [compat.MODEL_CONFIG, compat.HAS_INDEXERS]
    memory = [compat.SAVER, compat.RELEASE, compat.DECODE]
    return [*always, *indexers, *memory, *DRAFTS, compat.RINGS, *guesses.KERNELS, compat.SAMPLE]


@pytest.mark.short
def test_what_is_hooked_is_there():
    from pkgutil import resolve_name

    assert all(callable(resolve_name(place)) for place in hooked())


def changed(**environment: str) -> set[str]:
    """Names that differ after SGLang has called its plugins, of all that a server loads."""
    script = Path(rules.__file__).with_name("names.py")
    mine = {name: value for name, value in os.environ.items() if not name.startswith("SGLANG_")}
    done = subprocess.run(
        [sys.executable, script, "sglang"],
        env=mine | environment,
        check=True,
        capture_output=True,
        text=True,
    )
    *names, count = done.stdout.splitlines()[done.stdout.splitlines().index("changed:") + 1 :]
    assert int(count.split()[0]) > 300_000
    # SGLang's own note of having called them.
    return set(names) - {"sglang.srt.plugins._plugins_loaded"}


def test_nothing_of_sglang_changes_where_it_looks_for_no_models_here():
    assert changed() == set()


def test_what_changes_of_sglang_is_in_the_document():
    """What has a hook, and copies that other modules of SGLang's have of such a function."""
    found, places = changed(SGLANG_EXTERNAL_MODEL_PACKAGE="atomc.sglang"), set(hooked())
    assert places <= found
    functions = {place.rpartition(".")[2] for place in places}
    assert {name for name in found if name.rpartition(".")[2] not in functions} == set()
    assert all(name.startswith("sglang.") for name in found)
    document = Path(rules.__file__).resolve().parents[2] / "docs" / "sglang.md"
    assert [place for place in places if f"`{place}`" not in document.read_text()] == []


def test_a_pool_of_sglang_has_room_behind_its_last_page_on_a_processor():
    cache = SimpleNamespace(layer=0, block_tokens=16, block_bytes=16 * 128)
    slots = torch.arange(2 * 64 * 32, dtype=torch.int32).view(torch.bfloat16).view(2, 64, 2, 32)
    before, size = slots.clone(), slots.nbytes
    [(address, stride, blocks)] = halves([cache], True, *slots)
    assert (address, stride, blocks) == (slots.data_ptr(), 16 * 128, 4)
    # Halves are one allocation, which may hold twice as many pages as K has bytes for.
    cache.block_bytes *= 2
    halves([cache], True, *slots)
    assert slots.untyped_storage().nbytes() == size + SLACK and torch.equal(
        slots.view(torch.int16), before.view(torch.int16)
    )
    cache.block_bytes += 128
    with pytest.raises(Refused, match="4 pages of 4224 bytes, but the pool has 16640 bytes"):
        halves([cache], True, *slots)


@pytest.mark.short
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.uint8])
def test_a_pool_on_a_gpu_is_made_of_one_allocation(monkeypatch, kind):
    """In releases that have two: as it would be on a GPU, where granules are too large to end right
    after a page by chance."""
    monkeypatch.setattr(pool.config, "artifact", lambda: "an artifact")
    monkeypatch.setattr(pool.pages, "GPU_GRANULE", 1)
    tags: list[str] = []
    saver = SimpleNamespace(region=lambda tag: nullcontext(tags.append(tag)))
    made = SimpleNamespace(
        size=128,
        page_size=64,
        head_num=2,
        head_dim=16,
        layer_num=3,
        store_dtype=kind,
        device="cpu",
        memory_saver_adapter=saver,
    )
    pool.joined(None, made)
    assert tags == ["kv_cache"] and len(made.k_buffer) == len(made.v_buffer) == 3
    bytes = 64 * 2 * 2 * 16 * kind.itemsize
    cache = SimpleNamespace(layer=0, block_tokens=64, block_bytes=bytes)
    for k, v in zip(made.k_buffer, made.v_buffer):
        assert k.shape == v.shape == (192, 2, 16) and not k.any() and not v.any()
        assert halves([cache], False, k, v) == [(k.data_ptr(), bytes, 3)]
    monkeypatch.setattr(pool.config, "artifact", lambda: None)
    assert pool.joined(lambda _: "SGLang's own", made) == "SGLang's own"


@pytest.mark.short
def test_rows_that_pad_a_captured_step_are_nobodys():
    """They keep the request that had their place before, which may go on in another."""
    rows, lengths = torch.tensor([7, 3, 7, 3]), torch.tensor([65, 2, 1, 1])
    assert live(rows, lengths, True).tolist() == [7, 3, 0, 0]
    assert live(rows, lengths, False).tolist() == [7, 3, 7, 3]


@pytest.mark.short
def test_a_state_goes_along_the_ring_of_its_request():
    """A step of four tokens ends in the slot that it begins in, and the next begins behind the last that was accepted."""
    rings, requests = Rings(3, 4, 10, "cpu"), torch.tensor([1, 2])
    own, none = torch.tensor([5, 6], dtype=torch.int32), torch.tensor([0, 0])
    table = lambda before: rings.table(own, requests, before, 6).tolist()
    assert table(none) == [[5, 13, 14, 15, 5, -1], [6, 16, 17, 18, 6, -1]]
    rings.accept(requests, torch.tensor([2, 4]))
    assert table(none) == [[14, 15, 5, 13, 14, -1], [6, 16, 17, 18, 6, -1]]
    rings.accept(requests, torch.tensor([3, 1]))
    assert table(none) == [[13, 14, 15, 5, 13, -1], [16, 17, 18, 6, 16, -1]]
    # Of the second request an earlier step of the same batch has done two tokens.
    assert table(torch.tensor([0, 2]))[1] == [18, 6, 16, 17, 18, -1]
    rings.begin(requests[:1])
    assert table(none)[0] == [5, 13, 14, 15, 5, -1]


def test_pages_that_pools_have_no_room_for_are_refused_when_a_model_is_made():
    cache = SimpleNamespace(
        layer=3, block_tokens=16, heads=1, head_dim=24, dtype="bfloat16", block_bytes=16 * 24 * 2
    )
    fits([cache], 1)
    cache.block_bytes = 16 * 32 * 2
    with pytest.raises(
        Refused,
        match="layer 3: pages of 1024 bytes, .* but the framework's pools have 768 bytes for one",
    ):
        fits([cache], 1)


def test_checks_of_weights_are_refused():
    """SGLang's checker, which would find no parameter that is wrong."""
    from sglang.srt.utils.weight_checker import WeightChecker

    from atomc.frameworks import Driven
    from atomc.sglang import memory

    asked = []
    handle = lambda checker, action, **_: asked.append(action)
    of = lambda model: SimpleNamespace(_get_model=lambda: model)
    assert callable(WeightChecker.handle)
    memory.checked(handle, of(torch.nn.Identity()), "checksum", role="target")
    with pytest.raises(Refused, match="/weights_checker: the weights of an artifact are packed"):
        memory.checked(handle, of(Driven.__new__(Driven)), "checksum", role="target")
    assert asked == ["checksum"]


def test_the_profiler_has_what_a_processor_has():
    if not compat.OLDER:
        from atomc.sglang.platform import HostPlatform

        platform = HostPlatform()
        name = platform.get_torch_profiler_activity_str()
        assert (
            getattr(torch.profiler.ProfilerActivity, name) is platform.get_torch_profiler_activity()
        )


def test_the_backend_may_be_deterministic():
    """Where the artifact is: SGLang offers it for deterministic inference, with prefixes of the radix cache."""
    from atomc.sglang import plugin

    plugin.register()
    from sglang.srt import server_args

    assert "atomc" in server_args.DETERMINISTIC_ATTENTION_BACKEND_CHOICES
    assert "atomc" in server_args.RADIX_SUPPORTED_DETERMINISTIC_ATTENTION_BACKEND
