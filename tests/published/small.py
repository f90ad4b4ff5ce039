"""Makes a tiny model of every published checkpoint in this folder, and its logits in float64.

    pip install torch==2.14.0 transformers==5.23.0 safetensors==0.8.0
    python tests/published/small.py [NAME ...]

Each folder in small/ is a golden case: README.md in ../golden says what its files are. Tensors have the names and the types
of the release, in the form in which the release stores them; the configuration is the published one with small sizes.
"""
from collections.abc import Callable
import copy, re, shutil, sys, zlib
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "golden")]

import safetensors.torch, torch, transformers
from transformers.models.deepseek_v2 import modeling_deepseek_v2 as deepseek_v2

import check, experts, hybrid, make, quantised
from make import LENGTHS, MODES, logits, write_json
from quantised import E2M1, mx_e2m1

TYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F8_E4M3": torch.float8_e4m3fn, "U8": torch.uint8,
         "I32": torch.int32}
MOST_BYTES = 200_000


@dataclass
class Small:
    # The published numbers of the layers that are kept, draft layers too.
    layers: list
    # Fields by their path; a function makes the small value of the published one.
    sizes: dict
    # Another draw, where a router's choice or a code hangs on the last bits.
    draw: int = 0


def dense(layers=(0, 1), draw=0, **more):
    sizes = dict(hidden_size=64, intermediate_size=64, num_attention_heads=4, num_key_value_heads=2, vocab_size=80)
    return Small(list(layers), sizes | more, draw)


def text(layers, vision, draw=0, **sizes):
    """A language model inside one that sees images."""
    sizes = {f"text_config.{k}": v for k, v in sizes.items()} | {f"vision_config.{k}": v for k, v in vision.items()}
    return Small(list(layers), sizes, draw)


def yarn(original):
    """The positions before and after the scaling."""
    return {"rope_scaling.original_max_position_embeddings": original}


DEEPSEEK = dict(hidden_size=48, num_attention_heads=2, num_key_value_heads=2, q_lora_rank=24, kv_lora_rank=24, qk_nope_head_dim=24,
                qk_rope_head_dim=16, v_head_dim=16, intermediate_size=40, moe_intermediate_size=16, n_routed_experts=6, n_group=3,
                topk_group=2, num_experts_per_tok=3, vocab_size=64, first_k_dense_replace=1, **yarn(64))
# Sizes are multiples of the 32 numbers that share a scale.
R1_MXFP4 = DEEPSEEK | dict(hidden_size=64, q_lora_rank=32, kv_lora_rank=32, qk_nope_head_dim=16, intermediate_size=64,
                           moe_intermediate_size=32, n_routed_experts=4, n_group=2, topk_group=1, num_experts_per_tok=2, vocab_size=48)
KIMI = DEEPSEEK | dict(n_routed_experts=8, n_group=1, topk_group=1, num_experts_per_tok=3)
GLM = dict(hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=16, intermediate_size=48, moe_intermediate_size=16,
           n_routed_experts=4, num_experts_per_tok=2, vocab_size=64, first_k_dense_replace=1)
QWEN3 = dict(num_attention_heads=2, num_key_value_heads=1, head_dim=32)
QWEN3_MOE = dict(QWEN3, moe_intermediate_size=32, num_experts=5, num_experts_per_tok=2)
GEMMA = dict(hidden_size=32, num_attention_heads=2, num_key_value_heads=1, head_dim=16, intermediate_size=48, vocab_size=96,
             query_pre_attn_scalar=24, sliding_window=8)
DELTA = dict(linear_num_key_heads=1, linear_num_value_heads=2, linear_key_head_dim=16, linear_value_head_dim=16)
QWEN_NEXT = dict(hidden_size=32, num_attention_heads=2, num_key_value_heads=1, head_dim=32, intermediate_size=64, vocab_size=48,
                 num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=12, **DELTA)
QWEN35 = dict(hidden_size=32, num_attention_heads=2, num_key_value_heads=1, head_dim=32, intermediate_size=48, vocab_size=64, **DELTA,
              **{"rope_parameters.mrope_section": [2, 1, 1]})
