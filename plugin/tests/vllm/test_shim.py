"""What the shim promises of itself: it is small, it patches nothing, and it keeps no state."""

import importlib.metadata
from pathlib import Path

import pytest
import rules

import atomc
from atomc.vllm import compat

SHIM = Path(atomc.__path__[-1], "vllm")
FILES = sorted(SHIM.glob("*.py"))
# What the shims of all frameworks have in common.
SHARED = SHIM.parent / "frameworks.py"
CONSTANTS = {
    "ARCHITECTURES",
    "__getattr__",
    "DRAFTS",
    "KERNELS",
    "LABELS",
    "NAMES",
    "NO_TOKEN",
    "TESTED",
    "TRANSFORMERS",
    "TWO_ROWS",
    "logger",
}
pytestmark = pytest.mark.short


def test_size():
    """Sixty lines of these are the names of what is used of vLLM, and 100 stand in for its kernels."""
    assert rules.lines(FILES) < 890


def test_what_shims_share_is_small():
    assert rules.lines([SHARED]) < 275


@pytest.mark.parametrize("file", [*FILES, SHARED], ids=lambda file: file.name)
def test_nothing_is_patched(file):
    rules.patches_nothing(file)


@pytest.mark.parametrize("file", [*FILES, SHARED], ids=lambda file: file.name)
def test_modules_have_no_state(file):
    rules.has_no_state(file, CONSTANTS)


def test_releases_are_told_apart_in_one_place():
    rules.tells_releases_apart_in_one_place([*FILES, SHARED], "vllm")


def test_whatever_is_used_of_vllm_is_there():
    for name in " ".join(compat.NAMES.values()).split():
        getattr(compat, name)


def test_the_environment_is_read_in_one_place():
    for file in FILES:
        assert "environ" not in file.read_text(), file


def test_entry_points():
    found = {
        (e.group, e.name)
        for e in importlib.metadata.distribution("atomc").entry_points
        if e.group.startswith("vllm")
    }
    assert found == {
        ("vllm.general_plugins", "atomc"),
        ("vllm.platform_plugins", "atomc_host"),
        ("vllm.stat_logger_plugins", "atomc_info"),
    }
