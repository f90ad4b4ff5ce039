"""Golden logits of quantised models: the models of make.py, stored as the tools of the field store them.

    pip install torch==2.14.0 transformers==5.23.0 safetensors==0.8.0
    python tests/golden/quantised.py [CASE ...]

The reference is transformers in float64 on dequantised weights. Where a scheme quantises the rows that a product multiplies,
or the cache, a hook quantises and dequantises them first, by the rules of vLLM. Sizes are odd on purpose: partial blocks,
merged products that end inside a block, rows that no tile divides.
"""
from collections.abc import Callable
import json, shutil, sys, zlib
from dataclasses import dataclass

import safetensors.torch, torch, transformers

import make
from make import HERE, Case, llama, qwen3, write_json

E2M1 = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)


# ---- rows while running --------------------------------------------------------------------------

def e4m3(x): return x.clamp(-448, 448).float().to(torch.float8_e4m3fn).double()
def groups(x, n): return torch.nn.functional.pad(x, (0, -x.shape[-1] % n)).unflatten(-1, (-1, n))


def rows_e4m3(x, _):
    s = (x.abs().amax(-1, keepdim=True) / 448).clamp(min=1 / (448 * 512))
    return e4m3(x * (1 / s)) * s


def given_e4m3(x, s): return e4m3(x * (1 / s)) * s


def groups_e4m3(n):
    def f(x, _):
        g = groups(x, n)
        s = g.abs().amax(-1, keepdim=True).clamp(min=1e-10) * (1 / 448)
        return (e4m3(g / s) * s).flatten(-2)[..., :x.shape[-1]]
    return f


def powers_e4m3(n):
    """Scales as `groups_e4m3` has them, rounded up to powers of two."""
    def f(x, _):
        g = groups(x, n)
        s = g.abs().amax(-1, keepdim=True).float().clamp(min=1e-10) * torch.tensor(1 / 448, dtype=torch.float32)
        mantissa, exponent = torch.frexp(s)
        s = torch.exp2(exponent - (mantissa == 0.5).int()).double()
        return (e4m3(g / s) * s).flatten(-2)[..., :x.shape[-1]]
    return f


def rows_int8(x, _):
    a = x.abs().amax(-1, keepdim=True).clamp(min=1e-10)
    y = x * (127 / a)
    return (y.sign() * (y.abs() + 0.5).floor()).clamp(-128, 127) * (a / 127)