QWEN35_SEEN = dict(depth=1, hidden_size=16, intermediate_size=24, num_heads=2, num_position_embeddings=4, out_hidden_size=32, patch_size=2)
OSS = dict(hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=16, intermediate_size=32, num_local_experts=5,
           num_experts_per_tok=2, experts_per_token=2, sliding_window=8, initial_context_length=64, vocab_size=96, **yarn(64))

CASES = {
    "deepseek-v3.1": Small([0, 3, 4, 61], DEEPSEEK),
    "deepseek-v3-0324": Small([0, 3, 4, 61], DEEPSEEK, draw=2),
    "deepseek-r1-0528": Small([0, 3, 4, 61], DEEPSEEK),
    "deepseek-r1-mxfp4": Small([0, 3, 61], R1_MXFP4),
    "deepseek-v2-lite": Small([0, 1, 2], DEEPSEEK | dict(q_lora_rank=None, n_routed_experts=4, n_group=1, topk_group=1)),
    "kimi-k2-instruct": Small([0, 1, 2], KIMI | dict(num_attention_heads=4, num_key_value_heads=4), draw=1),
    "kimi-k2-thinking": Small([0, 1, 2], KIMI | dict(hidden_size=64, moe_intermediate_size=32, n_routed_experts=4, vocab_size=48)),
    "glm-4.5-air": Small([0, 1, 2, 46], GLM),
    "glm-4.6-fp8": Small([0, 3, 4, 92], GLM | dict(hidden_size=48)),
    "glm-4.7-fp8": Small([0, 3, 4, 92], GLM | dict(hidden_size=48)),
    "gemma-3-1b-it": Small([*range(6)], GEMMA),
    "gemma-3-27b-it": text(range(6), dict(hidden_size=16, intermediate_size=24, num_attention_heads=2, num_hidden_layers=1, image_size=4,
                                          patch_size=2), **GEMMA),
    "mistral-small-3.1-24b-instruct-2503": text([0, 1], dict(hidden_size=16, intermediate_size=24, num_attention_heads=2, head_dim=8,
                                                             num_hidden_layers=1, image_size=4, patch_size=2),
                                                **dense(head_dim=16).sizes | dict(hidden_size=48, intermediate_size=64)),
    "mistral-7b-v0.3": dense(),
    "mixtral-8x7b-v0.1": Small([0, 1], dense().sizes | dict(intermediate_size=20, num_local_experts=4), draw=1),
    "llama-3.1-8b-instruct": dense(**yarn(16)),
    "llama-3.1-70b-instruct": dense(**yarn(16)),
    "granite-3.3-8b-instruct": dense(),
    "olmo-2-1124-7b": Small([0, 1], dense().sizes | dict(num_key_value_heads=4, hidden_size=32, intermediate_size=48)),
    "phi-3.5-mini-instruct": dense(original_max_position_embeddings=64, max_position_embeddings=2048,
                                   **{"rope_scaling.long_factor": lambda v: v[::6], "rope_scaling.short_factor": lambda v: v[::6]}),
    "qwen2.5-7b-instruct": dense(),
    "qwen3-8b": dense(**QWEN3),
    # A second block begins after 128 rows.
    "qwen3-8b-fp8": dense(**QWEN3 | dict(intermediate_size=136)),
    "qwen3-30b-a3b": Small([0, 1], dense().sizes | QWEN3_MOE | dict(moe_intermediate_size=16, num_experts=4), draw=1),
    "qwen3-235b-a22b-fp8": Small([0, 1], dense().sizes | QWEN3_MOE, draw=1),
    "smollm3-3b": dense(range(4), hidden_size=48, intermediate_size=48, num_attention_heads=3, num_key_value_heads=1),
    "qwen3-next-80b-a3b-instruct": Small([*range(4)], QWEN_NEXT),
    "qwen3-next-80b-a3b-instruct-fp8": Small([*range(4)], QWEN_NEXT),
    "qwen3.5-27b": text(range(4), QWEN35_SEEN, draw=1, **QWEN35),
    "qwen3.5-35b-a3b": text(range(4), QWEN35_SEEN, draw=2, **QWEN35 | dict(vocab_size=48), num_experts=3, num_experts_per_tok=2, moe_intermediate_size=16,
                            shared_expert_intermediate_size=16),
    "gpt-oss-20b": Small([0, 1], OSS),
    "gpt-oss-120b": Small([0, 1], OSS, draw=1),
}


