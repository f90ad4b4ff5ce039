"""What is compiled and run: for each case a kernel, its arguments, and the right results, computed here in float64.

`stored(chip)` is the small set that the repository keeps, `everything(chip)` the long one.
"""
import math, zlib
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np

import extras, kernels

BF16, F16, F32 = ml_dtypes.bfloat16, np.float16, np.float32
CHIPS = {"gfx90a": 64, "gfx942": 64, "gfx950": 64, "gfx1100": 32, "gfx1201": 32}
# The flavour of e4m3 that a chip's matrix instructions take, with its largest number.
FP8 = {"gfx942": (ml_dtypes.float8_e4m3fnuz, 240.0), "gfx950": (ml_dtypes.float8_e4m3fn, 448.0), "gfx1201": (ml_dtypes.float8_e4m3fn, 448.0)}
# One unit in the last place of each type, relative to the smallest number that has it.
UNIT = {BF16: 2.0**-7, F16: 2.0**-10, F32: 2.0**-23}


@dataclass
class Case:
    """`args` has an array for each pointer and a number for each scalar; `outputs` what some of the arrays hold afterwards."""
    name: str
    kernel: object
    grid: tuple
    args: dict
    constants: dict
    outputs: dict
    # |got - want| <= atol + rtol * |want|, by output.
    tolerance: dict
    options: dict = field(default_factory=dict)


def random(name, *shape, dtype=BF16, scale=1.0):
    rng = np.random.default_rng(zlib.crc32(f"{name}{shape}".encode()))
    return (rng.standard_normal(shape) * scale).astype(dtype)


def integers(name, low, high, *shape, dtype=np.int32):
    return np.random.default_rng(zlib.crc32(name.encode())).integers(low, high, shape, dtype=dtype)


def f64(x):
    return np.asarray(x).astype(np.float64)


def blank(shape, dtype):
    """What results hold before a kernel runs: a number that no kernel writes."""
    return np.full(shape, -77, dtype=dtype)


def block(n):
    return 1 << (n - 1).bit_length()


# What a name says of a type; bf16 goes without saying.
SUFFIX = {BF16: "", F16: "-f16", F32: "-f32"}
TAGS = {"num_warps": "w", "num_stages": "st", "matrix_instr_nonkdim": "mi", "kpack": "kp"}


def case(name, kernel, grid, args, outputs, constants, rtol=None, atol=1e-6, **options):
    """An output is rounded to its array's type here. Exact unless a tolerance is given; `rtol` in units of the type."""
    rounded = {k: np.asarray(v).astype(args[k].dtype).reshape(args[k].shape) for k, v in outputs.items()}
    tolerance = {k: (0.0, 0.0) if rtol is None else (atol, rtol * UNIT[v.dtype.type]) for k, v in rounded.items()}
    tag = "".join(f"-{TAGS[k]}{v}" for k, v in {"num_warps": 4, **options}.items())
    return Case(name + tag, kernel, grid, args, constants, rounded, tolerance, options)


def softmax(rows, cols, stride, dtype=BF16, **options):
    x, y = blank((rows, stride), dtype), blank((rows, stride), dtype)
    x[:, :cols] = random("softmax", rows, cols, dtype=dtype, scale=3)
    e = np.exp(f64(x[:, :cols]) - f64(x[:, :cols]).max(1, keepdims=True))
    want = f64(y)
    want[:, :cols] = e / e.sum(1, keepdims=True)
    return case(f"softmax{SUFFIX[dtype]}-{rows}x{cols}", kernels.softmax, (rows,), dict(x=x, y=y, cols=cols, stride=stride), dict(y=want), dict(BLOCK=block(cols)), rtol=1, atol=1e-7, **options)


def add_rmsnorm(rows, cols, dtype=BF16, **options):
    x, r, w = random("norm", rows, cols, dtype=dtype), random("residual", rows, cols, dtype=dtype, scale=2), random("weight", cols, dtype=dtype)
    h = f64(x) + f64(r)
    y = h / np.sqrt((h * h).mean(1, keepdims=True) + 1e-5) * f64(w)
    args = dict(x=x, residual=r, weight=w, y=blank(x.shape, dtype), cols=cols, eps=1e-5)
    return case(f"add_rmsnorm{SUFFIX[dtype]}-{rows}x{cols}", kernels.add_rmsnorm, (rows,), args, dict(residual=h, y=y), dict(BLOCK=block(cols)), rtol=1, **options)


