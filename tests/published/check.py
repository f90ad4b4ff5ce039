#!/usr/bin/env python3
"""Checks the files of published checkpoints in this folder.

Each file has a head, a config.json and a list of tensors (README.md gives the format). The check
expands every pattern, refuses names that occur twice, adds up the bytes, and compares the sums
with those that the head states. Only the standard library is used.

    check.py [-v] [FILE ...]      all files of this folder if none is named
"""

import itertools
import json
import pathlib
import re
import sys
from fractions import Fraction

BYTES = {
    "BF16": 2,
    "F16": 2,
    "F32": 4,
    "F8_E4M3": 1,
    "F8_E8M0": 1,
    "U8": 1,
    "I8": 1,
    "I32": 4,
    "I64": 8,
}
HEAD = ["source", "unconfirmed", "vllm", "sglang"]
OPTIONAL = ["tensors", "bytes", "files", "elements", "parameters"]
TENSOR = re.compile(r"(?P<name>\S+)\s+(?P<dtype>\S+)\s+\[(?P<shape>[\d, ]*)\]$")
# A tensor with one of these endings holds scales or a shape: it counts no parameters.
SCALES = ("_scale_inv", "_scale", "_scales", "weight_shape")


class Fault(Exception):
    """One thing that is wrong with a file."""


def split(text):
    """The head's fields, the config and the lines of tensors of one file."""
    lines = text.splitlines()
    try:
        config_at, tensors_at = lines.index("config.json"), lines.index("tensors")
    except ValueError as fault:
        raise Fault(f"a heading is missing: {fault}") from fault
    if not lines[0].startswith("# "):
        raise Fault("the first line is not '# MAKER/NAME'")
    head = {}
    for line in filter(None, lines[1:config_at]):
        key, colon, value = line.partition(":")
        if not colon or key not in HEAD + OPTIONAL or key in head or not value.strip():
            raise Fault(
                f"head: {line!r} is not one of {', '.join(HEAD + OPTIONAL)}, or is there twice, or empty"
            )
        head[key] = value.strip()
    missing = [key for key in HEAD if key not in head]
    if missing:
        raise Fault(f"head: {', '.join(missing)} missing")
    config = json.loads("\n".join(lines[config_at + 1 : tensors_at]), object_pairs_hook=once)
    return head, config, [line for line in lines[tensors_at + 1 :] if line.strip()]


def once(pairs):
    """A JSON object, refused if a key is there twice."""
    keys = [key for key, _ in pairs]
    if len(set(keys)) != len(keys):
        raise Fault(f"config.json: a key is there twice among {keys}")
    return dict(pairs)


def members(braces):
    """The numbers or words of one pair of braces: `0,2,5..7` or `q_proj,k_proj`."""
    for part in braces.split(","):
        first, dots, last = part.partition("..")
        if not dots:
            yield part
        elif int(first) > int(last):
            raise Fault(f"{{{braces}}}: {part} is empty")
        else:
            yield from map(str, range(int(first), int(last) + 1))


def names(pattern):
    """Every name that a pattern stands for."""
    parts = re.split(r"\{([^{}]+)\}", pattern)
    if any(c in part for part in parts[::2] for c in "{}"):
        raise Fault(f"{pattern}: braces do not match")
    choices = [list(members(part)) if at % 2 else [part] for at, part in enumerate(parts)]
    return map("".join, itertools.product(*choices))


def tensors(lines):
    """Name to (dtype, shape) of every tensor."""
    found = {}
    for line in lines:
        match = TENSOR.match(line)
        if not match or match["dtype"] not in BYTES:
            raise Fault(f"{line!r} is not NAME TYPE [SHAPE] with a type of {', '.join(BYTES)}")
        shape = tuple(int(n) for n in match["shape"].split(",") if n.strip())
        for name in names(match["name"]):
            if name in found:
                raise Fault(f"{name} is there twice")
            found[name] = (match["dtype"], shape)
    return found


def elements(shape):
    """The number of elements of a shape."""
    product = 1
    for n in shape:
        product *= n
    return product


def parameters(name, dtype, shape):
    """How many weights a tensor holds: eight 4-bit ones to an I32, two to a U8 byte."""
    if name.endswith(SCALES):
        return 0
    return elements(shape) * {"I32": 8, "U8": 2}.get(dtype, 1)


def stated(text):
    """A number with its half unit in the last place, and the prefixes that it does not count."""
    number = re.match(r"(\d+(?:\.(\d+))?)(?:e(\d+))?(?![\w.])", text)
    if not number:
        raise Fault(f"{text!r} does not begin with a number")
    without = re.search(r"without ([^()]+)", text)
    decimals = len(number[2] or "")
    exponent = int(number[3] or 0)
    half = Fraction(10) ** (exponent - decimals) / 2 if number[3] or number[2] else 0
    prefixes = tuple(re.split(r"[,\s]+", without[1].strip())) if without else ()
    return Fraction(number[1]) * 10**exponent, half, prefixes


def compare(what, text, sums):
    """A line about a stated sum; a fault if the true one is not within what is stated."""
    want, half, prefixes = stated(text)
    have = sum(n for name, n in sums.items() if not prefixes or not name.startswith(prefixes))
    off = have - want
    note = f"{what} {float(want):.12g} stated, {have} found, off by {float(off / want):+.2e}"
    if abs(off) > half:
        raise Fault(note)
    return note


def headers(text, sums):
    """A line about the size of all safetensors files: their headers are what the tensors leave over."""
    want, _, _ = stated(text)
    left = (want - sum(sums.values())) / len(sums)
    note = f"files {want} stated, headers of {float(left):.1f} bytes a tensor"
    if not 60 <= left <= 200:
        raise Fault(note + " (60 to 200 expected)")
    return note


def check(path):
    """A line of numbers about one file."""
    head, config, lines = split(path.read_text())
    if not config.get("architectures"):
        raise Fault("config.json: architectures missing")
    found = tensors(lines)
    size = {name: elements(shape) * BYTES[dtype] for name, (dtype, shape) in found.items()}
    weights = {name: parameters(name, *of) for name, of in found.items()}
    sums = {
        "tensors": dict.fromkeys(found, 1),
        "bytes": size,
        "elements": {name: elements(shape) for name, (_, shape) in found.items()},
        "parameters": weights,
    }
    notes = [f"{len(lines)} patterns, {len(found)} tensors, {sum(size.values())} bytes"]
    notes += [compare(what, head[what], sums[what]) for what in sums if what in head]
    if "files" in head:
        notes.append(headers(head["files"], size))
    if len(notes) == 1:
        notes.append(f"{sum(weights.values())} parameters (nothing is stated to compare with)")
    return "; ".join(notes)


def main(arguments):
    """The exit status: 1 if any file has a fault."""
    verbose = "-v" in arguments
    named = [pathlib.Path(a) for a in arguments if a != "-v"]
    paths = named or sorted(pathlib.Path(__file__).parent.glob("*.txt"))
    faults = 0
    for path in paths:
        try:
            print(f"{path.name}: {check(path)}")
            if verbose:
                for name, (dtype, shape) in sorted(tensors(split(path.read_text())[2]).items()):
                    print(f"  {name} {dtype} {list(shape)}")
        except (Fault, ValueError) as fault:
            faults += 1
            print(f"{path.name}: FAULT: {fault}")
    print(f"{len(paths)} files, {faults} with faults")
    return 1 if faults or not paths else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
