"""Trains draft models for the word problems of TRAIN, a script that makes targets for them (`batches`, `config`, `held_out`):
an EAGLE-3 head for any of them, or an MTP layer for one of DeepSeek-V3's or Qwen3-Next's kind.

    python tests/models/drafts.py target TRAIN OUT --family deepseek_v3 --small   a target, if there is none
    python tests/models/drafts.py eagle3 TRAIN TARGET OUT                         a head, in a folder of its own
    python tests/models/drafts.py mtp TRAIN TARGET [OUT]                          a layer, in the target's folder or a copy
    python tests/models/drafts.py score TRAIN TARGET [HEAD]                       acceptance of held-out problems

Needs torch, transformers 5.19 or later, tokenizers and safetensors; a GPU is used if there is one.
"""

import argparse
import functools
import importlib.util
import json
import math
import shutil
import sys
import time
from pathlib import Path

import safetensors.torch
import torch
import transformers
from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "golden"))
import heads

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LENGTH, STEPS = 96, 3
# A CPU may be shared.
CLOCK = time.time if DEVICE == "cuda" else time.process_time


def module(path):
    spec = importlib.util.spec_from_file_location("train", path)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def small(family):
    """A target of less than a megabyte."""
    d = dict(
        vocab_size=512,
        max_position_embeddings=512,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
        hidden_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=192,
        tie_word_embeddings=True,
    )
    if family == "deepseek_v3":
        return transformers.DeepseekV3Config(
            **d,
            num_key_value_heads=4,
            n_routed_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=48,
            n_shared_experts=1,
            n_group=2,
            topk_group=1,
            first_k_dense_replace=1,
            q_lora_rank=48,
            kv_lora_rank=32,
            qk_nope_head_dim=16,
            qk_rope_head_dim=16,
            v_head_dim=24,
            routed_scaling_factor=1.5,
            num_mtp_layers=1,
        )
    if family == "qwen3_next":
        return transformers.Qwen3NextConfig(
            **d,
            num_key_value_heads=2,
            head_dim=24,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=48,
            shared_expert_intermediate_size=48,
            linear_num_key_heads=2,
            linear_num_value_heads=4,
            linear_key_head_dim=16,
            linear_value_head_dim=16,
            linear_conv_kernel_dim=4,
            decoder_sparse_step=1,
            full_attention_interval=3,
            partial_rotary_factor=0.5,
            norm_topk_prob=True,
        )
    raise SystemExit(f"no small target of {family}")


def schedule(optimiser, lr, done, step):
    for group in optimiser.param_groups:
        group["lr"] = (
            lr * min(1, (step + 1) / 100) * (0.5 * (1 + math.cos(math.pi * done)) * 0.98 + 0.02)
        )


def run(parameters, data, args, loss_of):
    """Steps of an optimiser over batches of the data, until they or the time are over."""
    optimiser = torch.optim.AdamW(parameters, lr=args.lr, betas=(0.9, 0.98), weight_decay=0.01)
    ids, mask = data
    begun = CLOCK()
    for step in range(args.steps):
        done = max(step / args.steps, min(1, (CLOCK() - begun) / args.seconds))
        schedule(optimiser, args.lr, done, step)
        rows = torch.randint(0, len(ids), (args.batch,))
        x, m = ids[rows].long().to(DEVICE), mask[rows].to(DEVICE)
        loss = loss_of(x, m.float() + 0.1 * ((x != 0) & ~m).float(), done)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        if step % 100 == 0:
            print(step, round(loss.item(), 4), f"{CLOCK() - begun:.0f}s", flush=True)
        if CLOCK() - begun > args.seconds:
            break
    print("stopped at", step + 1, "steps", flush=True)