def silu_mul(rows, cols, size, dtype=BF16, **options):
    x = random("silu", rows, 2 * cols, dtype=dtype, scale=3)
    gate, up = f64(x[:, :cols]), f64(x[:, cols:])
    args = dict(x=x, y=blank((rows, cols), dtype), cols=cols)
    return case(f"silu_mul{SUFFIX[dtype]}-{rows}x{cols}-{size}", kernels.silu_mul, (-(-cols // size), rows), args, dict(y=gate / (1 + np.exp(-gate)) * up), dict(BLOCK=size), rtol=1, **options)


ZERO = {np.int8: ("i8", "int32", np.int32), BF16: ("bf16", "fp32", BF16), F16: ("f16", "fp32", F16), F32: ("f32", "fp32", F32)}


def operands(m, n, k, dtype):
    if dtype is np.int8:
        return integers("a", -128, 128, m, k, dtype=np.int8), integers("b", -128, 128, n, k, dtype=np.int8)
    if dtype is F16:
        # Matrix instructions of gfx90a take subnormal numbers for zero.
        return [np.where(abs(x) < np.finfo(F16).tiny, F16(0), x) for x in (random("a", m, k, dtype=F16), random("b", n, k, dtype=F16, scale=k**-0.5))]
    return random("a", m, k, dtype=dtype), random("b", n, k, dtype=dtype, scale=k**-0.5)


def matmul(m, n, k, bm, bn, bk, dtype=BF16, **options):
    a, b = operands(m, n, k, dtype)
    label, zero, result = ZERO[dtype]
    even = m % bm == n % bn == k % bk == 0
    args = dict(a=a, b=b, c=blank((m, n), result), M=m, N=n, K=k)
    constants = dict(ZERO=zero, BM=bm, BN=bn, BK=bk, GROUP=4, EVEN=even)
    return case(f"matmul-{label}-{m}x{n}x{k}-{bm}x{bn}x{bk}", kernels.matmul, (-(-m // bm) * -(-n // bn),), args, dict(c=f64(a) @ f64(b).T), constants,
                rtol=None if zero == "int32" else 1, atol=1e-5, **options)


def matmul_fp8(chip, m, n, k, bm, bn, bk, **options):
    dtype, top = FP8[chip]
    a, b = random("a", m, k, dtype=dtype, scale=top / 8), random("b", n, k, dtype=dtype, scale=top / 8)
    sa, sb = 2.0 ** integers("sa", -4, 4, m, 1) / top, 2.0 ** integers("sb", -4, 4, n, 1) / top
    args = dict(a=a, b=b, a_scale=sa.astype(F32), b_scale=sb.astype(F32), c=blank((m, n), BF16), M=m, N=n, K=k)
    want = (f64(a) @ f64(b).T) * f64(args["a_scale"]) * f64(args["b_scale"]).T
    constants = dict(BM=bm, BN=bn, BK=bk, GROUP=4, EVEN=m % bm == n % bn == k % bk == 0)
    return case(f"matmul_scaled-fp8-{m}x{n}x{k}-{bm}x{bn}x{bk}", kernels.matmul_scaled, (-(-m // bm) * -(-n // bn),), args, dict(c=want), constants, rtol=1, atol=1e-4, **options)


def matmul_split(m, n, k, splits, bm, bn, bk, **options):
    a, b = operands(m, n, k, BF16)
    length = -(-k // splits // bk) * bk
    args = dict(a=a, b=b, c=np.zeros((m, n), F32), M=m, N=n, K=k, length=length)
    constants = dict(BM=bm, BN=bn, BK=bk, GROUP=4, EVEN=m % bm == n % bn == k % length == 0)
    return case(f"matmul_split-{m}x{n}x{k}-{bm}x{bn}x{bk}", kernels.matmul_split, (-(-m // bm) * -(-n // bn), splits), args, dict(c=f64(a) @ f64(b).T), constants, rtol=8, atol=1e-5, **options)


def matvec(m, n, k, bn, bk, **options):
    x, w = operands(m, n, k, BF16)
    args = dict(x=x, w=w, y=blank((m, n), BF16), N=n, K=k)
    return case(f"matvec-{m}x{n}x{k}", kernels.matvec, (-(-n // bn), m), args, dict(y=f64(x) @ f64(w).T), dict(M=m, BN=bn, BK=bk), rtol=1, atol=1e-5, **options)


def attention(q, k, v, scale, visible):
    """q [heads, rows, D], k and v [kv_heads, tokens, D]; the parts of the softmax: sums of weighted values, of weights, and maxima."""
    group = len(q) // len(k)
    score = np.einsum("hmd,hnd->hmn", f64(q), np.repeat(f64(k), group, 0)) * scale * math.log2(math.e)
    score = np.where(visible, score, -np.inf)
    high = score.max(-1, keepdims=True)
    p = np.exp2(score - np.where(np.isfinite(high), high, 0))
    return p @ np.repeat(f64(v), group, 0), p.sum(-1), high[..., 0]


def cache(lengths, kv_heads, dim, page):
    """A paged cache with its blocks in random order and one block to spare. What no sequence holds is large, so that a wrong read shows."""
    pages = [-(-n // page) for n in lengths]
    order = np.random.default_rng(7).permutation(sum(pages) + 1)
    k, v = (np.full((sum(pages) + 1, page, kv_heads, dim), 1e4, BF16) for _ in range(2))
    tables, at, sequences = np.zeros((len(lengths), max(pages) + 1), np.int32), 0, []
    for s, n in enumerate(lengths):
        blocks, at = order[at : at + pages[s]], at + pages[s]
        tables[s, : len(blocks)] = blocks
        ks, vs = random(f"k{s}", n, kv_heads, dim), random(f"v{s}", n, kv_heads, dim)
        for t in range(n):
            k[blocks[t // page], t % page], v[blocks[t // page], t % page] = ks[t], vs[t]
        sequences.append((ks.transpose(1, 0, 2), vs.transpose(1, 0, 2)))
    return k, v, tables, sequences


def decode(lengths, kv_heads, group, dim, page, splits=1, **options):
    k, v, tables, sequences = cache(lengths, kv_heads, dim, page)
    count, heads, scale = len(lengths), kv_heads * group, dim**-0.5
    q = random("q", count, heads, dim)
    args = dict(q=q, k=k, v=v, tables=tables, lengths=np.array(lengths, np.int32))
    numbers = dict(table_stride=tables.shape[1], kv_heads=kv_heads, scale=scale)
    constants = dict(GROUP=group, D=dim, PAGE=page, ROWS=max(16, block(group)))
    label = f"{count}x{kv_heads}x{group}x{dim}-page{page}"
    if splits == 1:
        parts = [attention(q[s][:, None], ks, vs, scale, True) for s, (ks, vs) in enumerate(sequences)]
        want = np.stack([(acc / sums[..., None])[:, 0] for acc, sums, _ in parts])
        return case(f"paged_decode-{label}", kernels.paged_decode, (count, kv_heads), {**args, "y": blank(q.shape, BF16), **numbers}, dict(y=want), constants, rtol=1, atol=2e-3, **options)
    per = -(-(max(lengths) + page - 1) // page // splits)
    part, part_sum, part_high = np.zeros((splits, count, heads, dim)), np.zeros((splits, count, heads)), np.full((splits, count, heads), -np.inf)
    for i in range(splits):
        for s, (ks, vs) in enumerate(sequences):
            token = np.arange(ks.shape[1])
            acc, part_sum[i, s, :, None], part_high[i, s, :, None] = attention(q[s][:, None], ks, vs, scale, (token >= i * per * page) & (token < (i + 1) * per * page))
            part[i, s] = acc[:, 0]
    args |= dict(part=blank(part.shape, F32), part_sum=blank(part_sum.shape, F32), part_high=blank(part_high.shape, F32), **numbers, per_split=per)
    made = case(f"paged_decode_split-{label}", kernels.paged_decode_split, (count, kv_heads, splits), args, dict(part=part, part_sum=part_sum, part_high=part_high), constants, rtol=1e5, atol=2e-2, **options)
    return made


def combine(splits, rows, dim, **options):
    high = random("high", splits, rows, dtype=F32)
    high[1:, ::3] = -np.inf
    sums = np.where(np.isfinite(high), np.abs(random("sums", splits, rows, dtype=F32)) + 1, 0).astype(F32)
    part = np.where(np.isfinite(high)[..., None], random("part", splits, rows, dim, dtype=F32), 0).astype(F32)
    w = np.exp2(f64(high) - f64(high).max(0))
    want = (w[..., None] * f64(part)).sum(0) / (w * f64(sums)).sum(0)[:, None]
    args = dict(part=part, part_sum=sums, part_high=high, y=blank((rows, dim), BF16), rows=rows)
    return case(f"decode_combine-{splits}x{rows}x{dim}", kernels.decode_combine, (rows,), args, dict(y=want), dict(SPLITS=splits, D=dim), rtol=1, **options)


def prefill(tokens, kv_heads, group, dim, bm, bn, **options):
    heads, scale = kv_heads * group, dim**-0.5
    q, k, v = random("q", tokens, heads, dim), random("k", tokens, kv_heads, dim), random("v", tokens, kv_heads, dim)
    acc, sums, _ = attention(q.transpose(1, 0, 2), k.transpose(1, 0, 2), v.transpose(1, 0, 2), scale, np.tri(tokens, dtype=bool))
    args = dict(q=q, k=k, v=v, y=blank(q.shape, BF16), tokens=tokens, heads=heads, kv_heads=kv_heads, scale=scale)
    return case(f"flash_prefill-{tokens}x{heads}x{dim}-{bm}x{bn}", kernels.flash_prefill, (-(-tokens // bm), heads), args,
                dict(y=(acc / sums[..., None]).transpose(1, 0, 2)), dict(D=dim, BM=bm, BN=bn), rtol=1, atol=1e-2, **options)


def argmax(rows, cols, **options):
    x = random("argmax", rows, cols)
    args = dict(x=x, value=blank((rows,), F32), index=blank((rows,), np.int32), cols=cols)
    return case(f"argmax-{rows}x{cols}", extras.argmax, (rows,), args, dict(value=f64(x).max(1), index=f64(x).argmax(1)), dict(BLOCK=block(cols)), **options)


def cumsum(rows, cols, dtype=np.int32, **options):
    x = integers("cumsum", -1000, 1000, rows, cols).astype(dtype)
    return case(f"cumsum-{np.dtype(dtype).name}-{rows}x{cols}", extras.cumsum, (rows,), dict(x=x, y=blank(x.shape, dtype), cols=cols), dict(y=f64(x).cumsum(1)), dict(BLOCK=block(cols)), **options)


def sort(rows, cols, dtype=F32, **options):
    x = random("sort", rows, cols, dtype=dtype)
    return case(f"sort-{np.dtype(dtype).name}-{rows}x{cols}", extras.sort, (rows,), dict(x=x, y=blank(x.shape, dtype)), dict(y=-np.sort(-f64(x), 1)), dict(BLOCK=cols), **options)


def count(size, size_of_block, bins, **options):
    x = integers("count", 0, bins, size)
    args = dict(x=x, counts=np.zeros(bins, np.int32), size=size)
    return case(f"count-{size}-{bins}", extras.count, (-(-size // size_of_block),), args, dict(counts=np.bincount(x, minlength=bins)), dict(BLOCK=size_of_block, BINS=bins), **options)


def quantise_i8(rows, cols, **options):
    x = random("quantise", rows, cols)
    scale = np.maximum(np.abs(f64(x)).max(1, keepdims=True), 1e-10) / 127
    args = dict(x=x, y=blank(x.shape, np.int8), scales=blank((rows,), F32), cols=cols)
    made = case(f"quantise-i8-{rows}x{cols}", extras.quantise_rows, (rows,), args, dict(y=np.floor(f64(x) / scale + 0.5), scales=scale[:, 0]), dict(MAX=127.0, BLOCK=block(cols)), **options)
    made.tolerance = dict(y=(1.0, 0.0), scales=(0.0, 2.0**-22))
    return made


def quantise_fp8(chip, rows, cols, **options):
    dtype, top = FP8[chip]
    x = random("quantise", rows, cols)
    scale = np.maximum(np.abs(f64(x)).max(1, keepdims=True), 1e-10) / top
    args = dict(x=x, y=blank(x.shape, dtype), scales=blank((rows,), F32), cols=cols)
    made = case(f"quantise-fp8-{rows}x{cols}", extras.quantise_rows, (rows,), args, dict(y=f64(x) / scale, scales=scale[:, 0]), dict(MAX=top, BLOCK=block(cols)), **options)
    # A quotient next to the middle of two numbers may go to either.
    made.tolerance = dict(y=(2.0**-9, 2.0**-3), scales=(0.0, 2.0**-22))
    return made


def rope(tokens, heads, dim, **options):
    x, at = random("rope", tokens, heads, dim), integers("positions", 0, 5000, tokens)
    angle = f64(at)[:, None, None] * 10000.0 ** (-2 * np.arange(dim // 2) / dim)
    a, b, c, s = f64(x[..., : dim // 2]), f64(x[..., dim // 2 :]), np.cos(angle), np.sin(angle)
    args = dict(x=x, position=at, y=blank(x.shape, BF16), heads=heads, base_log2=math.log2(10000))
    return case(f"rope-{tokens}x{heads}x{dim}", extras.rope, (tokens, heads), args, dict(y=np.concatenate([a * c - b * s, b * c + a * s], -1)), dict(D=dim), rtol=1, atol=4e-3, **options)


def transpose(rows, cols, dtype=BF16, **options):
    x = random("transpose", rows, cols, dtype=dtype)
    args = dict(x=x, y=blank((cols, rows), dtype), rows=rows, cols=cols)
    return case(f"transpose-{np.dtype(dtype).name}-{rows}x{cols}", extras.transpose, (-(-rows // 32), -(-cols // 64)), args, dict(y=f64(x).T), dict(BM=32, BN=64), **options)


def embed(tokens, words, cols, **options):
    ids, table = integers("ids", 0, words, tokens, dtype=np.int64), random("table", words, cols)
    args = dict(ids=ids, table=table, y=blank((tokens, cols), BF16), cols=cols)
    return case(f"embed-{tokens}x{cols}", extras.embed, (tokens,), args, dict(y=f64(table)[ids]), dict(BLOCK=block(cols)), **options)


def unpack4(size, **options):
    words, scale = integers("words", -(2**31), 2**31, size // 8), random("scale4", size // 32, dtype=F32)
    nibbles = (words.view(np.uint32)[:, None] >> (4 * np.arange(8, dtype=np.uint32))) & 15
    want = (f64(nibbles.reshape(-1)) - 8) * np.repeat(f64(scale), 32)
    args = dict(x=words, scale=scale, y=blank((size,), BF16), size=size)
    return case(f"unpack4-{size}", extras.unpack4, (-(-size // 1024),), args, dict(y=want), dict(BLOCK=1024), rtol=1, **options)


def integer_arithmetic(size, **options):
    a, b = (integers(n, 1, 1 << 20, size) for n in "uv")
    u, v = a.astype(np.int64), b.astype(np.int64)
    wide = u * v + u
    r = wide // 7 + wide % 1000003 * 5 + (u * v >> 32) + u // v * 3 + u % v + ((u >> 3) ^ (v << 5))
    want = np.where(u > v, r, -r) + np.minimum(u, v) + np.maximum(u & v, u | v)
    made = case(f"integers-{size}", extras.integers, (-(-size // 512),), dict(a=a, b=b, y=blank((size,), np.int64), size=size), {}, dict(BLOCK=512), **options)
    made.outputs, made.tolerance = dict(y=want), dict(y=(0.0, 0.0))
    return made


def functions(size, **options):
    x = np.exp(random("functions", size, dtype=F32))
    v = f64(x)
    erf = np.vectorize(math.erf)
    want = np.stack([np.exp(v), np.log(v), np.sqrt(v), erf(v), 1 / v, np.sin(v), np.log2(v) + np.floor(v) - np.ceil(v * 0.5), v * v - v + np.abs(1 - v)])
    args = dict(x=x, y=blank(want.shape, F32), size=size)
    return case(f"functions-{size}", extras.functions, (-(-size // 256),), args, dict(y=want), dict(BLOCK=256), rtol=64, atol=2e-6, **options)


def variance(rows, cols, **options):
    x = random("variance", rows, cols, dtype=F32)
    args = dict(x=x, y=blank((rows, 2), np.float64), cols=cols)
    made = case(f"variance-{rows}x{cols}", extras.variance, (rows,), args, dict(y=np.stack([f64(x).mean(1), f64(x).var(1)], 1)), dict(BLOCK=block(cols)), **options)
    made.tolerance = dict(y=(1e-14, 1e-13))
    return made


def convert(size, source, target, **options):
    """Every sixteenth number is tiny, huge, or zero; numbers that the target cannot hold are left out, because their result depends on the chip."""
    x = random("convert", size, dtype=F32, scale=4)
    x[::16], x[1::16], x[2::32], x[3::32] = x[::16] * 2.0**-13, x[1::16] * 2.0**5, 0, -0.0
    x = np.where(np.isfinite(f64(x.astype(source).astype(target))), x, 1).astype(source)
    name = f"convert-{np.dtype(source).name}-{np.dtype(target).name}-{size}"
    args = dict(x=x, y=blank((size,), target), size=size)
    return case(name, extras.convert, (-(-size // 512),), args, dict(y=f64(x).astype(F32)), dict(BLOCK=512), **options)


def ticket(size, size_of_block, **options):
    y = blank((size + 1,), np.int32)
    want = np.append(np.arange(size), np.arange(size).sum())
    args = dict(counter=np.zeros(1, np.int32), y=y, size=size)
    return case(f"ticket-{size}", extras.ticket, (size // size_of_block,), args, dict(counter=[0], y=want), dict(BLOCK=size_of_block), **options)


def philox(seed, size):
    """The first word of Philox 4x32 with ten rounds, counter (i, 0, 0, 0)."""
    c = [np.arange(size, dtype=np.uint64)] + [np.zeros(size, np.uint64)] * 3
    keys, low = [seed & 0xFFFFFFFF, seed >> 32], np.uint64(0xFFFFFFFF)
    for _ in range(10):
        a, b = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        high = lambda x: x >> np.uint64(32)
        c = [high(b) ^ c[1] ^ np.uint64(keys[0]), b & low, high(a) ^ c[3] ^ np.uint64(keys[1]), a & low]
        keys = [(keys[0] + 0x9E3779B9) & 0xFFFFFFFF, (keys[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c[0].astype(np.uint32)


def noise(size, **options):
    made = case(f"noise-{size}", extras.noise, (-(-size // 256),), dict(y=blank((size,), np.int32), seed=12345, size=size), {}, dict(BLOCK=256), **options)
    made.outputs, made.tolerance = dict(y=philox(12345, size).view(np.int32)), dict(y=(0.0, 0.0))
    return made


def stored(chip):
    """Seven operations, and the extras that cost little."""
    yield softmax(3, 200, 224, num_warps=4)
    yield add_rmsnorm(3, 576, num_warps=4)
    yield silu_mul(2, 320, 256, num_warps=2)
    yield matmul(48, 80, 96, 32, 32, 32, num_warps=4)
    yield matmul_split(16, 64, 256, 2, 16, 32, 64, num_warps=2)
    yield decode([37, 16], 1, 8, 128, 16, num_warps=1)
    yield prefill(80, 1, 2, 64, 32, 32, num_warps=2)
    yield argmax(2, 500, num_warps=4)
    yield sort(2, 128, num_warps=2)
    yield count(700, 512, 64, num_warps=4)
    if chip in FP8:
        yield matmul_fp8(chip, 32, 48, 128, 32, 32, 64, num_warps=4)


def rowwise():
    for rows, cols, warps in [(2, 64, 1), (3, 1000, 4), (2, 4096, 8), (1, 8191, 16)]:
        yield softmax(rows, cols, -(-cols // 32) * 32, num_warps=warps)
        yield add_rmsnorm(rows, cols, num_warps=warps)
    yield softmax(3, 333, 333, F32, num_warps=2)
    yield softmax(3, 333, 400, F16, num_warps=2)
    yield add_rmsnorm(2, 2048, F16, num_warps=8)
    yield add_rmsnorm(2, 515, F32, num_warps=4)
    for warps, size in [(1, 256), (4, 1024), (4, 2048), (8, 4096)]:
        yield silu_mul(2, 4100, size, num_warps=warps)
    yield silu_mul(3, 100, 128, F16, num_warps=1)
    yield silu_mul(3, 100, 128, F32, num_warps=1)


def products(chip):
    matrix = [16, 32] if CHIPS[chip] == 64 else [16]
    for mi in matrix:
        for warps in (4, 8):
            for stages in (1, 2):
                yield matmul(128, 128, 256, 128, 128, 64, num_warps=warps, num_stages=stages, matrix_instr_nonkdim=mi)
        yield matmul(200, 136, 200, 64, 64, 64, num_warps=4, matrix_instr_nonkdim=mi)
        yield matmul(64, 64, 256, 64, 64, 64, F16, num_warps=4, matrix_instr_nonkdim=mi)
        yield matmul(64, 64, 256, 64, 64, 64, np.int8, num_warps=4, matrix_instr_nonkdim=mi)
        if chip in FP8:
            yield matmul_fp8(chip, 128, 128, 256, 128, 128, 128, num_warps=4, matrix_instr_nonkdim=mi)
    yield matmul(128, 128, 384, 128, 128, 64, num_warps=4, num_stages=3)
    yield matmul(128, 128, 256, 128, 128, 64, num_warps=4, kpack=2) if chip in ("gfx90a", "gfx942") else matmul(33, 47, 72, 32, 32, 32, num_warps=2)
    yield matmul(7, 100, 300, 16, 32, 64, num_warps=2)
    yield matmul(32, 32, 64, 32, 32, 32, F32, num_warps=4)
    yield matmul(256, 256, 128, 256, 256, 64, num_warps=8)
    yield matmul_split(16, 128, 1024, 4, 16, 64, 256, num_warps=2)
    yield matmul_split(16, 128, 1000, 4, 16, 64, 128, num_warps=4)
    yield matvec(1, 40, 1000, 4, 512, num_warps=4)
    yield matvec(3, 40, 1024, 16, 128, num_warps=2)
    if chip in FP8:
        yield matmul_fp8(chip, 50, 70, 200, 32, 32, 64, num_warps=2)


def attentions():
    for page, warps in [(16, 1), (16, 4), (64, 4), (64, 2)]:
        yield decode([1, 63, 130], 2, 8, 128, page, num_warps=warps)
    yield decode([77, 200], 1, 4, 64, 16, num_warps=2)
    yield decode([77, 200], 2, 1, 128, 32, num_warps=4)
    yield decode([5, 300, 90], 2, 8, 128, 16, splits=4, num_warps=2)
    yield decode([5, 300, 90], 2, 8, 128, 64, splits=2, num_warps=4)
    yield combine(4, 9, 128, num_warps=4)
    yield combine(16, 3, 64, num_warps=1)
    for tokens, dim, bm, bn, warps, stages in [(150, 128, 128, 64, 4, 2), (150, 128, 128, 64, 8, 1), (200, 64, 64, 64, 4, 2), (97, 128, 64, 32, 4, 1), (33, 64, 32, 32, 1, 2)]:
        yield prefill(tokens, 1, 2, dim, bm, bn, num_warps=warps, num_stages=stages)


def others(chip):
    yield argmax(3, 5000, num_warps=8)
    yield argmax(3, 60, num_warps=1)
    yield cumsum(2, 700, num_warps=4)
    yield cumsum(2, 700, F32, num_warps=2)
    yield sort(2, 512, num_warps=4)
    yield sort(2, 64, F16, num_warps=1)
    yield count(5000, 1024, 256, num_warps=8)
    yield quantise_i8(3, 777, num_warps=4)
    if chip in FP8:
        yield quantise_fp8(chip, 3, 777, num_warps=4)
        yield convert(2000, FP8[chip][0], BF16)
        yield convert(2000, FP8[chip][0], F32)
        yield convert(2000, F32, FP8[chip][0])
    for source, target in [(F32, BF16), (F32, F16), (F16, F32), (BF16, F16), (BF16, F32), (F16, BF16)]:
        yield convert(2000, source, target)
    yield rope(5, 3, 128, num_warps=1)
    yield transpose(70, 130)
    yield transpose(70, 130, F32)
    yield transpose(70, 130, np.int8)
    yield embed(5, 50, 300)
    yield unpack4(4096)
    yield integer_arithmetic(1500)
    yield functions(1000)
    yield variance(2, 900)
    yield ticket(2048, 256)
    yield noise(1000)


def everything(chip):
    seen = set()
    for made in [*stored(chip), *rowwise(), *products(chip), *attentions(), *others(chip)]:
        assert made.name not in seen, made.name
        seen.add(made.name)
        yield made