# ---- the configuration and the names, smaller --------------------------------------------------

LAYER = re.compile(r"^((?:re:)?(?:language_model\.)?model\.(?:language_model\.)?layers\.)(\d+)\b")
# Numbers of layers and experts that count from zero in releases of every size.
EXPERT = re.compile(r"\.experts\.(\d+)\.")
SEEN = re.compile(r"^(?:vision_tower|model\.visual)\.(?:.*\.)?(?:layers|blocks)\.(\d+)\.")


def renamed(name, kept):
    """A name with the small number of its layer, or nothing where the layer is not kept."""
    match = LAYER.match(name)
    if not match: return name
    old = int(match[2])
    return match[1] + str(kept.index(old)) + name[match.end():] if old in kept else None


def language(config): return config.get("text_config", config)


def small_config(published, case):
    config = copy.deepcopy(published)
    layers = language(config)["num_hidden_layers"]
    for path, value in case.sizes.items():
        *groups, last = path.split(".")
        at = config
        for group in groups: at = at[group]
        at[last] = value(at[last]) if callable(value) else value
    language(config)["num_hidden_layers"] = sum(old < layers for old in case.layers)

    def shortened(value):
        if isinstance(value, dict): return {k: shortened(v) for k, v in value.items()}
        if not isinstance(value, list): return value
        if len(value) == layers: return [value[old] for old in case.layers if old < layers]
        names = [renamed(v, case.layers) if isinstance(v, str) else v for v in value]
        return [v for v in names if v is not None]
    return shortened(config)


def number_of_experts(config):
    counts = [language(config)[k] for k in ("n_routed_experts", "num_experts", "num_local_experts") if k in language(config)]
    return counts[0] if counts else 0


def small_names(lines, config, kept):
    """Of every tensor that the small checkpoint has, the published type and shape."""
    found = {}
    for old, (dtype, shape) in check.tensors(lines).items():
        name, expert, seen = renamed(old, kept), EXPERT.search(old), SEEN.match(old)
        if name is None or (expert and int(expert[1]) >= number_of_experts(config)) or (seen and int(seen[1]) > 0): continue
        found[name] = (dtype, shape)
    return found


# ---- how a release stores a weight -------------------------------------------------------------

def fours(w, draw):
    """Of all experts of a layer codes of e2m1, and exponents, as GPT-OSS has them."""
    codes, e = mx_e2m1(w)
    pairs = (codes[..., 0::2] | codes[..., 1::2] << 4).to(torch.uint8)
    return {"_blocks": pairs, "_scales": (e.squeeze(-1) + 127).to(torch.uint8)}, torch.ldexp(E2M1[codes], e).flatten(-2)


def powers_of_two(s): return torch.exp2(torch.ceil(torch.log2(s.float())))


def plain(dtype):
    def f(w, draw): return {"": w.to(dtype)}, w.to(dtype).double()
    return f


@dataclass
class Weight:
    """What a weight is stored as."""
    store: Callable
    # Columns of the published weight for one of the tensor that has its codes.
    wide: int
    shape: tuple
    is_coded: bool = True


def below(store):
    """The tensors of a weight by the part of their names after its module's."""
    def f(w, draw):
        stored, means = store(w, draw)
        return {f".{k}": v for k, v in stored.items()}, means
    return f


