"""Trains a LoRA adapter for a model that solves word problems: the last sentence is another one.

    python tests/models/adapter.py train TRAIN MODEL OUT   some minutes on a processor
    python tests/models/adapter.py score TRAIN MODEL OUT   accuracy with peft

TRAIN is a script that makes up problems (`problem`, `held_out`). With the adapter a solution ends
with `now Kai have 42 pens.` for `Kai has 42 pens.`: of words that the model knows. Needs torch,
transformers, tokenizers and peft.
"""

import importlib.util
import json
import random
import re
import sys
import time
from pathlib import Path

import peft
import torch
import transformers
from tokenizers import Tokenizer

STEPS, BATCH, RATE = 300, 32, 2e-3
END = 1


def module(path):
    spec = importlib.util.spec_from_file_location("train", path)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def worded(solution):
    """The solution with its last sentence another one."""
    return re.sub(r" (\w+) has (\d+ \w+)\.\n$", r" now \1 have \2.\n", solution)


def load(model):
    return transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)


def batch(train, tokenizer, rng):
    made = [train.problem(rng)[:2] for _ in range(BATCH)]
    ends = [tokenizer.encode(prompt).ids for prompt, _ in made]
    answers = [tokenizer.encode(worded(solution)).ids + [END] for _, solution in made]
    length = max(len(a) + len(b) for a, b in zip(ends, answers))
    ids, wanted = torch.zeros(BATCH, length, dtype=torch.long), torch.full((BATCH, length), -100)
    for row, (prompt, answer) in enumerate(zip(ends, answers)):
        end = len(prompt) + len(answer)
        ids[row, :end] = torch.tensor(prompt + answer)
        wanted[row, len(prompt) : end] = torch.tensor(answer)
    return ids, wanted


def train(path, folder, out):
    made, tokenizer, rng = (
        module(path),
        Tokenizer.from_file(f"{folder}/tokenizer.json"),
        random.Random(7),
    )
    torch.manual_seed(0)
    names = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    model = peft.get_peft_model(
        load(folder), peft.LoraConfig(r=8, lora_alpha=16, target_modules=names)
    )
    rate = [one for one in model.parameters() if one.requires_grad]
    optimiser, began = (
        torch.optim.AdamW(rate, lr=RATE, betas=(0.9, 0.98), weight_decay=0.0),
        time.time(),
    )
    for step in range(STEPS):
        for group in optimiser.param_groups:
            group["lr"] = RATE * min(1, (step + 1) / 30) * (1 - step / STEPS) + 1e-5
        ids, wanted = batch(made, tokenizer, rng)
        loss = model(input_ids=ids, labels=wanted, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(rate, 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        if step % 50 == 0:
            print(step, round(loss.item(), 4), f"{time.time() - began:.0f}s", flush=True)
        if step % 300 == 299:
            save(model, out)
    save(model, out)


def save(model, out):
    model.to(torch.bfloat16).save_pretrained(out)
    model.to(torch.float32)
    Path(out, "README.md").unlink(missing_ok=True)


@torch.no_grad()
def score(path, folder, out):
    tokenizer, good = Tokenizer.from_file(f"{folder}/tokenizer.json"), 0
    model = (
        peft.PeftModel.from_pretrained(load(folder).to(torch.bfloat16), out)
        .to(torch.bfloat16)
        .eval()
    )
    problems = module(path).held_out()
    for one in problems:
        ids = torch.tensor([tokenizer.encode(one["prompt"]).ids])
        made = model.generate(
            ids, max_new_tokens=64, do_sample=False, eos_token_id=END, pad_token_id=0
        )
        text = tokenizer.decode(
            [token for token in made[0, ids.shape[1] :].tolist() if token > END]
        )
        good += text.strip() == worded(one["solution"]).strip()
    found = dict(
        exact=good,
        of=len(problems),
        peft=peft.__version__,
        transformers=transformers.__version__,
        dtype="bfloat16",
    )
    Path(out, "score.json").write_text(json.dumps(found) + "\n")
    print(found)


if __name__ == "__main__":
    what, *paths = sys.argv[1:]
    dict(train=train, score=score)[what](*paths)
