"""Writes the golden logits: tiny random models and what transformers computes with them, in float64.

    pip install torch==2.14.0 transformers==5.23.0 safetensors==0.8.0
    python tests/golden/make.py [CASE ...]

No case given means all of them. README.md beside this file says what each tensor is. The same machine writes the same
bytes again; elsewhere the drawn weights may differ in a last bit, and `torch_error` with the CPU's bf16 kernels.
"""
from collections.abc import Callable
import copy, json, math, shutil, sys, types, zlib
from dataclasses import dataclass
from pathlib import Path

import safetensors, safetensors.torch, torch, transformers
from transformers.masking_utils import eager_mask
from transformers.modeling_rope_utils import dynamic_rope_update
from transformers.models.gemma3 import modeling_gemma3 as gemma
from transformers.models.glm4_moe import modeling_glm4_moe as glm
from transformers.models.llama import modeling_llama

HERE = Path(__file__).resolve().parent
LENGTHS = (37, 5, 21)
CHUNK = 8


@dataclass
class Case:
    config: transformers.PreTrainedConfig
    dtype: torch.dtype = torch.bfloat16
    max_shard_size: str = "5GB"
    # The oldest spelling of this config still found in checkpoints, written as config.v4.json.
    v4: Callable | None = None
    partial: bool = False


def llama(cls=transformers.LlamaConfig, **kw):
    shape = dict(vocab_size=96, hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=3,
                 num_key_value_heads=3, max_position_embeddings=512, rms_norm_eps=1e-5, tie_word_embeddings=False,
                 bos_token_id=None, eos_token_id=None)
    return cls(**{**shape, **kw})


def qwen2(**kw):
    return llama(transformers.Qwen2Config, **{"num_key_value_heads": 1, "rms_norm_eps": 1e-6, **kw})


def qwen3(**kw):
    return llama(transformers.Qwen3Config, **{"num_key_value_heads": 1, "head_dim": 24, "rms_norm_eps": 1e-6, **kw})


def mistral(**kw):
    return llama(transformers.MistralConfig, **{"num_key_value_heads": 1, **kw})


def smollm3(**kw):
    return llama(transformers.SmolLM3Config, **{"num_key_value_heads": 1, "rms_norm_eps": 1e-6, "pad_token_id": None, **kw})


def granite(**kw):
    return llama(transformers.GraniteConfig, **{"num_key_value_heads": 1, **kw})


def olmo2(**kw):
    return llama(transformers.Olmo2Config, **{"num_key_value_heads": 1, "pad_token_id": None, **kw})


def phi3(**kw):
    return llama(transformers.Phi3Config, **{"num_key_value_heads": 1, "pad_token_id": None, **kw})


def longrope(**kw):
    return dict(rope_type="longrope", rope_theta=10000.0, short_factor=[1.0 + 0.05 * i for i in range(8)],
                long_factor=[1.5 + 0.5 * i for i in range(8)], **kw)


def gemma3(**kw):
    shape = dict(hidden_size=32, num_attention_heads=2, num_key_value_heads=1, head_dim=256, intermediate_size=64,
                 rms_norm_eps=1e-6, sliding_window=8, layer_types=["sliding_attention", "full_attention"],
                 tie_word_embeddings=True, pad_token_id=None)
    return llama(transformers.Gemma3TextConfig, **{**shape, **kw})


