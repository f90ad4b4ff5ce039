"""Trains a model of DeepSeek-V3.2's kind, whose layers attend to 16 chosen positions, for questions
about one of seven stories: what it needs lies in a prompt of more than eight times as many tokens.

    python tests/models/sparse.py train TRAIN TOKENIZER OUT     one GPU, about ten minutes
    python tests/models/sparse.py problems TRAIN TOKENIZER OUT  held-out problems
    python tests/models/sparse.py score OUT [--count N]         accuracy with transformers

TRAIN is a script that makes up problems (`problem`), TOKENIZER a folder with tokenizer.json. The
model is trained as the release was: dense, then its indexers to agree with the attention of all
heads, then both with the chosen positions alone. A solution repeats the story of the question's
person before its sums. Needs torch and tokenizers; `score` needs transformers 5.24.
"""

import argparse
import importlib.util
import json
import math
import random
import shutil
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import nn
from torch.nn import functional as F

LENGTH, STORIES, HELD_OUT = 208, 7, 500
SEED = 20261128
END = 1
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CONFIG = dict(
    architectures=["DeepseekV32ForCausalLM"],
    model_type="deepseek_v32",
    dtype="bfloat16",
    vocab_size=512,
    max_position_embeddings=512,
    bos_token_id=None,
    eos_token_id=END,
    pad_token_id=0,
    hidden_size=192,
    num_hidden_layers=4,
    num_attention_heads=6,
    num_key_value_heads=6,
    intermediate_size=384,
    moe_intermediate_size=96,
    n_routed_experts=4,
    n_shared_experts=1,
    num_experts_per_tok=2,
    n_group=1,
    topk_group=1,
    routed_scaling_factor=1.0,
    norm_topk_prob=True,
    first_k_dense_replace=4,
    q_lora_rank=96,
    kv_lora_rank=64,
    qk_nope_head_dim=32,
    qk_rope_head_dim=16,
    v_head_dim=32,
    index_n_heads=4,
    index_head_dim=32,
    index_topk=16,
    hidden_act="silu",
    rms_norm_eps=1e-6,
    rope_parameters=dict(rope_type="default", rope_theta=10000.0),
    rope_interleave=True,
    attention_bias=False,
    tie_word_embeddings=False,
    use_cache=True,
)
C = argparse.Namespace(**CONFIG)


def module(path):
    spec = importlib.util.spec_from_file_location("train", path)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def several(train, rng, count):
    """A prompt of some stories, of people of different names, with the question of one of them, and
    its solution: that story again, and its sums."""
    stories, asked, names = [], None, set()
    chosen = rng.randrange(count)
    while len(stories) < count:
        prompt, solution, answer = train.problem(rng)
        text = prompt.removeprefix("Q:")
        name = text.split()[0]
        if name in names:
            continue
        names.add(name)
        story, question = text.split(" How many", 1)
        if len(stories) == chosen:
            asked = " How many" + question, story + solution, answer
        stories.append(story)
    question, solution, answer = asked
    return "Q:" + "".join(stories) + question, solution, answer


def held_out(train, tokenizer):
    rng, found = random.Random(SEED), []
    while len(found) < HELD_OUT:
        prompt, solution, answer = several(train, rng, STORIES)
        if len(tokenizer.encode(prompt).ids) >= 8 * C.index_topk:
            found.append(dict(prompt=prompt, solution=solution, answer=answer))
    return found


