"""The golden model of Kimi-K3's language part, which transformers does not have.

    pip install torch==2.14.0 transformers==5.24.0 safetensors==0.8.0
    python tests/golden/kimi_k3.py

The reference follows the formulas of vLLM 0.33 (models/kimi_k3/amd: linear.py, kda.py, mla.py, ops/attn_res.py; the activation is that
of layers/activation.py `SituAndMul.forward_native`, the decay that of third_party/flash_linear_attention/ops/kda.py
`kda_gate_fwd_kernel`) and of SGLang 0.5.23 (srt/models/kimi_k3.py), token by token and in float64. Names of tensors are those that their
`load_weights` take: `A_log` has as many numbers as a head has elements, of which the first are those of heads.
"""
import math, shutil, zlib

import safetensors.torch, torch

from families import HERE, LENGTHS, MODES, write_json

LINEAR = dict(kda_layers=[1, 2, 4], full_attn_layers=[3, 5], num_heads=3, head_dim=20, short_conv_kernel_size=4,
              gate_lower_bound=-5.0, use_full_rank_gate=True)
# Rows are kept before layers 0, 2 and 4: four rows at most are mixed.
TEXT = dict(model_type="kimi_linear", vocab_size=96, hidden_size=48, intermediate_size=60, num_hidden_layers=5, num_attention_heads=3,
            num_key_value_heads=3, hidden_act="situ", activation_situ_beta=4.0, activation_situ_linear_beta=25.0, rms_norm_eps=1e-5,
            max_position_embeddings=512, tie_word_embeddings=False, bos_token_id=None, eos_token_id=None,
            moe_intermediate_size=20, moe_renormalize=True, moe_router_activation_func="sigmoid", num_experts=5, num_experts_per_token=2,
            num_shared_experts=2, routed_scaling_factor=1.7, first_k_dense_replace=1, moe_layer_freq=1, num_expert_group=1, topk_group=1,
            q_lora_rank=28, kv_lora_rank=40, qk_nope_head_dim=24, qk_rope_head_dim=16, v_head_dim=32, mla_use_nope=True,
            mla_use_output_gate=True, attn_res_block_size=2, routed_expert_hidden_size=32, latent_moe_use_norm=True,
            num_nextn_predict_layers=0, linear_attn_config=LINEAR)
CONFIG = dict(architectures=["KimiK3ForConditionalGeneration"], model_type="kimi_k3", dtype="bfloat16", text_config=TEXT,
              vision_config=dict(model_type="kimi_k3_vision", vt_hidden_size=16, vt_num_hidden_layers=1, vt_num_attention_heads=2))
H, EPS = TEXT["hidden_size"], TEXT["rms_norm_eps"]
HEADS, WIDTH, TAPS = LINEAR["num_heads"], LINEAR["head_dim"], LINEAR["short_conv_kernel_size"]
NOPE, ROPE, VALUE, RANK = TEXT["qk_nope_head_dim"], TEXT["qk_rope_head_dim"], TEXT["v_head_dim"], TEXT["kv_lora_rank"]
WIDE = ("A_log", "dt_bias", "e_score_correction_bias")


def is_linear(layer): return layer + 1 in LINEAR["kda_layers"]