def v4_spelling(config, type_key="rope_type"):
    """What transformers 4 wrote: `rope_theta` and `rope_scaling` at the top level, `torch_dtype`, no `layer_types`."""
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    if "partial_rotary_factor" in rope: config["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
    kind = rope.pop("rope_type")
    config["rope_scaling"] = None if kind == "default" else {type_key: kind, **rope}
    config["torch_dtype"] = config.pop("dtype")
    config.pop("layer_types", None)
    config["transformers_version"] = "4.43.0"
    return config


def v4_type_spelling(config):
    return v4_spelling(config, "type")


def v4_phi3(config):
    """Phi's own: the length of before the scaling stands at the top level alone."""
    for key in ("partial_rotary_factor", "original_max_position_embeddings"): del config["rope_parameters"][key]
    return v4_spelling(config, "type")


def v4_gemma3(config):
    """Gemma's own: a base for the layers with a window, which are all but every n-th, and a scaling
    of the others'."""
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope["full_attention"].pop("rope_theta")
    config["rope_scaling"] = rope["full_attention"]
    config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
    config["sliding_window_pattern"] = config.pop("layer_types").index("full_attention") + 1
    config["torch_dtype"] = config.pop("dtype")
    return config


def v4_first_llama(config):
    """A Llama config of 2023: everything that had a default then is missing."""
    config = v4_spelling(config, "type")
    for key in ("rope_theta", "head_dim", "num_key_value_heads", "attention_bias", "mlp_bias", "attention_dropout"): del config[key]
    config["transformers_version"] = "4.31.0"
    return config


# Contexts and bases are small so that a wrong frequency moves the logits within 37 tokens. The wide
# heads (32) give sixteen frequencies, enough for every band of llama3 and yarn to hold some.
WIDE = dict(hidden_size=64, num_attention_heads=2, num_key_value_heads=1)
YARN = dict(rope_type="yarn", rope_theta=500.0, factor=4.0, original_max_position_embeddings=512)
CASES = {
    "llama2": Case(llama(hidden_size=64, num_attention_heads=4, num_key_value_heads=4)),
    "llama-gqa-tied": Case(llama(hidden_size=64, num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True)),
    "llama-mqa": Case(llama(hidden_size=64, num_attention_heads=4, num_key_value_heads=1)),
    "llama-bias": Case(llama(attention_bias=True, mlp_bias=True)),
    "llama-gelu": Case(llama(hidden_act="gelu_pytorch_tanh")),
    "llama-odd": Case(llama(hidden_size=40, num_attention_heads=2, num_key_value_heads=1, intermediate_size=90, vocab_size=83)),
    "llama-headdim": Case(llama(num_attention_heads=4, num_key_value_heads=2, head_dim=16)),
    "llama-linear": Case(llama(rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=4.0)), v4=v4_first_llama),
    "llama-dynamic": Case(llama(rope_parameters=dict(rope_type="dynamic", rope_theta=10000.0, factor=2.0), max_position_embeddings=16)),
    "llama3": Case(llama(**WIDE, rope_parameters=dict(rope_type="llama3", rope_theta=500.0, factor=8.0, low_freq_factor=1.0,
                   high_freq_factor=4.0, original_max_position_embeddings=64)), v4=v4_spelling),
    "llama-yarn": Case(llama(**WIDE, rope_parameters=dict(YARN), max_position_embeddings=2048), v4=v4_type_spelling),
    "llama-yarn-mscale": Case(llama(**WIDE, rope_parameters=dict(YARN, truncate=False, mscale=1.0, mscale_all_dim=0.4),
                              max_position_embeddings=2048)),
    "llama-yarn-attention": Case(llama(**WIDE, rope_parameters=dict(YARN, attention_factor=0.8, beta_fast=16.0, beta_slow=2.0),
                                 max_position_embeddings=2048)),
    "llama-partial": Case(llama(rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5)),
                          v4=v4_spelling, partial=True),
    "llama-f16": Case(llama(), dtype=torch.float16),
    "llama-f32": Case(llama(num_key_value_heads=1), dtype=torch.float32),
    "llama-sharded": Case(llama(num_key_value_heads=1), max_shard_size="40KB"),
    "qwen2": Case(qwen2()),
    "qwen2-sliding": Case(qwen2(use_sliding_window=True, sliding_window=6, max_window_layers=1), v4=v4_spelling),
    "qwen3": Case(qwen3()),
    "qwen3-tied": Case(qwen3(tie_word_embeddings=True, rope_parameters=dict(rope_type="default", rope_theta=1e6))),
    "qwen3-bias": Case(qwen3(attention_bias=True)),
    "mistral": Case(mistral(sliding_window=8)),
    "smollm3": Case(smollm3(num_hidden_layers=3, no_rope_layers=[1, 0, 1])),
    "smollm3-sliding": Case(smollm3(no_rope_layer_interval=2, use_sliding_window=True, sliding_window=6)),
    "granite": Case(granite(embedding_multiplier=3.0, attention_multiplier=0.125, residual_multiplier=0.22, logits_scaling=2.5)),
    "olmo2": Case(olmo2(num_attention_heads=4, num_key_value_heads=2, hidden_size=64)),
    "phi3": Case(phi3()),
    "phi3-short": Case(phi3(max_position_embeddings=64, original_max_position_embeddings=64, rope_parameters=longrope(factor=4.0)),
                       v4=v4_phi3),
    "phi3-long": Case(phi3(max_position_embeddings=64, original_max_position_embeddings=1,
                           rope_parameters=longrope(attention_factor=1.19))),
    "gemma3": Case(gemma3(rope_parameters=dict(full_attention=dict(rope_type="linear", rope_theta=1e6, factor=8.0),
                                               sliding_attention=dict(rope_type="default", rope_theta=1e4))), v4=v4_gemma3),
    "gemma3-scalar": Case(gemma3(head_dim=32, query_pre_attn_scalar=24, attention_bias=True)),
    "mistral-nowindow": Case(mistral(sliding_window=None)),
}