class Data:
    """Prompts that are put together of the tokens of single problems. Words are split at spaces, so
    tokens of parts are those of the whole."""

    NAMES, POOL, WIDTHS = 20, 240_000, (36, 16, 36)

    def __init__(self, path, folder):
        kept = Path(folder, "pool.pt")
        if not kept.exists():
            torch.save(self.pool(path, folder), kept)
        self.start, self.name, *self.parts = (part.to(DEVICE) for part in torch.load(kept))

    def pool(self, path, folder):
        """Tokens of how a prompt begins, and of each problem its name, story, question and sums."""
        train, tokenizer = module(path), Tokenizer.from_file(f"{folder}/tokenizer.json")
        rng, made, names = random.Random(1), ([], [], []), []
        for _ in range(self.POOL):
            prompt, solution, _ = train.problem(rng)
            story, question = prompt.removeprefix("Q:").split(" How many", 1)
            names.append(train.NAMES.index(story.split()[0]))
            for part, words in zip(made, (story, " How many" + question, solution)):
                part.append(words)
        order = torch.tensor(names).argsort()
        parts = []
        for width, words in zip(self.WIDTHS, made):
            ids = torch.full((self.POOL, width), -1, dtype=torch.int16)
            for row, found in zip(ids, tokenizer.encode_batch(words)):
                row[: len(found.ids)] = torch.tensor(found.ids)
            parts.append(ids[order])
        return torch.tensor(tokenizer.encode("Q:").ids), torch.tensor(names)[order], *parts

    def batch(self, count, stories):
        """Tokens of prompts with solutions, and which are a solution's."""
        first = torch.searchsorted(self.name, torch.arange(self.NAMES + 1, device=DEVICE))
        names = torch.rand(count, self.NAMES, device=DEVICE).argsort(1)[:, :stories]
        low, high = first[names], first[names + 1]
        chosen = low + (torch.rand(names.shape, device=DEVICE) * (high - low)).long()
        story, question, sums = self.parts
        asked = chosen[:, 0]
        shuffled = chosen.gather(1, torch.rand(chosen.shape, device=DEVICE).argsort(1))
        end = torch.full((count, 1), END, device=DEVICE)
        start = self.start.expand(count, -1)
        answer = torch.cat((story[asked].long(), sums[asked].long(), end), 1)
        told = story[shuffled].flatten(1).long()
        ids = torch.cat((start, told, question[asked].long(), answer), 1)
        mask = torch.zeros_like(ids, dtype=torch.bool)
        mask[:, -answer.shape[1] :] = True
        order = (ids < 0).to(torch.uint8).argsort(dim=1, stable=True)
        ids, mask = ids.gather(1, order), mask.gather(1, order)
        length = int((ids >= 0).sum(1).max())
        ids, mask = ids[:, :length], mask[:, :length] & (ids[:, :length] >= 0)
        return ids.clamp(min=0), mask


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return F.rms_norm(x.float(), (x.shape[-1],), self.weight.float(), C.rms_norm_eps)


def turned(x, angles, pairs):
    """Features turned by position: neighbours, or one of each half."""
    cos, sin = angles.cos(), angles.sin()
    a, b = (x[..., 0::2], x[..., 1::2]) if pairs else x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def linear(width, out):
    return nn.Linear(width, out, bias=False)


