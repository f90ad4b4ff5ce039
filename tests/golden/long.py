"""Prompts of Gemma 4 that are longer than its window: a tiny model with the head sizes of releases, and what transformers answers.

    pip install torch==2.14.0 transformers==5.24.0 safetensors==0.8.0
    python tests/golden/long.py

writes `long/gemma4`: a checkpoint, and for each prompt its tokens, the next 64, chosen greedily in float64, and their logits.
`torch_error` is that of PyTorch in bf16, which is given the same tokens.
"""
import shutil, zlib

import safetensors.torch, torch, transformers

import families

PATH = families.HERE / "long" / "gemma4"
PROMPTS = (1300, 7500)
ANSWER = 64
# Tokens of a prompt that are fed at once.
PIECE = 500
# As E2B: heads of 256 and 512, a window, layers that see keys of earlier ones, rows of layers'
# own. With a head of its own tokens do not repeat.
SIZES = dict(families.GEMMA4, num_hidden_layers=4, layer_types=["sliding_attention", "full_attention"] * 2, num_attention_heads=2, num_key_value_heads=1,
             head_dim=256, global_head_dim=512, sliding_window=1024, num_kv_shared_layers=2, use_double_wide_mlp=True, hidden_size_per_layer_input=16,
             vocab_size=256, vocab_size_per_layer_input=256, tie_word_embeddings=False, max_position_embeddings=8192)
FAMILY = families.Family("Gemma4ForCausalLM", "Gemma3ForCausalLM", SIZES)


def answered(model, prompt, given=None):
    """The next tokens, or those that are given, and the logits before each."""
    cache, at, tokens, rows = None, 0, [], []
    pieces = list(prompt.split(PIECE))
    while len(rows) < ANSWER:
        piece = pieces.pop(0)
        o = model(input_ids=piece[None], position_ids=torch.arange(at, at + len(piece))[None], cache=cache, use_cache=True)
        cache, at = o.cache, at + len(piece)
        if pieces: continue
        rows.append(o.logits[0, -1].double())
        tokens.append(int(rows[-1].argmax() if given is None else given[len(tokens)]))
        pieces.append(torch.tensor(tokens[-1:]))
    return torch.tensor(tokens), torch.stack(rows)


def main():
    shutil.rmtree(PATH, ignore_errors=True)
    config = families.tiny(FAMILY)
    model = families.make(config)
    seed = zlib.crc32(PATH.name.encode())
    families.randomize(model, seed, 0.06)
    for p in [*model.parameters(), *(b for n, b in model.named_buffers() if families.is_scalar(n))]: p.data = p.data.to(torch.bfloat16)
    config.architectures, config.dtype = [FAMILY.architecture], torch.bfloat16
    model.save_pretrained(PATH)
    draw = torch.Generator().manual_seed(seed + 1)
    prompts = [torch.randint(0, config.vocab_size, (n,), generator=draw) for n in PROMPTS]
    wide, narrow = families.load(PATH, torch.float32).double(), families.load(PATH, torch.bfloat16)
    tensors, errors = {}, []
    for i, prompt in enumerate(prompts):
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        with families.Wide(): tokens, rows = answered(wide, prompt)
        torch.set_default_dtype(default)
        assert rows.dtype == torch.float64
        best = rows.topk(2).values
        _, own = answered(narrow, prompt, tokens)
        errors.append((own - rows).pow(2).mean().sqrt().item())
        tensors |= {f"prompt.{i}": prompt.int(), f"answer.{i}": tokens.int(), f"logits.{i}": rows.float()}
        print(f"{len(prompt)} tokens: {len(set(tokens.tolist()))} other tokens in the answer, least lead {(best[:, 0] - best[:, 1]).min():.1e}, "
              f"logits std {rows.std():.2f}, torch rms error {errors[-1]:.1e}", flush=True)
    safetensors.torch.save_file(tensors, PATH / "long.safetensors")
    families.write_json(PATH / "long.json", {"torch_error": errors})


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    main()
