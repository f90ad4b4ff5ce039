"""Draft models in PyTorch: what golden cases and trained heads are computed with.

An MTP layer is transformers' own class around a layer of the target's own class. An EAGLE-3 head is its published formula over
Llama's parts of transformers.
"""
import copy

import torch, transformers
from torch import nn
from transformers.modeling_layers import MtpLayer
from transformers.models.llama import modeling_llama


def text(config): return getattr(config, "text_config", config)


def decoder(model): return getattr(model.model, "language_model", model.model)


class Lent:
    """Parts of the target that a draft shares, and does not save."""

    def __init__(self, model):
        self.embed, self.rotary, self.head = model.get_input_embeddings(), decoder(model).rotary_emb, model.get_output_embeddings()


class Mtp(nn.Module):
    """An MTP layer after the last norm of a target."""

    def __init__(self, model):
        super().__init__()
        config = copy.deepcopy(text(model.config))
        # A draft has a layer 0 with experts, if there are any, that attends to all.
        config.layer_types = ["full_attention"]
        for name, value in (("first_k_dense_replace", 0), ("mlp_layer_types", ["sparse"]), ("num_hidden_layers", 1)):
            if hasattr(config, name): setattr(config, name, value)
        layers = decoder(model).layers
        norm = type(layers[0].input_layernorm)
        self.layer, self.lent, self.d2t = MtpLayer(config, type(layers[0]), norm, 0), Lent(model), None

    def fuse(self, entered, last): return last

    def forward(self, ids, rows, positions, mask, cache):
        lent = self.lent
        x = lent.embed(ids)
        angles = lent.rotary(x, positions)
        rows = self.layer(x, rows, angles, mask, positions, cache)
        return lent.head(rows), rows


class Eagle3Layer(nn.Module):
    def __init__(self, config, llama):
        super().__init__()
        h, d = config.hidden_size, config.head_dim
        norm = lambda: llama.LlamaRMSNorm(h, eps=config.rms_norm_eps)
        self.self_attn, self.mlp = llama.LlamaAttention(config, 0), llama.LlamaMLP(config)
        for name, heads in (("q", config.num_attention_heads), ("k", config.num_key_value_heads), ("v", config.num_key_value_heads)):
            setattr(self.self_attn, f"{name}_proj", nn.Linear(2 * h, heads * d, bias=config.attention_bias))
        self.input_layernorm, self.hidden_norm, self.post_attention_layernorm = norm(), norm(), norm()
        self.before = getattr(config, "norm_before_residual", False)

    def forward(self, x, rows, angles, mask, cache):
        normed = self.hidden_norm(rows)
        rows = normed if self.before else rows
        both = torch.cat([self.input_layernorm(x), normed], -1)
        rows = rows + self.self_attn(both, angles, mask, past_key_values=cache)[0]
        return rows + self.mlp(self.post_attention_layernorm(rows))


class Eagle3(nn.Module):
    """An EAGLE-3 head over what enters some layers of a target."""

    def __init__(self, model, config, layers, llama=modeling_llama):
        super().__init__()
        h, target, n = config.hidden_size, text(model.config).hidden_size, len(layers)
        norm = lambda width: llama.LlamaRMSNorm(width, eps=config.rms_norm_eps)
        config._attn_implementation = "eager"
        self.layers, self.output = layers, getattr(config, "norm_output", False)
        if getattr(config, "norm_before_fc", False): self.input_norm = norm(n * target)
        if getattr(config, "fc_norm", False): self.fc_norm = nn.ModuleList([norm(target) for _ in layers])
        self.fc, self.midlayer, self.norm = nn.Linear(n * target, h, bias=False), Eagle3Layer(config, llama), norm(h)
        self.rotary, self.lent = llama.LlamaRotaryEmbedding(config), Lent(model)
        small = config.draft_vocab_size
        if small: self.lm_head = nn.Linear(h, small, bias=False)
        self.register_buffer("d2t", torch.zeros(small, dtype=torch.int64) if small else None)

    def fuse(self, entered, last):
        rows = torch.cat([entered[i] for i in self.layers], -1)
        if hasattr(self, "input_norm"): rows = self.input_norm(rows)
        if hasattr(self, "fc_norm"): rows = torch.cat([n(x) for n, x in zip(self.fc_norm, rows.chunk(len(self.layers), -1))], -1)
        return self.fc(rows)

    def forward(self, ids, rows, positions, mask, cache):
        x = self.lent.embed(ids)
        rows = self.midlayer(x, rows, self.rotary(x, positions), mask, cache)
        normed = self.norm(rows)
        head = self.lm_head if self.d2t is not None else self.lent.head
        return head(normed), normed if self.output else rows


