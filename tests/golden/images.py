"""Golden models that see images: tiny towers in front of tiny language parts, and prompts with images.

    pip install torch==2.14.0 transformers==5.24.0 safetensors==0.8.0 pillow
    python tests/golden/images.py [CASE ...]

The reference is transformers' own code in float64, as in `families.py`. Pixels are drawn and not read from a file: `preprocess.py`
has those. A case has for each prompt its tokens, the numbers of its patches, the grid of patches of each image, the rows that the
tower makes of them with those for layers beside them, the three positions of each token, and the logits.
"""
import json, shutil, sys, zlib

import safetensors.torch, torch

import families, hybrid
from families import HERE, Wide, make, text, write_json

TOWER = dict(depth=2, hidden_size=64, intermediate_size=96, num_heads=2, patch_size=4, num_position_embeddings=16, out_hidden_size=48)
IMAGE, START, END, VIDEO = 79, 78, 77, 76
# Rows and columns of patches of each image, and the text before, between and behind them.
PROMPTS = [
    (5, (6, 4), 7),
    ((2, 10), 3, (4, 4), 2),
    (4, (2, 2), (8, 6)),
]


def language(cls, **sizes):
    """The configuration of a model with a language part like that of a family."""
    known = next(f for f in families.FAMILIES if f.architecture == cls)
    return known, dict(known.sizes, vocab_size=80, **sizes)


def of_family(architecture):
    known, sizes = language(architecture)
    cls = families.config_class(architecture)
    has = cls.sub_configs["text_config"]().to_dict()
    sizes = {k: v for k, v in families.SMALL.items() if k in has} | sizes
    return cls(text_config=cls.sub_configs["text_config"](**sizes).to_dict(), tie_word_embeddings=False,
               vision_config=TOWER | dict(deepstack_visual_indexes=[0]))


def of_hybrid(name):
    config = hybrid.CASES[name].config
    fields = {k: v for k, v in TOWER.items() if k != "out_hidden_size"} | dict(out_hidden_size=config.text_config.hidden_size)
    return type(config)(text_config=config.text_config.to_dict(), vision_config=fields, tie_word_embeddings=config.text_config.tie_word_embeddings)


CASES = {
    "qwen3vl": lambda: of_family("Qwen3VLForConditionalGeneration"),
    "qwen3vlmoe": lambda: of_family("Qwen3VLMoeForConditionalGeneration"),
    "3.5": lambda: of_hybrid("hybrid-3.5"),
    "3.5-moe": lambda: of_hybrid("hybrid-3.5-moe"),
}


KNOWN = {"qwen3vlmoe": language("Qwen3VLMoeForConditionalGeneration")[0]}