def mx_e4m3(x, _):
    g = groups(x, 32)
    a = g.abs().amax(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
    e = torch.ceil(torch.log2(a / 448)).clamp(-127, 127)
    return torch.ldexp(e4m3(torch.ldexp(g, -e)), e).flatten(-2)


def e2m1_codes(z):
    """Nearest, halfway to even: codes of sizes, and the sign's bit."""
    middle = torch.tensor([.25, .75, 1.25, 1.75, 2.5, 3.5, 5.0], dtype=torch.float64)
    up = torch.tensor([False, True, False, True, False, True, False])
    above = torch.where(up, z.abs().unsqueeze(-1) >= middle, z.abs().unsqueeze(-1) > middle)
    return above.sum(-1) + 8 * (z < 0)


def mx_e2m1(x):
    """Codes, and the exponents of groups of 32."""
    g = groups(x, 32)
    a = g.abs().amax(-1, keepdim=True).float().contiguous()
    e = (((a.view(torch.int32) + (1 << 21)) >> 23) - 127 - 2).clamp(-127, 127)
    return e2m1_codes(torch.ldexp(g, -e)), e


def rows_mx_e2m1(x, _):
    codes, e = mx_e2m1(x)
    return torch.ldexp(E2M1[codes], e).flatten(-2)


# ---- how weights are stored: tensors of a module, and what they mean -----------------------------

def spread(s, g, n, dim): return s.repeat_interleave(g, dim).narrow(dim, 0, n)


def pack(codes, bits, dim):
    """Words of unsigned codes along an axis, the first in the lowest bits, the last word filled with zeros."""
    n = 32 // bits
    x = codes.long().movedim(dim, -1)
    if bits == 3:
        # One stream of bits, three words for 32 codes.
        x = torch.stack([x >> i & 1 for i in range(3)], -1).flatten(-2)
        bits, n = 1, 32
    x = torch.nn.functional.pad(x, (0, -x.shape[-1] % n)).unflatten(-1, (-1, n))
    w = (x << torch.arange(0, 32, bits)).sum(-1)
    return torch.where(w >= 1 << 31, w - (1 << 32), w).int().movedim(-1, dim).contiguous()


def blocks_e4m3(b, scales=torch.Tensor.float):
    """Blocks with a scale each, which `scales` makes a number of its type."""
    def f(w, draw):
        (n, k), pad = w.shape, torch.nn.functional.pad(w, (0, -w.shape[1] % b[1], 0, -w.shape[0] % b[0]))
        s = (pad.unflatten(1, (-1, b[1])).unflatten(0, (-1, b[0])).abs().amax((1, 3)) / 448)
        s = scales(s)
        wide = spread(spread(s.double(), b[0], n, 0), b[1], k, 1)
        q = (w / wide).float().to(torch.float8_e4m3fn)
        return dict(weight=q, weight_scale_inv=s), q.double() * wide
    return f


def rows_of(dtype, axes, scale_dtype):
    """A scale for each row, or one (`axes` 0)."""
    def f(w, draw):
        most = 448 if dtype == torch.float8_e4m3fn else 127.5
        s = (w.abs().amax(1, keepdim=True) if axes else w.abs().amax().reshape(1)) / most
        s = s.to(scale_dtype)
        q = (w / s.double())
        q = q.float().to(dtype) if dtype == torch.float8_e4m3fn else q.round().clamp(-128, 127).to(dtype)
        return dict(weight=q, weight_scale=s.reshape(-1) if axes == 1 else s), q.double() * s.double()
    return f


def integers(w, bits, g, symmetric, scale_dtype, draw):
    """Unsigned codes, zero points, scales of groups of columns."""
    n, k = w.shape
    v = w.unflatten(1, (-1, g))
    half, most = 1 << (bits - 1), (1 << bits) - 1
    if symmetric:
        s = (v.abs().amax(-1) / (most / 2)).to(scale_dtype)
        z = torch.full_like(s, half, dtype=torch.int64)
    else:
        low, high = v.amin(-1).clamp(max=0), v.amax(-1).clamp(min=0)
        s = ((high - low) / most).to(scale_dtype)
        z = (-low / s.double()).round().clamp(0, most).long()
    q = ((v / s.double().unsqueeze(-1)).round() + z.unsqueeze(-1)).clamp(0, most).long()
    means = ((q - z.unsqueeze(-1)) * s.double().unsqueeze(-1)).flatten(1)
    return q.flatten(1), z, s, means


def sorted_integers(w, bits, g, symmetric, scale_dtype, draw):
    """As `integers`, of columns in the order in which a quantiser took them (act-order), and the group of each column."""
    order = torch.randperm(w.shape[1], generator=draw)
    back, group = order.argsort(), torch.empty_like(order)
    q, z, s, means = integers(w[:, order], bits, g, symmetric, scale_dtype, draw)
    group[order] = torch.arange(len(order)) // g
    return q[:, back], z, s, means[:, back], group.int()


def words(bits, g, symmetric, is_sorted=False):
    def f(w, draw):
        if is_sorted:
            q, z, s, means, group = sorted_integers(w, bits, g, symmetric, torch.bfloat16, draw)
        else: q, z, s, means = integers(w, bits, g or w.shape[1], symmetric, torch.bfloat16, draw)
        out = dict(weight_packed=pack(q, bits, 1), weight_scale=s, weight_shape=torch.tensor(w.shape))
        if not symmetric: out["weight_zero_point"] = pack(z, bits, 0)
        if is_sorted: out["weight_g_idx"] = group
        return out, means
    return f


AWQ = [0, 2, 4, 6, 1, 3, 5, 7]


def awq(g):
    def f(w, draw):
        q, z, s, means = integers(w, 4, g, False, torch.float16, draw)
        order = lambda x: x.unflatten(1, (-1, 8))[..., AWQ].flatten(1)
        return dict(qweight=pack(order(q.T), 4, 1), qzeros=pack(order(z.T), 4, 1), scales=s.T.contiguous()), means
    return f


def gptq(bits, g, symmetric, taken, is_sorted=False):
    def f(w, draw):
        k = w.shape[1]
        if is_sorted: q, z, s, means, group = sorted_integers(w, bits, g, symmetric, torch.float16, draw)
        else: (q, z, s, means), group = integers(w, bits, g or k, symmetric, torch.float16, draw), (torch.arange(k) // (g or k)).int()
        if not symmetric: z = z.clamp(min=taken)  # what is taken off zero points leaves none below zero
        if not symmetric: means = (q - z[:, group]) * s.double()[:, group]
        return dict(qweight=pack(q.T, bits, 0), qzeros=pack(z.T - taken, bits, 1), scales=s.T.contiguous(), g_idx=group), means
    return f


def book(kind, nested):
    """Codes of four bits, made and read by bitsandbytes, in float32. Its kernel for CPUs reads rows that are no whole number of
    blocks wrongly (0.50.2), so this is what it has for all other devices."""
    def f(w, draw):
        import bitsandbytes.functional as bnb
        from bitsandbytes.backends.default.ops import _dequantize_4bit_compute
        packed, state = bnb.quantize_4bit(w.float(), quant_type=kind, compress_statistics=nested)
        stored = {"weight": packed} | {f"weight.{k}": v.clone() for k, v in state.as_dict(packed=True).items()}
        absmax = bnb.dequantize_blockwise(state.absmax, state.state2) + state.offset if nested else state.absmax
        return stored, _dequantize_4bit_compute(packed.reshape(-1), absmax, state.code, 64, tuple(w.shape), torch.float32).double()
    return f


def eights(w, draw):
    """LLM.int8 without the codes of rows."""
    import bitsandbytes.functional as bnb
    codes, rows, _ = bnb.int8_vectorwise_quant(w.half())
    return dict(weight=codes, SCB=rows, weight_format=torch.tensor(0, dtype=torch.uint8)), codes.double() * (rows * torch.tensor(1 / 127)).double().unsqueeze(1)


def torchao(config):
    """Made by the tool, a scale for each row."""
    def f(w, draw):
        from torchao import quantization
        linear = torch.nn.Linear(*reversed(w.shape), bias=False).bfloat16()
        linear.weight.data = w.bfloat16()
        quantization.quantize_(linear, getattr(quantization, config)())
        parts = {part: getattr(linear.weight, part, None) for part in ("qdata", "scale", "zero_point")}
        return {f"_weight_{k}": v.clone() for k, v in parts.items() if v is not None}, parts["qdata"].double() * parts["scale"].double()
    return f


def mxfp4(name):
    def f(w, draw):
        codes, e = mx_e2m1(w)
        flat = codes.flatten(-2)
        u8 = (flat[:, 0::2] | flat[:, 1::2] << 4).to(torch.uint8)
        return {name: u8, "weight_scale": (e.squeeze(-1) + 127).to(torch.uint8)}, torch.ldexp(E2M1[codes], e).flatten(-2)
    return f


def nvfp4(name, number, over):
    """Scales of two levels, which are one in f32: e4m3 of groups, and a number of the tensor."""
    def f(w, draw):
        g = groups(w, 16)
        of_all = (w.abs().amax() / (6 * 448)).float()
        stored = 1 / of_all if over else of_all
        s = (g.abs().amax(-1, keepdim=True) / 6 / of_all).clamp(2**-9, 448).float().to(F8)
        both = (s.float() / stored if over else s.float() * stored).double()
        codes = e2m1_codes(g / both)
        flat = codes.flatten(-2)
        u8 = (flat[:, 0::2] | flat[:, 1::2] << 4).to(torch.uint8)
        return {name: u8, "weight_scale": s.squeeze(-1), number: stored.reshape(1) if over else stored}, (E2M1[codes] * both).flatten(-2)
    return f


def mxfp8(w, draw):
    g = groups(w, 32)
    e = torch.ceil(torch.log2(g.abs().amax(-1, keepdim=True) / 448)).clamp(-127, 127)
    q = torch.ldexp(g, -e).float().to(torch.float8_e4m3fn)
    means = torch.ldexp(q.double(), e).flatten(-2)
    return dict(weight=q.flatten(-2), weight_scale=(e.squeeze(-1) + 127).to(torch.uint8)), means


# ---- what a config says --------------------------------------------------------------------------

def spec(bits, kind, strategy, **more):
    return dict(num_bits=bits, type=kind, strategy=strategy, **{"symmetric": True, "dynamic": False, "group_size": None, **more})


def ct(format, weights, inputs=None, **more):
    group = dict(targets=["Linear"], weights=weights, input_activations=inputs, output_activations=None, format=format)
    return {"quant_method": "compressed-tensors", "format": format, "config_groups": {"group_0": group}, "ignore": ["lm_head"],
            "quantization_status": "compressed", "kv_cache_scheme": None, **more}


def quark(weight, inputs):
    fill = lambda s, dynamic: s and dict(s, is_dynamic=dynamic)
    return {"quant_method": "quark", "exclude": ["lm_head"],
            "export": dict(kv_cache_group=[], min_kv_scale=0.0, pack_method="reorder", weight_format="real_quantized"),
            "global_quant_config": dict(weight=fill(weight, False), input_tensors=fill(inputs, True), output_tensors=None, bias=None)}


def ao(config, **data):
    data = dict(granularity={"_data": {"dim": -1}, "_type": "PerRow", "_version": 1}, set_inductor_config=True, **data)
    return dict(quant_method="torchao", modules_to_not_convert=None, include_input_output_embeddings=False, quant_type=dict(default=dict(_type=config, _version=2, _data=data)))


def modelopt(algo, **more): return dict(quant_method="modelopt", quant_algo=algo, **more)


FP4 = dict(dtype="fp4", qscheme="per_group", group_size=32, scale_format="e8m0")
PTPC = dict(dtype="fp8_e4m3", qscheme="per_channel")
FP8 = dict(quant_method="fp8", activation_scheme="dynamic", fmt="e4m3")


def deepseek3(**kw):
    """DeepSeek-V3 without experts, latent rows of 64."""
    shape = dict(num_attention_heads=3, num_key_value_heads=3, hidden_size=72, q_lora_rank=28, kv_lora_rank=48, qk_nope_head_dim=24,
                 qk_rope_head_dim=16, v_head_dim=32, rms_norm_eps=1e-5, intermediate_size=60, pad_token_id=None, num_mtp_layers=0)
    return llama(transformers.DeepseekV3Config, **{**shape, **kw})


@dataclass
class Quantised:
    model: Case
    config: dict
    # For a weight, the tensors in the file, and their meaning in float64; none where no weight is
    # stored otherwise.
    store: Callable | None
    # The quantising of rows before a product, with the product's `input_scale`.
    inputs: Callable | None = None
    # Modules that are stored as they are.
    others: tuple = ()
    cache: bool = False
    # A number of rows in the file that nothing is computed with.
    given: str | None = None
    # Whether the configuration is in ModelOpt's own file.
    beside: bool = False
    # Another draw, where a number lies so near the middle of two codes that the last bits of a
    # frequency decide.
    draw: int = 0


F8, F16, BF16 = torch.float8_e4m3fn, torch.float16, torch.bfloat16
TOKENS8, TOKENSI8 = spec(8, "float", "token", dynamic=True), spec(8, "int", "token", dynamic=True)
TENSOR8 = spec(8, "float", "tensor")
CASES = {
    # Three heads of 24: queries, keys and values end inside a block, and so do all rows.
    "q-fp8-block": Quantised(Case(qwen3(hidden_size=200, intermediate_size=264)), dict(FP8, weight_block_size=[128, 128]),
                             blocks_e4m3([128, 128]), groups_e4m3(128)),
    "q-fp8-powers": Quantised(Case(qwen3(hidden_size=200, intermediate_size=264)), dict(FP8, weight_block_size=[32, 64], scale_fmt="ue8m0"),
                              blocks_e4m3([32, 64]), powers_e4m3(64)),
    # A block of columns is a head: attention with one token makes codes of its result.
    "q-fp8-heads": Quantised(Case(qwen3(hidden_size=96, intermediate_size=90, num_attention_heads=6, num_key_value_heads=2, head_dim=32)),
                             dict(FP8, weight_block_size=[32, 32]), blocks_e4m3([32, 32]), groups_e4m3(32), draw=1),
    "q-fp8-small": Quantised(Case(qwen3(intermediate_size=90)), dict(FP8, weight_block_size=[16, 32], ignored_layers=["model.layers.1.mlp"]),
                             blocks_e4m3([16, 32]), groups_e4m3(32), others=("model.layers.1.mlp",)),
    "q-fp8-static": Quantised(Case(llama(intermediate_size=90)), ct("float-quantized", TENSOR8, TENSOR8, kv_cache_scheme=TENSOR8),
                              rows_of(F8, 0, BF16), given_e4m3, cache=True),
    "q-fp8-token": Quantised(Case(llama(num_key_value_heads=1, attention_bias=True)), ct("float-quantized", spec(8, "float", "channel"), TOKENS8),
                             rows_of(F8, 2, BF16), rows_e4m3, draw=1),
    "q-ptpc": Quantised(Case(qwen3(hidden_size=40, intermediate_size=90, vocab_size=83)), quark(PTPC, PTPC), rows_of(F8, 1, torch.float32), rows_e4m3),
    "q-int8": Quantised(Case(qwen3(intermediate_size=90)), ct("int-quantized", spec(8, "int", "channel"), TOKENSI8), rows_of(torch.int8, 2, BF16), rows_int8),
    # The cache alone.
    "q-cache": Quantised(Case(qwen3(attention_bias=True, num_attention_heads=4, num_key_value_heads=2)),
                         dict(ct("dense", None, kv_cache_scheme=TENSOR8), config_groups={}), None, others=("model",), cache=True),
    # Latent rows, which have one scale for both parts.
    "q-cache-latent": Quantised(Case(deepseek3(num_hidden_layers=2, first_k_dense_replace=2)),
                                dict(ct("dense", None, kv_cache_scheme=TENSOR8), config_groups={}), None, others=("model",), cache=True, draw=1),
    "q-int4-32": Quantised(Case(llama(hidden_size=96, intermediate_size=160)), ct("pack-quantized", spec(4, "int", "group", group_size=32)), words(4, 32, True)),
    "q-int4-zeros": Quantised(Case(qwen3(hidden_size=192, intermediate_size=320, num_attention_heads=4, head_dim=32)),
                              ct("pack-quantized", spec(4, "int", "group", group_size=64, symmetric=False)), words(4, 64, False)),
    "q-int4-row": Quantised(Case(llama(hidden_size=96, attention_bias=True, mlp_bias=True)), ct("pack-quantized", spec(4, "int", "channel")), words(4, 0, True)),
    "q-int8-group": Quantised(Case(llama(hidden_size=96, intermediate_size=160)), ct("pack-quantized", spec(8, "int", "group", group_size=32)), words(8, 32, True)),
    "q-awq": Quantised(Case(llama(hidden_size=96, num_attention_heads=6, num_key_value_heads=2, intermediate_size=160), dtype=F16),
                       dict(quant_method="awq", bits=4, group_size=32, zero_point=True, version="gemm"), awq(32)),
    "q-gptq": Quantised(Case(qwen3(hidden_size=96, intermediate_size=160, head_dim=32), dtype=F16),
                        dict(quant_method="gptq", bits=4, group_size=32, desc_act=False, sym=True, checkpoint_format="gptq"), gptq(4, 32, True, 1)),
    "q-gptq-zeros": Quantised(Case(llama(hidden_size=96, intermediate_size=160), dtype=F16),
                              dict(quant_method="gptq", bits=4, group_size=32, desc_act=False, sym=False, checkpoint_format="gptq"), gptq(4, 32, False, 1)),
    "q-gptq-8": Quantised(Case(llama(hidden_size=96, intermediate_size=160), dtype=F16),
                          dict(quant_method="gptq", bits=8, group_size=-1, desc_act=False, sym=True, checkpoint_format="gptq_v2"), gptq(8, 0, True, 0)),
    # Columns in the order in which the quantiser took them, another one for each product.
    "q-gptq-order": Quantised(Case(qwen3(hidden_size=96, intermediate_size=160, head_dim=32), dtype=F16),
                              dict(quant_method="gptq", bits=4, group_size=32, desc_act=True, sym=True, checkpoint_format="gptq"), gptq(4, 32, True, 1, True)),
    "q-gptq-3": Quantised(Case(llama(hidden_size=96, intermediate_size=160), dtype=F16),
                          dict(quant_method="gptq", bits=3, group_size=32, desc_act=False, sym=True, checkpoint_format="gptq"), gptq(3, 32, True, 1)),
    "q-gptq-2": Quantised(Case(llama(hidden_size=96, intermediate_size=160), dtype=F16),
                          dict(quant_method="gptq", bits=2, group_size=32, desc_act=True, sym=False, checkpoint_format="gptq_v2"), gptq(2, 32, False, 0, True)),
    "q-int4-order": Quantised(Case(llama(hidden_size=96, intermediate_size=160)),
                              ct("pack-quantized", spec(4, "int", "group", group_size=32, symmetric=False, actorder="group")), words(4, 32, False, True)),
    # 96 by 200 numbers have two blocks of scales.
    "q-nf4": Quantised(Case(llama(hidden_size=96, intermediate_size=200), dtype=torch.float32),
                       dict(quant_method="bitsandbytes", load_in_4bit=True, load_in_8bit=False, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True), book("nf4", True)),
    "q-bnb-int8": Quantised(Case(qwen3(intermediate_size=90)), dict(quant_method="bitsandbytes", load_in_4bit=False, load_in_8bit=True), eights),
    "q-torchao-int8": Quantised(Case(qwen3(intermediate_size=90)), ao("Int8DynamicActivationInt8WeightConfig", reduce_range=False),
                                torchao("Int8DynamicActivationInt8WeightConfig"), rows_int8),
    "q-torchao-fp8": Quantised(Case(llama(intermediate_size=90)), ao("Float8WeightOnlyConfig"), torchao("Float8WeightOnlyConfig")),
    "q-mxfp4": Quantised(Case(llama(hidden_size=96, intermediate_size=160)), quark(FP4, FP4), mxfp4("weight"), rows_mx_e2m1),
    "q-mxfp4-wide": Quantised(Case(llama(hidden_size=128, intermediate_size=384, num_attention_heads=4, num_key_value_heads=2)), quark(FP4, FP4), mxfp4("weight"), rows_mx_e2m1),
    "q-mxfp8-wide": Quantised(Case(qwen3(hidden_size=128, intermediate_size=384, num_attention_heads=4, head_dim=32)),
                              ct("mxfp8-quantized", spec(8, "float", "group", group_size=32), spec(8, "float", "group", group_size=32, dynamic=True)), mxfp8, mx_e4m3),
    "q-mxfp4-weights": Quantised(Case(qwen3(hidden_size=96, intermediate_size=160, head_dim=32)), ct("mxfp4-pack-quantized", spec(4, "float", "group", group_size=32)),
                                 mxfp4("weight_packed")),
    "q-nvfp4": Quantised(Case(qwen3(hidden_size=96, intermediate_size=160, head_dim=32)), ct("nvfp4-pack-quantized", spec(4, "float", "tensor_group", group_size=16)),
                         nvfp4("weight_packed", "weight_global_scale", True)),
    # Rows that the tool quantises too, with a number of their scales. Eleven groups of columns.
    "q-nvfp4-rows": Quantised(Case(llama(hidden_size=96, intermediate_size=176)),
                              ct("nvfp4-pack-quantized", spec(4, "float", "tensor_group", group_size=16), spec(4, "float", "tensor_group", group_size=16, dynamic="local")),
                              nvfp4("weight_packed", "weight_global_scale", True), given="input_global_scale"),
    "q-modelopt-nvfp4": Quantised(Case(llama(hidden_size=96, intermediate_size=176)), modelopt("NVFP4", ignore=["lm_head", "model.layers.1.self_attn*"]),
                                  nvfp4("weight", "weight_scale_2", False), others=("model.layers.1.self_attn",), given="input_scale"),
    "q-modelopt-fp8": Quantised(Case(qwen3(intermediate_size=90)),
                                dict(producer=dict(name="modelopt"), quantization=dict(quant_algo="FP8", kv_cache_quant_algo="FP8", exclude_modules=["lm_head"])),
                                rows_of(F8, 0, torch.float32), given_e4m3, cache=True, beside=True),
    "q-mxfp8": Quantised(Case(qwen3(hidden_size=96, intermediate_size=160, head_dim=32)),
                         ct("mxfp8-quantized", spec(8, "float", "group", group_size=32), spec(8, "float", "group", group_size=32, dynamic=True)), mxfp8, mx_e4m3),
}


def products(model): return {name: m for name, m in model.named_modules() if isinstance(m, torch.nn.Linear) and name != "lm_head"}


def is_quantised(case, name): return not any(name.startswith(prefix + ".") for prefix in case.others)


def hooked(model, case, scales):
    """The model with rows, and the cache, quantised where the scheme says so."""
    for name, m in products(model).items():
        if case.inputs and is_quantised(case, name):
            s = scales.get(f"{name}.input_scale")
            f = lambda m, a, s=s: (case.inputs(a[0].double(), s).to(a[0].dtype),) + a[1:]
            m.register_forward_pre_hook(f)
    if case.cache:
        for i, layer in enumerate(model.model.layers):
            layer.self_attn.kv = of = [scales[f"model.layers.{i}.self_attn.{x}_scale"] for x in "kv"]
            latent = getattr(layer.self_attn, "kv_a_layernorm", None)
            if latent: latent.register_forward_hook(lambda m, a, out, s=of[0]: given_e4m3(out.double(), s).to(out.dtype))
    return model


def attention(inner):
    def f(module, query, key, value, mask, **kw):
        if hasattr(module, "kv_a_layernorm") and hasattr(module, "kv"):
            # Of a latent cache the rest is quantised before keys and values are made of it.
            plain, turned = key.split([module.qk_nope_head_dim, module.qk_rope_head_dim], -1)
            key = torch.cat([plain, given_e4m3(turned.double(), module.kv[0]).to(key.dtype)], -1)
        elif hasattr(module, "kv"):
            key, value = (given_e4m3(x.double(), s).to(x.dtype) for x, s in zip((key, value), module.kv))
        return inner(module, query, key, value, mask, **kw)
    return f


def build(name):
    case, path, seed = CASES[name], HERE / name, zlib.crc32(name.encode()) + CASES[name].draw
    shutil.rmtree(path, ignore_errors=True)
    plain = path.with_name(name + ".plain")
    model = transformers.AutoModelForCausalLM.from_config(case.model.config)
    make.randomize(model, seed)
    tensors, scales, draw = {}, {}, torch.Generator().manual_seed(seed + 7)
    model.to(case.model.dtype)
    kept = {k: v for k, v in model.state_dict().items() if k in dict(model.named_parameters())}
    for product, m in products(model).items():
        if not is_quantised(case, product): continue
        stored, means = case.store(m.weight.double(), draw)
        del kept[f"{product}.weight"]
        tensors |= {f"{product}.{k}": v for k, v in stored.items()}
        scales[f"{product}.weight"] = means
        if case.inputs is given_e4m3:
            scales[f"{product}.input_scale"] = s = (0.004 + 0.01 * torch.rand((), generator=draw)).to(BF16)
            tensors[f"{product}.input_scale"] = s.reshape(1)
            scales[f"{product}.input_scale"] = s.double()
    if case.given:
        for product in scales: tensors[product.replace(".weight", f".{case.given}")] = torch.tensor([3.5])
    if case.cache:
        for i in range(case.model.config.num_hidden_layers):
            of = "{0}_proj.{0}" if case.beside else "{0}"
            for x in "kv":
                s = (0.005 + 0.02 * torch.rand((), generator=draw)).to(BF16)
                tensors[f"model.layers.{i}.self_attn.{of.format(x)}_scale"] = s.reshape(1)
                scales[f"model.layers.{i}.self_attn.{x}_scale"] = s.double()
    # What make.py loads: a plain model in float64 for the reference, and one of the case's type for
    # PyTorch's own error.
    def load(_, of, kind):
        got = transformers.AutoModelForCausalLM.from_pretrained(plain, dtype=of.dtype, attn_implementation=kind).eval()
        if kind == "float64":
            got.double()
        for product, m in products(got).items():
            if f"{product}.weight" in scales: m.weight.data = scales[f"{product}.weight"].to(m.weight.dtype)
        return hooked(got, case, scales)
    model.save_pretrained(plain)
    path.mkdir()
    safetensors.torch.save_file({k: v.contiguous() for k, v in (kept | tensors).items()}, path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((plain / "config.json").read_text())
    write_json(path / "config.json", config if case.beside else config | {"quantization_config": case.config})
    if case.beside: write_json(path / "hf_quant_config.json", case.config)
    make.load = load
    facts, reference = make.golden(path, case.model, seed)
    shutil.rmtree(plain)
    print(f"{name}: logits std {reference[0]['prefill'].std().item():.2f}, torch rms error {facts['torch_error']['rms'][0]:.2e}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    transformers.AttentionInterface.register("float64", attention(make.attention64))
    transformers.AttentionMaskInterface.register("float64", make.eager_mask)
    for family in (transformers.models.llama.modeling_llama, transformers.models.qwen3.modeling_qwen3, transformers.models.deepseek_v3.modeling_deepseek_v3):
        family.eager_attention_forward = attention(family.eager_attention_forward)
    for name in sys.argv[1:] or CASES: build(name)