def train_target(train, args):
    tok = Tokenizer.from_file(str(Path(args.train).parent / "tokenizer.json"))
    model = transformers.AutoModelForCausalLM.from_config(
        small(args.family) if args.small else train.config(args.family)
    )
    model.float().to(DEVICE).train().set_attn_implementation("eager")

    def loss_of(x, w, _):
        logits = model(input_ids=x, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(
            logits[:, :-1].transpose(1, 2), x[:, 1:], reduction="none"
        )
        return (loss * w[:, 1:]).sum() / w[:, 1:].sum()

    run(list(model.parameters()), train.batches(tok, args.problems, LENGTH, 1000), args, loss_of)
    model.to(torch.bfloat16).save_pretrained(args.out)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(Path(args.train).parent / name, args.out)


def open_target(path):
    model = (
        transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        .to(DEVICE)
        .eval()
    )
    model.set_attn_implementation("eager")
    return model.requires_grad_(False)


def head_config(model, args):
    c = model.config
    layers = list(range(1, c.num_hidden_layers))[-3:]
    config = transformers.LlamaConfig(
        vocab_size=c.vocab_size,
        hidden_size=c.hidden_size,
        intermediate_size=c.hidden_size,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        rms_norm_eps=1e-6,
        max_position_embeddings=c.max_position_embeddings,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    config.draft_vocab_size = args.vocab
    # What enters layer i + 1 is what layer i leaves.
    config.eagle_config = {
        "eagle_aux_hidden_state_layer_ids": [i - 1 for i in layers],
        "use_aux_hidden_state": True,
    }
    return config, layers


def train_head(train, args):
    """An EAGLE-3 head, or an MTP layer, that follows the target's own probabilities, each step with rows of the one before."""
    model, tok = open_target(args.target), Tokenizer.from_file(f"{args.target}/tokenizer.json")
    data = train.batches(tok, args.problems, LENGTH, 5000)
    if args.what == "eagle3":
        config, layers = head_config(model, args)
        head = heads.Eagle3(model, config, layers)
        kept = torch.bincount(
            data[0][data[1]].flatten().long(), minlength=config.vocab_size
        ).argsort(descending=True, stable=True)
        kept = kept[: args.vocab].sort().values
        head.d2t.copy_(kept - torch.arange(args.vocab))
        kept = kept.to(DEVICE)
    else:
        head, kept = heads.Mtp(model), slice(None)
    head.to(DEVICE).train()
    for m in head.modules():
        if isinstance(m, torch.nn.Linear):
            torch.nn.init.normal_(m.weight, std=0.02)
    for name, p in head.named_parameters():
        if (
            name.endswith(("gate_up_proj", "down_proj", "mlp.gate.weight"))
            and "experts" in name
            or name.endswith("gate.weight")
        ):
            torch.nn.init.normal_(p, std=0.02)

    def loss_of(x, w, done):
        with torch.no_grad():
            logits, entered, last = heads.target(model, x)
            wanted = logits[..., kept].softmax(-1)
        # Continuing from a draft is learned once there are good ones.
        steps = args.chain if done > 0.6 else 1
        made = heads.chains(head, x, head.fuse(entered, last), steps, known=x)
        total = 0
        for step, (drafted, _) in enumerate(made):
            n = x.shape[1] - 2 - step
            loss = -(wanted[:, 1 + step : -1] * drafted[:, :n].log_softmax(-1)).sum(-1)
            weight = w[:, 2 + step :]
            total = total + 0.8**step * (loss * weight).sum() / weight.sum()
        return total

    run(list(head.parameters()), data, args, loss_of)
    head.to(torch.bfloat16)
    if args.what == "eagle3":
        save_eagle3(head, config, args.out)
    else:
        save_mtp(head, model, args)


def save_eagle3(head, config, out):
    Path(out).mkdir(parents=True, exist_ok=True)
    tensors = {n: t.contiguous() for n, t in head.state_dict().items()}
    tensors["t2d"] = torch.zeros(config.vocab_size, dtype=torch.bool)
    tensors["t2d"][torch.arange(config.draft_vocab_size) + head.d2t.cpu()] = True
    safetensors.torch.save_file(tensors, f"{out}/model.safetensors", {"format": "pt"})
    config.architectures, config.dtype = ["LlamaForCausalLMEagle3"], torch.bfloat16
    config.save_pretrained(out)


def save_mtp(head, model, args):
    out = Path(args.out or args.target)
    if args.out:
        shutil.copytree(args.target, out, dirs_exist_ok=True)
    tensors = safetensors.torch.load_file(out / "model.safetensors")
    tensors |= heads.mtp_tensors(head, model)
    safetensors.torch.save_file(tensors, out / "model.safetensors", {"format": "pt"})
    config = json.loads((out / "config.json").read_text())
    if "Qwen3" not in type(model).__name__:
        config["num_nextn_predict_layers"] = 1
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def experts_of(tensors, path, count, which):
    """A projection of all experts, concatenated."""
    return torch.stack([tensors[f"{path}.{e}.{which}.weight"] for e in range(count)])


def load_head(model, args):
    if args.head:
        config = transformers.LlamaConfig.from_pretrained(args.head)
        layers = [i + 1 for i in config.eagle_config["eagle_aux_hidden_state_layer_ids"]]
        head = heads.Eagle3(model, config, layers)
        head.load_state_dict(
            safetensors.torch.load_file(f"{args.head}/model.safetensors"), strict=False
        )
        return head.to(DEVICE).eval()
    head, tensors = (
        heads.Mtp(model),
        safetensors.torch.load_file(f"{args.target}/model.safetensors"),
    )
    state = {}
    for name, t in head.state_dict().items():
        at = heads.stored(name, model.config.num_hidden_layers, "Qwen3" in type(model).__name__)
        path, _, part = at.rpartition(".")
        each = functools.partial(experts_of, tensors, path, len(t))
        if not path.endswith(".experts"):
            state[name] = tensors[at]
        elif part == "down_proj":
            state[name] = each("down_proj")
        else:
            state[name] = torch.cat([each("gate_proj"), each("up_proj")], 1)
    head.load_state_dict(state)
    return head.to(DEVICE).eval()


def rounds(drafts, answer, most):
    """Drafts that a greedy answer accepts, in each round: `drafts[i]` are those after token `i` of
    the answer."""
    at, accepted = 0, []
    while at < len(answer) - 1:
        left = answer[at + 1 : at + 1 + most]
        n = next((i for i, t in enumerate(left) if drafts[at][i] != t), len(left))
        accepted.append(n)
        # The target's own token comes after those.
        at += n + 1
    return accepted


@torch.no_grad()
def score(train, args):
    """Acceptance as greedy answers have it, and what tests expect of the first problems."""
    model, tok = open_target(args.target), Tokenizer.from_file(f"{args.target}/tokenizer.json")
    head, counts, good, kept = load_head(model, args), [], 0, []
    for problem in train.held_out(args.problems):
        prompt = tok.encode(problem["prompt"]).ids
        x = torch.tensor([prompt], device=DEVICE)
        x = model.generate(x, max_new_tokens=48, do_sample=False, eos_token_id=1, pad_token_id=0)
        answer = x[0, len(prompt) :].tolist()
        good += tok.decode([t for t in answer if t > 1]).strip() == problem["solution"].strip()
        _, entered, last = heads.target(model, x)
        # Drafts after token i of the sequence, from 1 on.
        drafts = heads.picks(head, heads.chains(head, x, head.fuse(entered, last), args.chain))[
            0
        ].tolist()
        made = rounds(drafts[len(prompt) - 1 :], answer, args.chain)
        counts.append(made)
        kept.append(dict(prompt=prompt, answer=answer, accepted=made))
    all_ = [n for made in counts for n in made]
    said = dict(
        problems=args.problems,
        exact=good,
        drafts=args.chain,
        rounds=len(all_),
        accepted=sum(all_),
        by_place=[sum(n > i for n in all_) for i in range(args.chain)],
        tokens_a_round=1 + sum(all_) / len(all_),
        transformers=transformers.__version__,
        torch=torch.__version__,
        dtype="float32",
        device=DEVICE,
    )
    print(json.dumps(said), flush=True)
    if args.save:
        Path(args.save).write_text(
            json.dumps(said | dict(first=kept[: args.keep]), indent=1) + "\n"
        )


if __name__ == "__main__":
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("what", choices=["target", "eagle3", "mtp", "score"])
    p.add_argument("train")
    p.add_argument("paths", nargs="+")
    p.add_argument("--family", default="deepseek_v3")
    p.add_argument("--small", action="store_true", help="a target of less than a megabyte")
    p.add_argument("--steps", type=int, default=2000)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument(
        "--seconds", type=float, default=600, help="training ends then, and its schedule with it"
    )
    p.add_argument(
        "--problems", type=int, default=500, help="that are made for training, or scored"
    )
    p.add_argument("--chain", type=int, default=STEPS, help="drafts that follow each other")
    p.add_argument("--vocab", type=int, default=128, help="tokens of an EAGLE-3 head")
    p.add_argument("--save", help="a file for what score finds")
    p.add_argument("--keep", type=int, default=20, help="problems whose tokens that file has")
    args = p.parse_args()
    args.target, args.out, args.head = (
        args.paths[0],
        (args.paths + [None])[1],
        (args.paths + [None])[1],
    )
    if args.what == "target":
        args.out = args.paths[0]
    torch.manual_seed(0)
    train = module(args.train)
    {"target": train_target, "eagle3": train_head, "mtp": train_head, "score": score}[args.what](
        train, args
    )