def weights(wanted, config):
    """Of every weight its stem, which its tensors' names begin with, and how it is stored."""
    found, method = {}, config.get("quantization_config", {})
    block = method.get("weight_block_size")
    for name, (dtype, shape) in wanted.items():
        stem = name.removesuffix(".weight")
        if name.endswith((".weight_scale", ".weight_scale_inv", ".weight_shape", "_scales")): continue
        if f"{stem}.weight_scale_inv" in wanted:
            scales = TYPES[wanted[f"{stem}.weight_scale_inv"][0]]
            round_ = powers_of_two if method.get("scale_fmt") == "ue8m0" else lambda s, scales=scales: s.to(scales)
            found[stem] = Weight(below(quantised.blocks_e4m3(block, round_)), 1, shape)
        elif name.endswith(".weight_packed"):
            found[name.removesuffix(".weight_packed")] = Weight(below(quantised.words(4, 32, True)), 8, shape)
        elif name.endswith("_blocks"):
            found[name.removesuffix("_blocks")] = Weight(fours, 2, (*shape[:2], shape[2] * shape[3]))
        elif f"{stem}.weight_scale" in wanted and dtype == "U8":
            found[stem] = Weight(below(quantised.mxfp4("weight")), 2, shape)
        elif f"{stem}.weight_scale" in wanted:
            scales = TYPES[wanted[f"{stem}.weight_scale"][0]]
            found[stem] = Weight(below(quantised.rows_of(TYPES[dtype], 2, scales)), 1, shape)
        else:
            found[name] = Weight(plain(TYPES[dtype]), 1, shape, False)
    return found


# ---- tensors that no language model uses -------------------------------------------------------

DRAFT = ("mtp.", "vision_tower.", "model.visual.", "multi_modal_projector.")


class Extras:
    """The shapes of draft layers and of what sees images: those of a layer's own, or each number by the field that has it."""

    def __init__(self, published, config, made, found):
        self.made, self.found, self.layers = made, found, language(config)["num_hidden_layers"]
        pairs = {}
        for at in (language, lambda c: c.get("vision_config", {})):
            for key, old in at(published).items():
                new = at(config).get(key)
                if type(old) is int and type(new) is int: pairs.setdefault(at is language, {}).setdefault(old, new)
        self.texts, self.seen = pairs.get(True, {}), pairs.get(False, {})

    def is_one(self, name):
        layer = LAYER.match(name)
        return name.startswith(DRAFT) or bool(layer and int(layer[2]) >= self.layers)

    def number(self, name, old):
        order = [self.seen, self.texts] if "vis" in name or "multi_modal" in name else [self.texts, self.seen]
        for pairs in order:
            for times in (1, 2, 3, 4):
                if old % times == 0 and old // times in pairs: return times * pairs[old // times]
        return min(old, 4)

    def shape(self, name, weight):
        inner = re.sub(r"^(mtp\.layers|model\.layers)\.\d+\.", "", name)
        for other, shape in self.made.items() if inner != name else ():
            # A dense layer has products of the same name and another size.
            if re.sub(LAYER, "", other) == f".{inner}" and self.found[other].shape[0] == weight.shape[0]: return shape
        *rows, last = weight.shape
        return tuple(self.number(name, n) for n in (*rows, last * weight.wide))


# ---- a model of transformers, by the published names -------------------------------------------

def text_config(config):
    """What transformers reads of the small configuration, without what only a tokenizer or a draft layer needs."""
    config = {k: v for k, v in config.items() if k not in ("quantization_config", "auto_map")}
    kind = {"kimi_k2": "deepseek_v3"}.get(config["model_type"], config["model_type"])
    read = transformers.CONFIG_MAPPING[kind].from_dict(config | {"model_type": kind}).get_text_config()
    read.pad_token_id = None
    if hasattr(read, "num_mtp_layers"): read.num_mtp_layers = 0
    return read


def whole_name(name, wanted):
    """A parameter's name as the release spells it."""
    if any(n.startswith("language_model.") for n in wanted): return f"language_model.{name}"
    if any(n.startswith("model.language_model.") for n in wanted): return re.sub(r"^model\.", "model.language_model.", name)
    if any(".block_sparse_moe." in n for n in wanted): return name.replace(".mlp.", ".block_sparse_moe.")
    return name