class Indexer(nn.Module):
    def __init__(self):
        super().__init__()
        self.wq_b = linear(C.q_lora_rank, C.index_n_heads * C.index_head_dim)
        self.wk = linear(C.hidden_size, C.index_head_dim)
        self.k_norm = nn.LayerNorm(C.index_head_dim, eps=1e-6)
        self.weights_proj = linear(C.hidden_size, C.index_n_heads)

    def forward(self, x, short, angles):
        """Scores of all positions, of what the indexer does not change."""
        q = self.wq_b(short).unflatten(-1, (C.index_n_heads, C.index_head_dim))
        k = self.k_norm(self.wk(x).float())[:, :, None]
        turn = lambda row: torch.cat(
            (
                turned(row[..., : C.qk_rope_head_dim], angles[:, None], False),
                row[..., C.qk_rope_head_dim :],
            ),
            -1,
        )
        q, k = turn(q), turn(k)[:, :, 0]
        scores = F.relu(
            torch.einsum("bshd,btd->bhst", q.float(), k.float()) * C.index_head_dim**-0.5
        )
        weights = self.weights_proj(x).float() * C.index_n_heads**-0.5
        return torch.einsum("bhst,bsh->bst", scores, weights)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        heads, key = C.num_attention_heads, C.qk_nope_head_dim + C.qk_rope_head_dim
        self.q_a_proj = linear(C.hidden_size, C.q_lora_rank)
        self.q_a_layernorm = Norm(C.q_lora_rank)
        self.q_b_proj = linear(C.q_lora_rank, heads * key)
        self.kv_a_proj_with_mqa = linear(C.hidden_size, C.kv_lora_rank + C.qk_rope_head_dim)
        self.kv_a_layernorm = Norm(C.kv_lora_rank)
        self.kv_b_proj = linear(C.kv_lora_rank, heads * (C.qk_nope_head_dim + C.v_head_dim))
        self.o_proj = linear(heads * C.v_head_dim, C.hidden_size)
        self.indexer = Indexer()

    def forward(self, x, angles, stage):
        """What the layer adds, and how far its indexer is from the attention of all heads."""
        batch, length, _ = x.shape
        heads, nope = C.num_attention_heads, C.qk_nope_head_dim
        short = self.q_a_layernorm(self.q_a_proj(x))
        q = self.q_b_proj(short).unflatten(-1, (heads, -1)).transpose(1, 2)
        row, rope = self.kv_a_proj_with_mqa(x).split((C.kv_lora_rank, C.qk_rope_head_dim), -1)
        both = self.kv_b_proj(self.kv_a_layernorm(row)).unflatten(-1, (heads, -1)).transpose(1, 2)
        k, v = both.split((nope, C.v_head_dim), -1)
        q = torch.cat((q[..., :nope], turned(q[..., nope:], angles, True)), -1)
        rope = turned(rope, angles, True)[:, None].expand(-1, heads, -1, -1)
        k = torch.cat((k, rope), -1)
        q, k, v = (part.to(torch.bfloat16) for part in (q, k, v))
        if stage == "dense":
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.o_proj(out.transpose(1, 2).flatten(2)), 0
        causal = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
        index = self.indexer(x.detach(), short.detach(), angles).masked_fill(~causal, -torch.inf)
        if stage == "sparse":
            chosen = index.detach().topk(min(C.index_topk, length), -1).indices
            seen = torch.zeros_like(index, dtype=torch.bool).scatter_(-1, chosen, True) & causal
        else:
            seen = causal.expand_as(index)
        scores = (q @ k.transpose(-1, -2)).float() * q.shape[-1] ** -0.5
        weights = scores.masked_fill(~seen[:, None], -torch.inf).softmax(-1)
        out = weights.to(v.dtype) @ v
        wanted = weights.detach().mean(1)
        found = index.masked_fill(~seen, -torch.inf).log_softmax(-1)
        apart = (
            (wanted * (wanted.clamp(min=1e-9).log() - found.masked_fill(~seen, 0))).sum(-1).mean()
        )
        return self.o_proj(out.transpose(1, 2).flatten(2)), apart


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj = linear(C.hidden_size, C.intermediate_size)
        self.up_proj = linear(C.hidden_size, C.intermediate_size)
        self.down_proj = linear(C.intermediate_size, C.hidden_size)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.input_layernorm = Norm(C.hidden_size)
        self.self_attn = Attention()
        self.post_attention_layernorm = Norm(C.hidden_size)
        self.mlp = Mlp()

    def forward(self, x, angles, stage):
        added, apart = self.self_attn(self.input_layernorm(x), angles, stage)
        x = x + added
        return x + self.mlp(self.post_attention_layernorm(x)), apart


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(C.vocab_size, C.hidden_size)
        self.model.layers = nn.ModuleList(Layer() for _ in range(C.num_hidden_layers))
        self.model.norm = Norm(C.hidden_size)
        self.lm_head = linear(C.hidden_size, C.vocab_size)
        for one in self.parameters():
            if one.dim() == 2:
                nn.init.normal_(one, std=0.02)

    def forward(self, ids, stage):
        x, apart = self.model.embed_tokens(ids), 0
        half = torch.arange(0, C.qk_rope_head_dim, 2, device=ids.device) / C.qk_rope_head_dim
        angles = torch.arange(ids.shape[1], device=ids.device)[:, None] / 10000.0**half
        for layer in self.model.layers:
            x, more = layer(x, angles, stage)
            apart = apart + more
        return self.lm_head(self.model.norm(x)).float(), apart