def target(model, ids):
    """Logits of the target, the input rows of each layer, and the rows after its last norm."""
    seen = model(ids, output_hidden_states=True, use_cache=False)
    return seen.logits, seen.hidden_states[:-1], seen.hidden_states[-1]


def causal(length, like):
    mask = torch.full((length, length), torch.finfo(like.dtype).min, dtype=like.dtype, device=like.device)
    return mask.triu(1)[None, None]


def chains(head, ids, rows, steps, known=None):
    """Logits of `steps` drafts after every token but the first, and the rows that each step leaves.
    The first draft has the target's rows. Later ones have the draft's own rows and the chain's own
    tokens: the likeliest, or, for `known` sequences, the next ones."""
    (b, n), like = ids[:, 1:].shape, rows
    cache, made = transformers.DynamicCache(), []
    positions = torch.arange(1, n + 1, device=ids.device)[None].expand(b, n)
    logits, rows = head(ids[:, 1:], rows[:, :-1], positions, causal(n, like), cache)
    made.append((logits, rows))
    if steps == 1: return made
    # Each token continues with a cache of its own: its past, and its chain.
    layer = cache.layers[0]
    layer.keys, layer.values = (t.repeat_interleave(n, 0) for t in (layer.keys, layer.values))
    mask = causal(n, like).expand(b, 1, n, n).transpose(1, 2).reshape(b * n, 1, 1, n)
    for step in range(1, steps):
        if known is None:
            tokens = logits.argmax(-1)
            if head.d2t is not None: tokens = tokens + head.d2t[tokens]
        else:
            tokens = torch.nn.functional.pad(known[:, 1 + step:], (0, step))
        mask = torch.nn.functional.pad(mask, (0, 1))
        logits, rows = head(tokens.reshape(b * n, 1), rows.reshape(b * n, 1, -1), positions.reshape(b * n, 1) + step, mask, cache)
        logits, rows = logits.view(b, n, -1), rows.view(b, n, -1)
        made.append((logits, rows))
    return made


def picks(head, made):
    """The drafts after each token but the first, as the target's ids."""
    all_ = torch.stack([logits.argmax(-1) for logits, _ in made], -1)
    return all_ if head.d2t is None else all_ + head.d2t[all_]


def stored(name, layers, apart):
    """The name that a tensor of an MTP layer has in published checkpoints."""
    own = dict(enorm="enorm", hnorm="hnorm", eh_proj="eh_proj", post_norm="shared_head.norm")
    if apart: own = dict(enorm="pre_fc_norm_embedding", hnorm="pre_fc_norm_hidden", eh_proj="fc", post_norm="norm")
    module, rest = name.removeprefix("layer.").split(".", 1)
    at = f"model.layers.{layers}." if not apart else "mtp."
    if module == "mtp_block": return f"{at}{'layers.0.' if apart else ''}{rest}"
    return f"{at}{own[module]}.{rest}"


def mtp_tensors(head, model, together=False):
    """The tensors of an MTP layer as checkpoints have them: experts one by one, or all in one."""
    apart, made = "Qwen3" in type(model).__name__, {}
    for name, t in head.state_dict().items():
        name = stored(name, text(model.config).num_hidden_layers, apart)
        path, _, part = name.rpartition(".")
        if together or not path.endswith(".experts"): made[name] = t.contiguous()
        elif part == "down_proj": made |= {f"{path}.{e}.down_proj.weight": w.contiguous() for e, w in enumerate(t)}
        else:
            for e, both in enumerate(t):
                for half, w in zip(("gate_proj", "up_proj"), both.chunk(2)): made[f"{path}.{e}.{half}.weight"] = w.contiguous()
    return made
