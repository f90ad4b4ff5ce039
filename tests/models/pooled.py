"""Trains a small model of DeepSeek-V4's kind for questions about one of three stories: several
residual streams, rows pooled of blocks of tokens with an indexer that chooses 8 of them, experts.

    python tests/models/pooled.py train TRAIN TOKENIZER OUT     one GPU, seven minutes
    python tests/models/pooled.py pool TRAIN TOKENIZER          its data alone, ahead
    python tests/models/pooled.py check OUT                     equality with transformers
    python tests/models/pooled.py score OUT [--count N]         accuracy with transformers

TRAIN is a script that makes up problems (`problem`), TOKENIZER a folder with tokenizer.json. Layers
first attend to all rows, later to chosen ones alone; all along, indexers learn to agree with the
attention of all heads to all rows. Problems begin with one story, and get more as most answers
become right. Every minute OUT has the model so far. Needs torch, tokenizers and safetensors;
`check` and `score` need transformers 5.24.
"""

import argparse
import json
import math
import random
import shutil
import time
from pathlib import Path

import torch
from sparse import DEVICE, END, Curriculum, Data, Norm, linear, loss_of, module, right, several
from sparse import score as score_of
from tokenizers import Tokenizer
from torch import nn
from torch.nn import functional as F

STORIES, HELD_OUT = 3, 500
SEED = 20261129
LAYERS = (
    "sliding_attention",
    "compressed_sparse_attention",
    "heavily_compressed_attention",
    "compressed_sparse_attention",
)
CONFIG = dict(
    architectures=["DeepseekV4ForCausalLM"],
    model_type="deepseek_v4",
    dtype="bfloat16",
    vocab_size=512,
    max_position_embeddings=512,
    bos_token_id=None,
    eos_token_id=END,
    pad_token_id=0,
    hidden_size=160,
    num_hidden_layers=4,
    layer_types=list(LAYERS),
    mlp_layer_types=["hash_moe", "moe", "moe", "moe"],
    compress_rates=dict(compressed_sparse_attention=4, heavily_compressed_attention=8),
    sliding_window=16,
    num_attention_heads=4,
    num_key_value_heads=1,
    head_dim=64,
    qk_rope_head_dim=16,
    partial_rotary_factor=0.25,
    q_lora_rank=96,
    o_groups=2,
    o_lora_rank=64,
    index_n_heads=4,
    index_head_dim=32,
    index_topk=8,
    hc_mult=4,
    hc_sinkhorn_iters=5,
    hc_eps=1e-6,
    n_routed_experts=4,
    num_experts_per_tok=2,
    n_shared_experts=1,
    moe_intermediate_size=64,
    scoring_func="sqrtsoftplus",
    norm_topk_prob=True,
    routed_scaling_factor=1.5,
    swiglu_limit=3.0,
    hidden_act="silu",
    rms_norm_eps=1e-6,
    rope_theta=10000.0,
    compress_rope_theta=40000.0,
    rope_parameters=dict(
        main=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.25),
        compress=dict(
            rope_type="yarn",
            rope_theta=40000.0,
            partial_rotary_factor=0.25,
            factor=4.0,
            original_max_position_embeddings=128,
            beta_fast=32.0,
            beta_slow=1.0,
            attention_factor=1.0,
        ),
    ),
    num_nextn_predict_layers=0,
    attention_bias=False,
    mlp_bias=False,
    tie_word_embeddings=False,
    use_cache=True,
)
C = argparse.Namespace(**CONFIG)
# The release has these tensors in float32.
WIDE = ("_fn", "_base", "_scale", ".ape", ".attn_sink", ".gate.bias")