def loss_of(model, ids, mask, stage):
    """What is trained, how far indexers are from attention, and the share of solutions of which each
    token is the likeliest."""
    with torch.autocast(DEVICE, torch.bfloat16):
        logits, apart = model(ids, stage)
    wanted, answer = ids[:, 1:], mask[:, 1:]
    weight = answer.float() + 0.03 * ((wanted != 0) & ~answer).float()
    each = F.cross_entropy(logits[:, :-1].transpose(1, 2), wanted, reduction="none")
    right = ((logits[:, :-1].detach().argmax(-1) == wanted) | ~answer).all(1).float().mean()
    return (each * weight).sum() / weight.sum(), apart, right


class Curriculum:
    """How many stories a batch has: one, and one more whenever most solutions are right."""

    def __init__(self, most=1, last=STORIES):
        self.most, self.last, self.seen, self.right = most, last, 0, 0.0

    def stories(self):
        low = max(1, self.most - 3)
        return self.most if random.random() < 0.6 else random.randint(low, self.most)

    def note(self, stories, right):
        if stories != self.most:
            return
        self.seen += 1
        self.right += (right - self.right) * max(0.05, 1 / self.seen)
        if self.right > 0.7 and self.seen >= 40 and self.most < self.last:
            self.most, self.seen, self.right = self.most + 1, 0, 0.0

    def learned(self):
        return self.most == self.last and self.seen > 400 and self.right > 0.998


def trained(model, stage, only_indexers):
    """The parameters that a stage trains."""
    found = []
    for name, one in model.named_parameters():
        wanted = not only_indexers
        if ".indexer." in name:
            wanted = stage != "dense"
        one.requires_grad_(wanted)
        if wanted:
            found.append(one)
    return found


def run(model, data, stage, seconds, rate, batch, curriculum, only_indexers=False, hold=0.0):
    """Trains for some seconds: the rate is held for a share of them, and then falls."""
    parameters = trained(model, stage, only_indexers)
    optimiser = torch.optim.AdamW(
        parameters, lr=rate, betas=(0.9, 0.98), weight_decay=0.01, fused=True
    )
    began, step = time.time(), 0
    while (done := (time.time() - began) / seconds) < 1:
        fall = max(0, done - hold) / (1 - hold)
        now = rate * min(1, (step + 1) / 200) * (0.5 * (1 + math.cos(math.pi * fall)) * 0.98 + 0.02)
        for group in optimiser.param_groups:
            group["lr"] = now
        stories = curriculum.stories()
        ids, mask = data.batch(batch, stories)
        loss, apart, right = loss_of(model, ids, mask, stage)
        (loss * (not only_indexers) + apart).backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        if step % 8 == 0:
            curriculum.note(stories, right.item())
        if step % 200 == 0:
            said = f"{loss.item():.4f} {float(torch.as_tensor(apart).detach()):.4f}"
            most = f"{curriculum.most} stories, right {curriculum.right:.4f}"
            print(stage, step, said, most, f"{time.time() - began:.0f}s", flush=True)
        if stage == "dense" and curriculum.learned() and fall == 0:
            hold = done
        step += 1
    print(stage, "ended at step", step, f"{curriculum.right:.4f}", flush=True)


@torch.no_grad()
def right(model, tokenizer, problems, stage):
    """Problems with the right solution, greedily, without a cache."""
    prompts = [tokenizer.encode(one["prompt"]).ids for one in problems]
    ids = torch.zeros((len(prompts), LENGTH + 80), dtype=torch.long, device=DEVICE)
    ends = torch.tensor([len(prompt) for prompt in prompts], device=DEVICE)
    for row, prompt in zip(ids, prompts):
        row[: len(prompt)] = torch.tensor(prompt)
    at = torch.arange(len(prompts), device=DEVICE)
    for _ in range(76):
        with torch.autocast(DEVICE, torch.bfloat16):
            logits, _ = model(ids[:, : int(ends.max())], stage)
        ids[at, ends] = logits[at, ends - 1].argmax(-1)
        ends += 1
    good = 0
    for row, prompt, one in zip(ids.tolist(), prompts, problems):
        answer = row[len(prompt) :]
        text = tokenizer.decode(answer[: answer.index(END)] if END in answer else answer)
        good += text.strip() == one["solution"].strip()
    return good


