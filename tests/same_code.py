#!/usr/bin/env python3
"""Compares the code of every kernel that two builds of atomc make, names of kernels aside.

    cargo build -p atomc && cp target/debug/atomc /tmp/before   # of the state to compare with
    python3 tests/same_code.py /tmp/before target/debug/atomc
    python3 tests/same_code.py OLD NEW --models 'q-*' --targets gfx942
    python3 tests/same_code.py OLD NEW --artifacts              # whole files, manifests too

For whoever changes the structure of the compiler and no code. LLVM's IR is compared first, as it
is before LLVM changes anything: what is the same there is the same machine code. Where it is not,
assembly is. A kernel that differs is named, with the first lines that do, and the exit status is 1.

Models are those of the benchmarks, the examples and some of the goldens, for codes of each kind.
`--artifacts` compiles each of them and compares the files byte by byte: also what a manifest says
of a kernel's threads, its workspace and its tasks, and the kernels that work for frameworks.
"""

import argparse
import fnmatch
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import product, zip_longest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGETS = ["gfx942", "gfx1201", "gfx90a", "sm_90a", "sm_80"]
# Few tokens, those of each schedule for more, and prompts.
BUCKETS = ["decode:1", "decode:8", "decode:20", "decode:64", "any", "whole"]
GOLDENS = [
    "llama-f32",
    "llama-odd",
    "gemma3",
    "phi3",
    "q-awq",
    "q-fp8-block",
    "q-fp8-token",
    "q-gptq",
    "q-int4-row",
    "q-int8",
    "q-mxfp4",
    "q-mxfp8",
]
DECODE = "1,8,20,64"
SHOWN = 6


def models(pattern):
    found = sorted((ROOT / "tests/bench").glob("*.json"))
    found += sorted(p for p in (ROOT / "examples/models").iterdir() if (p / "config.json").exists())
    every = sorted(p for p in (ROOT / "tests/golden").iterdir() if (p / "config.json").exists())
    if pattern:
        return [p for p in found + every if fnmatch.fnmatch(p.stem, pattern)]
    return found + [p for p in every if p.name in GOLDENS]


def printed(binary, model, options, target, bucket, form):
    """The kernels of a bucket by number, or what atomc says if it makes none."""
    command = [
        binary,
        "print",
        model,
        "--target",
        target,
        "--bucket",
        bucket,
        "--emit",
        form,
        *options,
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    return kernels(done.stdout) if done.returncode == 0 else {"": done.stderr}


def kernels(text):
    """Of each kernel, by its number, its symbol and its text without symbols."""
    symbol = re.compile(r"\bk\d+_\w+")
    starts = re.compile(r"^(?:; ModuleID = .*|\t\.amdgcn_target .*|\.version .*)$", re.M)
    found = {}
    for part in filter(str.strip, starts.split(re.sub(r"^//.*$", "", text, flags=re.M))):
        name = symbol.search(part)
        if name is None:
            raise SystemExit(f"a kernel without a symbol:\n{part[:500]}")
        number = int(name[0].split("_")[0][1:])
        found[number] = (name[0], symbol.sub("kernel", part).splitlines())
    return found


def compare(old, new, case):
    """How many kernels a case has, and what is to say of those that differ."""
    model, options, target, bucket = case
    at = " ".join([model.stem, *options, target, bucket])
    before, after = (printed(b, model, options, target, bucket, "llvm") for b in (old, new))
    if "" in before or "" in after:
        same = before.get("") == after.get("")
        return 0, [] if same else [f"{at}: {before.get('')} / {after.get('')}"]
    said, assembly = [], None
    for key in sorted(before.keys() | after.keys()):
        if key not in before or key not in after:
            said.append(f"{at} k{key}: in one of both only")
        elif before[key][1] != after[key][1]:
            assembly = assembly or [
                printed(b, model, options, target, bucket, "asm") for b in (old, new)
            ]
            a, b = (found[key] for found in assembly)
            if a[1] == b[1]:
                print(f"{at} {b[0]}: another IR, the same code")
            else:
                said.append("\n".join([f"{at} {a[0]} / {b[0]}:", *differing(a[1], b[1])]))
    return len(before), said


def differing(a, b):
    pairs = [(x, y) for x, y in zip_longest(a, b, fillvalue="") if x != y]
    shown = [f"  -{x}\n  +{y}" for x, y in pairs[:SHOWN]]
    return shown + [f"  {len(pairs)} lines of {len(a)} and {len(b)}"]


def artifacts(old, new, model, options):
    """What is to say of the artifacts of a model."""
    with tempfile.TemporaryDirectory() as folder:
        made = []
        for i, binary in enumerate((old, new)):
            file = Path(folder) / f"{i}.atomc"
            command = [
                binary,
                "compile",
                model,
                "--target",
                ",".join(TARGETS),
                "--decode",
                DECODE,
                *options,
            ]
            done = subprocess.run(
                [*command, "--no-trust", "-o", file], capture_output=True, text=True
            )
            made.append(file.read_bytes() if done.returncode == 0 else done.stderr)
    return [] if made[0] == made[1] else [f"{model.stem} {' '.join(options)}: the artifacts differ"]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument(
        "--models", help="a pattern for their names; all goldens are among them then"
    )
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--artifacts", action="store_true")
    args = parser.parse_args()
    old, new = args.old.resolve(), args.new.resolve()
    every = [
        (model, options)
        for model in models(args.models)
        for options in ([], ["--cache-dtype", "fp8"])
    ]
    cases = [
        (*m, target, bucket)
        for m, target, bucket in product(every, args.targets.split(","), BUCKETS)
    ]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda case: compare(old, new, case), cases))
        said = [line for _, lines in found for line in lines]
        if args.artifacts:
            said += [
                line
                for lines in pool.map(lambda m: artifacts(old, new, *m), every)
                for line in lines
            ]
    print("\n".join(said))
    count = sum(count for count, _ in found)
    print(f"{len(every)} models, {len(cases)} plans, {count} kernels: {len(said)} differences")
    sys.exit(1 if said or not count else 0)


main()
