"""Golden logits of models with experts: tiny random models in the layouts that checkpoints are published in.

    pip install torch==2.14.0 transformers==5.23.0 safetensors==0.8.0
    python tests/golden/experts.py [CASE ...]

The reference is transformers in float64, experts computed one by one. Sizes are odd on purpose: 5 and 7 experts, 1 to 5 of
them for a token, widths that no tile divides, an expert that no token has, and one that all have.
"""
import copy, shutil, sys, zlib
from dataclasses import dataclass

import safetensors.torch, torch, transformers
from transformers.models.deepseek_v2 import modeling_deepseek_v2 as deepseek_v2
from transformers.models.deepseek_v32 import modeling_deepseek_v32 as deepseek_v32
from transformers.models.glm_moe_dsa import modeling_glm_moe_dsa as glm_dsa

import make
from make import HERE, LENGTHS, MODES, llama, logits, write_json
from quantised import E2M1, FP4, ct, e2m1_codes, modelopt, mx_e2m1, quark, spec, spread


def qwen3(**kw):
    shape = dict(num_key_value_heads=1, head_dim=24, rms_norm_eps=1e-6, moe_intermediate_size=20, num_experts=5,
                 num_experts_per_tok=2, norm_topk_prob=True, pad_token_id=None)
    return llama(transformers.Qwen3MoeConfig, **{**shape, **kw})


def mixtral(**kw):
    shape = dict(num_key_value_heads=1, intermediate_size=36, num_local_experts=7, num_experts_per_tok=2, pad_token_id=None)
    return llama(transformers.MixtralConfig, **{**shape, **kw})


def glm(**kw):
    shape = dict(num_hidden_layers=3, num_key_value_heads=1, head_dim=24, intermediate_size=60, moe_intermediate_size=20,
                 n_routed_experts=6, num_experts_per_tok=3, n_group=3, topk_group=2, n_shared_experts=2, first_k_dense_replace=1,
                 routed_scaling_factor=1.7, use_qk_norm=True, attention_bias=True, pad_token_id=None, num_mtp_layers=0)
    return llama(transformers.Glm4MoeConfig, **{**shape, **kw})


def glm_lite(**kw):
    """GLM-4.7-Flash: latent attention, values wider than keys."""
    shape = dict(num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=3, q_lora_rank=28, kv_lora_rank=40,
                 qk_nope_head_dim=24, qk_rope_head_dim=16, v_head_dim=32, intermediate_size=60, moe_intermediate_size=20,
                 n_routed_experts=6, num_experts_per_tok=3, n_group=1, topk_group=1, n_shared_experts=1, routed_scaling_factor=1.8,
                 mlp_layer_types=["dense", "sparse"], pad_token_id=None, num_mtp_layers=0)
    return llama(transformers.Glm4MoeLiteConfig, **{**shape, **kw})


def oss(**kw):
    yarn = dict(rope_type="yarn", rope_theta=500.0, factor=4.0, original_max_position_embeddings=16, truncate=False,
                beta_fast=32.0, beta_slow=1.0)
    shape = dict(hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=16, intermediate_size=36,
                 num_local_experts=5, num_experts_per_tok=2, sliding_window=6, rope_parameters=yarn, pad_token_id=None,
                 max_position_embeddings=64)
    return llama(transformers.GptOssConfig, **{**shape, **kw})


def deepseek3(**kw):
    """Odd on purpose: a rank of 40, values wider than what is not turned of keys."""
    shape = dict(num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=3, hidden_size=72,
                 q_lora_rank=28, kv_lora_rank=40, qk_nope_head_dim=24, qk_rope_head_dim=16, v_head_dim=32, rms_norm_eps=1e-5,
                 intermediate_size=60, moe_intermediate_size=20, n_routed_experts=8, num_experts_per_tok=3, n_group=4, topk_group=2,
                 n_shared_experts=1, first_k_dense_replace=1, routed_scaling_factor=2.5, pad_token_id=None, num_mtp_layers=0)
    return llama(transformers.DeepseekV3Config, **{**shape, **kw})