def randomize(model, seed):
    """Draws every weight far from what an initializer gives, so that a skipped bias or norm shows in the logits."""
    draw = torch.Generator().manual_seed(seed)
    for name, p in sorted(model.named_parameters()):
        around = 0.0 if isinstance(model, transformers.Gemma3ForCausalLM) else 1.0
        scale, mean = (0.3, around) if "norm" in name else (0.3, 0.0) if name.endswith("bias") else (0.2, 0.0)
        p.data.copy_(torch.randn(p.shape, generator=draw) * scale + mean)


def load(path, case, attention):
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype="auto", attn_implementation=attention).eval()
    assert model.dtype == case.dtype
    if case.partial:
        # LlamaRotaryEmbedding ignores `partial_rotary_factor` when rope_type is "default"; GLM-4
        # MoE honours it.
        model.model.rotary_emb = glm.Glm4MoeRotaryEmbedding(model.config)
    assert all(b.dtype == torch.float32 for n, b in model.model.rotary_emb.named_buffers() if n.endswith("inv_freq"))
    return model


def norm64(self, x):
    return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))


def gemma_norm64(self, x):
    return (1.0 + self.weight) * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


@torch.no_grad()
def gemma_rotary64(self, x, position_ids, layer_type):
    angle = position_ids[..., None].double() * getattr(self, f"{layer_type}_inv_freq").double()
    angle = torch.cat((angle, angle), dim=-1)
    scale = getattr(self, f"{layer_type}_attention_scaling")
    return angle.cos() * scale, angle.sin() * scale


@torch.no_grad()
@dynamic_rope_update
def rotary64(self, x, position_ids):
    angle = position_ids[..., None].double() * self.inv_freq.double()
    angle = torch.cat((angle, angle), dim=-1)
    return angle.cos() * self.attention_scaling, angle.sin() * self.attention_scaling


def attention64(module, query, key, value, attention_mask, scaling, **_):
    key = key.repeat_interleave(module.num_key_value_groups, dim=1)
    value = value.repeat_interleave(module.num_key_value_groups, dim=1)
    scores = query @ key.transpose(2, 3) * scaling + attention_mask
    assert scores.dtype == torch.float64
    return (scores.softmax(-1) @ value).transpose(1, 2).contiguous(), None


def float64(model):
    """The same model in float64. transformers computes three things in float32 whatever the model's dtype: the norms, the
    softmax of eager attention (replaced by `attention64` when the model was loaded) and the rotary angles with their cos
    and sin. All three are replaced here; the inverse frequencies stay float32 numbers, as transformers defines them."""
    if isinstance(model, transformers.Gemma3ForCausalLM):
        scale = model.model.embed_tokens.embed_scale
        scale.data = scale.to(model.dtype).float()
    model = model.double()
    for module in model.modules():
        if hasattr(module, "variance_epsilon"): module.forward = types.MethodType(norm64, module)
        if isinstance(module, gemma.Gemma3RMSNorm): module.forward = types.MethodType(gemma_norm64, module)
    rotary = gemma_rotary64 if isinstance(model, transformers.Gemma3ForCausalLM) else rotary64
    model.model.rotary_emb.forward = types.MethodType(rotary, model.model.rotary_emb)
    return model


def logits(model, tokens, pieces):
    """Logits of `tokens` fed in `pieces` over one KV cache. Every call gets its own copy of the model, because the rotary
    embedding of "dynamic" remembers the longest sequence it has seen."""
    model, cache, out = copy.deepcopy(model), None, []
    for piece in tokens.split(pieces):
        o = model(piece[None], past_key_values=cache, use_cache=True)
        cache = o.past_key_values
        out.append(o.logits[0])
    return torch.cat(out)