def prompt(parts, draw):
    """Tokens, and the grid of each image."""
    tokens, grids = [], []
    for part in parts:
        if isinstance(part, int):
            tokens += torch.randint(70, (part,), generator=draw).tolist()
        else:
            rows, columns = part
            tokens += [START] + [IMAGE] * (rows * columns // 4) + [END]
            grids.append((1, rows, columns))
    return torch.tensor(tokens), torch.tensor(grids)


def run(model, tokens, pixels, grids, positions, pieces):
    cache, out, at = None, [], 0
    for piece in tokens.split(pieces):
        seen = dict(pixel_values=pixels, image_grid_thw=grids) if at == 0 else {}
        o = model(input_ids=piece[None], position_ids=positions[:, None, at:at + len(piece)], cache=cache, use_cache=True, **seen)
        cache, at = o.cache, at + len(piece)
        out.append(o.logits[0])
    return torch.cat(out)


# What a user asks about an image of `server/src/images`, the first with an answer of words alone,
# and how many tokens of that are compared.
ASKED, IMAGES, ANSWER = [[5, 6, last] for last in range(7, 40)], ["larger.png", "alpha.png"], 6
SERVER = HERE.parent.parent / "server" / "src" / "images"
TEMPLATE = ("{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{% if p.type == 'image' %}"
            "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ ' ' + p.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}")


def tokenizer():
    """Words for all tokens, as `tokenizer.json` has them."""
    special = {VIDEO: "<|video_pad|>", END: "<|vision_end|>", START: "<|vision_start|>", IMAGE: "<|image_pad|>"}
    vocab = {special.get(i, f"t{i}"): i for i in range(80)}
    added = [dict(id=i, content=text, single_word=False, lstrip=False, rstrip=False, normalized=False, special=True) for i, text in sorted(special.items())]
    return dict(version="1.0", truncation=None, padding=None, added_tokens=added, normalizer=None, pre_tokenizer=dict(type="WhitespaceSplit"),
                post_processor=None, decoder=None, model=dict(type="WordLevel", vocab=vocab, unk_token="t0"))


def folder(path):
    """What else a model's folder has for those who ask."""
    write_json(path / "tokenizer.json", tokenizer())
    write_json(path / "tokenizer_config.json", dict(chat_template=TEMPLATE, tokenizer_class="PreTrainedTokenizerFast"))
    write_json(path / "preprocessor_config.json", dict(image_processor_type="Qwen2VLImageProcessorFast", size=dict(shortest_edge=1024, longest_edge=4096), patch_size=4, merge_size=2,
               temporal_patch_size=2, image_mean=[0.5] * 3, image_std=[0.5] * 3))


def answer(model, images, asked):
    """The likeliest tokens after a question about images, by the bytes that transformers' processor makes of these, and by how much."""
    sizes = json.loads((SERVER / "grids.json").read_text())
    grids = torch.tensor([sizes[name] for name in images])
    pixels = torch.cat([torch.tensor(list((SERVER / f"{name}.bin").read_bytes()), dtype=torch.float64) for name in images]) / 127.5 - 1
    pixels = pixels.reshape(int(grids.prod(1).sum()), -1)
    tokens = [t for _, rows, columns in grids.tolist() for t in [START] + [IMAGE] * (rows * columns // 4) + [END]] + asked
    made, least = [], float("inf")
    for _ in range(ANSWER):
        ids = torch.tensor(tokens + made)
        positions, _ = model.model.get_rope_index(ids[None], mm_token_type_ids=(ids == IMAGE).int()[None], image_grid_thw=grids)
        top = run(model, ids, pixels, grids, positions[:, 0], [len(ids)])[-1].topk(2)
        made.append(int(top.indices[0]))
        if made[-1] >= VIDEO: return None
        least = min(least, float(top.values[0] - top.values[1]))
    return dict(images=images, asked=asked, tokens=made, prompt_tokens=len(tokens), margin=least)


def golden(name):
    path, config = HERE / "images" / name, CASES[name]()
    config.image_token_id, config.vision_start_token_id, config.vision_end_token_id, config.video_token_id = IMAGE, START, END, VIDEO
    seed = zlib.crc32(name.encode())
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    model = make(config)
    (hybrid.randomize if "3.5" in name else families.randomize)(model, seed)
    for p in model.parameters(): p.data = p.data.to(torch.bfloat16)
    model.config.dtype = text(model.config).dtype = model.config.vision_config.dtype = torch.bfloat16
    model.save_pretrained(path)
    (path / "generation_config.json").unlink(missing_ok=True)
    draw = torch.Generator().manual_seed(seed + 1000)
    prompts = [prompt(parts, draw) for parts in PROMPTS]
    numbers = 3 * 2 * TOWER["patch_size"] ** 2
    pixels = [(torch.randint(256, (int(grids.prod(1).sum()), numbers), generator=draw) / 127.5 - 1).float() for _, grids in prompts]
    exact = families.load(path, torch.float32).double()
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    tensors = {}
    with Wide(), torch.no_grad():
        for i, ((tokens, grids), x) in enumerate(zip(prompts, pixels)):
            kinds = (tokens == IMAGE).int()[None]
            positions, _ = exact.model.get_rope_index(tokens[None], mm_token_type_ids=kinds, image_grid_thw=grids)
            positions = positions[:, 0]
            seen = exact.model.visual(x.double(), grid_thw=grids)
            rows = torch.cat([seen.pooler_output, *(getattr(seen, "deepstack_features", None) or [])], dim=1)
            # All images belong to the first piece.
            end = int((tokens == IMAGE).nonzero().max()) + 1
            decode = lambda n: [end] + [1] * (n - end)
            made = {"prefill": run(exact, tokens, x.double(), grids, positions, [len(tokens)])}
            made["decode"] = run(exact, tokens, x.double(), grids, positions, decode(len(tokens)))
            assert all(v.dtype == torch.float64 for v in (rows, *made.values()))
            assert (made["decode"] - made["prefill"]).abs().max() < 1e-9
            tensors |= {f"tokens.{i}": tokens.int(), f"pixels.{i}": x, f"grids.{i}": grids.int(), f"positions.{i}": positions.int().contiguous(),
                        f"rows.{i}": rows, f"prefill.{i}": made["prefill"], f"decode.{i}": made["decode"]}
        answers = [next(filter(None, (answer(exact, IMAGES[:count], asked) for asked in ASKED))) for count in (1, 2)]
    torch.set_default_dtype(default)
    folder(path)
    # As releases have them.
    if name in KNOWN: safetensors.torch.save_file(KNOWN[name].stored(safetensors.torch.load_file(path / "model.safetensors")), path / "model.safetensors", {"format": "pt"})
    tensors = {name: t.to(torch.float32) if t.is_floating_point() else t for name, t in tensors.items()}
    safetensors.torch.save_file(tensors, path / "golden.safetensors")
    write_json(path / "golden.json", dict(answers=answers))
    spread, size = tensors["prefill.0"].std().item(), sum(f.stat().st_size for f in path.iterdir())
    print(f"{path.name}: {size} bytes, logits std {spread:.2f}, rows std {tensors['rows.0'].std().item():.2f}", flush=True)


if __name__ == "__main__":
    for name in sys.argv[1:] or CASES: golden(name)