def deepseek2(**kw):
    shape = dict(num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=3, hidden_size=72,
                 q_lora_rank=None, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16, rms_norm_eps=1e-6,
                 intermediate_size=60, moe_intermediate_size=20, n_routed_experts=6, num_experts_per_tok=2, n_shared_experts=2,
                 first_k_dense_replace=1, routed_scaling_factor=1.0, topk_method="greedy", pad_token_id=None)
    return llama(transformers.DeepseekV2Config, **{**shape, **kw})


def kimi(**kw):
    """Kimi-K2's numbers, scaled down: no groups, one dense layer, a step in the place of yarn's ramp."""
    yarn = dict(rope_type="yarn", rope_theta=50.0, factor=4.0, original_max_position_embeddings=16, beta_fast=1.0, beta_slow=1.0,
                mscale=1.0, mscale_all_dim=1.0)
    shape = dict(num_attention_heads=4, num_key_value_heads=4, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8,
                 v_head_dim=16, n_routed_experts=12, num_experts_per_tok=4, n_group=1, topk_group=1, routed_scaling_factor=2.827,
                 max_position_embeddings=64, rope_parameters=yarn)
    return deepseek3(**{**shape, **kw})


def sparse(cls=transformers.DeepseekV32Config, **kw):
    """Fewer positions are chosen than most tokens have."""
    shape = dict(num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=3, hidden_size=64, q_lora_rank=32, kv_lora_rank=32,
                 qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16, rms_norm_eps=1e-6, intermediate_size=60,
                 moe_intermediate_size=20, n_routed_experts=8, num_experts_per_tok=3, n_group=4, topk_group=2, n_shared_experts=1,
                 first_k_dense_replace=1, routed_scaling_factor=2.5, pad_token_id=None, index_topk=8, index_n_heads=4,
                 index_head_dim=16)
    return llama(cls, **{**shape, **kw})


@dataclass
class Case:
    config: transformers.PreTrainedConfig
    # How a checkpoint has them: a tensor each, all in one, as GPT-OSS is released, or in blocks.
    stored: str = "each"
    # An expert that no token chooses, and one that every token does.
    never: int | None = None
    always: int | None = None


CASES = {
    "moe-qwen3": Case(qwen3()),
    "moe-qwen3-together": Case(qwen3(num_experts=7, num_experts_per_tok=5, norm_topk_prob=False), stored="together"),
    "moe-qwen3-dense": Case(qwen3(num_hidden_layers=4, mlp_only_layers=[0], decoder_sparse_step=2, num_experts_per_tok=1)),
    "moe-qwen3-bias": Case(qwen3(num_experts=7, num_experts_per_tok=3, attention_bias=True)),
    "moe-qwen3-nvfp4": Case(qwen3(head_dim=32, moe_intermediate_size=48), stored="modelopt"),
    "moe-mixtral": Case(mixtral()),
    "moe-mixtral-window": Case(mixtral(num_local_experts=5, num_experts_per_tok=3, sliding_window=8)),
    "moe-glm": Case(glm()),
    "moe-glm-plain": Case(glm(n_routed_experts=5, n_group=1, topk_group=1, num_experts_per_tok=4, n_shared_experts=1,
                              norm_topk_prob=False, use_qk_norm=False, attention_bias=False, first_k_dense_replace=0), never=1, always=0),
    "mla-v3": Case(deepseek3()),
    "mla-v3-plain": Case(deepseek3(num_hidden_layers=2, q_lora_rank=None, rope_interleave=False, rms_norm_eps=1e-6,
                                   rope_parameters=dict(rope_type="yarn", rope_theta=500.0, factor=8.0, beta_fast=32.0, beta_slow=1.0,
                                                        original_max_position_embeddings=8, mscale=0.7, mscale_all_dim=1.3),
                                   max_position_embeddings=64)),
    "mla-v3-blocks": Case(deepseek3(num_hidden_layers=2, moe_intermediate_size=36, q_lora_rank=40, qk_nope_head_dim=64), stored="blocks"),
    # Ranks and widths are multiples of 32, which share a scale.
    "mla-v3-mxfp4": Case(deepseek3(num_hidden_layers=2, hidden_size=64, q_lora_rank=32, kv_lora_rank=64, v_head_dim=32,
                                   intermediate_size=96, moe_intermediate_size=64), stored="quark"),
    "mla-kimi": Case(kimi()),
    "mla-v2": Case(deepseek2()),
    "mla-v2-groups": Case(deepseek2(q_lora_rank=20, topk_method="group_limited_greedy", n_group=3, topk_group=2,
                                    routed_scaling_factor=3.0, num_experts_per_tok=3)),
    "dsa-v3.2": Case(sparse()),
    "dsa-glm": Case(sparse(transformers.GlmMoeDsaConfig, num_hidden_layers=4, n_group=1, topk_group=1, index_n_heads=6,
                           indexer_types=["full", "shared", "shared", "full"])),
    "moe-gpt-oss": Case(oss(), never=2, always=4),
    "moe-gpt-oss-mxfp4": Case(oss(intermediate_size=96, num_local_experts=7, num_experts_per_tok=4), stored="mxfp4"),
}


