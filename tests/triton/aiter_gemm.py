"""Compiles AITER's Triton GEMMs at the shapes of a table, with the configuration that AITER chooses
for each: see docs/timing.md. No GPU, no torch; AITER's sources are read from a copy of its
repository.

    python aiter_gemm.py AITER TABLE OUT
"""
import argparse, csv, hashlib, json, os, sys, types
from pathlib import Path

os.environ["TRITON_DISABLE_LINE_INFO"] = "1"
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from make import kernarg

# Options of Triton's compiler in AITER's configurations; the rest are constants of the kernel.
OPTIONS = ("num_warps", "num_stages", "waves_per_eu", "matrix_instr_nonkdim", "kpack")
# Torch's allocator aligns; Triton asks the rest of a tensor: below 2 GiB its offsets have 32 bits.
ALIGNED, SMALL = ["tt.divisibility", 16], ["tt.pointer_range", 32]
ELEMENT_BYTES = {"bf16": 2, "fp32": 4, "fp8e4nv": 1, "fp8e4b8": 1}


def import_aiter(root, chip):
    """AITER's modules of Triton's products, without `aiter/__init__.py`, which asks for a GPU."""
    for name in [n for n in sys.modules if n.split(".")[0] == "aiter"]: del sys.modules[name]
    packages = ("aiter", "aiter.ops", "aiter.ops.triton", "aiter.ops.triton.utils",
                "aiter.ops.triton._triton_kernels")
    for name in packages:
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [str(root / name.replace(".", "/"))]
    arch = types.ModuleType("aiter.ops.triton.utils._triton.arch_info")
    arch.get_arch, arch._LDS_CAP_BYTES = (lambda: chip), {}
    sys.modules[arch.__name__] = arch
    from aiter.ops.triton._triton_kernels.common import splitk_reduce
    from aiter.ops.triton._triton_kernels.gemm.basic import gemm_a16w16, gemm_a8w8_blockscale
    reduce = splitk_reduce._gemm_splitk_reduce_kernel
    return types.SimpleNamespace(bf16=gemm_a16w16, fp8=gemm_a8w8_blockscale, reduce=reduce)


def version():
    return tuple(int(n) for n in triton.__version__.split(".")[:2])


def tensor(kind, *shape):
    """A tensor's element and bytes; strides are the caller's."""
    count = 1
    for n in shape: count *= n
    return (kind, count * ELEMENT_BYTES[kind])


def bf16_product(aiter, row, bias):
    """Arguments as `gemm_a16w16` of AITER passes them."""
    M, N, K = (int(row[k]) for k in "MNK")
    config, _ = aiter.bf16._get_config(M, N, K)
    splits = config["NUM_KSPLIT"]
    out = tensor("bf16", M, N) if splits == 1 else tensor("fp32", splits, M, N)
    args = {
        "a_ptr": tensor("bf16", M, K), "b_ptr": tensor("bf16", N, K),
        "bias_ptr": tensor("bf16", N) if bias else None, "c_ptr": out, "M": M, "N": N, "K": K,
        "stride_am": K, "stride_ak": 1, "stride_bk": 1, "stride_bn": K,
        "stride_ck": 0 if splits == 1 else M * N, "stride_cm": N, "stride_cn": 1,
        "activation": "", "use_activation": False, "ADD_BIAS": bias, "SKIP_REDUCE": False,
    } | config
    return aiter.bf16._gemm_a16_w16_kernel, args, {"remap": True}


def fp8_product(aiter, row, chip):
    """Arguments as `gemm_a8w8_blockscale_preshuffle` passes them: scales of A lie transposed."""
    M, N, K = (int(row[k]) for k in "MNK")
    config, _ = aiter.fp8._get_config(M, N, K, True)
    splits = config["NUM_KSPLIT"]
    config["SPLITK_BLOCK_SIZE"] = triton.cdiv(K, splits)
    if config["BLOCK_SIZE_K"] > config["SPLITK_BLOCK_SIZE"]:
        config["BLOCK_SIZE_K"] = triton.next_power_of_2(config["SPLITK_BLOCK_SIZE"])
        if config["BLOCK_SIZE_K"] > config["SPLITK_BLOCK_SIZE"]: config["BLOCK_SIZE_K"] //= 4
    # AITER's own guard: the compiler fails there with three stages.
    if chip == "gfx950" and version() < (3, 7):
        config["num_stages"] = min(config["num_stages"], 2)
    config |= {"GROUP_K": 128, "GROUP_N": 128}
    config.setdefault("cache_modifier", None)
    fp8 = "fp8e4b8" if chip == "gfx942" else "fp8e4nv"
    out = tensor("bf16", M, N) if splits == 1 else tensor("fp32", splits, M, N)
    scales = triton.cdiv(K, 128)
    args = {
        "a_ptr": tensor(fp8, M, K), "b_ptr": tensor(fp8, N, K), "c_ptr": out,
        "a_scale_ptr": tensor("fp32", M, scales),
        "b_scale_ptr": tensor("fp32", triton.cdiv(N, 128), scales), "M": M, "N": N, "K": K,
        "stride_am": K, "stride_ak": 1, "stride_bn": K * 16, "stride_bk": 1,
        "stride_ck": 0 if splits == 1 else M * N, "stride_cm": N, "stride_cn": 1,
        "stride_ascale_m": 1, "stride_ascale_k": M, "stride_bscale_k": 1,
        "stride_bscale_n": scales,
    } | config
    return aiter.fp8._gemm_a8w8_blockscale_preshuffle_kernel, args, {"remap": False}


