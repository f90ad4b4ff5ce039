"""Stands in for the NVIDIA libraries that PyPI's torch is linked with, so that torch can be imported without them.

Run it with the interpreter whose torch is meant. Each library that torch needs and that is not installed becomes a shared
object in torch/lib with the symbols torch imports of it, under the versions torch asks for; a call of one aborts.
It takes gcc and readelf, and the wheel nvidia-cuda-runtime, which torch calls when it is imported.
"""

import importlib.util
import re
import subprocess
import tempfile
from collections import defaultdict
from pathlib import Path

VENDOR = re.compile(r"lib(cu|nv|nccl)")


def readelf(*args):
    return subprocess.run(
        ["readelf", "-W", *map(str, args)], capture_output=True, text=True, check=True
    ).stdout


def imports(library):
    """(soname or None, version or None, symbol) of each undefined symbol, and the names of the defined ones."""
    versions, soname = {}, None
    for line in readelf("-V", library).splitlines():
        if found := re.search(r"Version: 1\s+File: (\S+)", line):
            soname = found[1]
        if soname and (found := re.search(r"Name: (\S+)\s+Flags:.*Version: (\d+)", line)):
            versions[found[2]] = (soname, found[1])
    wanted, defined = set(), set()
    for line in readelf("--dyn-syms", library).splitlines():
        fields = line.split()
        if len(fields) < 8 or not fields[0].endswith(":"):
            continue
        symbol = fields[7].split("@")[0]
        if fields[6] != "UND":
            defined.add(symbol)
        elif fields[4] != "WEAK":
            number = fields[8].strip("()") if len(fields) > 8 else None
            wanted.add((*versions.get(number, (None, None)), symbol))
    return wanted, defined


def write(path, versions, symbols):
    """A shared object of that name: `symbols`, and of them those of `versions` under their version."""
    with tempfile.TemporaryDirectory() as folder:
        source, script = Path(folder, "stub.c"), Path(folder, "stub.map")
        source.write_text(
            "void abort(void);\n"
            + "".join(f"void {s}(void) {{ abort(); }}\n" for s in sorted(symbols))
        )
        script.write_text(
            "".join(
                f"{v} {{ global: {'; '.join(sorted(s))}; }};\n" for v, s in sorted(versions.items())
            )
        )
        options = [f"-Wl,--version-script={script}"] if versions else []
        subprocess.run(
            [
                "gcc",
                "-shared",
                "-fPIC",
                "-fno-builtin",
                "-w",
                source,
                "-o",
                path,
                f"-Wl,-soname,{path.name}",
                *options,
            ],
            check=True,
        )


def main():
    torch = Path(importlib.util.find_spec("torch").origin).parent / "lib"
    libraries = sorted(torch.glob("*.so*"))
    present = {p.name for p in libraries} | {
        p.name for p in torch.parent.parent.glob("nvidia/**/lib/*.so*")
    }
    needed, defined, unversioned, versioned = (
        set(),
        set(),
        set(),
        defaultdict(lambda: defaultdict(set)),
    )
    for library in libraries:
        needed |= set(re.findall(r"NEEDED.*\[(.*)\]", readelf("-d", library)))
        wanted, has = imports(library)
        defined |= has
        for soname, version, symbol in wanted:
            if soname:
                versioned[soname][version].add(symbol)
            elif re.match(r"nccl|cu|nv", symbol):
                unversioned.add(symbol)
    # The driver's library is opened when it is used, and is not torch's to bring.
    missing = sorted(
        n for n in needed if VENDOR.match(n) and n not in present and n != "libcuda.so.1"
    )
    rest = unversioned - defined
    for name in missing:
        symbols = set().union(rest, *versioned[name].values())
        write(torch / name, versioned[name], symbols)
        rest = set()
        print(f"{name}: {len(symbols)} symbols")


main()
