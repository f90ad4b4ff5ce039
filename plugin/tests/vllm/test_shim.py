"""What the shim promises of itself: it is small, it patches nothing, and it keeps no state."""

import ast
import importlib.metadata
import re
from pathlib import Path

import pytest

import atomc
from atomc.vllm import compat

SHIM = Path(atomc.__path__[-1], "vllm")
FILES = sorted(SHIM.glob("*.py"))
# Constants, and what is of a module's own making and never changed.
CONSTANTS = {"ARCHITECTURES", "LABELS", "NAMES", "TESTED", "TRANSFORMERS", "logger"}
pytestmark = pytest.mark.short


def test_size():
    """Fifty lines of these are the names of what is used of vLLM."""
    assert sum(bool(line.strip()) for file in FILES for line in file.read_text().splitlines()) < 480


def bound(tree):
    """Names that a file imports, and those of it that are vLLM's or torch's."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.asname or alias.name.split(".")[0]) for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            yield from ((alias.asname or alias.name) for alias in node.names)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_nothing_is_patched(file):
    """No attribute of an imported module or class is assigned, by whatever way."""
    tree = ast.parse(file.read_text())
    imported = set(bound(tree))
    for node in ast.walk(tree):
        targets = getattr(node, "targets", None) or [getattr(node, "target", None)]
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Delete)):
            for target in (name for t in targets for name in ast.walk(t) if isinstance(name, (ast.Attribute, ast.Subscript))):
                root = target
                while isinstance(root, (ast.Attribute, ast.Subscript, ast.Call)):
                    root = root.func if isinstance(root, ast.Call) else root.value
                assert not (isinstance(root, ast.Name) and root.id in imported), ast.unparse(node)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ("setattr", "delattr", "exec", "eval"), ast.unparse(node)
        if isinstance(node, ast.Attribute):
            assert node.attr not in ("__dict__", "__class__", "modules"), ast.unparse(node)
        if isinstance(node, ast.ExceptHandler):
            assert ast.unparse(node.type or ast.Name("")) not in ("", "Exception", "BaseException"), ast.unparse(node)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_modules_have_no_state(file):
    tree = ast.parse(file.read_text())
    for node in tree.body:
        allowed = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Expr, ast.Assign, ast.AugAssign)
        assert isinstance(node, allowed), ast.unparse(node)
        if isinstance(node, (ast.Assign, ast.AugAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            assert {ast.unparse(target) for target in targets} <= CONSTANTS
    for node in ast.walk(tree):
        assert not isinstance(node, (ast.Global, ast.Nonlocal)), ast.unparse(node)


def test_releases_are_told_apart_in_one_place():
    """Whatever is vLLM's comes through `compat.py`, and no other file looks for what a release has."""
    for file in FILES:
        text = file.read_text()
        if file.name != "compat.py":
            assert "__version__" not in text and "except ImportError" not in text and "hasattr" not in text, file
            assert not re.search(r"(from|import) vllm\b|import_module\(\"vllm", text), file


def test_whatever_is_used_of_vllm_is_there():
    for name in compat.NAMES:
        getattr(compat, name)


def test_the_environment_is_read_in_one_place():
    for file in FILES:
        assert file.name == "settings.py" or "environ" not in file.read_text(), file


def test_entry_points():
    found = {(e.group, e.name) for e in importlib.metadata.distribution("atomc").entry_points}
    assert found == {("vllm.general_plugins", "atomc"), ("vllm.platform_plugins", "atomc_host"), ("vllm.stat_logger_plugins", "atomc_info")}