def shapes():
    """The tensors of the language part below `language_model.`, by name."""
    made = {"model.embed_tokens.weight": [96, H], "model.norm.weight": [H], "lm_head.weight": [96, H],
            "model.output_attn_res_norm.weight": [H], "model.output_attn_res_proj.weight": [1, H]}
    mlp = lambda path, width, names: {f"{path}.{name}.weight": shape for name, shape in zip(names, ([width, H], [width, H], [H, width]))}
    for i in range(TEXT["num_hidden_layers"]):
        path, rows = f"model.layers.{i}", HEADS * WIDTH
        for name in ("input_layernorm", "post_attention_layernorm", "self_attention_res_norm", "mlp_res_norm"): made[f"{path}.{name}.weight"] = [H]
        for name in ("self_attention_res_proj", "mlp_res_proj"): made[f"{path}.{name}.weight"] = [1, H]
        if is_linear(i):
            own = {f"{n}_proj.weight": [rows, H] for n in "qkvg"} | {f"{n}_conv1d.weight": [rows, 1, TAPS] for n in "qkv"}
            own |= {"b_proj.weight": [HEADS, H], "f_a_proj.weight": [WIDTH, H], "f_b_proj.weight": [rows, WIDTH], "A_log": [WIDTH],
                    "dt_bias": [rows], "o_norm.weight": [WIDTH], "o_proj.weight": [H, rows]}
        else:
            heads, low = TEXT["num_attention_heads"], TEXT["q_lora_rank"]
            own = {"q_a_proj.weight": [low, H], "q_a_layernorm.weight": [low], "q_b_proj.weight": [heads * (NOPE + ROPE), low],
                   "kv_a_proj_with_mqa.weight": [RANK + ROPE, H], "kv_a_layernorm.weight": [RANK], "kv_b_proj.weight": [heads * (NOPE + VALUE), RANK],
                   "g_proj.weight": [heads * VALUE, H], "o_proj.weight": [H, heads * VALUE]}
        made |= {f"{path}.self_attn.{name}": shape for name, shape in own.items()}
        if i < TEXT["first_k_dense_replace"]:
            made |= mlp(f"{path}.mlp", TEXT["intermediate_size"], ("gate_proj", "up_proj", "down_proj"))
            continue
        path, short, width = f"{path}.block_sparse_moe", TEXT["routed_expert_hidden_size"], TEXT["moe_intermediate_size"]
        made |= {f"{path}.gate.weight": [TEXT["num_experts"], H], f"{path}.gate.e_score_correction_bias": [TEXT["num_experts"]],
                 f"{path}.routed_expert_down_proj.weight": [short, H], f"{path}.routed_expert_norm.weight": [short],
                 f"{path}.routed_expert_up_proj.weight": [H, short]}
        made |= mlp(f"{path}.shared_experts", width * TEXT["num_shared_experts"], ("gate_proj", "up_proj", "down_proj"))
        for e in range(TEXT["num_experts"]):
            made |= {f"{path}.experts.{e}.w{n}.weight": shape for n, shape in ((1, [width, short]), (3, [width, short]), (2, [short, width]))}
    return made


def draw(seed):
    random = torch.Generator().manual_seed(seed)
    made = {}
    for name, shape in sorted(shapes().items()):
        mean = 1.0 if "norm" in name else 0.0
        scale = 0.3 if len(shape) < 2 else 0.2
        # Mixtures that prefer some rows, and that do not take one alone.
        if "res_proj" in name: scale = 0.4
        value = torch.randn(shape, generator=random) * scale + mean
        made[name] = value if name.endswith(WIDE) else value.to(torch.bfloat16)
    return made


