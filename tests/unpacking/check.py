"""Whether atomc takes codes out of checkpoints as the tools do that write and read them, bit for bit.

    pip install torch==2.14.0 safetensors numpy compressed-tensors==0.20.1 transformers==5.24.0 amd-quark==0.13 nvidia-modelopt==0.47.0 auto-round==0.16.1 gptqmodel==7.7.0 bitsandbytes==0.50.2 torchao==0.18.0 ninja
    python tests/unpacking/check.py make           writes the fixtures beside this file, which `cargo test --test unpacking` reads
    python tests/unpacking/check.py folder DIR...  every quantised product of these checkpoints: what the weight plan makes of it, by
                                                   the interpreter and by the loader, against the tool's own dequantised weight

AWQ, and GPTQ of noise, are compared with the formulas of their formats, which gptqmodel 7.7.0 and vLLM agree with. No GPU.
"""
import json, os, subprocess, sys, tempfile

import torch
from safetensors.torch import load_file, save_file

HERE = os.path.dirname(os.path.abspath(__file__))
NAMES = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32", torch.float8_e4m3fn: "f8e4m3",
         torch.int32: "i32", torch.int8: "i8", torch.uint8: "u8", torch.int64: "i32"}


class Graph:
    """The text of a graph of constants. Values are (name, type, shape)."""

    def __init__(self, tensors):
        self.tensors, self.lines, self.results, self.count = tensors, [], [], 0

    def push(self, text, dtype, shape, layout=""):
        name, self.count = f"%{self.count}", self.count + 1
        self.lines.append(f"  {name} = {text} : {dtype}{list(shape)}{layout}")
        return name, dtype, list(shape)

    def weight(self, name, dtype=None):
        tensor = self.tensors[name]
        return self.push(f'weight {{name = "{name}"}}', dtype or NAMES[tensor.dtype], list(tensor.shape) or [1])

    def view(self, v, *shape):
        return v if v[2] == list(shape) else self.push(f"view {v[0]} {{shape = {list(shape)}}}", v[1], shape)

    def transpose(self, v):
        return self.push(f"transpose {v[0]}", v[1], v[2][::-1])

    def unpack(self, v, to, axis, length, order="plain"):
        shape = list(v[2])
        shape[axis] = length
        return self.push(f"unpack {v[0]} {{from = {v[1]}, to = {to}, axis = {axis}, len = {length}, order = {order}}}", to, shape)

    def sort(self, v, by, bits, axis):
        return self.push(f"sort {v[0]}, {by[0]} {{bits = {bits}, axis = {axis}}}", v[1], v[2])

    def shift(self, v, by, to):
        return self.push(f"shift {v[0]} {{by = {by}, to = {to}}}", to, v[2])

    def expect(self, v, told, fact):
        return self.push(f"expect {v[0]}, {told[0]} {{is = {fact}}}", v[1], v[2])

    def times(self, v, by, over):
        return self.push(f"times {v[0]}, {by[0]} {{over = {str(over).lower()}}}", "f32", v[2])

    def scale(self, v, by):
        return self.push(f"factor {v[0]} {{by = {by}}}", "f32", v[2])

    def codebook(self, p, kind, shape):
        names = ["weight", "weight.absmax", "weight.quant_map", f"weight.quant_state.bitsandbytes__{kind}"]
        nested = f"{p}.weight.nested_absmax" in self.tensors
        if nested: names += ["weight.nested_absmax", "weight.nested_quant_map"]
        texts = lambda name: [1 << 16] if "quant_state" in name else list(self.tensors[f"{p}.{name}"].shape)
        all = [self.push(f'weight {{name = "{p}.{name}"}}', NAMES[self.tensors[f"{p}.{name}"].dtype], texts(name)) for name in names]
        made = self.push(f"{'nested_' if nested else ''}codebook {', '.join(v[0] for v in all)} {{shape = {list(shape)}, to = f32}}", "f32", shape)
        self.results.append(f"{p}.floats = {made[0]}")

    def give(self, name, codes, scale, zero=None):
        codes = self.push(f"pack {codes[0]}", codes[1], codes[2], "@panels")
        for part, v in (("codes", codes), ("scale", scale), ("zero", zero)):
            if v: self.results.append(f"{name}.{part} = {v[0]}")

    def text(self):
        return "\n".join(["graph @weights() {", *self.lines, "  return " + ", ".join(self.results), "}"]) + "\n"


# ---- formats: the plan of a product, the sides of its blocks, and what others make of it -----------------------------

