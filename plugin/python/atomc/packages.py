"""`python -m atomc.packages`: which frameworks this Python has, and which releases of them the shims were tested with, as JSON.

`atomc doctor` reads it. No framework is imported: vLLM alone takes seconds.
"""

import ast
import json
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from atomc import __version__

FRAMEWORKS = {"vllm": "vLLM", "sglang": "SGLang"}


def installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def tested(package: str) -> list[str]:
    """The releases that a shim names, without importing it."""
    source = Path(__file__).parent.joinpath(package, "compat.py").read_text()
    assigned = [node for node in ast.parse(source).body if isinstance(node, ast.Assign)]
    named = [node.value for node in assigned if ast.unparse(node.targets[0]) == "TESTED"]
    return list(ast.literal_eval(named[0]))


def main() -> None:
    found = [
        {"name": name, "version": installed(package), "tested": tested(package)}
        for package, name in FRAMEWORKS.items()
    ]
    print(
        json.dumps({"python": platform.python_version(), "atomc": __version__, "frameworks": found})
    )


if __name__ == "__main__":
    main()
