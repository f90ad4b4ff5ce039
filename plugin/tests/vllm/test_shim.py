"""What the shim promises of itself: it is small, it patches nothing, and it keeps no state."""

import importlib.metadata
import subprocess
import sys
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
    "CODES",
    "DRAFTS",
    "FLOATS",
    "KERNELS",
    "LABELS",
    "NAMES",
    "NO_TOKEN",
    "SHARE",
    "TESTED",
    "TRANSFORMERS",
    "TWO_ROWS",
    "logger",
}
pytestmark = pytest.mark.short


def test_size():
    """Sixty lines of these are the names of what is used of vLLM, and 170 stand in for its kernels."""
    assert rules.lines(FILES) < 1200


def test_what_shims_share_is_small():
    assert rules.lines([SHARED]) < 300


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


def test_nothing_of_vllm_changes():
    """Of all that a server loads: vLLM's plugins register what is new, and change no name but vLLM's note of having called them."""
    script = Path(rules.__file__).with_name("names.py")
    done = subprocess.run(
        [sys.executable, script, "vllm"], check=True, capture_output=True, text=True
    )
    *names, count = done.stdout.splitlines()[done.stdout.splitlines().index("changed:") + 1 :]
    assert names == ["vllm.plugins.plugins_loaded"] and int(count.split()[0]) > 300_000
