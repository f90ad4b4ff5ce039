"""The operations of a dense model as plain Triton kernels, written for this project.

Tensors are row-major unless a stride says otherwise; weights are [N, K]. Everything is computed in f32. No kernel here is tuned for a chip:
block sizes are parameters, and cases.py and peers.py choose them.
"""
import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def softmax(x, y, cols, stride, BLOCK: tl.constexpr):
    """One row of x a program; a row of y has the same stride."""
    row = tl.program_id(0).to(tl.int64) * stride
    col = tl.arange(0, BLOCK)
    inside = col < cols
    v = tl.load(x + row + col, mask=inside, other=-float("inf")).to(tl.float32)
    e = tl.exp(v - tl.max(v, 0))
    tl.store(y + row + col, (e / tl.sum(e, 0)).to(y.dtype.element_ty), mask=inside)


@triton.jit
def add_rmsnorm(x, residual, weight, y, cols, eps, BLOCK: tl.constexpr):
    """residual += x, in place; y = norm(residual) * weight, of the sum before it is rounded."""
    row = tl.program_id(0).to(tl.int64) * cols
    col = tl.arange(0, BLOCK)
    inside = col < cols
    h = tl.load(x + row + col, mask=inside, other=0).to(tl.float32) + tl.load(residual + row + col, mask=inside, other=0).to(tl.float32)
    tl.store(residual + row + col, h.to(residual.dtype.element_ty), mask=inside)
    scale = tl.rsqrt(tl.sum(h * h, 0) / cols + eps)
    w = tl.load(weight + col, mask=inside, other=0).to(tl.float32)
    tl.store(y + row + col, (h * scale * w).to(y.dtype.element_ty), mask=inside)


@triton.jit
def silu_mul(x, y, cols, BLOCK: tl.constexpr):
    """x is [rows, 2 * cols], gate before up; y is [rows, cols]."""
    row = tl.program_id(1).to(tl.int64) * cols
    col = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = col < cols
    gate = tl.load(x + 2 * row + col, mask=inside, other=0).to(tl.float32)
    up = tl.load(x + 2 * row + cols + col, mask=inside, other=0).to(tl.float32)
    tl.store(y + row + col, (gate / (1 + tl.exp(-gate)) * up).to(y.dtype.element_ty), mask=inside)


@triton.jit
def tile_of(M, N, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr):
    """The tile of a program, in bands of GROUP rows of tiles, so that neighbours share columns of the weight."""
    rows, columns = tl.cdiv(M, BM), tl.cdiv(N, BN)
    i = tl.program_id(0)
    first = i // (GROUP * columns) * GROUP
    height = tl.minimum(rows - first, GROUP)
    inside = i % (GROUP * columns)
    return first + inside % height, inside // height


@triton.jit
def product(a, b, M, N, K, row, column, first, last, ZERO: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, EVEN: tl.constexpr):
    """The tile (row, column) of a @ b.T, summed over K from `first` to `last`. EVEN says that all sizes are multiples of their block."""
    m, n, k = row * BM + tl.arange(0, BM), column * BN + tl.arange(0, BN), tl.arange(0, BK)
    left = a + m[:, None] * K + k[None, :]
    right = b + n[None, :] * K + k[:, None]
    acc = tl.zeros((BM, BN), dtype=ZERO)
    for at in range(first, last, BK):
        if EVEN:
            x, w = tl.load(left + at), tl.load(right + at)
        else:
            x = tl.load(left + at, mask=(m[:, None] < M) & (at + k[None, :] < last), other=0.0)
            w = tl.load(right + at, mask=(n[None, :] < N) & (at + k[:, None] < last), other=0.0)
        acc = tl.dot(x, w, acc, out_dtype=ZERO, input_precision="ieee")
    return acc, m[:, None], n[None, :]


@triton.jit
def matmul(a, b, c, M, N, K, ZERO: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, EVEN: tl.constexpr):
    """c = a @ b.T with a [M, K], b [N, K], c [M, N]; ZERO is the type of the sums."""
    row, column = tile_of(M, N, BM, BN, GROUP)
    acc, m, n = product(a, b, M, N, K, row, column, 0, K, ZERO, BM, BN, BK, EVEN)
    tl.store(c + m * N + n, acc.to(c.dtype.element_ty), mask=(m < M) & (n < N))