def compressed(graph, t, p, q):
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.compressors import BaseCompressor
    group, = q["config_groups"].values()
    w, scale = group["weights"], t[f"{p}.weight_scale"]
    names = [k for k in t if k.rsplit(".", 1)[0] == p and "weight" in k.rsplit(".", 1)[1]]
    state = {k.rsplit(".", 1)[1]: t[k] for k in names}
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**w), format=group["format"])
    compressor = BaseCompressor.get_value_from_registry(group["format"])
    if group["format"] == "nvfp4-pack-quantized": return two_levels(graph, t, p, scheme)
    raised = {k: v.float() if v.is_floating_point() and k == "weight_scale" and v.dtype != torch.float8_e8m0fnu else v for k, v in state.items()}
    want = compressor.decompress(raised, scheme)["weight"].float()
    n, k = want.shape
    e8m0 = scale.dtype == torch.uint8
    s = graph.weight(f"{p}.weight_scale", "e8m0" if e8m0 else None)
    zero = None
    if group["format"] == "pack-quantized":
        bits = w["num_bits"]
        to, shift = ("u4", "i4") if bits == 4 else ("u8", "i8")
        packed = graph.weight(f"{p}.weight_packed")
        if w.get("actorder") == "group":
            told = graph.weight(f"{p}.weight_g_idx")
            packed, want = graph.sort(packed, told, bits, 1), want[:, t[f"{p}.weight_g_idx"].argsort(stable=True)].contiguous()
        codes = graph.unpack(packed, to, 1, k)
        codes = graph.expect(codes, graph.weight(f"{p}.weight_shape"), f"are({n}, {k})")
        if w["symmetric"]: codes = graph.shift(codes, -(1 << (bits - 1)), shift)
        else:
            zero = graph.unpack(graph.weight(f"{p}.weight_zero_point"), to, 0, n)
            if bits == 4: zero = graph.shift(zero, 0, "u8")
    else: codes = graph.weight(f"{p}.weight")
    cols = w["group_size"] or k
    rows = n if scale.numel() == 1 else 1
    graph.give(p, codes, graph.view(s, -(-n // rows), -(-k // cols)), zero)
    return [rows, cols], want


def two_levels(graph, t, p, scheme):
    """As the compressor of NVFP4 does it, which has no other type than bf16 for what it makes."""
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    from compressed_tensors.quantization.lifecycle.forward import dequantize
    words, scale = t[f"{p}.weight_packed"], t[f"{p}.weight_scale"]
    n, k = words.shape[0], 2 * words.shape[1]
    codes = unpack_fp4_from_uint8(words, n, k, dtype=torch.float32)
    want = dequantize(codes, scale.float(), args=scheme.weights, dtype=torch.float32, global_scale=t[f"{p}.weight_global_scale"])
    codes = graph.unpack(graph.weight(f"{p}.weight_packed"), "f4e2m1", 1, k)
    graph.give(p, codes, graph.times(graph.weight(f"{p}.weight_scale"), graph.weight(f"{p}.weight_global_scale"), True))
    return [1, 16], want


def modelopt(graph, t, p, q):
    """By the tool's own tensors."""
    from modelopt.torch.quantization.qtensor import FP8QTensor, MXFP8QTensor, NVFP4QTensor
    weight, scale, number = t[f"{p}.weight"], t[f"{p}.weight_scale"], t.get(f"{p}.weight_scale_2")
    n, k = weight.shape
    if number is not None:
        of = NVFP4QTensor(torch.Size([n, 2 * k]), torch.float32, weight)
        want = of.dequantize(torch.float32, scale=scale, double_scale=number, block_sizes={-1: 16})
        codes = graph.unpack(graph.weight(f"{p}.weight"), "f4e2m1", 1, 2 * k)
        graph.give(p, codes, graph.times(graph.weight(f"{p}.weight_scale"), graph.weight(f"{p}.weight_scale_2"), False))
        return [1, 16], want
    if scale.dtype == torch.uint8:
        graph.give(p, graph.weight(f"{p}.weight"), graph.weight(f"{p}.weight_scale", "e8m0"))
        return [1, 32], MXFP8QTensor(weight.shape, torch.float32, weight).dequantize(torch.float32, scale=scale)
    graph.give(p, graph.weight(f"{p}.weight"), graph.view(graph.weight(f"{p}.weight_scale"), 1, 1))
    return [n, k], FP8QTensor(weight.shape, torch.float32, weight).dequantize(torch.float32, scale=scale)


def words(x, bits, dim):
    x = x.long().movedim(dim, -1)
    if bits == 3:
        x = torch.stack([x >> i & 1 for i in range(32)], -1).flatten(-2).unflatten(-1, (-1, 3))
        return (x << torch.arange(3)).sum(-1).movedim(-1, dim)
    return ((x.unsqueeze(-1) >> torch.arange(0, 32, bits)) & ((1 << bits) - 1)).flatten(-2).movedim(-1, dim)


def spread(x, size, n): return x.repeat_interleave(size, 0)[:n]


def gptq(graph, t, p, q):
    bits, v2 = q["bits"], q.get("checkpoint_format") == "gptq_v2"
    n, k = t[f"{p}.qweight"].shape[1], t[f"{p}.qweight"].shape[0] * 32 // bits
    size = k if q["group_size"] == -1 else q["group_size"]
    stored = words(t[f"{p}.qzeros"], bits, 1)[:, :n] + (0 if v2 else 1)
    codes, group = words(t[f"{p}.qweight"], bits, 0), t.get(f"{p}.g_idx", torch.arange(k) // size).long()
    want = ((codes - stored[group]) * t[f"{p}.scales"].float()[group]).T.contiguous()
    unsigned, signed, middle = ("u8", "i8", 128) if bits == 8 else ("u4", "i4", 8)
    order, packed = {2: "twos", 3: "threes"}.get(bits, "plain"), graph.weight(f"{p}.qweight")
    if q.get("desc_act"):
        packed, want = graph.sort(packed, graph.weight(f"{p}.g_idx"), bits, 0), want[:, group.argsort(stable=True)].contiguous()
    c = graph.transpose(graph.unpack(packed, unsigned, 0, k, order))
    if f"{p}.g_idx" in t: c = graph.expect(c, graph.weight(f"{p}.g_idx"), f"{'members' if q.get('desc_act') else 'groups'}({size})")
    z = graph.unpack(graph.weight(f"{p}.qzeros"), unsigned, 1, n, order)
    if q["sym"] and bits >= 4: c, zero = graph.shift(graph.expect(c, z, f"all({middle - (0 if v2 else 1)})"), -middle, signed), None
    else: zero = graph.transpose(graph.shift(z, 0 if v2 else 1, "u8"))
    graph.give(p, c, graph.transpose(graph.weight(f"{p}.scales")), zero)
    return [1, size], want


def auto_round(graph, t, p, q):
    """Stored as GPTQ has it, and read by the tool's own layer, which makes float16 of it."""
    from auto_round_extension.torch.qlinear_torch_zp import QuantLinear
    block, want = gptq(graph, t, p, q)
    n, k = want.shape
    layer = QuantLinear(q["bits"], q["group_size"], k, n, False)
    layer.qweight, layer.qzeros, layer.scales = (t[f"{p}.{part}"] for part in ("qweight", "qzeros", "scales"))
    made = layer(torch.eye(k, dtype=torch.float16)).T
    if not torch.equal(made, want.half()): raise SystemExit(f"{p}: the tool reads another weight")
    return block, want


def awq(graph, t, p, q):
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7]).argsort()
    take = lambda x: words(x, 4, 1).unflatten(1, (-1, 8))[..., order].flatten(1)
    codes, zeros, size = take(t[f"{p}.qweight"]), take(t[f"{p}.qzeros"]), q["group_size"]
    k, n = codes.shape
    want = ((codes - spread(zeros, size, k)) * spread(t[f"{p}.scales"].float(), size, k)).T.contiguous()
    c = graph.transpose(graph.unpack(graph.weight(f"{p}.qweight"), "u4", 1, n, "awq"))
    z = graph.transpose(graph.shift(graph.unpack(graph.weight(f"{p}.qzeros"), "u4", 1, n, "awq"), 0, "u8"))
    graph.give(p, c, graph.transpose(graph.weight(f"{p}.scales")), z)
    return [1, size], want


def fp8_block(graph, t, p, q):
    """As `Fp8Dequantize` of transformers has it, on whole blocks."""
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize
    weight, scale, block = t[f"{p}.weight"], t[f"{p}.weight_scale_inv"], q["weight_block_size"]
    n, k = weight.shape
    padded = torch.zeros(scale.shape[0] * block[0], scale.shape[1] * block[1])
    padded[:n, :k] = weight.float()
    padded = padded.to(torch.float8_e4m3fn)
    made = Fp8Dequantize(None)._dequantize_one(padded, scale, torch.float32)
    graph.give(p, graph.weight(f"{p}.weight"), graph.weight(f"{p}.weight_scale_inv"))
    return block, made[:n, :k].contiguous()


def quark(graph, t, p, q):
    """Read by Quark's own `unpack` and `dequantize`, the scales as its StaticRealQuantizer has them."""
    import quark.torch.kernel as kernel
    from quark.torch.utils.pack import create_pack_method
    weight, scale = t[f"{p}.weight"], t[f"{p}.weight_scale"]
    c = q["global_quant_config"]["weight"]
    c = c[0] if isinstance(c, list) else c
    method = create_pack_method(qscheme=c["qscheme"], dtype=c["dtype"], mx_element_dtype=c["mx_element_dtype"])
    codes = method.unpack(weight, True, origin_packed_axis_size=scale.shape[-1])
    exact = 2 ** (scale.to(torch.int16) - 127).float() if scale.dtype == torch.uint8 else scale
    want = kernel.dequantize(c["dtype"], codes, exact, None, c["ch_axis"], c["group_size"], c["qscheme"]).float()
    n, k = want.shape
    if weight.dtype == torch.uint8:
        graph.give(p, graph.unpack(graph.weight(f"{p}.weight"), "f4e2m1", 1, k), graph.weight(f"{p}.weight_scale", "e8m0"))
        return [1, 32], want
    one = scale.numel() == 1
    graph.give(p, graph.weight(f"{p}.weight"), graph.view(graph.weight(f"{p}.weight_scale"), 1 if one else n, 1))
    return [n if one else 1, k], want


def released(graph, t, p, q):
    """DeepSeek-V4, by torch's own types: e4m3 in blocks, whose scales become f32, or pairs of e2m1 in bytes with a sign."""
    weight, scale = t[f"{p}.weight"], t[f"{p}.scale"]
    assert scale.dtype == torch.float8_e8m0fnu
    if weight.dtype == torch.float8_e4m3fn:
        (n, k), block = weight.shape, q["weight_block_size"]
        graph.give(p, graph.weight(f"{p}.weight"), graph.weight(f"{p}.scale", "f32"))
    else:
        (n, half), block = weight.shape, [1, 32]
        k, low, high = 2 * half, weight.view(torch.uint8) & 15, weight.view(torch.uint8) >> 4
        sizes = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
        weight = torch.cat([sizes, -sizes])[torch.stack([low, high], -1).flatten(1).long()]
        graph.give(p, graph.unpack(graph.weight(f"{p}.weight", "u8"), "f4e2m1", 1, k), graph.weight(f"{p}.scale", "e8m0"))
    wide = scale.float().repeat_interleave(block[0], 0)[:n].repeat_interleave(block[1], 1)[:, :k]
    return block, (weight.float() * wide).contiguous()


def bitsandbytes(graph, t, p, q):
    """By the tool's own functions: codes of a book in float32, and integers times the number of their row over 127."""
    import bitsandbytes.functional as bnb
    if f"{p}.SCB" in t:
        codes, row = t[f"{p}.weight"], t[f"{p}.SCB"]
        scale = row * torch.tensor(1 / 127, dtype=torch.float32)
        made, want = bnb.int8_vectorwise_dequant(codes, row), codes.float() * scale.unsqueeze(1)
        if (made - want).abs().max() > made.abs().max() * 2**-22: raise SystemExit(f"{p}: the tool reads another weight")
        c = graph.expect(graph.weight(f"{p}.weight"), graph.weight(f"{p}.weight_format"), "all(0)")
        graph.give(p, c, graph.scale(graph.view(graph.weight(f"{p}.SCB"), len(row), 1), 1 / 127))
        return [1, codes.shape[1]], want
    state = {k[len(p) + len(".weight."):]: v for k, v in t.items() if k.startswith(f"{p}.weight.")}
    state = bnb.QuantState.from_dict(state, torch.device("cpu"))
    state.dtype = torch.float32
    want = bnb.dequantize_4bit(t[f"{p}.weight"], state)
    graph.codebook(p, state.quant_type, list(want.shape))
    return [0, 0], want


def torchao(graph, t, p, q):
    """As `dequantize` of its tensors has it, in float32."""
    codes, scale = t[f"{p}._weight_qdata"], t[f"{p}._weight_scale"]
    n, k = codes.shape
    c = graph.weight(f"{p}._weight_qdata")
    if f"{p}._weight_zero_point" in t: c = graph.expect(c, graph.weight(f"{p}._weight_zero_point"), "all(0)")
    graph.give(p, c, graph.weight(f"{p}._weight_scale"))
    return [n // scale.shape[0], k], codes.float() * scale


def experts(graph, t, p, q):
    """GPT-OSS: a stack of weights, of which the loader makes one buffer; here expert by expert."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors
    blocks, scales = t[f"{p}_blocks"], t[f"{p}_scales"]
    e, n, groups, half = blocks.shape
    want = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    want = want.transpose(1, 2) if want.shape[1] != n else want
    codes = graph.unpack(graph.view(graph.weight(f"{p}_blocks"), e, n, groups * half), "f4e2m1", 2, groups * half * 2)
    graph.results += [f"{p}.codes = {codes[0]}", f"{p}.scale = {graph.weight(f'{p}_scales', 'e8m0')[0]}"]
    return [1, 2 * half], want.contiguous()


def products(t, q):
    """Prefixes of quantised products, and their format."""
    method = q["quant_method"]
    if method == "mxfp4": return [(k[:-len("_blocks")], experts) for k in t if k.endswith("_blocks")]
    if method == "fp8" and any(k.endswith(".scale") for k in t): return [(k[:-len(".scale")], released) for k in sorted(t) if k.endswith(".scale")]
    end, make = {"compressed-tensors": ("weight_scale", compressed), "gptq": ("qweight", gptq), "awq": ("qweight", awq), "auto-round": ("qweight", auto_round),
                 "fp8": ("weight_scale_inv", fp8_block), "quark": ("weight_scale", quark),
                 "bitsandbytes": ("weight", bitsandbytes), "torchao": ("_weight_qdata", torchao), "modelopt": ("weight_scale", modelopt)}[method]
    if method == "bitsandbytes": return [(k[:-len(".weight")], make) for k in sorted(t) if k.endswith(".weight") and t[k].dtype in (torch.uint8, torch.int8)]
    return [(k.rsplit(".", 1)[0], make) for k in sorted(t) if k.endswith("." + end)]


def dump(graph, folder):
    with tempfile.TemporaryDirectory() as d:
        open(f"{d}/graph.txt", "w").write(graph.text())
        env = dict(os.environ, UNPACK=f"{d}/graph.txt {os.path.abspath(folder)} {d}/out.safetensors")
        run = ["cargo", "test", "-q", "-p", "atomc-tests", "--test", "unpacking", "--", "--ignored", "--exact", "dump"]
        done = subprocess.run(run, env=env, cwd=f"{HERE}/../..", capture_output=True, text=True)
        if done.returncode: raise SystemExit(done.stdout + done.stderr)
        return load_file(f"{d}/out.safetensors")


def folder(path):
    t, q = load_file(f"{path}/model.safetensors"), json.load(open(f"{path}/config.json"))["quantization_config"]
    graph, want = Graph(t), {}
    for p, make in products(t, q): want[p] = make(graph, t, p, q)
    made = dump(graph, path)
    for p, (block, w) in want.items():
        if f"{p}.floats" in made:
            if not torch.equal(made[f"{p}.floats"], w): raise SystemExit(f"{path}: {p} differs")
            continue
        codes, scale, zero = made[f"{p}.codes"], made[f"{p}.scale"], made.get(f"{p}.zero")
        over = lambda x: x.repeat_interleave(block[0], -2)[..., :w.shape[-2], :].repeat_interleave(block[1], -1)[..., :w.shape[-1]]
        have = (codes - over(zero) if zero is not None else codes) * over(scale)
        if not torch.equal(have, w): raise SystemExit(f"{path}: {p} differs in {(have != w).sum()} of {w.numel()} elements")
    if not want: raise SystemExit(f"{path}: no quantised product")
    print(f"{os.path.basename(os.path.normpath(path))}: {len(want)} products, {sum(w.numel() for _, w in want.values())} elements equal")


# ---- fixtures ---------------------------------------------------------------------------------------------------------

def fixture(name, t, q):
    t = {k: v.contiguous() for k, v in sorted(t.items())}
    graph, want = Graph(t), {}
    for p, make in products(t, q):
        block, w = make(graph, t, p, q)
        want[p], want[f"{p}.block"] = w.contiguous(), torch.tensor(block, dtype=torch.int32)
    d = f"{HERE}/{name}"
    os.makedirs(d, exist_ok=True)
    save_file(t, f"{d}/model.safetensors")
    save_file(want, f"{d}/want.safetensors")
    open(f"{d}/graph.txt", "w").write(graph.text())
    print(name, sum(os.path.getsize(f"{d}/{f}") for f in os.listdir(d)), "bytes")


def made_by_compressed(name, shape, format, **args):
    """Packed by compressed-tensors itself."""
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams
    from compressed_tensors.compressors import BaseCompressor
    n, k = shape
    w = torch.randn(n, k, generator=torch.Generator().manual_seed(n * k))
    weights = QuantizationArgs(**args)
    rows = w.reshape(n, -1, args.get("group_size") or k) if args["strategy"] != "tensor" else w.reshape(1, 1, -1)
    scale, zero = calculate_qparams(rows.amin(-1), rows.amax(-1), weights)
    scale = scale.reshape(n, -1) if args["strategy"] != "tensor" else scale.reshape(1)
    state = {"weight": w, "weight_scale": scale.to(torch.bfloat16).float()}
    if not args.get("symmetric", True): state["weight_zero_point"] = zero.reshape(n, -1).to(torch.int8)
    scheme = QuantizationScheme(targets=["Linear"], weights=weights, format=format)
    packed = BaseCompressor.get_value_from_registry(format).compress(dict(state), scheme)
    t = {f"p.{k}": v.to(torch.bfloat16) if k == "weight_scale" and v.is_floating_point() else v for k, v in packed.items() if v is not None}
    group = dict(weights=args | dict(group_size=args.get("group_size")), format=format)
    group["weights"].setdefault("symmetric", True)
    fixture(name, t, dict(quant_method="compressed-tensors", config_groups=dict(group_0=group)))


def made_by_two_levels(name, shape):
    """NVFP4, packed by compressed-tensors itself."""
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
    from compressed_tensors.compressors import BaseCompressor
    args = dict(num_bits=4, type="float", strategy="tensor_group", group_size=16, symmetric=True, dynamic=False)
    n, k = shape
    w, weights = torch.randn(n, k, generator=torch.Generator().manual_seed(n * k)), QuantizationArgs(**args)
    number = generate_gparam(w.amin(), w.amax())
    rows = w.reshape(n, -1, 16)
    scale, _ = calculate_qparams(rows.amin(-1), rows.amax(-1), weights, global_scale=number)
    scheme = QuantizationScheme(targets=["Linear"], weights=weights, format="nvfp4-pack-quantized")
    state = {"weight": w, "weight_scale": scale.reshape(n, -1), "weight_global_scale": number.reshape(1)}
    packed = BaseCompressor.get_value_from_registry("nvfp4-pack-quantized").compress(state, scheme)
    group = dict(weights=args, format="nvfp4-pack-quantized")
    fixture(name, {f"p.{k}": v for k, v in packed.items()}, dict(quant_method="compressed-tensors", config_groups=dict(group_0=group)))


def made_by_auto_round(name, shape):
    """Groups with the scales that the tool chooses, half of which are negative, packed by its own layer."""
    from auto_round.data_type.int import quant_tensor_rtn_sym
    from auto_round_extension.torch.qlinear_torch_zp import QuantLinear
    n, k = shape
    q = dict(quant_method="auto-round", bits=4, sym=True, group_size=32)
    linear = torch.nn.Linear(k, n, bias=False)
    linear.weight.data = torch.randn(n, k, generator=torch.Generator().manual_seed(n * k)) * 0.02
    _, scale, zero = quant_tensor_rtn_sym(linear.weight.data, bits=q["bits"], group_size=q["group_size"])
    layer = QuantLinear(q["bits"], q["group_size"], k, n, False)
    layer.pack_248_bits(linear, scale.reshape(n, -1).float(), int(torch.as_tensor(zero).flatten()[0]), device="cpu")
    t = {f"p.{part}": getattr(layer, part) for part in ("qweight", "qzeros", "scales")}
    if not (t["p.scales"] < 0).any(): raise SystemExit("no scale has a sign")
    fixture(name, t, q)


def made_by_modelopt(name, shape):
    """A product in each of the tool's schemes, by its own tensors."""
    from modelopt.torch.quantization.qtensor import FP8QTensor, MXFP8QTensor, NVFP4QTensor
    w = torch.randn(shape, generator=torch.Generator().manual_seed(17))
    packed, scale, number = NVFP4QTensor.quantize(w.clone(), 16)
    t = {"fours.weight": packed._quantized_data, "fours.weight_scale": scale, "fours.weight_scale_2": number.reshape(())}
    eights, scale = FP8QTensor.quantize(w.clone())
    t |= {"eights.weight": eights._quantized_data, "eights.weight_scale": scale.reshape(())}
    mx, scale = MXFP8QTensor.quantize(w.clone())
    t |= {"mx.weight": mx._quantized_data, "mx.weight_scale": scale}
    fixture(name, t, dict(quant_method="modelopt"))


def made_by_gptqmodel(name, bits, form="gptq", sym=False, desc_act=False):
    """Packed, and dequantised in float16, by the tool's own layer."""
    from types import SimpleNamespace
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear
    from gptqmodel.utils.model import convert_gptq_v2_to_v1_format_module
    n, k, size = 64, 96, 32
    random = torch.Generator().manual_seed(bits)
    linear = torch.nn.Linear(k, n, bias=False)
    linear.weight.data = torch.randn(n, k, generator=random) * 0.02
    groups = (torch.randperm(k, generator=random) if desc_act else torch.arange(k)) // size
    layer = TorchLinear(bits=bits, group_size=size, sym=sym, desc_act=desc_act, in_features=k, out_features=n)
    scale = (0.08 / 2**bits * (torch.rand(n, k // size, generator=random) + 0.5)).half().float()
    zero = torch.randint(1, 2**bits, scale.shape, generator=random) if not sym else torch.full(scale.shape, 2**(bits - 1))
    layer.pack_original(linear, scale, zero.float(), groups.int())
    t = {f"p.{part}": getattr(layer, part).clone() for part in ("qweight", "qzeros", "scales", "g_idx")}
    layer.post_init()
    made = layer.dequantize_weight().T
    if form == "gptq":
        convert_gptq_v2_to_v1_format_module(layer, SimpleNamespace(bits=bits, pack_dtype=torch.int32))
        t["p.qzeros"] = layer.qzeros.clone()
    q = dict(quant_method="gptq", bits=bits, sym=sym, group_size=size, checkpoint_format=form, desc_act=desc_act)
    _, want = gptq(Graph(t), t, "p", q)
    if desc_act: made = made[:, groups.argsort(stable=True)]
    if not torch.equal(made, want.half()): raise SystemExit(f"{name}: the tool reads another weight")
    fixture(name, t, q)


def made_by_bitsandbytes(name, shape):
    """A product in each form, made by the tool's own functions. Rows end inside a block."""
    import bitsandbytes.functional as bnb
    t = {}
    for kind, nested in (("nf4", False), ("nf4", True), ("fp4", False)):
        w = torch.randn(shape, generator=torch.Generator().manual_seed(len(t))) * 0.02
        packed, state = bnb.quantize_4bit(w, quant_type=kind, compress_statistics=nested)
        p = "nested" if nested else kind
        t |= {f"{p}.weight": packed} | {f"{p}.weight.{k}": v for k, v in state.as_dict(packed=True).items()}
    codes, rows, _ = bnb.int8_vectorwise_quant(torch.randn(shape, generator=torch.Generator().manual_seed(4)).half())
    t |= {"eights.weight": codes, "eights.SCB": rows, "eights.weight_format": torch.tensor(0, dtype=torch.uint8)}
    fixture(name, t, dict(quant_method="bitsandbytes"))


def made_by_torchao(name, shape):
    from torchao.quantization import Float8WeightOnlyConfig, Int8WeightOnlyConfig, PerTensor, quantize_
    t = {}
    for p, config in dict(rows=Float8WeightOnlyConfig(), tensor=Float8WeightOnlyConfig(granularity=PerTensor()), eights=Int8WeightOnlyConfig()).items():
        linear = torch.nn.Linear(shape[1], shape[0], bias=False).bfloat16()
        linear.weight.data = torch.randn(shape, generator=torch.Generator().manual_seed(5)).bfloat16()
        quantize_(linear, config)
        parts = {part: getattr(linear.weight, part, None) for part in ("qdata", "scale", "zero_point")}
        t |= {f"{p}._weight_{part}": v.clone() for part, v in parts.items() if v is not None}
        made, want = linear.weight.dequantize().float(), parts["qdata"].float() * parts["scale"]
        if not torch.equal(made, want.bfloat16().float()): raise SystemExit(f"{p}: the tool reads another weight")
    fixture(name, t, dict(quant_method="torchao"))


# Quantised while loading: the shape of a weight, the codes, the scales, the sides of a block, and
# what compressed-tensors calls that.
ENCODED = {
    "fp8": ((37, 50), "f8e4m3", "f32", [1, 50], dict(num_bits=8, type="float", strategy="channel")),
    "fp8_block": ((140, 150), "f8e4m3", "f32", [128, 128], dict(num_bits=8, type="float", strategy="block", block_structure=[128, 128])),
    "int8": ((37, 50), "i8", "f32", [1, 50], dict(num_bits=8, type="int", strategy="channel")),
    "int4_g32": ((21, 96), "i4", "bf16", [1, 32], dict(num_bits=4, type="int", strategy="group", group_size=32)),
    "int4_g128": ((21, 256), "i4", "bf16", [1, 128], dict(num_bits=4, type="int", strategy="group", group_size=128)),
    "mxfp4": ((21, 96), "f4e2m1", "e8m0", [1, 32], dict(num_bits=4, type="float", strategy="group", group_size=32, scale_dtype=torch.uint8)),
}


def encoded(name):
    """Weights of floats, some rows of them large, small or zero, and what compressed-tensors makes of them in float32."""
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.utils import calculate_qparams
    from compressed_tensors.quantization.utils.helpers import calculate_range
    t, want = {}, {}
    for p, ((n, k), _, scales, (down, along), args) in ENCODED.items():
        w = torch.randn(n, k, generator=torch.Generator().manual_seed(n * k)) * 0.02
        w[3] *= 1000
        w[4] *= 1e-3
        # All of a row that is zero, where the tool has a scale for that.
        if scales != "e8m0": w[5] = 0
        t[f"{p}.weight"] = w.to(torch.bfloat16)
        w, args = t[f"{p}.weight"].float(), QuantizationArgs(**args)
        blocks = torch.nn.functional.pad(w, (0, -k % along, 0, -n % down)).unflatten(1, (-1, along)).unflatten(0, (-1, down))
        low, high = blocks.amin((1, 3)), blocks.amax((1, 3))
        scale, _ = calculate_qparams(low, high, args)
        scale = scale.to(torch.bfloat16).float() if scales == "bf16" else scale.float()
        wide = scale.repeat_interleave(down, 0)[:n].repeat_interleave(along, 1)[:, :k]
        least, most = calculate_range(args, w.device)
        codes = (w / wide).clamp(least, most)
        if args.type == "int": codes = codes.round()
        elif args.num_bits == 8: codes = codes.to(torch.float8_e4m3fn).float()
        else:
            from compressed_tensors.quantization.quant_args import FP4_E2M1_DATA
            codes = FP4_E2M1_DATA.cast_to_fp4(codes)
        want[p], want[f"{p}.block"] = (codes * wide).contiguous(), torch.tensor([down, along], dtype=torch.int32)
    graph = Graph(t)
    for p, ((n, k), codes, scales, block, _) in ENCODED.items():
        w, half = graph.weight(f"{p}.weight"), codes in ("i4", "f4e2m1")
        make = lambda made, dtype, shape: graph.push(
            f"encode {w[0]} {{codes = {codes}, scales = {scales}, block = {block}, made = {made}}}", dtype, shape)
        made = make("codes", "u8" if half else codes, [n, k // 2 if half else k])
        made = graph.unpack(made, codes, 1, k) if half else made
        graph.give(p, made, make("scales", scales, [-(-n // block[0]), -(-k // block[1])]))
    d = f"{HERE}/{name}"
    os.makedirs(d, exist_ok=True)
    save_file(t, f"{d}/model.safetensors")
    save_file(want, f"{d}/want.safetensors")
    open(f"{d}/graph.txt", "w").write(graph.text())
    print(name, sum(os.path.getsize(f"{d}/{f}") for f in os.listdir(d)), "bytes")


def noise(shape, seed): return torch.randint(-2**31, 2**31, shape, generator=torch.Generator().manual_seed(seed)).to(torch.int32)


def scales(shape, dtype): return (torch.rand(shape, generator=torch.Generator().manual_seed(7)) + 0.5).to(dtype)


def make():
    made_by_compressed("ct-int4", (21, 96), "pack-quantized", num_bits=4, type="int", strategy="group", group_size=32)
    made_by_compressed("ct-int4-asym", (21, 96), "pack-quantized", num_bits=4, type="int", strategy="group", group_size=32, symmetric=False)
    made_by_compressed("ct-int8", (21, 96), "pack-quantized", num_bits=8, type="int", strategy="channel")
    made_by_compressed("ct-w8a8", (21, 50), "int-quantized", num_bits=8, type="int", strategy="channel")
    made_by_compressed("ct-fp8", (21, 50), "float-quantized", num_bits=8, type="float", strategy="tensor")
    encoded("encoded")
    made_by_two_levels("ct-nvfp4", (21, 112))
    made_by_modelopt("modelopt", (21, 96))
    made_by_auto_round("auto-round", (32, 96))
    k, n = 96, 40
    order = torch.arange(k, dtype=torch.int32) // 32
    for name, bits, sym, form in (("gptq-sym", 4, True, "gptq"), ("gptq-v2", 4, False, "gptq_v2"), ("gptq-asym", 4, False, "gptq"), ("gptq-8", 8, True, "gptq")):
        word = {4: 0x77777777, 8: 0x7f7f7f7f}[bits]
        zeros = torch.full((k // 32, n * bits // 32), word, dtype=torch.int32) if sym else noise((k // 32, n * bits // 32), 3)
        # v1 has no zero point of 16.
        if not sym and form == "gptq": zeros &= 0x77777777
        t = {"p.qweight": noise((k * bits // 32, n), 1), "p.qzeros": zeros, "p.scales": scales((k // 32, n), torch.float16), "p.g_idx": order}
        fixture(name, t, dict(quant_method="gptq", bits=bits, sym=sym, group_size=32, checkpoint_format=form))
    made_by_bitsandbytes("bitsandbytes", (21, 1000))
    made_by_torchao("torchao", (21, 96))
    made_by_gptqmodel("gptq-2", 2)
    made_by_gptqmodel("gptq-3", 3, sym=True)
    made_by_gptqmodel("gptq-order", 4, sym=True, desc_act=True)
    made_by_gptqmodel("gptq-order-3", 3, form="gptq_v2", desc_act=True)
    made_by_gptqmodel("gptq-order-8", 8, form="gptq_v2", desc_act=True)
    t = {"p.qweight": noise((k, n // 8), 1), "p.qzeros": noise((k // 32, n // 8), 2), "p.scales": scales((k // 32, n), torch.float16)}
    fixture("awq", t, dict(quant_method="awq", bits=4, group_size=32))
    u8 = lambda shape, seed: torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    exponents = lambda shape: torch.randint(110, 140, shape, generator=torch.Generator().manual_seed(9), dtype=torch.uint8)
    fp8 = u8((200, 150), 4)
    fp8[(fp8 & 0x7f) == 0x7f] = 0
    t = {"p.weight": fp8.view(torch.float8_e4m3fn), "p.weight_scale_inv": scales((2, 2), torch.float32)}
    fixture("fp8-block", t, dict(quant_method="fp8", weight_block_size=[128, 128]))
    mx = dict(dtype="fp4", qscheme="per_group", ch_axis=-1, group_size=32, mx_element_dtype=None)
    t = {"p.weight": u8((21, 48), 5), "p.weight_scale": exponents((21, 3))}
    fixture("quark-mxfp4", t, dict(quant_method="quark", global_quant_config=dict(weight=mx)))
    rows = dict(dtype="fp8_e4m3", qscheme="per_channel", ch_axis=0, group_size=None, mx_element_dtype=None)
    t = {"p.weight": fp8[:21, :50].contiguous().view(torch.float8_e4m3fn), "p.weight_scale": scales((21,), torch.float32)}
    fixture("quark-ptpc", t, dict(quant_method="quark", global_quant_config=dict(weight=rows)))
    t = {"p_blocks": u8((3, 10, 2, 16), 6), "p_scales": exponents((3, 10, 2))}
    fixture("gpt-oss", t, dict(quant_method="mxfp4"))
    powers = lambda *shape: exponents(shape).view(torch.float8_e8m0fnu)
    t = {"eights.weight": fp8.view(torch.float8_e4m3fn), "eights.scale": powers(2, 2), "fours.weight": u8((21, 48), 8).view(torch.int8), "fours.scale": powers(21, 3)}
    fixture("deepseek-v4", t, dict(quant_method="fp8", weight_block_size=[128, 128], scale_fmt="ue8m0", expert_dtype="fp4"))


if __name__ == "__main__":
    if sys.argv[1:2] == ["make"]: make()
    elif sys.argv[1:2] == ["folder"]: [folder(d) for d in sys.argv[2:]]
    else: raise SystemExit(__doc__)
