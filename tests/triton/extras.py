"""Kernels that no dense model needs, for the instructions they make: scans, sorts, atomics, integers, conversions, double precision."""
import triton
import triton.language as tl


@triton.jit
def argmax(x, value, index, cols, BLOCK: tl.constexpr):
    """The largest element of a row and its first place."""
    row, col = tl.program_id(0), tl.arange(0, BLOCK)
    v = tl.load(x + row * cols + col, mask=col < cols, other=-float("inf")).to(tl.float32)
    top, at = tl.max(v, 0, return_indices=True)
    tl.store(value + row, top)
    tl.store(index + row, at)


@triton.jit
def cumsum(x, y, cols, BLOCK: tl.constexpr):
    row, col = tl.program_id(0), tl.arange(0, BLOCK)
    v = tl.load(x + row * cols + col, mask=col < cols, other=0)
    tl.store(y + row * cols + col, tl.cumsum(v, 0), mask=col < cols)


@triton.jit
def sort(x, y, BLOCK: tl.constexpr):
    row, col = tl.program_id(0), tl.arange(0, BLOCK)
    tl.store(y + row * BLOCK + col, tl.sort(tl.load(x + row * BLOCK + col), descending=True))


@triton.jit
def count(x, counts, size, BLOCK: tl.constexpr, BINS: tl.constexpr):
    """Adds the histogram of a block of x to counts."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < size, other=0)
    tl.atomic_add(counts + tl.arange(0, BINS), tl.histogram(v, BINS, mask=at < size))


@triton.jit
def quantise_rows(x, y, scales, cols, MAX: tl.constexpr, BLOCK: tl.constexpr):
    """Dynamic quantisation: y = x / scale, scale = max|x| / MAX, one for each row; rounded when y is an integer."""
    row, col = tl.program_id(0), tl.arange(0, BLOCK)
    v = tl.load(x + row * cols + col, mask=col < cols, other=0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(v), 0), 1e-10) / MAX
    q = tl.clamp(v / scale, -MAX, MAX)
    if y.dtype.element_ty == tl.int8:
        q = tl.floor(q + 0.5)
    tl.store(y + row * cols + col, q.to(y.dtype.element_ty), mask=col < cols)
    tl.store(scales + row, scale)


@triton.jit
def rope(x, position, y, heads, base_log2, D: tl.constexpr):
    """Rotates the two halves of each head; x: [tokens, heads, D]."""
    token, head = tl.program_id(0), tl.program_id(1)
    i = tl.arange(0, D // 2)
    angle = tl.load(position + token).to(tl.float32) * tl.exp2(-base_log2 * (2 * i / D))
    at = (token * heads + head) * D + i
    a, b = tl.load(x + at).to(tl.float32), tl.load(x + at + D // 2).to(tl.float32)
    c, s = tl.cos(angle), tl.sin(angle)
    tl.store(y + at, (a * c - b * s).to(y.dtype.element_ty))
    tl.store(y + at + D // 2, (b * c + a * s).to(y.dtype.element_ty))


@triton.jit
def transpose(x, y, rows, cols, BM: tl.constexpr, BN: tl.constexpr):
    m, n = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    v = tl.load(x + m[:, None] * cols + n[None, :], mask=(m[:, None] < rows) & (n[None, :] < cols), other=0)
    tl.store(y + n[:, None] * rows + m[None, :], tl.trans(v), mask=(n[:, None] < cols) & (m[None, :] < rows))


@triton.jit
def embed(ids, table, y, cols, BLOCK: tl.constexpr):
    row, col = tl.program_id(0), tl.arange(0, BLOCK)
    v = tl.load(table + tl.load(ids + row) * cols + col, mask=col < cols, other=0)
    tl.store(y + row * cols + col, v, mask=col < cols)


@triton.jit
def unpack4(x, scale, y, size, BLOCK: tl.constexpr):
    """Eight 4-bit weights of an i32 word become bf16, less 8, times the scale of their group of 32."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    word = tl.load(x + at // 8, mask=at < size, other=0)
    v = ((word >> (at % 8 * 4)) & 15) - 8
    s = tl.load(scale + at // 32, mask=at < size, other=0)
    tl.store(y + at, (v.to(tl.float32) * s).to(y.dtype.element_ty), mask=at < size)


@triton.jit
def integers(a, b, y, size, BLOCK: tl.constexpr):
    """64-bit and 32-bit integer arithmetic: division, remainder, shifts, high products, counts and comparisons."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    u, v = tl.load(a + at, mask=inside, other=1), tl.load(b + at, mask=inside, other=1)
    wide = u.to(tl.int64) * v.to(tl.int64) + u
    high = tl.umulhi(u.to(tl.uint32, bitcast=True), v.to(tl.uint32, bitcast=True)).to(tl.int64)
    r = wide // 7 + (wide % 1000003) * 5 + high + (u // v).to(tl.int64) * 3 + (u % v) + ((u >> 3) ^ (v << 5)).to(tl.int64)
    tl.store(y + at, tl.where(u > v, r, -r) + tl.minimum(u, v) + tl.maximum(u & v, u | v), mask=inside)


@triton.jit
def functions(x, y, size, BLOCK: tl.constexpr):
    """Elementary functions of positive f32 numbers, one row of y each."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    v = tl.load(x + at, mask=inside, other=1)
    tl.store(y + at, tl.exp(v), mask=inside)
    tl.store(y + size + at, tl.log(v), mask=inside)
    tl.store(y + 2 * size + at, tl.sqrt_rn(v), mask=inside)
    tl.store(y + 3 * size + at, tl.erf(v), mask=inside)
    tl.store(y + 4 * size + at, tl.div_rn(1.0, v), mask=inside)
    tl.store(y + 5 * size + at, tl.sin(v), mask=inside)
    tl.store(y + 6 * size + at, tl.log2(v) + tl.floor(v) - tl.ceil(v * 0.5), mask=inside)
    tl.store(y + 7 * size + at, tl.fma(v, v, -v) + tl.abs(1 - v), mask=inside)


@triton.jit
def variance(x, y, cols, BLOCK: tl.constexpr):
    """Mean and variance of a row, summed in f64."""
    row, col = tl.program_id(0), tl.arange(0, BLOCK)
    v = tl.load(x + row * cols + col, mask=col < cols, other=0).to(tl.float64)
    mean = tl.sum(v, 0) / cols
    away = tl.where(col < cols, v - mean, 0.0)
    tl.store(y + row * 2, mean)
    tl.store(y + row * 2 + 1, tl.sum(away * away, 0) / cols)


@triton.jit
def convert(x, y, size, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < size, other=0.0).to(y.dtype.element_ty), mask=at < size)


@triton.jit
def ticket(counter, y, size, BLOCK: tl.constexpr):
    """The last program to arrive adds up what all have written: device-wide atomics that order memory."""
    i = tl.program_id(0)
    at = i * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, at)
    tl.debug_barrier()
    before = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu")
    if before == tl.num_programs(0) - 1:
        total = tl.zeros((BLOCK,), dtype=tl.int32)
        for start in range(0, size, BLOCK):
            total += tl.load(y + start + tl.arange(0, BLOCK), cache_modifier=".cv")
        tl.store(y + size, tl.sum(total, 0))
        tl.atomic_xchg(counter, 0)


@triton.jit
def noise(y, seed, size, BLOCK: tl.constexpr):
    """Philox numbers as u32."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.randint(seed, at), mask=at < size)