@triton.jit
def matmul_scaled(a, b, a_scale, b_scale, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, EVEN: tl.constexpr):
    """As `matmul`, of fp8 operands with a scale for each row of a and of b."""
    row, column = tile_of(M, N, BM, BN, GROUP)
    acc, m, n = product(a, b, M, N, K, row, column, 0, K, tl.float32, BM, BN, BK, EVEN)
    acc *= tl.load(a_scale + m, mask=m < M, other=0) * tl.load(b_scale + n, mask=n < N, other=0)
    tl.store(c + m * N + n, acc.to(c.dtype.element_ty), mask=(m < M) & (n < N))


@triton.jit
def matmul_split(a, b, c, M, N, K, length, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, EVEN: tl.constexpr):
    """As `matmul`, with K cut in pieces of `length` that are added into c, which is f32 and zero at the start."""
    row, column = tile_of(M, N, BM, BN, GROUP)
    first = tl.program_id(1) * length
    acc, m, n = product(a, b, M, N, K, row, column, first, tl.minimum(first + length, K), tl.float32, BM, BN, BK, EVEN)
    tl.atomic_add(c + m * N + n, acc, mask=(m < M) & (n < N), sem="relaxed")


@triton.jit
def matvec(x, w, y, N, K, M: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """y = x @ w.T for M rows of x, without matrix instructions: a program makes BN results of one row."""
    n, k = tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, BK)
    row = tl.program_id(1)
    acc = tl.zeros((BN, BK), dtype=tl.float32)
    for at in range(0, K, BK):
        v = tl.load(x + row * K + at + k, mask=at + k < K, other=0).to(tl.float32)
        m = tl.load(w + n[:, None] * K + at + k[None, :], mask=(n[:, None] < N) & (at + k[None, :] < K), other=0.0).to(tl.float32)
        acc += m * v[None, :]
    tl.store(y + row * N + n, tl.sum(acc, 1).to(y.dtype.element_ty), mask=n < N)


@triton.jit
def attend(q, k, v, visible, acc, sums, high):
    """One block of keys and values into a running softmax; scores are in powers of two."""
    score = tl.where(visible, tl.dot(q, k), -float("inf"))
    top = tl.maximum(high, tl.max(score, 1))
    p = tl.exp2(score - top[:, None])
    shrink = tl.exp2(high - top)
    acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None])
    return acc, sums * shrink + tl.sum(p, 1), top


@triton.jit
def pages(q, k, v, table, length, first, last, kv_head, kv_heads, D: tl.constexpr, PAGE: tl.constexpr, ROWS: tl.constexpr):
    """Attention of ROWS queries over the pages `first` to `last` of one sequence."""
    t, d = tl.arange(0, PAGE), tl.arange(0, D)
    acc = tl.zeros((ROWS, D), dtype=tl.float32)
    sums = tl.zeros((ROWS,), dtype=tl.float32)
    high = tl.full((ROWS,), -float("inf"), dtype=tl.float32)
    for page in range(first, last):
        block = tl.load(table + page) * PAGE
        here = (block + t) * kv_heads + kv_head
        keys = tl.load(k + here[None, :] * D + d[:, None])
        values = tl.load(v + here[:, None] * D + d[None, :])
        acc, sums, high = attend(q, keys, values, (page * PAGE + t < length)[None, :], acc, sums, high)
    return acc, sums, high


@triton.jit
def paged_decode(q, k, v, tables, lengths, y, table_stride, kv_heads, scale, GROUP: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, ROWS: tl.constexpr):
    """A program takes one sequence and one key head with its GROUP query heads. q, y: [sequences, heads, D]; k, v: [blocks, PAGE, kv_heads, D]."""
    s, kv_head = tl.program_id(0), tl.program_id(1)
    g, d = tl.arange(0, ROWS), tl.arange(0, D)
    at = ((s * kv_heads + kv_head) * GROUP + g[:, None]) * D + d[None, :]
    rows = tl.load(q + at, mask=g[:, None] < GROUP, other=0)
    rows = (rows.to(tl.float32) * (scale * LOG2E)).to(rows.dtype)
    length = tl.load(lengths + s)
    acc, sums, high = pages(rows, k, v, tables + s * table_stride, length, 0, tl.cdiv(length, PAGE), kv_head, kv_heads, D, PAGE, ROWS)
    tl.store(y + at, (acc / sums[:, None]).to(y.dtype.element_ty), mask=g[:, None] < GROUP)