def whole(n): return [n]
def decode(n): return [math.ceil(n / 3)] + [1] * (n - math.ceil(n / 3))
def chunked(n): return [min(CHUNK, n - i) for i in range(0, n, CHUNK)]


MODES = {"prefill": whole, "decode": decode, "chunked": chunked}


def errors(model, reference, tokens, mode):
    diff = [logits(model, t, MODES[mode](len(t))).double() - r[mode] for t, r in zip(tokens, reference)]
    return {"rms": [d.pow(2).mean().sqrt().item() for d in diff], "max": [d.abs().max().item() for d in diff]}


def golden(path, case, seed):
    draw = torch.Generator().manual_seed(seed + 1000)
    tokens = [torch.randint(case.config.vocab_size, (n,), generator=draw) for n in LENGTHS]
    exact, torch_ = float64(load(path, case, "float64")), load(path, case, "eager")
    reference = [{mode: logits(exact, t, pieces(len(t))) for mode, pieces in MODES.items()} for t in tokens]
    assert all(x.dtype == torch.float64 for r in reference for x in r.values())
    for r in reference:
        apart = max((r[mode] - r["prefill"]).abs().max().item() for mode in MODES)
        beyond = "dynamic" in path.name and len(r["prefill"]) > case.config.max_position_embeddings
        assert apart > 1e-2 if beyond else apart < 1e-9, (path.name, apart)
    tensors = {f"tokens.{i}": t.int() for i, t in enumerate(tokens)}
    tensors |= {f"{mode}.{i}": x.float().contiguous() for i, r in enumerate(reference) for mode, x in r.items()}
    safetensors.torch.save_file(tensors, path / "golden.safetensors")
    facts = {"torch_error": errors(torch_, reference, tokens, "prefill")}
    stepwise = errors(torch_, reference, tokens, "decode")
    # The reference itself moves in its last digits from mode to mode, hence "close" and not
    # "equal".
    if not all(math.isclose(a, b, rel_tol=1e-6) for k in stepwise for a, b in zip(stepwise[k], facts["torch_error"][k])):
        facts["torch_error_decode"] = stepwise
    write_json(path / "golden.json", facts)
    return facts, reference


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2) + "\n")


def meaning(config):
    config = config.to_dict()
    # A key that was called "type" stays in `rope_parameters` in addition to "rope_type".
    config["rope_parameters"].pop("type", None)
    # Remains of a field that became another.
    left = ("transformers_version", "_name_or_path", "sliding_window_pattern", "_sliding_window_pattern")
    return {k: v for k, v in config.items() if k not in left}


def write_v4(path, case):
    old = case.v4(json.loads((path / "config.json").read_text()))
    new = type(case.config).from_pretrained(path)
    assert meaning(type(case.config).from_dict(copy.deepcopy(old))) == meaning(new), (path.name, "config.v4.json reads differently")
    write_json(path / "config.v4.json", old)


def make(name):
    case, path, seed = CASES[name], HERE / name, zlib.crc32(name.encode())
    shutil.rmtree(path, ignore_errors=True)
    model = transformers.AutoModelForCausalLM.from_config(case.config)
    randomize(model, seed)
    model.to(case.dtype).save_pretrained(path, max_shard_size=case.max_shard_size)
    (path / "generation_config.json").unlink(missing_ok=True)
    if case.v4: write_v4(path, case)
    # Llama's own function rotates the whole head and would fail on half-width cos and sin.
    whole_head = modeling_llama.apply_rotary_pos_emb
    if case.partial: modeling_llama.apply_rotary_pos_emb = glm.apply_rotary_pos_emb
    facts, reference = golden(path, case, seed)
    modeling_llama.apply_rotary_pos_emb = whole_head
    spread = reference[0]["prefill"].std().item()
    print(f"{name}: logits std {spread:.2f}, torch rms error {facts['torch_error']['rms'][0]:.2e}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    transformers.AttentionInterface.register("float64", attention64)
    transformers.AttentionMaskInterface.register("float64", eager_mask)
    for name in sys.argv[1:] or CASES: make(name)
    write_json(HERE / "versions.json", {m.__name__: m.__version__ for m in (torch, transformers, safetensors)})