def views(model, found, wanted):
    """Of every weight the part of a parameter that it is, by its stem."""
    parts = {}
    buffers = [(n, b) for n, b in model.named_buffers() if n.endswith("e_score_correction_bias")]
    for name, p in [*model.named_parameters(), *buffers]:
        name = whole_name(name, wanted)
        stem = name if name in found else name.removesuffix(".weight")
        if stem in found:
            parts[stem] = p.data.transpose(1, 2) if f"{stem}_blocks" in wanted else p.data
        elif name.endswith((".gate_up_proj", ".down_proj")):
            mixtral = "block_sparse_moe" in name
            inner, kind = name.rsplit(".", 1)
            for e, w in enumerate(p.data):
                halves = zip(("w1", "w3") if mixtral else ("gate_proj", "up_proj"), w.chunk(2))
                for part, half in halves if kind == "gate_up_proj" else [("w2" if mixtral else "down_proj", w)]:
                    stem = f"{inner}.{e}.{part}"
                    parts[stem if stem in found else f"{stem}.weight"] = half
        else: raise ValueError(f"{name}: the release has no such tensor")
    return parts


def is_recurrent(model): return hasattr(model.config, "linear_conv_kernel_dim")


def random_model(config, dtype, seed):
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, experts_implementation="eager").eval()
    (hybrid if is_recurrent(model) else make).randomize(model, seed)
    draw = torch.Generator().manual_seed(seed + 1)
    for n, b in sorted(model.named_buffers()):
        if n.endswith("e_score_correction_bias"): b.data.copy_(torch.randn(b.shape, generator=draw) * 0.3)
    for p in model.parameters(): p.data = p.data.to(dtype)
    return model


def exact_model(model):
    if is_recurrent(model):
        model = copy.deepcopy(model)
        model.set_attn_implementation("eager")
        return hybrid.float64(model)
    return experts.float64(experts.variant(model, "experts64"))


# ---- rows while running ------------------------------------------------------------------------

def rows_of(method):
    """How rows that codes multiply are quantised, by the configuration."""
    if not method: return None
    if method["quant_method"] == "fp8":
        return (quantised.powers_e4m3 if method.get("scale_fmt") == "ue8m0" else quantised.groups_e4m3)(method["weight_block_size"][1])
    if method["quant_method"] == "quark": return quantised.rows_mx_e2m1
    inputs = method.get("config_groups", {}).get("group_0", {}).get("input_activations")
    return quantised.rows_e4m3 if inputs else None


def experts_by_rows(rows):
    """The experts of a layer one by one, with rows as codes before both products."""
    def forward(self, x, chosen, weights):
        out, coded = torch.zeros_like(x), lambda x: rows(x.double(), None).to(x.dtype)
        for e in range(len(self.gate_up_proj)):
            token, at = torch.where(chosen == e)
            gate, up = torch.nn.functional.linear(coded(x[token]), self.gate_up_proj[e]).chunk(2, -1)
            made = torch.nn.functional.linear(coded(self.act_fn(gate) * up), self.down_proj[e])
            out.index_add_(0, token, (made * weights[token, at, None]).to(out.dtype))
        return out
    return forward


def hook(model, rows, is_coded, wanted):
    """Latent rows stay as they are: heads multiply them, and no scheme has rows for that."""
    for name, m in model.named_modules():
        name = whole_name(name, wanted)
        if isinstance(m, torch.nn.Linear) and is_coded(name) and not name.endswith("kv_b_proj"):
            m.register_forward_pre_hook(lambda m, a: (rows(a[0].double(), None).to(a[0].dtype),) + a[1:])
        if name.endswith(".experts") and is_coded(f"{name}.0.gate_proj"): m.forward = experts_by_rows(rows).__get__(m)


# ---- a case ------------------------------------------------------------------------------------