@triton.jit
def paged_decode_split(q, k, v, tables, lengths, part, part_sum, part_high, table_stride, kv_heads, per_split, scale,
                       GROUP: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, ROWS: tl.constexpr):
    """As `paged_decode`, over `per_split` pages a program; `decode_combine` makes the result of the parts [splits, sequences * heads, D]."""
    s, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    g, d = tl.arange(0, ROWS), tl.arange(0, D)
    row = (s * kv_heads + kv_head) * GROUP + g
    inside = g < GROUP
    rows = tl.load(q + row[:, None] * D + d[None, :], mask=inside[:, None], other=0)
    rows = (rows.to(tl.float32) * (scale * LOG2E)).to(rows.dtype)
    length = tl.load(lengths + s)
    last = tl.minimum((split + 1) * per_split, tl.cdiv(length, PAGE))
    acc, sums, high = pages(rows, k, v, tables + s * table_stride, length, split * per_split, last, kv_head, kv_heads, D, PAGE, ROWS)
    to = split * tl.num_programs(0) * kv_heads * GROUP + row
    tl.store(part + to[:, None] * D + d[None, :], acc, mask=inside[:, None])
    tl.store(part_sum + to, sums, mask=inside)
    tl.store(part_high + to, high, mask=inside)


@triton.jit
def decode_combine(part, part_sum, part_high, y, rows, SPLITS: tl.constexpr, D: tl.constexpr):
    """The softmax over all parts of a row; a part without tokens has the sum 0 and the maximum -inf."""
    row = tl.program_id(0)
    s, d = tl.arange(0, SPLITS), tl.arange(0, D)
    at = s * rows + row
    high = tl.load(part_high + at)
    weight = tl.exp2(high - tl.max(high, 0))
    total = tl.sum(weight * tl.load(part_sum + at), 0)
    sums = tl.sum(weight[:, None] * tl.load(part + at[:, None] * D + d[None, :]), 0)
    tl.store(y + row * D + d, (sums / total).to(y.dtype.element_ty))


@triton.jit
def flash_prefill(q, k, v, y, tokens, heads, kv_heads, scale, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """Causal attention of one sequence. q, y: [tokens, heads, D]; k, v: [tokens, kv_heads, D]. Only the last blocks of a row of tiles need the mask."""
    tile, head = tl.program_id(0), tl.program_id(1)
    kv_head = head // (heads // kv_heads)
    m, n, d = tile * BM + tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, D)
    at = (m[:, None] * heads + head) * D + d[None, :]
    rows = tl.load(q + at, mask=m[:, None] < tokens, other=0)
    rows = (rows.to(tl.float32) * (scale * LOG2E)).to(rows.dtype)
    keys = k + (n[None, :] * kv_heads + kv_head) * D + d[:, None]
    values = v + (n[:, None] * kv_heads + kv_head) * D + d[None, :]
    acc = tl.zeros((BM, D), dtype=tl.float32)
    sums = tl.zeros((BM,), dtype=tl.float32)
    high = tl.full((BM,), -float("inf"), dtype=tl.float32)
    step = kv_heads * D
    whole = tile * BM // BN * BN
    for at_n in range(0, whole, BN):
        score = tl.dot(rows, tl.load(keys + at_n * step))
        top = tl.maximum(high, tl.max(score, 1))
        p = tl.exp2(score - top[:, None])
        shrink = tl.exp2(high - top)
        values_here = tl.load(values + at_n * step)
        acc = tl.dot(p.to(values_here.dtype), values_here, acc * shrink[:, None])
        sums, high = sums * shrink + tl.sum(p, 1), top
    for at_n in range(whole, tl.minimum((tile + 1) * BM, tokens), BN):
        keys_here = tl.load(keys + at_n * step, mask=at_n + n[None, :] < tokens, other=0)
        values_here = tl.load(values + at_n * step, mask=at_n + n[:, None] < tokens, other=0)
        acc, sums, high = attend(rows, keys_here, values_here, at_n + n[None, :] <= m[:, None], acc, sums, high)
    tl.store(y + at, (acc / sums[:, None]).to(y.dtype.element_ty), mask=m[:, None] < tokens)
