"""Compiles the Triton kernels for AMD chips and writes what it takes to run them: see README.md.

    python make.py [--all] [--out DIR] [--chip CHIP ...] [CASE ...]
"""
import argparse, json, os, sys, time
from pathlib import Path

os.environ["TRITON_DISABLE_LINE_INFO"] = "1"
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

import ml_dtypes, numpy, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import cases

HERE = Path(__file__).resolve().parent
# numpy type -> Triton's name of a pointer's element, name in a safetensors file.
TYPES = {cases.BF16: ("bf16", "BF16"), cases.F16: ("fp16", "F16"), cases.F32: ("fp32", "F32"), numpy.float64: ("fp64", "F64"),
         numpy.int8: ("i8", "I8"), numpy.int32: ("i32", "I32"), numpy.int64: ("i64", "I64"),
         ml_dtypes.float8_e4m3fn: ("fp8e4nv", "F8_E4M3"), ml_dtypes.float8_e4m3fnuz: ("fp8e4b8", "F8_E4M3FNUZ")}


def triton_type(value):
    if isinstance(value, numpy.ndarray): return "*" + TYPES[value.dtype.type][0]
    return "fp32" if isinstance(value, float) else "i32"


def compile_case(case, chip):
    """What Triton's own launcher would compile for these arguments: aligned small buffers, and integers known to be multiples of 16 or to be 1."""
    constants, attributes, signature = dict(case.constants), {}, {}
    for i, name in enumerate(case.kernel.arg_names):
        value = case.args.get(name)
        if name in constants:
            signature[name] = "constexpr"
            if name == "ZERO": constants[name] = getattr(triton.language, {"fp32": "float32"}.get(constants[name], constants[name]))
        elif isinstance(value, numpy.ndarray):
            signature[name], attributes[(i,)] = triton_type(value), [["tt.divisibility", 16], ["tt.pointer_range", 32]]
        elif isinstance(value, int) and value == 1:
            signature[name], constants[name] = "constexpr", 1
        else:
            signature[name] = triton_type(value)
            if isinstance(value, int) and value % 16 == 0: attributes[(i,)] = [["tt.divisibility", 16]]
    source = ASTSource(case.kernel, signature, {(case.kernel.arg_names.index(k),): v for k, v in constants.items()}, attributes)
    return triton.compile(source, target=GPUTarget("hip", chip, cases.CHIPS.get(chip, 32)), options=case.options), signature


def kernarg(compiled):
    """Offset, size and kind of every kernel argument, from the metadata in the assembly."""
    text, found, inside = compiled.asm["amdgcn"], [], False
    for line in text[text.index(".amdgpu_metadata"):].splitlines():
        if line.strip(" -") == ".args:": inside = True
        elif inside and line.startswith("      "):
            key, value = line.replace("- ", "  ").split(":")
            if line.startswith("      - "): found.append({})
            found[-1][key.strip()] = value.strip()
        elif inside: return [{"offset": int(a[".offset"]), "size": int(a[".size"]), "kind": a[".value_kind"]} for a in found]
    raise ValueError("no arguments in the metadata")


def arguments(case, signature, layout):
    """The explicit arguments with their places. The two last pointers are Triton's own (scratch in global memory, profiler): null, since no case uses them."""
    named = [n for n in case.kernel.arg_names if signature[n] != "constexpr"]
    explicit = [a for a in layout if not a["kind"].startswith("hidden")]
    assert len(explicit) == len(named) + 2, (named, layout)
    made = []
    for name, place in zip([*named, "global_scratch", "profile_scratch"], explicit):
        entry, value = {"name": name, "offset": place["offset"], "size": place["size"]}, case.args.get(name)
        if name not in case.args: entry["kind"] = "null"
        elif isinstance(value, numpy.ndarray): entry["kind"] = "buffer"
        else: entry |= {"kind": triton_type(value), "value": value}
        assert place["kind"] == ("global_buffer" if entry["kind"] in ("null", "buffer") else "by_value"), entry
        made.append(entry)
    return made


def write_tensors(path, tensors):
    """A safetensors file, 8-byte aligned and in the order given."""
    header, data = {}, b""
    for name, v in tensors.items():
        raw = numpy.ascontiguousarray(v).tobytes()
        header[name] = {"dtype": TYPES[v.dtype.type][1], "shape": list(v.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def json_lines(says):
    """One key a line, and one element a line of lists of objects."""
    def value(v):
        return "[\n  " + ",\n  ".join(map(json.dumps, v)) + "\n ]" if isinstance(v, list) and isinstance(v[0], dict) else json.dumps(v)
    return "{\n " + ",\n ".join(f"{json.dumps(k)}: {value(v)}" for k, v in says.items()) + "\n}\n"


def write(case, chip, compiled, signature, out):
    folder = out / case.name
    folder.mkdir(parents=True, exist_ok=True)
    meta = compiled.metadata
    assert meta.global_scratch_size == 0 and meta.profile_scratch_size == 0, case.name
    fnuz = any(isinstance(a, numpy.ndarray) and a.dtype == ml_dtypes.float8_e4m3fnuz for a in case.args.values())
    data = "data-fnuz.safetensors" if fnuz else "data.safetensors"
    write_tensors(folder / data, {f"in.{k}": v for k, v in case.args.items() if isinstance(v, numpy.ndarray)} | {f"out.{k}": v for k, v in case.outputs.items()})
    (folder / f"{chip}.hsaco").write_bytes(compiled.asm["hsaco"])
    layout = kernarg(compiled)
    says = {"case": case.name, "chip": chip, "triton": triton.__version__, "options": case.options, "code": f"{chip}.hsaco", "data": data, "symbol": meta.name,
            "grid": list(case.grid) + [1] * (3 - len(case.grid)), "threads": meta.num_warps * meta.warp_size, "dynamic_lds": meta.shared,
            "kernarg_bytes": max(a["offset"] + a["size"] for a in layout if not a["kind"].startswith("hidden")),
            "args": arguments(case, signature, layout), "outputs": [{"name": k, "atol": a, "rtol": r} for k, (a, r) in case.tolerance.items()]}
    (folder / f"{chip}.json").write_text(json_lines(says))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="the long set, by default into all/ beside this file")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--chip", action="append", choices=list(cases.CHIPS))
    parser.add_argument("case", nargs="*", help="only cases whose name starts so")
    asked = parser.parse_args()
    out = asked.out or HERE / ("all" if asked.all else "stored")
    made, failed = 0, []
    for chip in asked.chip or cases.CHIPS:
        began = time.time()
        for case in (cases.everything if asked.all else cases.stored)(chip):
            if asked.case and not any(case.name.startswith(c) for c in asked.case): continue
            try:
                write(case, chip, *compile_case(case, chip), out)
                made += 1
            except Exception as error:
                failed.append(f"{chip} {case.name}: {str(error).strip().splitlines()[-1] if str(error).strip() else type(error)}")
        print(f"{chip}: {time.time() - began:.0f} s", flush=True)
    print(f"{made} code objects in {out}")
    for line in failed: print("not compiled:", line)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