def frequencies(kind):
    """Angles of one position, of the rotary embedding of a kind: those of YaRN, if it says so."""
    rope, dim = C.rope_parameters[kind], C.qk_rope_head_dim
    pairs = torch.arange(0, dim, 2, dtype=torch.float)
    plain = 1 / rope["rope_theta"] ** (pairs / dim)
    if rope["rope_type"] == "default":
        return plain
    place = lambda turns: (
        dim
        * math.log(rope["original_max_position_embeddings"] / (turns * 2 * math.pi))
        / (2 * math.log(rope["rope_theta"]))
    )
    low = max(math.floor(place(rope["beta_fast"])), 0)
    high = min(math.ceil(place(rope["beta_slow"])), dim - 1)
    slow = ((torch.arange(dim // 2) - low) / max(high - low, 0.001)).clamp(0, 1)
    return plain / rope["factor"] * slow + plain * (1 - slow)


def turned(x, angles):
    """The last elements of rows turned by position, neighbours as a pair."""
    kept, turn = x.split((x.shape[-1] - C.qk_rope_head_dim, C.qk_rope_head_dim), -1)
    a, b = turn.float()[..., 0::2], turn.float()[..., 1::2]
    cos, sin = angles.cos(), angles.sin()
    pairs = torch.stack((a * cos - b * sin, b * cos + a * sin), -1)
    return torch.cat((kept.float(), pairs.flatten(-2)), -1)


def unit(x):
    return F.rms_norm(x.float(), (x.shape[-1],), eps=C.rms_norm_eps)


def positions(count, x, every=1):
    return torch.arange(0, count * every, every, device=x.device)


class Compressor(nn.Module):
    """Rows of blocks of tokens; with overlap, each of its own block and of the one before."""

    def __init__(self, every, width, overlap):
        super().__init__()
        self.every, self.overlap = every, overlap
        self.wkv = linear(C.hidden_size, width * (1 + overlap))
        self.wgate = linear(C.hidden_size, width * (1 + overlap))
        self.ape = nn.Parameter(torch.zeros(every, width * (1 + overlap)))
        self.norm = Norm(width)

    def forward(self, x, freqs):
        count = x.shape[1] // self.every
        blocks = x[:, : count * self.every].unflatten(1, (count, self.every))
        kv, gate = self.wkv(blocks).float(), self.wgate(blocks).float() + self.ape
        if self.overlap:
            kv, gate = self.both(kv, 0.0), self.both(gate, -torch.inf)
        row = self.norm((kv * gate.softmax(2)).sum(2))
        return turned(row, positions(count, x, self.every)[:, None] * freqs)

    @staticmethod
    def both(x, absent):
        """The first half of the block before and the second one of its own."""
        before, own = x.chunk(2, -1)
        return torch.cat((F.pad(before[:, :-1], (0, 0, 0, 0, 1, 0), value=absent), own), 2)


class Indexer(nn.Module):
    def __init__(self, every):
        super().__init__()
        self.wq_b = linear(C.q_lora_rank, C.index_n_heads * C.index_head_dim)
        self.weights_proj = linear(C.hidden_size, C.index_n_heads)
        self.compressor = Compressor(every, C.index_head_dim, True)

    def forward(self, x, short, freqs):
        """Scores of all rows, of what the indexer does not change."""
        q = self.wq_b(short).unflatten(-1, (C.index_n_heads, C.index_head_dim))
        q = turned(q, (positions(x.shape[1], x)[:, None] * freqs)[:, None])
        rows = self.compressor(x, freqs)
        scores = F.relu(torch.einsum("bshd,btd->bsht", q, rows)).float() * C.index_head_dim**-0.5
        weights = self.weights_proj(x).float() * C.index_n_heads**-0.5
        return (scores * weights[..., None]).sum(2)


class Attention(nn.Module):
    def __init__(self, kind):
        super().__init__()
        heads = C.num_attention_heads
        self.wq_a = linear(C.hidden_size, C.q_lora_rank)
        self.q_norm = Norm(C.q_lora_rank)
        self.wq_b = linear(C.q_lora_rank, heads * C.head_dim)
        self.wkv = linear(C.hidden_size, C.head_dim)
        self.kv_norm = Norm(C.head_dim)
        self.wo_a = linear(heads * C.head_dim // C.o_groups, C.o_groups * C.o_lora_rank)
        self.wo_b = linear(C.o_groups * C.o_lora_rank, C.hidden_size)
        self.attn_sink = nn.Parameter(torch.zeros(heads))
        self.chooses = kind == "compressed_sparse_attention"
        self.freqs = frequencies("main" if kind == "sliding_attention" else "compress").to(DEVICE)
        if kind != "sliding_attention":
            every = C.compress_rates[kind]
            self.compressor = Compressor(every, C.head_dim, self.chooses)
        if self.chooses:
            self.indexer = Indexer(every)

    def forward(self, x, stage):
        """What the layer adds, and how far its indexer is from the attention of all heads."""
        length, apart = x.shape[1], 0
        at = positions(length, x)
        angles = (at[:, None] * self.freqs)[:, None]
        short = self.q_norm(self.wq_a(x))
        q = turned(unit(self.wq_b(short).unflatten(-1, (-1, C.head_dim))), angles)
        kv = turned(self.kv_norm(self.wkv(x)), angles[:, 0])
        back = at[:, None] - at
        seen = ((back >= 0) & (back < C.sliding_window)).expand(len(x), -1, -1)
        if hasattr(self, "compressor"):
            rows = self.compressor(x, self.freqs)
            kv = torch.cat((kv, rows), 1)
            closed = (at[:, None] + 1) // self.compressor.every > positions(rows.shape[1], x)
            seen = torch.cat((seen, closed.expand(len(x), -1, -1)), 2)
        scores = torch.einsum("bshd,btd->bhst", q, kv).float() * C.head_dim**-0.5
        if self.chooses:
            index = self.indexer(x.detach(), short.detach(), self.freqs)
            index = index.masked_fill(~closed, -torch.inf)
            apart = self.apart(index, self.weights(scores.detach(), seen)[..., length:], closed)
            if stage == "sparse":
                chosen = index.detach().topk(min(C.index_topk, index.shape[-1]), -1).indices
                few = torch.zeros_like(index, dtype=torch.bool).scatter_(-1, chosen, True) & closed
                seen = torch.cat((seen[..., :length], few), 2)
        out = torch.einsum("bhst,btd->bshd", self.weights(scores, seen), kv)
        out = turned(out, -angles).flatten(2).unflatten(-1, (C.o_groups, -1))
        grouped = self.wo_a.weight.unflatten(0, (C.o_groups, -1))
        return self.wo_b(torch.einsum("bsgd,god->bsgo", out, grouped).flatten(2)), apart

    def weights(self, scores, seen):
        sink = self.attn_sink[:, None, None].expand(*scores.shape[:-1], 1)
        scores = scores.masked_fill(~seen[:, None], -torch.inf)
        return torch.cat((scores, sink), -1).softmax(-1)[..., :-1]

    @staticmethod
    def apart(index, weights, closed):
        """How far scores are from weights of rows; tokens count as they attend to rows at all."""
        wanted = weights.detach().mean(1)
        share = wanted.sum(-1)
        wanted = wanted / share.clamp(min=1e-9)[..., None]
        # The first tokens have no row at all.
        found = index.masked_fill(~closed, -1e9).log_softmax(-1)
        each = (wanted * (wanted.clamp(min=1e-9).log() - found)).sum(-1)
        return (each * (share + 0.02 * (share > 0))).mean()


class Gate(nn.Module):
    """The weight that each expert has for a token; those that are not chosen have none."""

    def __init__(self, hashed):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(C.n_routed_experts, C.hidden_size))
        if hashed:
            order = torch.rand(C.vocab_size, C.n_routed_experts).argsort(1)
            self.register_buffer("tid2eid", order[:, : C.num_experts_per_tok].clone())
        else:
            self.register_buffer("bias", torch.zeros(C.n_routed_experts))
        self.load = torch.zeros(C.n_routed_experts)

    def forward(self, x, ids):
        scores = F.softplus(F.linear(x, self.weight).float()).sqrt()
        if hasattr(self, "bias"):
            chosen = (scores.detach() + self.bias).topk(C.num_experts_per_tok, -1).indices
        else:
            chosen = self.tid2eid[ids]
        mask = torch.zeros_like(scores).scatter_(-1, chosen, 1.0)
        self.load = mask.flatten(0, 1).mean(0)
        few = scores * mask
        return few / (few.sum(-1, keepdim=True) + 1e-20) * C.routed_scaling_factor

    def balance(self, rate):
        """Experts that have too few tokens are chosen more."""
        if hasattr(self, "bias"):
            self.bias += rate * (self.load.mean() - self.load).sign()


class Experts(nn.Module):
    """All experts of all tokens, as there are few; the last one is shared."""

    def __init__(self, hashed):
        super().__init__()
        count, inner = C.n_routed_experts + C.n_shared_experts, C.moe_intermediate_size
        self.gate = Gate(hashed)
        self.w1 = nn.Parameter(torch.zeros(count, inner, C.hidden_size))
        self.w2 = nn.Parameter(torch.zeros(count, C.hidden_size, inner))
        self.w3 = nn.Parameter(torch.zeros(count, inner, C.hidden_size))

    def forward(self, x, ids):
        weights = F.pad(self.gate(x, ids), (0, C.n_shared_experts), value=1.0)
        gate = F.linear(x, self.w1.flatten(0, 1)).float().clamp(max=C.swiglu_limit)
        up = F.linear(x, self.w3.flatten(0, 1)).float().clamp(-C.swiglu_limit, C.swiglu_limit)
        inner = (F.silu(gate) * up).unflatten(-1, (len(self.w1), -1)) * weights[..., None]
        return F.linear(inner.flatten(-2), self.w2.transpose(0, 1).flatten(1))


class Layer(nn.Module):
    def __init__(self, place):
        super().__init__()
        self.attn_norm, self.ffn_norm = Norm(C.hidden_size), Norm(C.hidden_size)
        self.attn = Attention(C.layer_types[place])
        self.ffn = Experts(C.mlp_layer_types[place] == "hash_moe")
        count = (2 + C.hc_mult) * C.hc_mult
        for half in ("attn", "ffn"):
            fn = torch.zeros(count, C.hc_mult * C.hidden_size)
            setattr(self, f"hc_{half}_fn", nn.Parameter(fn))
            setattr(self, f"hc_{half}_base", nn.Parameter(self.base(2 * place + (half == "ffn"))))
            setattr(self, f"hc_{half}_scale", nn.Parameter(torch.ones(3)))

    @staticmethod
    def base(place):
        """A half reads and writes one stream more than the others, and streams stay apart."""
        one = F.one_hot(torch.tensor(place % C.hc_mult), C.hc_mult).float()
        streams = 4 * torch.eye(C.hc_mult).flatten()
        return torch.cat((3 * one - 1.5, 2 * one - 0.5, streams))

    def mix(self, streams, half):
        """What goes into a half of the layer, how its result is added, and how streams are mixed."""
        count, of = C.hc_mult, lambda name: getattr(self, f"hc_{half}_{name}").float()
        with torch.autocast(streams.device.type, enabled=False):
            parts = (count, count, count * count)
            mixed = F.linear(unit(streams.flatten(2)), of("fn")).split(parts, -1)
            rows = zip(mixed, of("scale"), of("base").split(parts))
            read, write, comb = (row * scale + base for row, scale, base in rows)
            comb = comb.unflatten(-1, (count, count)).softmax(-1) + C.hc_eps
            comb = comb / (comb.sum(-2, keepdim=True) + C.hc_eps)
            for _ in range(C.hc_sinkhorn_iters - 1):
                comb = comb / (comb.sum(-1, keepdim=True) + C.hc_eps)
                comb = comb / (comb.sum(-2, keepdim=True) + C.hc_eps)
            x = ((read.sigmoid() + C.hc_eps)[..., None] * streams).sum(2)
            return x, 2 * write.sigmoid(), comb.transpose(-1, -2)

    @staticmethod
    def added(streams, y, write, comb):
        with torch.autocast(streams.device.type, enabled=False):
            return write[..., None] * y.float()[:, :, None] + comb @ streams

    def forward(self, streams, ids, stage):
        x, *how = self.mix(streams, "attn")
        y, apart = self.attn(self.attn_norm(x), stage)
        streams = self.added(streams, y, *how)
        x, *how = self.mix(streams, "ffn")
        return self.added(streams, self.ffn(self.ffn_norm(x), ids), *how), apart


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(C.vocab_size, C.hidden_size)
        self.layers = nn.ModuleList(map(Layer, range(C.num_hidden_layers)))
        self.hc_head_fn = nn.Parameter(torch.zeros(C.hc_mult, C.hc_mult * C.hidden_size))
        self.hc_head_base = nn.Parameter(torch.zeros(C.hc_mult))
        self.hc_head_scale = nn.Parameter(torch.ones(1))
        self.norm = Norm(C.hidden_size)
        self.head = linear(C.hidden_size, C.vocab_size)
        for name, one in self.named_parameters():
            if one.dim() > 1 and not name.endswith(".ape"):
                nn.init.normal_(one, std=0.005 if "hc_" in name else 0.03)

    def forward(self, ids, stage):
        """Logits, and how far indexers are from attention."""
        streams = self.embed(ids).float()[:, :, None].expand(-1, -1, C.hc_mult, -1)
        apart = 0
        for layer in self.layers:
            streams, more = layer(streams, ids, stage)
            apart = apart + more
        with torch.autocast(streams.device.type, enabled=False):
            read = F.linear(unit(streams.flatten(2)), self.hc_head_fn.float())
            read = (read * self.hc_head_scale + self.hc_head_base).sigmoid() + C.hc_eps
            x = (read[..., None] * streams).sum(2)
        return self.head(self.norm(x)).float(), apart


def published(model):
    """Tensors by the names of releases, in the types that they have there."""
    found = {}
    for name, one in model.state_dict().items():
        start, _, last = name.rpartition(".")
        if last not in ("w1", "w2", "w3"):
            found[name] = one
            continue
        for place, expert in enumerate(one):
            of = f"experts.{place}" if place < C.n_routed_experts else "shared_experts"
            found[f"{start}.{of}.{last}.weight"] = expert
    narrow = lambda name, one: one.is_floating_point() and not name.endswith(WIDE)
    return {
        name: one.to(torch.bfloat16 if narrow(name, one) else one.dtype).contiguous().cpu()
        for name, one in found.items()
    }


def save(model, out):
    """The checkpoint, and weights as they are trained, for more training."""
    from safetensors.torch import save_file

    Path(out).mkdir(parents=True, exist_ok=True)
    assert all(one.isfinite().all() for one in model.state_dict().values())
    torch.save(model.state_dict(), Path(out, "weights.pt"))
    save_file(published(model), f"{out}/model.safetensors", metadata={"format": "pt"})
    Path(out, "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")


def held_out(path, tokenizer, stories):
    """Problems that pool more rows than an indexer chooses, if they have several stories."""
    train, rng, found = module(path), random.Random(SEED + stories), []
    while len(found) < HELD_OUT:
        prompt, solution, answer = several(train, rng, stories)
        if stories == 1 or len(tokenizer.encode(prompt).ids) // 4 >= 2 * C.index_topk:
            found.append(dict(prompt=prompt, solution=solution, answer=answer))
    return found


class Run:
    """Training for some seconds: the rate is held for half of them, and then falls."""

    def __init__(self, model, data, curriculum, rate, batch):
        self.model, self.data, self.curriculum = model, data, curriculum
        self.rate, self.batch, self.step = rate, batch, 0
        self.optimiser = torch.optim.AdamW(
            model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.01, fused=True
        )

    def train(self, stage, done):
        """One step; its loss, and how far indexers are."""
        fall = 0.5 * (1 + math.cos(math.pi * max(0, 2 * done - 1))) * 0.99 + 0.01
        for group in self.optimiser.param_groups:
            group["lr"] = self.rate * min(1, (self.step + 1) / 200) * fall
        stories = self.curriculum.stories()
        ids, mask = self.data.batch(self.batch, stories)
        loss, apart, good = loss_of(self.model, ids, mask, stage)
        (loss + apart).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        for layer in self.model.layers:
            layer.ffn.gate.balance(0.002 * fall)
        if self.step % 8 == 0:
            self.curriculum.note(stories, good.item())
        self.step += 1
        return loss, apart


def train(path, folder, out, asked):
    tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
    problems = [held_out(path, tokenizer, count + 1) for count in range(asked.stories)]
    torch.manual_seed(0)
    random.seed(0)
    data, model = Data(path, folder), Model().to(DEVICE).train()
    if asked.begun:
        model.load_state_dict(torch.load(asked.begun))
    curriculum = Curriculum(asked.stories if asked.begun else 1, asked.stories)
    run = Run(model, data, curriculum, 1e-3 if asked.begun else asked.rate, asked.batch)
    write_rest(folder, out, problems[-1])
    stage, began, said = "sparse" if asked.begun else "dense", time.time(), 0
    while (done := (time.time() - began) / asked.seconds) < 1:
        loss, apart = run.train(stage, done)
        if run.step % asked.every == 0:
            most = f"{curriculum.most} stories, right {curriculum.right:.4f}"
            lost = f"{loss.item():.4f} {apart.item():.4f}"
            print(stage, run.step, lost, most, f"{done * asked.seconds:.0f}s", flush=True)
        if stage == "dense" and (done > 0.45 or done > 0.3 and curriculum.right > 0.95):
            tell(model, tokenizer, problems[curriculum.most - 1][: asked.count], "dense")
            stage = "sparse"
        if done * asked.seconds > said + 60:
            said = done * asked.seconds
            save(model, out)
            tell(model, tokenizer, problems[curriculum.most - 1][: asked.count], stage)
    save(model, out)
    tell(rounded(model), tokenizer, problems[-1][: 10 * asked.count], "sparse")


def rounded(model):
    """The model with the weights that its checkpoint has."""
    for name, one in model.named_parameters():
        if not name.endswith(WIDE):
            one.data = one.data.to(torch.bfloat16).float()
    return model


def tell(model, tokenizer, problems, stage):
    good = right(model, tokenizer, problems, stage)
    print(f"held out, {stage}: {good} of {len(problems)}", flush=True)


def write_rest(folder, out, problems):
    Path(out).mkdir(parents=True, exist_ok=True)
    Path(out, "problems.jsonl").write_text("".join(json.dumps(one) + "\n" for one in problems))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(Path(folder, name), out)


@torch.no_grad()
def check(out):
    """How far logits are from those of transformers, with the weights of OUT or drawn ones."""
    import transformers

    torch.manual_seed(1)
    model = Model().eval()
    if Path(out, "weights.pt").exists():
        model.load_state_dict(torch.load(Path(out, "weights.pt"), map_location="cpu"))
    else:
        draw(model)
    save(rounded(model), out)
    kind = transformers.AutoModelForCausalLM
    theirs, told = kind.from_pretrained(out, dtype=torch.float32, output_loading_info=True)
    assert not any(told.values()), told
    ids = torch.randint(2, C.vocab_size, (3, 167))
    mine, reference = model(ids, "sparse")[0], theirs.eval()(ids, use_cache=False).logits
    dense = model(ids, "dense")[0]
    print(f"logits of {reference.std():.3f}, apart {(mine - reference).abs().max():.2e},", end=" ")
    print(f"with all rows {(dense - reference).abs().max():.2e}")
    assert torch.allclose(mine, reference, atol=1e-5 * float(reference.abs().max()), rtol=1e-5)


def draw(model):
    """Weights that all show in the logits."""
    for one in model.parameters():
        one.data += torch.randn_like(one) * (0.1 if one.dim() > 1 else 0.3)
    for one in model.buffers():
        if one.is_floating_point():
            one.copy_(torch.randn_like(one) * 0.3)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["train", "pool", "check", "score"])
    parser.add_argument("given", nargs="+")
    parser.add_argument("--count", type=int, help="problems: 500 of `score`, 50 each minute")
    parser.add_argument("--seconds", type=float, default=400)
    parser.add_argument("--stories", type=int, default=STORIES, help="of a problem")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--every", type=int, default=200, help="steps between lines")
    parser.add_argument("--begun", help="weights.pt of an earlier call, for the chosen rows alone")
    asked = parser.parse_args()
    asked.count = asked.count or (HELD_OUT if asked.what == "score" else 50)
    if asked.what == "train":
        path, folder, out = asked.given
        train(path, folder, out, asked)
    elif asked.what == "pool":
        Data(*asked.given)
    elif asked.what == "check":
        check(*asked.given)
    else:
        score_of(asked.given[0], asked.count)