class Model:
    """The language part, in a type, for one sequence that goes on."""

    def __init__(self, weights, dtype):
        self.dtype = dtype
        # What is computed in float32 there.
        self.high = torch.float64 if dtype == torch.float64 else torch.float32
        self.weights = {n: w.to(self.high if n.endswith(WIDE) else dtype) for n, w in weights.items()}
        self.convs, self.states, self.latents = {}, {}, {}

    def linear(self, path, x): return x @ self.weights[f"{path}.weight"].T

    def norm(self, path, x, high=False):
        x = x.to(self.high)
        made = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * self.weights[f"{path}.weight"].to(self.high)
        return made if high else made.to(self.dtype)

    def situ(self, gate, up):
        gate, up = gate.to(self.high), up.to(self.high)
        beta, linear = TEXT["activation_situ_beta"], TEXT["activation_situ_linear_beta"]
        gate = beta * torch.tanh(gate / beta) * torch.sigmoid(gate)
        return (gate * (linear * torch.tanh(up / linear))).to(self.dtype)

    def mlp(self, path, x, names):
        gate, up, down = (f"{path}.{name}" for name in names)
        return self.linear(down, self.situ(self.linear(gate, x), self.linear(up, x)))

    def mixed(self, path, rows):
        """The mixture of the rows that were kept and of the one that goes through."""
        if len(rows) == 1: return rows[0]
        rows = torch.stack(rows, -2).to(self.high)
        logits = self.norm(f"{path}_norm", rows, high=True) @ self.weights[f"{path}_proj.weight"].to(self.high)[0]
        return (logits.softmax(-1).unsqueeze(-1) * rows).sum(-2).to(self.dtype)

    def conv(self, path, x):
        before = self.convs.get(path, torch.zeros(TAPS - 1, x.shape[-1], dtype=x.dtype))
        all_ = torch.cat([before, x])
        self.convs[path] = all_[-(TAPS - 1):]
        weight = self.weights[f"{path}.weight"][:, 0].to(self.high)
        made = sum(all_[t:t + len(x)].to(self.high) * weight[:, t] for t in range(TAPS))
        return torch.nn.functional.silu(made).to(self.dtype)

    def delta(self, path, x):
        heads = lambda v: v.reshape(len(x), HEADS, WIDTH)
        q, k, v = (heads(self.conv(f"{path}.{n}_conv1d", self.linear(f"{path}.{n}_proj", x))).to(self.high) for n in "qkv")
        beta = torch.sigmoid(self.linear(f"{path}.b_proj", x).to(self.high))
        f = self.linear(f"{path}.f_b_proj", self.linear(f"{path}.f_a_proj", x)).to(self.high)
        rate = self.weights[f"{path}.A_log"][:HEADS].exp()[:, None]
        decay = LINEAR["gate_lower_bound"] * torch.sigmoid(rate * heads(f + self.weights[f"{path}.dt_bias"]))
        unit = lambda v: v * torch.rsqrt(v.pow(2).sum(-1, keepdim=True) + 1e-6)
        q, k = unit(q) * WIDTH ** -0.5, unit(k)
        state = self.states.get(path, torch.zeros(HEADS, WIDTH, WIDTH, dtype=self.high))
        made = []
        for t in range(len(x)):
            state = state * decay[t].exp()[:, :, None]
            seen = torch.einsum("hkv,hk->hv", state, k[t])
            state = state + torch.einsum("hk,hv->hkv", k[t], beta[t][:, None] * (v[t] - seen))
            made.append(torch.einsum("hkv,hk->hv", state, q[t]))
        self.states[path] = state
        gate = torch.sigmoid(heads(self.linear(f"{path}.g_proj", x)).to(self.high))
        made = (self.norm(f"{path}.o_norm", torch.stack(made).to(self.dtype), high=True) * gate).to(self.dtype)
        return self.linear(f"{path}.o_proj", made.reshape(len(x), -1))

    def attention(self, path, x):
        heads = TEXT["num_attention_heads"]
        q = self.linear(f"{path}.q_b_proj", self.norm(f"{path}.q_a_layernorm", self.linear(f"{path}.q_a_proj", x))).reshape(len(x), heads, NOPE + ROPE)
        latent, rest = self.linear(f"{path}.kv_a_proj_with_mqa", x).split([RANK, ROPE], -1)
        own = torch.cat([self.norm(f"{path}.kv_a_layernorm", latent), rest], -1)
        kept = torch.cat([self.latents.get(path, own[:0]), own])
        self.latents[path] = kept
        k, v = self.linear(f"{path}.kv_b_proj", kept[:, :RANK]).reshape(len(kept), heads, NOPE + VALUE).split([NOPE, VALUE], -1)
        # No part is turned.
        k = torch.cat([k, kept[:, None, RANK:].expand(-1, heads, -1)], -1)
        scores = torch.einsum("qhd,khd->hqk", q, k).to(self.high) / math.sqrt(NOPE + ROPE)
        at = torch.arange(len(kept))
        scores.masked_fill_(at[None, None, :] > at[len(kept) - len(x):][None, :, None], -math.inf)
        made = torch.einsum("hqk,khd->qhd", scores.softmax(-1).to(self.dtype), v).reshape(len(x), -1)
        gate = torch.sigmoid(self.linear(f"{path}.g_proj", x).to(self.high)).to(self.dtype)
        return self.linear(f"{path}.o_proj", made * gate)

    def experts(self, path, x):
        scores = torch.sigmoid(x.to(self.high) @ self.weights[f"{path}.gate.weight"].to(self.high).T)
        chosen = (scores + self.weights[f"{path}.gate.e_score_correction_bias"]).topk(TEXT["num_experts_per_token"], -1).indices
        weights = scores.gather(-1, chosen)
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20) * TEXT["routed_scaling_factor"]
        short = self.linear(f"{path}.routed_expert_down_proj", x)
        rows = []
        for row, own, by in zip(short, chosen, weights):
            made = [self.mlp(f"{path}.experts.{e}", row[None], ("w1", "w3", "w2"))[0].to(self.high) * w for e, w in zip(own.tolist(), by)]
            rows.append(sum(made).to(self.dtype))
        made = self.linear(f"{path}.routed_expert_up_proj", self.norm(f"{path}.routed_expert_norm", torch.stack(rows)))
        return made + self.mlp(f"{path}.shared_experts", x, ("gate_proj", "up_proj", "down_proj"))

    def step(self, tokens):
        through, kept = self.weights["model.embed_tokens.weight"][tokens], []
        for i in range(TEXT["num_hidden_layers"]):
            path = f"model.layers.{i}"
            x = self.norm(f"{path}.input_layernorm", self.mixed(f"{path}.self_attention_res", [*kept, through]))
            made = (self.delta if is_linear(i) else self.attention)(f"{path}.self_attn", x)
            if i % TEXT["attn_res_block_size"] == 0: kept, through = [*kept, through], made
            else: through = through + made
            x = self.norm(f"{path}.post_attention_layernorm", self.mixed(f"{path}.mlp_res", [*kept, through]))
            is_dense = i < TEXT["first_k_dense_replace"]
            through = through + (self.mlp(f"{path}.mlp", x, ("gate_proj", "up_proj", "down_proj")) if is_dense else self.experts(f"{path}.block_sparse_moe", x))
        x = self.norm("model.norm", self.mixed("model.output_attn_res", [*kept, through]))
        return x.to(self.high) @ self.weights["lm_head.weight"].to(self.high).T