def store_all(found, wanted, model, extras, seed):
    """The tensors of the file, and what those of the language model mean."""
    tensors, means, draw = {}, {}, torch.Generator().manual_seed(seed + 7)
    parts = views(model, found, wanted)
    extras.made |= {stem: tuple(p.shape) for stem, p in parts.items()}
    for stem, weight in sorted(found.items()):
        if stem not in parts and not extras.is_one(stem): raise ValueError(f"{stem}: transformers has no such weight")
        w = parts[stem].double() if stem in parts else torch.randn(extras.shape(stem, weight), generator=draw).double() * 0.2
        stored, meant = weight.store(w, draw)
        for behind, tensor in stored.items():
            name = f"{stem}{behind}"
            if name not in wanted: raise ValueError(f"{name} is not in the release")
            dtype = TYPES[wanted[name][0]]
            if name.endswith("weight_shape"): tensor = tensor.to(dtype)
            if tensor.dtype != dtype: raise ValueError(f"{name} is {tensor.dtype}, in the release {dtype}")
            if tensor.dim() != len(wanted[name][1]): raise ValueError(f"{name} is {tuple(tensor.shape)}, in the release {wanted[name][1]}")
            tensors[name] = tensor.contiguous()
        if stem in parts: means[stem] = meant
    if tensors.keys() != wanted.keys(): raise ValueError(f"not made: {sorted(wanted.keys() - tensors.keys())}")
    return tensors, means


def write_golden(path, exact, torch_, tokens):
    narrow, deepseek_v2.apply_rotary_emb = deepseek_v2.apply_rotary_emb, experts.apply_complex64
    counts = experts.count(exact, tokens)
    reference = [{mode: logits(exact, t, pieces(len(t))) for mode, pieces in MODES.items()} for t in tokens]
    deepseek_v2.apply_rotary_emb = narrow
    assert all(x.dtype == torch.float64 for r in reference for x in r.values())
    for r in reference:
        apart = max((r[mode] - r["prefill"]).abs().max().item() for mode in MODES)
        assert apart < 1e-9, (path.name, apart)
    tensors = {f"tokens.{i}": t.int() for i, t in enumerate(tokens)}
    tensors |= {f"{mode}.{i}": x.float().contiguous() for i, r in enumerate(reference) for mode, x in r.items()}
    safetensors.torch.save_file(tensors, path / "golden.safetensors")
    facts = {"torch_error": make.errors(torch_, reference, tokens, "prefill")}
    if counts: facts["rows_of_experts"] = counts
    write_json(path / "golden.json", facts)
    return reference, facts


def build(name):
    case, path, seed = CASES[name], HERE / "small" / name, zlib.crc32(name.encode()) + CASES[name].draw
    _, published, lines = check.split((HERE / f"{name}.txt").read_text())
    config = small_config(published, case)
    wanted = small_names(lines, config, case.layers)
    found = weights(wanted, config)
    dtype = getattr(torch, next((c[k] for c in (config, language(config)) for k in ("torch_dtype", "dtype") if k in c), "bfloat16"))
    model = random_model(text_config(config), dtype, seed)
    tensors, means = store_all(found, wanted, model, Extras(published, config, {}, found), seed)
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    write_json(path / "config.json", config)
    safetensors.torch.save_file(dict(sorted(tensors.items())), path / "model.safetensors", {"format": "pt"})
    draw = torch.Generator().manual_seed(seed + 1000)
    tokens = [torch.randint(model.config.vocab_size, (n,), generator=draw) for n in LENGTHS]
    exact, rows = exact_model(model), rows_of(config.get("quantization_config"))
    model.set_attn_implementation("eager")
    for m in (exact, model):
        for stem, part in views(m, found, wanted).items(): part.copy_(means[stem])
        if rows: hook(m, rows, lambda stem: stem in found and found[stem].is_coded, wanted)
    reference, facts = write_golden(path, exact, model, tokens)
    size = sum(f.stat().st_size for f in path.iterdir())
    assert size <= MOST_BYTES, (name, size)
    spread = reference[0]["prefill"].std().item()
    print(f"{name}: {len(tensors)} tensors, {size} bytes, logits std {spread:.2f}, torch rms error {facts['torch_error']['rms'][0]:.2e}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    transformers.AttentionInterface.register("experts64", experts.attention64)
    transformers.AttentionMaskInterface.register("experts64", make.eager_mask)
    for name in sys.argv[1:] or CASES: build(name)
