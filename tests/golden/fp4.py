"""DeepSeek-V4's weights as its releases have them: e4m3 in blocks of 128 by 128, experts in e2m1 in groups of 32, scales in
e8m0; and the codes that rows become before the first. `families.py` writes golden models with it.

Of each weight that becomes codes the number that a code means is one of bfloat16, so the model that is computed with is the
one that is stored: `stored` checks that torch's own types widen the file's bytes to it, bit by bit.
"""
import re

import torch

from quantised import E2M1, mx_e2m1, powers_e4m3, spread

BLOCK, GROUP = 128, 32
METHOD = dict(quant_method="fp8", fmt="e4m3", scale_fmt="ue8m0", weight_block_size=[BLOCK, BLOCK], activation_scheme="dynamic")
CONFIG = dict(expert_dtype="fp4", quantization_config=METHOD)
# Names as releases have them.
CODED = re.compile(r"\.(attn\.(wq_a|wq_b|wkv|wo_a|wo_b|indexer\.wq_b)|ffn\.shared_experts\.w[123])\.weight$")
FOURS = re.compile(r"\.ffn\.experts\.\d+\.w[123]\.weight$")
# Names of transformers' modules.
LINEAR = re.compile(r"\.(self_attn\.(q_a_proj|q_b_proj|kv_proj|o_a_proj|o_b_proj|compressor\.indexer\.q_b_proj)|shared_experts\.(gate|up|down)_proj)$")
WIDE = re.compile(r"(\.sinks|\.position_bias|_hc\.(fn|base|scale)|hc_head\.hc_(fn|base|scale))$")


def is_wide(name): return bool(WIDE.search(name))


def blocks(w):
    """Codes of e4m3, a power of two for each block, and what they mean."""
    (n, k), pad = w.shape, torch.nn.functional.pad(w.double(), (0, -w.shape[1] % BLOCK, 0, -w.shape[0] % BLOCK))
    most = pad.unflatten(1, (-1, BLOCK)).unflatten(0, (-1, BLOCK)).abs().amax((1, 3))
    s = torch.exp2(torch.ceil(torch.log2(most / 448)))
    wide = spread(spread(s, BLOCK, n, 0), BLOCK, k, 1)
    q = (w.double() / wide).float().to(torch.float8_e4m3fn)
    return q, s.float().to(torch.float8_e8m0fnu), (q.double() * wide).to(w.dtype)


def fours(w):
    """Codes of e2m1 in pairs, the even one in the lower half, a power of two for each group, and what they mean."""
    codes, e = mx_e2m1(w.double())
    flat = codes.flatten(-2)
    pairs = (flat[..., 0::2] | flat[..., 1::2] << 4).to(torch.uint8).view(torch.int8)
    means = torch.ldexp(E2M1[codes], e).flatten(-2).to(w.dtype)
    return pairs, torch.exp2(e.squeeze(-1).double()).float().to(torch.float8_e8m0fnu), means


def widened(w, s):
    """What stored tensors mean, by torch's own types."""
    if w.dtype == torch.float8_e4m3fn:
        wide = s.float().repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)[:w.shape[0], :w.shape[1]]
        return w.float() * wide
    both = torch.stack([w.view(torch.uint8) & 15, w.view(torch.uint8) >> 4], -1).flatten(-2)
    return E2M1[both.int()].float() * s.float().repeat_interleave(GROUP, 1)


def round_weights(model):
    """Weights as what they mean once they are codes."""
    for name, m in model.named_modules():
        if LINEAR.search(name): m.weight.data = blocks(m.weight.data)[2]
        if name.endswith(".experts"):
            for p in (m.gate_up_proj, m.down_proj): p.data = fours(p.data)[2]


def stored(tensors):
    """The tensors of a release, of weights that codes mean."""
    made = dict(tensors)
    for name, w in tensors.items():
        form = blocks if CODED.search(name) else fours if FOURS.search(name) else None
        if not form: continue
        q, s, _ = form(w)
        assert torch.equal(widened(q, s), w.float()), name
        made |= {name: q.contiguous(), name.removesuffix("weight") + "scale": s.contiguous()}
    return made


# ---- rows while running --------------------------------------------------------------------------

def rows(x):
    # Whoever computes in float64 has other types in the place of float32 (`families.Wide`).
    with torch._C.DisableTorchFunction(): return powers_e4m3(BLOCK)(x.double(), None).to(x.dtype)


def hook(model):
    """Has rows become codes. Those that groups of heads multiply stay as they are, as in the maker's own code, and so do
    those of experts, which few chips multiply by e2m1."""
    for name, m in model.named_modules():
        if LINEAR.search(name) and not name.endswith("o_a_proj"): m.register_forward_pre_hook(lambda m, a: (rows(a[0]), *a[1:]))
