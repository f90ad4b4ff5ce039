"""The picture of the README: commands that are run now, and the lines that they write.

python3 docs/picture.py target/release/atomc > docs/picture.svg
"""

import subprocess
import sys
import tempfile
from html import escape
from pathlib import Path

COLUMNS, LINE, EDGE, WIDE = 96, 19, 18, 7.83
QUESTION = (
    "Q: Ana has 12 apples. Ana buys 7 more. Ana gives 4 to Ben. How many apples does Ana have now?"
)
COMMANDS = [
    "atomc compile examples/models/qwen3 --target host,gfx942 -o qwen3.atomc | cut -d' ' -f1-3",
    "atomc verify qwen3.atomc --device emu:gfx942 | tail -n 1",
    f"atomc run qwen3.atomc --weights examples/models/qwen3 --prompt $'{QUESTION}\\nA:'",
    "atomc compile tests/bench/qwen3-8b.json --target gfx942 --prefill 2048 -o 8b.atomc | cut -d' ' -f1-3",
    "atomc bench 8b.atomc --model MI300X --prompt 2048 --position 1024 --batch 1,8"
    " | grep -v assumed",
]


def wrapped(text: str, first: str) -> list[str]:
    """Lines of at most COLUMNS characters; those after the first are indented."""
    lines, line = [], first
    for word in text.split(" "):
        if len(line) + len(word) > COLUMNS and line.strip():
            lines.append(line.rstrip())
            line = "    "
        line += f"{word} "
    return [*lines, line.rstrip()]


def shown(atomc: Path) -> list[tuple[str, str]]:
    """Every line, and whether it is a command or what one wrote."""
    root, lines = Path(__file__).resolve().parents[1], []
    with tempfile.TemporaryDirectory() as folder:
        for name in ("examples", "tests"):
            Path(folder, name).symlink_to(root / name)
        Path(folder, "atomc").symlink_to(atomc.resolve())
        environment = {"PATH": f"{folder}:/usr/bin:/bin", "XDG_CONFIG_HOME": folder}
        for command in COMMANDS:
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", command],
                cwd=folder,
                env=environment,
                check=True,
                stdout=subprocess.PIPE,
                text=True,
            )
            lines += [("command", line) for line in wrapped(command, "$ ")]
            for line in done.stdout.strip().splitlines():
                lines += [("answer", part) for part in wrapped(line.strip(), "")]
            lines.append(("answer", ""))
    return lines[:-1]


def svg(lines: list[tuple[str, str]]) -> str:
    width, height = round(COLUMNS * WIDE + 2 * EDGE), len(lines) * LINE + 2 * EDGE
    colours = {"command": "#e8eaed", "answer": "#9fd3a8"}
    texts = [
        f'<text x="{EDGE}" y="{EDGE + LINE * number + 13}" fill="{colours[kind]}">'
        f"{escape(line)}</text>"
        for number, (kind, line) in enumerate(lines)
        if line
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
            ' font-family="ui-monospace, Menlo, Consolas, monospace" font-size="13"'
            ' xml:space="preserve">',
            f'<rect width="{width}" height="{height}" rx="8" fill="#1e1f22"/>',
            *texts,
            "</svg>",
        ]
    )


if __name__ == "__main__":
    print(svg(shown(Path(sys.argv[1]))))
