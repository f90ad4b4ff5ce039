#!/usr/bin/env python3
"""Wraps comments and Markdown at 100 columns: the paragraphs in which a line is longer, no others.

    python3 tests/wrap.py            # every file that git tracks
    python3 tests/wrap.py FILE ...
    python3 tests/wrap.py --check    # changes nothing, names the lines that are too long

Comments are lines of their own in Rust, C, Python, shell and TOML. Code, tables, headings, indented
and fenced text stay as they are, and code spans and links stay on one line. Before a file is
written it is read again: its code must be the same to the byte, its words the same in the same
order.
"""

import re
import subprocess
import sys
from pathlib import Path

WIDTH = 100
SLASHES = {".rs", ".c"}
HASHES = {".py", ".sh", ".toml"}
# What cbindgen writes, and what a tool of somebody else's has written.
GENERATED = {"runtime/include/atomc.h"}

ITEM = re.compile(r"(\s*)([-*+]|\d+[.)])(\s+)(?=\S)")
FENCE = re.compile(r"\s*(```|~~~)")
# Lines that are not text to fill: tables, headings, quotes, rules, definitions of links, HTML.
FIXED = re.compile(r"\s*(\||#{1,6}\s|>|<[a-zA-Z/!]|\[[^\]]+\]:\s|-{3,}|(={3,}|\*{3,})\s*$)")
# A word that would begin something else than a line of text.
MARK = re.compile(r"([-*+>|=]|#{1,6}|\d+[.)]|-{3,}|={3,}|~~~.*|```.*)$")
# A line of a comment that begins a paragraph of its own.
START = re.compile(r"(SAFETY|TODO|cbindgen):|@[a-z]")


def words(text):
    """The words of a paragraph. Code spans and links are words, with what touches them."""
    found, word, at = [], "", 0
    while at < len(text):
        unit = span(text, at)
        if unit:
            word += unit
            at += len(unit)
        elif text[at].isspace():
            if word:
                found.append(word)
            word, at = "", at + 1
        else:
            word, at = word + text[at], at + 1
    return found + [word] if word else found


def span(text, at):
    """The code span or the link that begins here, if one does."""
    if text[at] == "`":
        mark = re.match(r"`+", text[at:]).group(0)
        end = re.compile(r"(?<!`)" + mark + r"(?!`)").search(text, at + len(mark))
        return text[at : end.end()] if end else mark
    if text[at] == "[":
        link = re.match(r"\[(?:[^\[\]]|\[[^\]]*\])*\](\([^()\s]*\)|\[[^\]]*\])?", text[at:])
        # A bracket without a target is a link of rustdoc's if it holds code alone.
        if link and (link.group(1) or re.fullmatch(r"\[`[^`]*`\]", link.group(0))):
            return link.group(0)
    return None