def sum_of_splits(aiter, row, args):
    """The kernel after a product with a split K."""
    M, N, K = (int(row[k]) for k in "MNK")
    bias = args.get("bias_ptr")
    return aiter.reduce, {
        "c_in_ptr": args["c_ptr"], "c_out_ptr": tensor("bf16", M, N), "bias_ptr": bias,
        "M": M, "N": N, "stride_c_in_k": M * N, "stride_c_in_m": N, "stride_c_in_n": 1,
        "stride_c_out_m": N, "stride_c_out_n": 1, "BLOCK_SIZE_M": 32, "BLOCK_SIZE_N": 32,
        "ACTUAL_KSPLIT": triton.cdiv(K, args["SPLITK_BLOCK_SIZE"]),
        "MAX_KSPLIT": triton.next_power_of_2(args["NUM_KSPLIT"]), "ADD_BIAS": bias is not None,
        "activation": "", "use_activation": False, "KERNEL_NAME": "reduce",
    }


def compile_launch(kernel, args, chip):
    """What Triton's launcher would compile for these arguments."""
    options = {k: args.pop(k) for k in OPTIONS if k in args}
    if hasattr(kernel, "values"):
        args |= {name: rule(args) for name, rule in kernel.values.items()}
        kernel = kernel.fn
    signature, constants, attributes = {}, {}, {}
    for at, parameter in enumerate(kernel.params):
        name, value = parameter.name, args[parameter.name]
        special = not parameter.do_not_specialize
        if parameter.is_constexpr or value is None or (value == 1 and special):
            signature[name], constants[(at,)] = "constexpr", value
        elif isinstance(value, tuple):
            signature[name] = "*" + value[0]
            attributes[(at,)] = [ALIGNED] + ([SMALL] if value[1] < 2**31 else [])
        else:
            signature[name] = "i32" if value < 2**31 else "i64"
            if value % 16 == 0 and special: attributes[(at,)] = [ALIGNED]
    source = ASTSource(kernel, signature, constants, attributes)
    target = GPUTarget("hip", chip, 64)
    return triton.compile(source, target=target, options=options), signature


def launch(kernel, args, chip, grid, tiles, out):
    """Compiles; the code object's file and everything that it takes to run a work-group."""
    compiled, signature = compile_launch(kernel, dict(args), chip)
    code = compiled.asm["hsaco"]
    file = f"{chip}-{hashlib.sha256(code).hexdigest()[:16]}.hsaco"
    (out / file).write_bytes(code)
    layout = [a for a in kernarg(compiled) if not a["kind"].startswith("hidden")]
    named = [n for n in signature if signature[n] != "constexpr"]
    assert len(layout) == len(named) + 2, (named, layout)
    made = []
    for name, place in zip([*named, "global_scratch", "profile_scratch"], layout):
        value = args.get(name, 0)
        entry = {"name": name, "offset": place["offset"], "size": place["size"]}
        entry |= {"bytes": value[1]} if isinstance(value, tuple) else {"value": value}
        made.append(entry)
    meta = compiled.metadata
    return {
        "code": file, "symbol": meta.name, "grid": grid, "dynamic_lds": meta.shared,
        "threads": meta.num_warps * meta.warp_size, "args": made,
        "kernarg_bytes": max(a["offset"] + a["size"] for a in layout),
    } | tiles


def launches(aiter, row, chip, bias, out):
    if row["kind"] == "bf16": kernel, args, order = bf16_product(aiter, row, bias)
    else: kernel, args, order = fp8_product(aiter, row, chip)
    M, N = int(row["M"]), int(row["N"])
    rows, columns = args["BLOCK_SIZE_M"], args["BLOCK_SIZE_N"]
    tiles = [triton.cdiv(M, rows), triton.cdiv(N, columns), args["NUM_KSPLIT"]]
    along = min(args["SPLITK_BLOCK_SIZE"], int(row["K"]))
    order |= {"tiles": tiles, "tile": [rows, columns, along], "group_m": args["GROUP_SIZE_M"]}
    made = [launch(kernel, args, chip, [tiles[0] * tiles[1] * tiles[2], 1, 1], order, out)]
    if args["NUM_KSPLIT"] > 1:
        grid = [triton.cdiv(M, 32), triton.cdiv(N, 32), 1]
        made.append(launch(*sum_of_splits(aiter, row, args), chip, grid, {}, out))
    return made


def with_bias(root):
    """Rows of AITER's tables that were measured with a bias."""
    found = set()
    for file in sorted((root / "aiter/configs").rglob("*bf16*tuned_gemm.csv")):
        with file.open() as text:
            for row in csv.DictReader(text):
                if row.get("libtype") == "triton" and row.get("bias") == "True":
                    found.add((row["gfx"], row["M"], row["N"], row["K"], float(row["us"])))
    return found


def main():
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    for name in ("aiter", "table", "out"): parser.add_argument(name, type=Path)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    biased, made, failed = with_bias(asked.aiter), [], []
    with asked.table.open() as text: rows = list(csv.DictReader(text))
    for chip in sorted({r["gfx"] for r in rows}):
        aiter = import_aiter(asked.aiter.resolve(), chip)
        for row in (r for r in rows if r["gfx"] == chip):
            bias = (chip, row["M"], row["N"], row["K"], float(row["us"])) in biased
            try:
                made.append(row | {"launches": launches(aiter, row, chip, bias, asked.out)})
            except (RuntimeError, triton.CompilationError) as error:
                why = (str(error).strip().splitlines() or [""])[-1]
                failed.append(f"{chip} {row['M']} x {row['N']} x {row['K']}: {why}")
    text = ",\n".join(json.dumps(m) for m in made)
    (asked.out / "launches.json").write_text(f"[\n{text}\n]\n")
    codes = len(list(asked.out.glob("*.hsaco")))
    print(f"{len(made)} rows, {codes} code objects in {asked.out}")
    for line in failed: print("not compiled:", line)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
