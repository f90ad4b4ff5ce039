#!/usr/bin/env python3
"""Counts comment lines that hold a word by which our comments become riddles.

    python3 tests/english.py               # the share of such lines in each crate
    python3 tests/english.py --lines       # the lines as well
    python3 tests/english.py targets/src   # of these files and folders only
    python3 tests/english.py --check       # fails where the share of all is over the limit

A comment line is a line of its own: `//`, `///` or `//!` in Rust, `#` in Python. Each of the words
has a plainer one: a subject that is named ("the kernel that", "the caller"), a number that is named
("two rows"), a place that is named ("after the scales", "next to"). A few uses are right, so the
limit is not zero.
"""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

# Percent of the comment lines of all crates.
LIMIT = 3.0
WORDS = re.compile(
    r"\b(who|whom|whose|whoever|nobody|so many|so much|besides?|behind"
    r"|go(es)? (along|with)|(what )?(comes|becomes) of)\b",
    re.I,
)
MARKERS = {".rs": "//", ".py": "#"}


def comments(path: Path) -> list[tuple[int, str]]:
    """The comment lines of a file, with their numbers."""
    marker = MARKERS[path.suffix]
    lines = enumerate(path.read_text().splitlines(), 1)
    found = [(number, line.strip()) for number, line in lines]
    return [(n, line) for n, line in found if line.startswith(marker) and not line.startswith("#!")]


def main(arguments: list[str]) -> int:
    names = [a for a in arguments if not a.startswith("--")]
    tracked = subprocess.check_output(["git", "ls-files", "--", *names], text=True).splitlines()
    all_lines, found = Counter[str](), Counter[str]()
    for path in map(Path, tracked):
        if path.suffix not in MARKERS or not path.is_file():
            continue
        crate = path.parts[0]
        for number, line in comments(path):
            all_lines[crate] += 1
            if WORDS.search(line):
                found[crate] += 1
                if "--lines" in arguments:
                    print(f"{path}:{number}: {line}")
    for crate, count in sorted(all_lines.items()):
        print(f"{crate:12} {found[crate]:5} of {count:5} {100 * found[crate] / count:5.1f} %")
    share = 100 * found.total() / max(all_lines.total(), 1)
    print(f"{'all':12} {found.total():5} of {all_lines.total():5} {share:5.1f} %")
    if "--check" in arguments and share > LIMIT:
        print(f"more than {LIMIT} %: --lines shows them")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