def logits(weights, dtype, tokens, pieces):
    model = Model(weights, dtype)
    return torch.cat([model.step(piece) for piece in tokens.split(pieces)]).double()


def main():
    path = HERE / "family-kimik3"
    # A draw in which fewer choices of experts hang on the last bits of bf16.
    seed = zlib.crc32(path.name.encode()) + 1
    weights = draw(seed)
    random = torch.Generator().manual_seed(seed + 1000)
    tokens = [torch.randint(TEXT["vocab_size"], (n,), generator=random) for n in LENGTHS]
    reference = [{mode: logits(weights, torch.float64, t, pieces(len(t))) for mode, pieces in MODES.items()} for t in tokens]
    for made in reference:
        apart = max((made[mode] - made["prefill"]).abs().max().item() for mode in MODES)
        assert apart < 1e-9, apart
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    write_json(path / "config.json", CONFIG)
    # Parts that do not run.
    others = {"vision_tower.patch_embed.proj.weight": torch.zeros(2, 2), "mm_projector.proj.0.weight": torch.zeros(2, 2)}
    stored = {f"language_model.{name}": w for name, w in weights.items()} | {n: w.to(torch.bfloat16) for n, w in others.items()}
    safetensors.torch.save_file(stored, path / "model.safetensors", {"format": "pt"})
    tensors = {f"tokens.{i}": t.int() for i, t in enumerate(tokens)}
    tensors |= {f"{mode}.{i}": x.float().contiguous() for i, made in enumerate(reference) for mode, x in made.items()}
    safetensors.torch.save_file(tensors, path / "golden.safetensors")
    diff = [logits(weights, torch.bfloat16, t, [len(t)]) - made["prefill"] for t, made in zip(tokens, reference)]
    errors = {"rms": [d.pow(2).mean().sqrt().item() for d in diff], "max": [d.abs().max().item() for d in diff]}
    write_json(path / "golden.json", {"torch_error": errors})
    size = sum(f.stat().st_size for f in path.iterdir())
    print(f"{path.name}: {size} bytes, logits std {reference[0]['prefill'].std().item():.2f}, torch rms error {errors['rms'][0]:.2e}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    main()