def fill(text, first, rest, width):
    """Lines of a paragraph; the first begins with `first`, the others with `rest`."""
    lines, line = [], ""
    for word in words(text):
        indent = rest if lines else first
        # A mark alone at the beginning of a line would be a list, a heading or a quote.
        if line and len(indent) + len(line) + 1 + len(word) > width and not MARK.match(word):
            lines.append(indent + line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    lines.append((rest if lines else first) + line)
    return lines


def wrap(lines, width):
    """Lines of Markdown in which no paragraph has a line that is too long."""
    out, block, head, fence, depth = [], [], None, None, 0

    def flush():
        nonlocal block, head
        if block:
            first, rest = head
            if any(len(line) > width for line in block):
                text = " ".join([block[0][len(first) :], *block[1:]])
                out.extend(fill(text, first, rest, width))
            else:
                out.extend(block)
        block, head = [], None

    for line in lines:
        mark = FENCE.match(line)
        if fence or mark:
            flush()
            out.append(line)
            fence = None if fence and mark and mark.group(1) == fence else fence or mark.group(1)
            continue
        indent = len(line) - len(line.lstrip())
        item = ITEM.match(line)
        if not line.strip():
            flush()
            out.append(line)
            continue
        if not block and not item and indent < depth:
            depth = 0
        if FIXED.match(line) or (not block and indent >= depth + 4 and not item):
            flush()
            out.append(line)
        elif item and (indent < depth + 4):
            flush()
            depth = item.end()
            block, head = [line], (line[: item.end()], " " * item.end())
        elif block and not START.match(line.strip()):
            block.append(line)
        else:
            flush()
            block, head = [line], (line[:indent], line[:indent])
        # A break that is meant ends a block.
        if block and re.search(r"(  |\\)$", block[-1]):
            flush()
    flush()
    return out


def comment_lines(text):
    """The numbers of the lines of Rust or C that hold a comment of slashes and nothing else."""
    found, at, line, fresh = set(), 0, 0, True
    pattern = re.compile(
        r"""(?P<comment>//[^\n]*)|(?P<block>/\*)|(?P<raw>\b(?:b|c)?r(?P<hashes>\#*)")"""
        r"""|(?P<string>(?:\bb|\bc)?")|(?P<char>'(?:\\[^\n]+?|[^\\'\n])')|(?P<line>\n)|(?P<space>[ \t]+)|(?P<other>\w+|.)""",
        re.S,
    )
    while at < len(text):
        token = pattern.match(text, at)
        kind, end = token.lastgroup, token.end()
        if kind == "hashes":
            kind = "raw"
        if kind == "comment" and fresh:
            found.add(line)
        if kind == "block":
            depth = 1
            while depth:
                step = re.compile(r"/\*|\*/").search(text, end)
                depth, end = depth + (1 if step.group(0) == "/*" else -1), step.end()
        elif kind == "raw":
            end = text.index('"' + token.group("hashes"), end) + 1 + len(token.group("hashes"))
        elif kind == "string":
            end = re.compile(r'(?:[^"\\]|\\.)*"', re.S).match(text, end).end()
        line += text.count("\n", at, end)
        fresh = kind == "line" or (fresh and kind == "space")
        at = end
    return found


def hash_lines(path, text):
    """The numbers of the lines of Python, shell or TOML that hold a comment and nothing else."""
    lines = text.split("\n")
    if path.suffix == ".py":
        import io
        import tokenize

        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        comments = {t.start[0] - 1 for t in tokens if t.type == tokenize.COMMENT}
        return {n for n in comments if lines[n].lstrip().startswith("#")}
    found, end = set(), None
    for number, line in enumerate(lines):
        if end:
            end = None if line.strip() == end else end
            continue
        if line.lstrip().startswith("#"):
            found.add(number)
        elif path.suffix == ".sh" or not path.suffix:
            here = re.search(r"<<-?\s*['\"]?(\w+)", line)
            end = here.group(1) if here else None
    return found


def wrap_comments(text, numbers, marker):
    """The text with the comments at these lines wrapped, as far as they are of one kind."""
    out, group, kind = [], [], None

    def flush():
        nonlocal group
        if group:
            prefix = kind
            bodies = [line[len(prefix) :] for line in group]
            # The space after the marker is part of it, where all lines have it.
            if all(not body or body.startswith(" ") for body in bodies):
                prefix, bodies = prefix + " ", [body[1:] for body in bodies]
            wrapped = wrap(bodies, WIDTH - len(prefix))
            out.extend((prefix + body).rstrip() if not body else prefix + body for body in wrapped)
        group = []

    for number, line in enumerate(text.split("\n")):
        match = re.match(marker, line) if number in numbers else None
        if match and not line.startswith("#!"):
            if match.group(0) != kind:
                flush()
            kind = match.group(0)
            group.append(line)
        else:
            flush()
            kind = None
            out.append(line)
    flush()
    return "\n".join(out)


def parts(path, text):
    """What must not change: the code of a file, and the words of its comments."""
    if path.suffix == ".md":
        return "", text.split()
    slashes = path.suffix in SLASHES
    numbers = comment_lines(text) if slashes else hash_lines(path, text)
    lines = text.split("\n")
    code = "\n".join(line for n, line in enumerate(lines) if n not in numbers)
    marker = r"\s*(//[/!]*|#)"
    bodies = [re.sub(marker, "", lines[n], count=1) for n in sorted(numbers)]
    return code, " ".join(bodies).split()


def wrapped(path, text):
    if path.suffix == ".md":
        return "\n".join(wrap(text.split("\n"), WIDTH))
    if path.suffix in SLASHES:
        return wrap_comments(text, comment_lines(text), r"\s*//(?:!|/(?!/))?")
    return wrap_comments(text, hash_lines(path, text), r"\s*#")


def long_lines(path, text):
    """Numbers of the lines that could be shorter: those that wrapping changes."""
    before, after = text.split("\n"), set(wrapped(path, text).split("\n"))
    return [n + 1 for n, line in enumerate(before) if len(line) > WIDTH and line not in after]


def is_ours(path):
    known = path.suffix in SLASHES | HASHES | {".md"} or str(path) == ".ci/run"
    return known and str(path) not in GENERATED


def main(arguments):
    check = "--check" in arguments
    names = [a for a in arguments if not a.startswith("--")]
    names = names or subprocess.check_output(["git", "ls-files"], text=True).split("\n")
    paths = [path for path in map(Path, names) if is_ours(path) and path.is_file()]
    found = 0
    for path in paths:
        text = path.read_text()
        if check:
            numbers = long_lines(path, text)
            found += len(numbers)
            for number in numbers:
                print(f"{path}:{number}: longer than {WIDTH}")
            continue
        new = wrapped(path, text)
        assert parts(path, new) == parts(path, text), f"{path}: more than line ends would change"
        assert wrapped(path, new) == new, f"{path}: a second time would change it again"
        if new != text:
            path.write_text(new)
            print(path)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