def experts_of(model): return {n: m for n, m in model.named_modules() if n.endswith(".experts")}


def choose(model, case):
    """Biases of routers by which no token chooses one expert, and every token another."""
    for name, bias in [*model.named_parameters(), *model.named_buffers()]:
        if not name.endswith(("mlp.router.bias", "e_score_correction_bias")): continue
        for expert, size in ((case.never, -60.0), (case.always, 60.0)):
            if expert is not None: bias.data[expert] = size


def round_mxfp4(model):
    """The experts that MXFP4 has, and their tensors."""
    tensors = {}
    for name, m in experts_of(model).items():
        for part in ("gate_up_proj", "down_proj"):
            p = getattr(m, part)
            rows = p.data.double().transpose(1, 2)  # [E, N, K]
            codes, e = mx_e2m1(rows)
            bytes_ = (codes[..., 0::2] | codes[..., 1::2] << 4).to(torch.uint8)
            tensors[f"{name}.{part}_blocks"] = bytes_
            tensors[f"{name}.{part}_scales"] = (e.squeeze(-1) + 127).to(torch.uint8)
            p.data = torch.ldexp(E2M1[codes], e).flatten(-2).transpose(1, 2).to(p.dtype).contiguous()
    return tensors


BLOCK = (32, 32)


def blocks(w):
    """Codes of e4m3, and a power of two for each block, so that what they mean is a number of bf16; tensors by the ends of
    their names."""
    (n, k), (high, wide) = w.shape, BLOCK
    pad = torch.nn.functional.pad(w.double(), (0, -k % wide, 0, -n % high))
    most = pad.unflatten(1, (-1, wide)).unflatten(0, (-1, high)).abs().amax((1, 3))
    s = torch.exp2(torch.ceil(torch.log2(most / 448)))
    wide_s = spread(spread(s, high, n, 0), wide, k, 1)
    q = (w.double() / wide_s).float().to(torch.float8_e4m3fn)
    return {"": q, "_scale": s.float()}, (q.double() * wide_s).to(w.dtype)


def pairs(w):
    """Codes of e2m1 in pairs, exponents of groups of 32, and what they mean."""
    codes, e = mx_e2m1(w.double())
    bytes_ = (codes[..., 0::2] | codes[..., 1::2] << 4).to(torch.uint8)
    return {"": bytes_.flatten(-2), "_scale": (e.squeeze(-1) + 127).to(torch.uint8)}, torch.ldexp(E2M1[codes], e).flatten(-2).to(w.dtype)


def levels(w):
    """Pairs of codes of e2m1, scales of e4m3 for groups of 16, and a power of two."""
    g = w.double().unflatten(-1, (-1, 16))
    number = torch.exp2(torch.ceil(torch.log2(g.abs().amax() / (6 * 448))))
    s = (g.abs().amax(-1, keepdim=True) / 6 / number).clamp(2**-9, 448).float().to(torch.float8_e4m3fn)
    codes = e2m1_codes(g / (s.double() * number))
    bytes_ = (codes[..., 0::2] | codes[..., 1::2] << 4).to(torch.uint8).flatten(-2)
    tensors = {"": bytes_, "_scale": s.squeeze(-1), "_scale_2": number.float()}
    return tensors, (E2M1[codes] * s.double() * number).flatten(-2).to(w.dtype)


