"""What every shim promises of itself, and how a file is held to it."""

import ast
import re
from pathlib import Path


def lines(files: list[Path]) -> int:
    """Lines of files that are not empty."""
    return sum(bool(line.strip()) for file in files for line in file.read_text().splitlines())


def bound(tree):
    """Names that a file imports, and those of it that are a framework's or torch's."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.asname or alias.name.split(".")[0]) for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            yield from ((alias.asname or alias.name) for alias in node.names)


def patches_nothing(file: Path) -> None:
    """No attribute of an imported module or class is assigned, by whatever way."""
    tree = ast.parse(file.read_text())
    imported = set(bound(tree))
    for node in ast.walk(tree):
        targets = getattr(node, "targets", None) or [getattr(node, "target", None)]
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Delete)):
            for target in (
                name
                for t in targets
                for name in ast.walk(t)
                if isinstance(name, (ast.Attribute, ast.Subscript))
            ):
                root: ast.expr = target
                while isinstance(root, (ast.Attribute, ast.Subscript, ast.Call)):
                    root = root.func if isinstance(root, ast.Call) else root.value
                assert not (isinstance(root, ast.Name) and root.id in imported), ast.unparse(node)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ("setattr", "delattr", "exec", "eval"), ast.unparse(node)
        if isinstance(node, ast.Attribute):
            assert node.attr not in ("__dict__", "__class__", "modules"), ast.unparse(node)
        if isinstance(node, ast.ExceptHandler):
            assert ast.unparse(node.type or ast.Name("")) not in (
                "",
                "Exception",
                "BaseException",
            ), ast.unparse(node)


def has_no_state(file: Path, constants: set[str]) -> None:
    """Nothing but constants, and what is of a module's own making and never changed, is bound in a module."""
    tree = ast.parse(file.read_text())
    for statement in tree.body:
        allowed = (
            ast.Import,
            ast.ImportFrom,
            ast.FunctionDef,
            ast.ClassDef,
            ast.Expr,
            ast.Assign,
            ast.AugAssign,
        )
        assert isinstance(statement, allowed), ast.unparse(statement)
        if isinstance(statement, (ast.Assign, ast.AugAssign)):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            names = [
                name
                for target in targets
                for name in (target.elts if isinstance(target, ast.Tuple) else [target])
            ]
            assert {ast.unparse(name) for name in names} <= constants
    for node in ast.walk(tree):
        assert not isinstance(node, (ast.Global, ast.Nonlocal)), ast.unparse(node)


def tells_releases_apart_in_one_place(files: list[Path], framework: str) -> None:
    """Whatever is a framework's comes through `compat.py`, and no other file looks for what a release has."""
    for file in files:
        text = file.read_text()
        if file.name != "compat.py":
            assert (
                "__version__" not in text
                and "except ImportError" not in text
                and "hasattr" not in text
            ), file
            assert not re.search(
                rf"(from|import) {framework}\b|import_module\(\"{framework}", text
            ), file
