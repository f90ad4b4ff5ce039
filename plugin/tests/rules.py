"""What every shim promises of itself, and how a file is held to it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

# What changes an object by its name, or gives what is inside one to be changed, however it is
# called in a file, as an attribute or by its name in a text.
CHANGING = {
    *("setattr", "delattr", "exec", "eval", "vars", "globals", "locals", "builtins", "modules"),
    *("__dict__", "__class__", "__setattr__", "__delattr__", "__globals__", "__builtins__"),
    *("__bases__", "__code__", "__defaults__", "__kwdefaults__", "__closure__", "__import__"),
    *("__setitem__", "__delitem__", "setitem", "delitem", "patch", "monkeypatch", "reload"),
}
# What changes a list, a set or a dictionary.
METHODS = {
    *("update", "setdefault", "pop", "popitem", "clear", "append", "extend", "insert", "remove"),
    *("add", "discard", "sort", "reverse"),
}
# Functions that return modules, or their contents.
LOADERS = {"import_module", "resolve_name"}


def lines(files: list[Path]) -> int:
    """Lines of files that are not empty."""
    return sum(bool(line.strip()) for file in files for line in file.read_text().splitlines())


def bound(tree: ast.AST) -> Iterator[str]:
    """Names that a file imports, and those that it gives to such things as they are."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.asname or alias.name.split(".")[0]) for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            yield from ((alias.asname or alias.name) for alias in node.names)


def aliases(tree: ast.AST, imported: set[str]) -> set[str]:
    """Names under which a file has what it imports, with those that it has given it."""
    known = set(imported)
    while True:
        found = {
            name
            for target, value in given(tree)
            if any(is_of(one, known, through_calls=False) for one in parts(value))
            for name in names(target)
        }
        if found <= known:
            return known
        known |= found


def given(tree: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Whatever gets a name, and what it is made of."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            yield from ((target, node.value) for target in node.targets)
        if isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value:
            yield node.target, node.value
        if isinstance(node, (ast.For, ast.comprehension)):
            yield node.target, node.iter
        if isinstance(node, ast.withitem) and node.optional_vars:
            yield node.optional_vars, node.context_expr


def parts(value: ast.expr) -> Iterator[ast.expr]:
    """An expression, or each of those that it is a list of."""
    if isinstance(value, (ast.Tuple, ast.List, ast.Set)):
        for one in value.elts:
            yield from parts(one)
    elif isinstance(value, ast.IfExp):
        yield from (*parts(value.body), *parts(value.orelse))
    elif isinstance(value, ast.BoolOp):
        for one in value.values:
            yield from parts(one)
    else:
        yield value


def names(target: ast.expr) -> Iterator[str]:
    for node in ast.walk(target):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def is_of(value: ast.expr, known: set[str], through_calls: bool = True) -> bool:
    """Whether an expression is something that is known, or in it. What a call gives is, if it loads, or if that is asked."""
    while isinstance(value, (ast.Attribute, ast.Subscript, ast.Call, ast.Starred)):
        if isinstance(value, ast.Call):
            called = value.func
            loads = ast.unparse(called).rpartition(".")[2] in LOADERS
            if loads:
                return True
            if not through_calls:
                return False
            value = called
        else:
            value = value.value
    return isinstance(value, ast.Name) and value.id in known


def patches_nothing(file: Path) -> None:
    """Nothing that is imported is changed: no attribute or item of it is assigned or deleted, no method of `METHODS` is called of it,
    under whatever name the file has it; and the file has no use of `CHANGING`. What a framework does for a shim, such as its own
    hooks, a file does not show: `names.py` compares what is loaded."""
    tree = ast.parse(file.read_text())
    known = aliases(tree, set(bound(tree)))
    for node in ast.walk(tree):
        shown = ast.unparse(node)
        targets = getattr(node, "targets", None) or [getattr(node, "target", None)]
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Delete, ast.For)):
            for target in (
                name
                for t in targets
                for name in ast.walk(t)
                if isinstance(name, (ast.Attribute, ast.Subscript))
            ):
                assert not is_of(target, known), shown
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            assert node.func.attr not in METHODS or not is_of(node.func.value, known), shown
        if isinstance(node, ast.Name):
            assert node.id not in CHANGING, shown
        if isinstance(node, ast.Attribute):
            assert node.attr not in CHANGING, shown
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            assert node.value not in CHANGING, shown
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            assert (
                not {part for alias in node.names for part in alias.name.split(".")} & CHANGING
            ), shown
        if isinstance(node, ast.ExceptHandler):
            assert ast.unparse(node.type or ast.Name("")) not in (
                "",
                "Exception",
                "BaseException",
            ), shown


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