def is_product(name): return name.endswith(("_proj.weight", "_proj_with_mqa.weight"))


def round_weights(model, coded):
    """Weights of products as what they mean once they are quantised."""
    for name, p in model.named_parameters():
        if is_product(name): p.data = coded(p.data)[1]
        if name.endswith("experts.gate_up_proj"): p.data = torch.stack([torch.cat([coded(h)[1] for h in w.chunk(2)]) for w in p.data])
        if name.endswith("experts.down_proj"): p.data = torch.stack([coded(w)[1] for w in p.data])


# By how a checkpoint has its products: what quantises a weight, and what the configuration says.
CODED = {
    "blocks": (blocks, ct("float-quantized", spec(8, "float", "block", block_structure=list(BLOCK)))),
    "quark": (pairs, quark(FP4, None)),
    "modelopt": (levels, modelopt("W4A16_NVFP4", group_size=16, ignore=["lm_head", "*.mlp.gate"])),
}


def save(model, case, path):
    coded, config = CODED.get(case.stored, (None, None))
    if coded:
        round_weights(model, coded)
        model.config.quantization_config = config
    stacked = dict(model.state_dict().items())
    if case.stored == "mxfp4":
        tensors = round_mxfp4(model)
        stacked = {n: p for n, p in model.state_dict().items() if not n.endswith(("experts.gate_up_proj", "experts.down_proj"))}
        stacked |= tensors
        excluded = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
        model.config.quantization_config = {"quant_method": "mxfp4", "modules_to_not_convert": excluded}
    model.config.architectures, model.config.dtype = [type(model).__name__], torch.bfloat16
    model.config.save_pretrained(path)
    if case.stored in ("each", *CODED) and not isinstance(model, transformers.GptOssForCausalLM):
        names = ("w1", "w3", "w2") if isinstance(model, transformers.MixtralForCausalLM) else ("gate_proj", "up_proj", "down_proj")
        for name in experts_of(model):
            both, down = stacked.pop(f"{name}.gate_up_proj"), stacked.pop(f"{name}.down_proj")
            for e in range(len(both)):
                for part, w in zip(names, (*both[e].chunk(2), down[e])): stacked[f"{name}.{e}.{part}.weight"] = w
        if isinstance(model, transformers.MixtralForCausalLM):
            stacked = {n.replace(".mlp.", ".block_sparse_moe."): w for n, w in stacked.items()}
    if coded:
        for n in [n for n in stacked if is_product(n)]:
            tensors, means = coded(stacked[n])
            assert torch.equal(means, stacked[n]), n
            stacked |= {f"{n}{end}": tensor for end, tensor in tensors.items()}
    safetensors.torch.save_file({n: w.contiguous() for n, w in stacked.items()}, path / "model.safetensors", {"format": "pt"})


# ---- the reference in float64 --------------------------------------------------------------------

def pick(scores, k):
    """The k largest, of equals the first."""
    return torch.sort(scores, dim=-1, descending=True, stable=True).indices[..., :k]


def softmax_router(self, x):
    scores = torch.nn.functional.linear(x.reshape(-1, self.hidden_dim), self.weight).softmax(-1)
    chosen = pick(scores, self.top_k)
    weights = scores.gather(1, chosen)
    if getattr(self, "norm_topk_prob", True): weights = weights / weights.sum(-1, keepdim=True)
    return scores, weights, chosen


def chosen_router(self, x):
    scores = torch.nn.functional.linear(x, self.weight, self.bias)
    chosen = pick(scores, self.top_k)
    return scores, scores.gather(1, chosen).softmax(-1), chosen


