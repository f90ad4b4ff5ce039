"""Compiles the kernels that atomc's are compared with, at the shapes of real models, for reading and not for running.

    python peers.py [--out DIR] [--chip CHIP ...]

Writes CHIP-NAME.hsaco and index.json, by default into peers/ beside this file.
"""
import argparse, json, sys
from pathlib import Path

import make
import ml_dtypes, numpy

import cases, kernels

BF16, F32, I32 = cases.BF16, cases.F32, numpy.int32
CHIPS = [*cases.CHIPS, "gfx1250"]


def product(m, n, k, bm, bn, bk, dtype=BF16, group=8):
    args = dict(a=dtype, b=dtype, c=BF16, M=m, N=n, K=k)
    return kernels.matmul, args, dict(ZERO="fp32", BM=bm, BN=bn, BK=bk, GROUP=group, EVEN=True)


def product_fp8(dtype, m, n, k, bm, bn, bk):
    args = dict(a=dtype, b=dtype, a_scale=F32, b_scale=F32, c=BF16, M=m, N=n, K=k)
    return kernels.matmul_scaled, args, dict(BM=bm, BN=bn, BK=bk, GROUP=8, EVEN=True)


def split(m, n, k, splits, bm, bn, bk):
    args = dict(a=BF16, b=BF16, c=F32, M=m, N=n, K=k, length=k // splits)
    return kernels.matmul_split, args, dict(BM=bm, BN=bn, BK=bk, GROUP=1, EVEN=m % bm == 0)


def decode(group, dim, page):
    args = dict(q=BF16, k=BF16, v=BF16, tables=I32, lengths=I32, y=BF16, table_stride=128, kv_heads=8, scale=dim**-0.5)
    return kernels.paged_decode, args, dict(GROUP=group, D=dim, PAGE=page, ROWS=16)


def decode_split(group, dim, page):
    args = dict(q=BF16, k=BF16, v=BF16, tables=I32, lengths=I32, part=F32, part_sum=F32, part_high=F32, table_stride=128, kv_heads=8, per_split=8, scale=dim**-0.5)
    return kernels.paged_decode_split, args, dict(GROUP=group, D=dim, PAGE=page, ROWS=16)


def prefill(dim, bm, bn):
    args = dict(q=BF16, k=BF16, v=BF16, y=BF16, tokens=8192, heads=64, kv_heads=8, scale=dim**-0.5)
    return kernels.flash_prefill, args, dict(D=dim, BM=bm, BN=bn)


def peers(chip):
    """(operation, kernel with types and constants, options): several settings of an operation, since the best one differs by chip."""
    matrix = [16, 32] if cases.CHIPS.get(chip) == 64 else [16]
    prefills = [(w, mi, {}) for w in (4, 8) for mi in matrix]
    for w, mi, more in prefills:
        yield "prefill product bf16 128x128x64", product(4096, 4096, 4096, 128, 128, 64), dict(num_warps=w, matrix_instr_nonkdim=mi, **more)
    for mi in matrix:
        yield "prefill product bf16 128x128x32", product(4096, 4096, 4096, 128, 128, 32), dict(num_warps=4, matrix_instr_nonkdim=mi)
    if len(matrix) == 1:
        # Half the registers a thread: tiles of the largest size spill.
        yield "prefill product bf16 128x64x32", product(4096, 4096, 4096, 128, 64, 32), dict(num_warps=4)
        for bn in (32, 64):
            yield f"flash prefill D128 64x{bn}", prefill(128, 64, bn), dict(num_warps=4)
    yield "prefill product, large tile 256x256x64", product(4096, 4096, 4096, 256, 256, 64), dict(num_warps=8, matrix_instr_nonkdim=16)
    if chip in (*cases.FP8, "gfx1250"):
        fp8 = cases.FP8.get(chip, (ml_dtypes.float8_e4m3fn, 0))[0]
        for mi in matrix:
            yield "prefill product fp8 128x128x128", product_fp8(fp8, 4096, 4096, 4096, 128, 128, 128), dict(num_warps=4, matrix_instr_nonkdim=mi)
    for bk, w in [(256, 2), (128, 4), (256, 4)]:
        yield f"decode product M=16 split-K 16x64x{bk}", split(16, 4096, 4096, 4, 16, 64, bk), dict(num_warps=w)
    yield "decode product M=8 split-K 16x64x128", split(8, 4096, 4096, 4, 16, 64, 128), dict(num_warps=4)
    matvec = lambda bn, bk: (kernels.matvec, dict(x=BF16, w=BF16, y=BF16, N=4096, K=4096), dict(M=1, BN=bn, BK=bk))
    for bn, bk, w in [(4, 512, 4), (16, 256, 4)]:
        yield f"decode product M=1 vector {bn}x{bk}", matvec(bn, bk), dict(num_warps=w)
    norm = dict(x=BF16, residual=BF16, weight=BF16, y=BF16, cols=4096, eps=1e-6)
    for w in (4, 8):
        yield "add+rmsnorm 4096", (kernels.add_rmsnorm, norm, dict(BLOCK=4096)), dict(num_warps=w)
    for size, w in [(2048, 4), (1024, 4)]:
        yield f"silu_mul block {size}", (kernels.silu_mul, dict(x=BF16, y=BF16, cols=14336), dict(BLOCK=size)), dict(num_warps=w)
    for page, w in [(64, 4), (64, 2), (16, 1)]:
        yield f"paged decode G8 D128 page{page}", decode(8, 128, page), dict(num_warps=w)
    yield "paged decode split G8 D128 page64", decode_split(8, 128, 64), dict(num_warps=4)
    for w, mi, more in [*prefills, (4, 16, {"num_stages": 1})]:
        yield "flash prefill D128 128x64", prefill(128, 128, 64), dict(num_warps=w, matrix_instr_nonkdim=mi, **more)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=make.HERE / "peers")
    parser.add_argument("--chip", action="append", choices=CHIPS)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    index, failed = [], 0
    for chip in asked.chip or CHIPS:
        for operation, (kernel, types, constants), options in peers(chip):
            settings = " ".join(f"{cases.TAGS[k]}{v}" for k, v in options.items())
            name = f"{chip}-{operation} {settings}".replace(" ", "_").replace("=", "").replace("+", "_") + ".hsaco"
            empty = {k: numpy.empty(0, v) if isinstance(v, type) else v for k, v in types.items()}
            try:
                compiled, _ = make.compile_case(cases.Case(name, kernel, (1,), empty, constants, {}, {}, options), chip)
            except Exception as error:
                failed += 1
                print(f"not compiled: {chip} {operation} {settings}: {str(error).strip().splitlines()[-1:]}", flush=True)
                continue
            meta = compiled.metadata
            (asked.out / name).write_bytes(compiled.asm["hsaco"])
            index.append(dict(chip=chip, operation=operation, settings=settings, code=name, symbol=meta.name, threads=meta.num_warps * meta.warp_size, dynamic_lds=meta.shared))
        print(f"{chip}: {sum(i['chip'] == chip for i in index)} kernels", flush=True)
    (asked.out / "index.json").write_text("[\n " + ",\n ".join(json.dumps(i) for i in index) + "\n]\n")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