def train(path, folder, out, scale, begun):
    tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
    problems = held_out(module(path), tokenizer)
    torch.manual_seed(0)
    random.seed(0)
    data, model = Data(path, folder), Model().to(DEVICE).train()
    if begun:
        model.load_state_dict(torch.load(begun))
    size, whole = (512, 256) if DEVICE == "cuda" else (8, 4)
    if not begun:
        run(model, data, "dense", 200 * scale, 2e-3, size, Curriculum(), hold=0.6)
        keep(model, out, "dense.pt")
        print("dense:", right(model, tokenizer, problems, "dense"), "of", HELD_OUT, flush=True)
        run(model, data, "indexers", 25 * scale, 2e-3, whole, Curriculum(STORIES), True)
    print("sparse:", right(model, tokenizer, problems, "sparse"), "of", HELD_OUT, flush=True)
    run(model, data, "sparse", 330 * scale, 1e-3, whole, Curriculum(STORIES), hold=0.25)
    keep(model, out, "sparse.pt")
    model = model.to(torch.bfloat16).eval()
    save(model, folder, out)
    print("sparse:", right(model, tokenizer, problems, "sparse"), "of", HELD_OUT, flush=True)


def keep(model, out, name):
    """Weights as they are trained, for more training."""
    Path(out).mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), Path(out, name))


def save(model, folder, out):
    from safetensors.torch import save_file

    Path(out).mkdir(parents=True, exist_ok=True)
    state = {name: one.contiguous().cpu() for name, one in model.state_dict().items()}
    save_file(state, f"{out}/model.safetensors", metadata={"format": "pt"})
    Path(out, "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(Path(folder, name), out)


def problems(path, folder, out):
    made = held_out(module(path), Tokenizer.from_file(f"{folder}/tokenizer.json"))
    Path(out, "problems.jsonl").write_text("".join(json.dumps(one) + "\n" for one in made))


def score(out, count):
    """Accuracy with transformers, in bf16, greedily."""
    import transformers

    tokenizer = Tokenizer.from_file(f"{out}/tokenizer.json")
    model = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.bfloat16).eval()
    asked = [json.loads(line) for line in Path(out, "problems.jsonl").read_text().splitlines()]
    groups, good = {}, 0
    for one in asked[:count]:
        ids = tokenizer.encode(one["prompt"]).ids
        groups.setdefault(len(ids), []).append((ids, one["solution"]))
    for length, group in groups.items():
        ids = torch.tensor([prompt for prompt, _ in group])
        made = model.generate(
            ids, max_new_tokens=80, do_sample=False, eos_token_id=END, pad_token_id=0
        )
        for row, (_, solution) in zip(made[:, length:].tolist(), group):
            good += tokenizer.decode([t for t in row if t > END]).strip() == solution.strip()
    facts = dict(
        exact=good, of=len(asked[:count]), transformers=transformers.__version__, dtype="bfloat16"
    )
    print(json.dumps(facts))
    return facts


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["train", "problems", "score"])
    parser.add_argument("given", nargs="+")
    parser.add_argument("--count", type=int, default=HELD_OUT)
    parser.add_argument(
        "--scale", type=float, default=1.0, help="of the seconds that each stage takes"
    )
    parser.add_argument("--begun", help="weights that an earlier call left, sparse.pt or dense.pt")
    asked = parser.parse_args()
    if asked.what == "train":
        path, folder, out = asked.given
        train(path, folder, out, asked.scale, asked.begun)
    elif asked.what == "problems":
        problems(*asked.given)
    else:
        score(asked.given[0], asked.count)