def sigmoid_router(self, x):
    logits = torch.nn.functional.linear(x.reshape(-1, self.hidden_dim), self.weight)
    scores = logits.sigmoid()
    choice = scores + self.e_score_correction_bias.double()
    best = choice.view(len(choice), self.num_group, -1).topk(2, -1).values.sum(-1)
    kept = torch.zeros_like(best).scatter(1, pick(best, self.topk_group), 1).bool()
    kept = kept.repeat_interleave(self.num_experts // self.num_group, 1)
    chosen = pick(choice.masked_fill(~kept, float("-inf")), self.top_k)
    weights = scores.gather(1, chosen)
    if self.norm_topk_prob: weights = weights / weights.sum(-1, keepdim=True)
    return logits, weights * self.routed_scaling_factor, chosen


def method_router(self, x):
    """The router of DeepSeek-V2: a group without one of the best experts is not chosen from."""
    scores = torch.nn.functional.linear(x.view(-1, self.hidden_dim), self.weight).softmax(-1)
    open_ = scores
    if self.topk_method == "group_limited_greedy":
        best = scores.view(len(scores), self.num_group, -1).max(-1).values
        kept = torch.zeros_like(best).scatter(1, pick(best, self.topk_group), 1).bool()
        open_ = scores.masked_fill(~kept.repeat_interleave(self.num_experts // self.num_group, 1), 0.0)
    chosen = pick(open_, self.top_k)
    return scores, open_.gather(1, chosen) * self.routed_scaling_factor, chosen


@torch.no_grad()
def rotary_complex64(self, x, position_ids):
    angle = position_ids[..., None].double() * self.inv_freq.double()
    return torch.polar(torch.full_like(angle, self.attention_scaling), angle)


def apply_complex64(q, k, turns):
    turns = turns.unsqueeze(1)
    turn = lambda x: torch.view_as_real(torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * turns).flatten(3)
    return turn(q), turn(k)


def attention64(module, query, key, value, attention_mask, scaling, indices=None, **_):
    """As make.attention64, with sinks, and with the positions that an indexer has chosen."""
    if indices is not None:
        hidden = torch.ones(attention_mask.shape[0], *attention_mask.shape[2:], dtype=torch.bool).scatter(-1, indices.long(), False)
        attention_mask = attention_mask.masked_fill(hidden.unsqueeze(1), torch.finfo(torch.float64).min)
    key = key.repeat_interleave(module.num_key_value_groups, dim=1)
    value = value.repeat_interleave(module.num_key_value_groups, dim=1)
    scores = query @ key.transpose(2, 3) * scaling + attention_mask
    if hasattr(module, "sinks"):
        sinks = module.sinks.reshape(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[2], 1)
        weights = torch.cat([scores, sinks], -1).softmax(-1)[..., :-1]
    else:
        weights = scores.softmax(-1)
    assert weights.dtype == torch.float64
    return (weights @ value).transpose(1, 2).contiguous(), None


@torch.no_grad()
def rotary_halves64(self, x, position_ids):
    angle = position_ids[..., None].double() * self.inv_freq.double()
    return angle.cos() * self.attention_scaling, angle.sin() * self.attention_scaling


@torch.no_grad()
def indexer64(self, hidden, short, embeddings, mask, position_ids=None, past_key_values=None):
    """The module of transformers with its conversions to float32 left out. Of equal scores the first position is chosen."""
    cos, sin = embeddings
    split = [self.qk_rope_head_dim, self.head_dim - self.qk_rope_head_dim]
    q = self.wq_b(short).unflatten(-1, (self.n_heads, self.head_dim)).split(split, dim=-1)
    k = self.k_norm(self.wk(hidden)).unsqueeze(2).split(split, dim=-1)
    is_glm = type(self).__name__.startswith("Glm")
    turn = glm_dsa.apply_rotary_pos_emb_interleave if is_glm else deepseek_v32.apply_rotary_pos_emb
    turned = turn(q[0], k[0], cos, sin, unsqueeze_dim=2)
    q, k = torch.cat([turned[0], q[1]], dim=-1), torch.cat([turned[1], k[1]], dim=-1).squeeze(2)
    if past_key_values is not None: k = past_key_values.update_indexer(k, self.layer_idx)
    scores = (q @ k.transpose(-1, -2).unsqueeze(1) * self.head_dim**-0.5).relu()
    weights = self.weights_proj(hidden) * self.n_heads**-0.5
    scores = (weights.unsqueeze(-2) @ scores).squeeze(-2) + mask
    assert scores.dtype == torch.float64
    # The last score that is chosen and the first that is not are equal, as zeros are, or more than
    # a rounding apart.
    order = scores.sort(dim=-1, descending=True).values
    if scores.shape[-1] > self.index_topk:
        last, first = order[..., self.index_topk - 1], order[..., self.index_topk]
        apart = (last - first)[first > -1e30]
        assert ((apart == 0) | (apart > 1e-4)).all(), apart.min()
    return pick(scores, min(self.index_topk, scores.shape[-1])).int()


INDEXERS = ("DeepseekV32Indexer", "GlmMoeDsaIndexer")
ROUTERS = {"Qwen3MoeTopKRouter": softmax_router, "MixtralTopKRouter": softmax_router, "GptOssTopKRouter": chosen_router,
           "Glm4MoeTopkRouter": sigmoid_router, "DeepseekV3TopkRouter": sigmoid_router,
           "DeepseekV32TopkRouter": sigmoid_router, "GlmMoeDsaTopkRouter": sigmoid_router, "DeepseekV2TopkRouter": method_router}


def float64(model):
    model = make.float64(model)
    for module in model.modules():
        router = ROUTERS.get(type(module).__name__)
        if router: module.forward = router.__get__(module)
        if type(module).__name__ in INDEXERS: module.forward = indexer64.__get__(module)
    if isinstance(model, transformers.GptOssForCausalLM):
        model.model.rotary_emb.forward = rotary_halves64.__get__(model.model.rotary_emb)
    if isinstance(model, transformers.DeepseekV2ForCausalLM):
        model.model.rotary_emb.forward = rotary_complex64.__get__(model.model.rotary_emb)
    return model


def variant(model, attention):
    model = copy.deepcopy(model).eval()
    model.set_attn_implementation(attention)
    return model


def build(name):
    case, path, seed = CASES[name], HERE / name, zlib.crc32(name.encode())
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    model = transformers.AutoModelForCausalLM.from_config(case.config, experts_implementation="eager")
    make.randomize(model, seed)
    draw = torch.Generator().manual_seed(seed + 1)
    for n, b in sorted(model.named_buffers()):
        if n.endswith("e_score_correction_bias"): b.data.copy_(torch.randn(b.shape, generator=draw) * 0.3)
    choose(model, case)
    # Frequencies and corrections stay float32.
    for p in model.parameters(): p.data = p.data.to(torch.bfloat16)
    save(model, case, path)
    tokens = [torch.randint(case.config.vocab_size, (n,), generator=draw) for n in LENGTHS]
    exact = float64(variant(model, "experts64"))
    narrow, deepseek_v2.apply_rotary_emb = deepseek_v2.apply_rotary_emb, apply_complex64
    counts = count(exact, tokens)
    reference = [{mode: logits(exact, t, pieces(len(t))) for mode, pieces in MODES.items()} for t in tokens]
    deepseek_v2.apply_rotary_emb = narrow
    assert all(x.dtype == torch.float64 for r in reference for x in r.values())
    for r in reference:
        apart = max((r[mode] - r["prefill"]).abs().max().item() for mode in MODES)
        assert apart < 1e-9, (name, apart)
    tensors = {f"tokens.{i}": t.int() for i, t in enumerate(tokens)}
    tensors |= {f"{mode}.{i}": x.float().contiguous() for i, r in enumerate(reference) for mode, x in r.items()}
    safetensors.torch.save_file(tensors, path / "golden.safetensors")
    facts = {"torch_error": make.errors(variant(model, "eager"), reference, tokens, "prefill"), "rows_of_experts": counts}
    write_json(path / "golden.json", facts)
    spread = reference[0]["prefill"].std().item()
    print(f"{name}: logits std {spread:.2f}, torch rms error {facts['torch_error']['rms'][0]:.2e}, rows {counts}", flush=True)


def count(model, tokens):
    """Of each layer with experts, how many of the first sequence's tokens have each."""
    all_, hooks = [], []
    for module in model.modules():
        if type(module).__name__ in ROUTERS:
            experts = module.num_experts
            hooks.append(module.register_forward_hook(
                lambda m, _, out, experts=experts: all_.append(torch.bincount(out[2].flatten(), minlength=experts).tolist())))
    model(tokens[0][None])
    for hook in hooks: hook.remove()
    return all_


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    transformers.AttentionInterface.register("experts64", attention64)
    transformers.AttentionMaskInterface.register("experts64", make.eager_mask)
    for name in sys.argv[1:] or CASES: build(name)
