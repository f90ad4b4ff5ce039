"""Golden models that see images: tiny towers in front of tiny language parts, and prompts with images.

    pip install torch==2.14.0 transformers==5.24.0 safetensors==0.8.0 pillow
    python tests/golden/images.py [CASE ...]

The reference is transformers' own code in float64, as in `families.py`. Pixels are drawn and not read from a file: `preprocess.py`
has those. A case has for each prompt its tokens, the numbers of its patches, the grid of patches of each image, the rows that the
tower makes of them with those for layers beside them, the three positions of each token if it has them, and the logits.
"""
import json, shutil, sys, zlib

import safetensors.torch, torch, transformers

import families, hybrid
from families import HERE, SMALL, Wide, make, text, write_json

TOWER = dict(depth=2, hidden_size=64, intermediate_size=96, num_heads=2, patch_size=4, num_position_embeddings=16, out_hidden_size=48)
IMAGE, START, END, VIDEO = 79, 78, 77, 76


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


def of_mistral():
    sizes = {k: v for k, v in SMALL.items() if k in transformers.MistralConfig().to_dict()} | dict(vocab_size=80, sliding_window=None, hidden_act="silu")
    vision = dict(model_type="pixtral", num_hidden_layers=2, hidden_size=64, intermediate_size=96, num_attention_heads=2, head_dim=32, patch_size=4, image_size=64,
                  hidden_act="silu")
    return transformers.Mistral3Config(text_config=dict(model_type="mistral", **sizes), vision_config=vision, tie_word_embeddings=False)


def of_gemma():
    """Layers with a window that is shorter than an image, and one without. The root of the hidden size has no fraction to round."""
    sizes = {k: v for k, v in SMALL.items() if k in transformers.Gemma3TextConfig().to_dict()}
    sizes |= dict(vocab_size=80, hidden_size=64, num_hidden_layers=3, sliding_window=7, tie_word_embeddings=True, layer_types=["sliding_attention", "full_attention", "sliding_attention"])
    vision = dict(model_type="siglip_vision_model", num_hidden_layers=2, hidden_size=64, intermediate_size=96, num_attention_heads=2, patch_size=4, image_size=32,
                  vision_use_head=False)
    return transformers.Gemma3Config(text_config=sizes, vision_config=vision, mm_tokens_per_image=16, tie_word_embeddings=True)


CASES = {
    "gemma3": of_gemma,
    "mistral3": of_mistral,
    "qwen3vl": lambda: of_family("Qwen3VLForConditionalGeneration"),
    "qwen3vlmoe": lambda: of_family("Qwen3VLMoeForConditionalGeneration"),
    "3.5": lambda: of_hybrid("hybrid-3.5"),
    "3.5-moe": lambda: of_hybrid("hybrid-3.5-moe"),
}


KNOWN = {"qwen3vlmoe": language("Qwen3VLMoeForConditionalGeneration")[0]}


class Qwen:
    """What models of a kind are given for images, and what they make of it."""

    # Pixels of a patch's side and numbers of a patch, and patches of the side of what becomes a
    # token.
    patch, numbers, merge = 4, 3 * 2 * 4**2, 2
    # Which of the images of `server/src/images` are asked about, where the bytes of their patches
    # are, and what says how they are made ready.
    images, bytes = ["larger.png", "alpha.png"], ""
    preprocessing = dict(image_processor_type="Qwen2VLImageProcessorFast", size=dict(shortest_edge=1024, longest_edge=4096), patch_size=4, merge_size=2,
                         temporal_patch_size=2)
    # Special tokens, and what a template has for an image.
    special = {VIDEO: "<|video_pad|>", END: "<|vision_end|>", START: "<|vision_start|>", IMAGE: "<|image_pad|>"}
    template = "<|vision_start|><|image_pad|><|vision_end|>"
    # Rows and columns of patches of each image, and the text before, between and behind them.
    prompts = [(5, (6, 4), 7), ((2, 10), 3, (4, 4), 2), (4, (2, 2), (8, 6))]

    def seen(self, tokens):
        """What else is said of a piece's tokens."""
        return {}

    def begin(self, config):
        config.image_token_id, config.vision_start_token_id, config.vision_end_token_id, config.video_token_id = IMAGE, START, END, VIDEO

    def tokens(self, rows, columns):
        """Those of an image with so many patches."""
        return [START] + [IMAGE] * (rows * columns // self.merge**2) + [END]

    def given(self, x, grids): return dict(pixel_values=x, image_grid_thw=grids)

    def rows(self, model, x, grids):
        seen = model.model.visual(x, grid_thw=grids)
        return torch.cat([seen.pooler_output, *(getattr(seen, "deepstack_features", None) or [])], dim=1)

    def positions(self, model, tokens, grids):
        return model.model.get_rope_index(tokens[None], mm_token_type_ids=(tokens == IMAGE).int()[None], image_grid_thw=grids)[0]


class Whole(Qwen):
    """Models that take images as they are and not in patches, and give tokens one position."""

    numbers = 3 * 4**2

    def whole(self, x, grids):
        """Images of their patches, and the size of each."""
        sizes = [(rows, columns) for _, rows, columns in grids.tolist()]
        images = [unpatched(part, *size, self.merge, self.patch) for part, size in zip(x.split([rows * columns for rows, columns in sizes]), sizes)]
        most = [max(size[axis] for size in sizes) * self.patch for axis in (0, 1)]
        pad = lambda image: torch.nn.functional.pad(image, (0, most[1] - image.shape[2], 0, most[0] - image.shape[1]))
        return torch.stack([pad(image) for image in images]), torch.tensor(sizes) * self.patch

    def given(self, x, grids):
        images, sizes = self.whole(x, grids)
        return dict(pixel_values=images, image_sizes=sizes)

    def rows(self, model, x, grids): return torch.cat(model.model.get_image_features(**self.given(x, grids)).pooler_output)

    def positions(self, model, tokens, grids): return torch.arange(len(tokens))[None, None]


class Mistral(Whole):
    images, bytes = ["larger.png", "narrow.png"], "within/"
    preprocessing = dict(size=dict(longest_edge=64), patch_size=4, resample=3)
    special = {END: "[IMG_END]", START: "[IMG_BREAK]", IMAGE: "[IMG]"}
    template = "[IMG]"

    def begin(self, config): config.image_token_id = IMAGE

    def tokens(self, rows, columns):
        return ([IMAGE] * (columns // 2) + [START]) * (rows // 2 - 1) + [IMAGE] * (columns // 2) + [END]


class Gemma(Whole):
    """Images are squares of one size, and their tokens see each other. A template's token for an image is written as several."""

    images, bytes = ["larger.png", "narrow.png"], "same/"
    preprocessing = dict(size=dict(height=32, width=32), resample=2)
    special = {END: "<end_of_image>", START: "<start_of_image>", IMAGE: "<image_soft_token>"}
    template = "<start_of_image>"
    prompts = [(5, (8, 8), 7), ((8, 8), 3, (8, 8), 2), (4, (8, 8), (8, 8))]

    def begin(self, config): config.image_token_id, config.boi_token_index, config.eoi_token_index = IMAGE, START, END

    def given(self, x, grids): return dict(pixel_values=self.whole(x, grids)[0])

    def rows(self, model, x, grids): return model.model.get_image_features(**self.given(x, grids)).pooler_output.flatten(0, 1)

    def seen(self, tokens): return dict(token_type_ids=(tokens == IMAGE).int()[None])


def kind(name): return dict(mistral3=Mistral, gemma3=Gemma).get(name, Qwen)()


def unpatched(x, rows, columns, merge, patch):
    """The pixels of an image of its patches, which lie one block of merged ones after the other."""
    x = x.reshape(rows // merge, columns // merge, merge, merge, 3, patch, patch)
    return x.permute(4, 0, 2, 5, 1, 3, 6).reshape(3, rows * patch, columns * patch)


def prompt(of, parts, draw):
    """Tokens, and the grid of each image."""
    tokens, grids = [], []
    for part in parts:
        if isinstance(part, int):
            tokens += torch.randint(70, (part,), generator=draw).tolist()
        else:
            tokens += of.tokens(*part)
            grids.append((1, *part))
    return torch.tensor(tokens), torch.tensor(grids)


def run(of, model, tokens, given, positions, pieces):
    cache, out, at = None, [], 0
    for piece in tokens.split(pieces):
        seen = of.seen(piece) | (given if at == 0 else {})
        places = positions[..., at:at + len(piece)]
        o = model(input_ids=piece[None], position_ids=places if len(places) > 1 else places[0], cache=cache, use_cache=True, **seen)
        cache, at = o.cache, at + len(piece)
        out.append(o.logits[0])
    return torch.cat(out)


# What a user asks about an image of `server/src/images`, the first with an answer of words alone,
# and how many tokens of that are compared.
ASKED, ANSWER = [[5, 6, last] for last in range(7, 40)], 6
SERVER = HERE.parent.parent / "server" / "src" / "images"
TEMPLATE = ("{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{% if p.type == 'image' %}"
            "IMAGE{% else %}{{ ' ' + p.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}")


def tokenizer(special):
    """Words for all tokens, as `tokenizer.json` has them."""
    vocab = {special.get(i, f"t{i}"): i for i in range(80)}
    added = [dict(id=i, content=text, single_word=False, lstrip=False, rstrip=False, normalized=False, special=True) for i, text in sorted(special.items())]
    return dict(version="1.0", truncation=None, padding=None, added_tokens=added, normalizer=None, pre_tokenizer=dict(type="WhitespaceSplit"),
                post_processor=None, decoder=None, model=dict(type="WordLevel", vocab=vocab, unk_token="t0"))


def folder(path, of):
    """What else a model's folder has for those who ask."""
    write_json(path / "tokenizer.json", tokenizer(of.special))
    write_json(path / "tokenizer_config.json", dict(chat_template=TEMPLATE.replace("IMAGE", of.template), tokenizer_class="PreTrainedTokenizerFast"))
    write_json(path / "preprocessor_config.json", dict(of.preprocessing, image_mean=[0.5] * 3, image_std=[0.5] * 3))


def answer(of, model, images, asked):
    """The likeliest tokens after a question about images, by the bytes that transformers' processor makes of these, and by how much."""
    here = SERVER / of.bytes
    sizes = json.loads((here / "grids.json").read_text())
    grids = torch.tensor([sizes[name] for name in images])
    pixels = torch.cat([torch.tensor(list((here / f"{name}.bin").read_bytes()), dtype=torch.float64) for name in images]) / 127.5 - 1
    given = of.given(pixels.reshape(int(grids.prod(1).sum()), -1), grids)
    tokens = [t for _, rows, columns in grids.tolist() for t in of.tokens(rows, columns)] + asked
    made, least = [], float("inf")
    for _ in range(ANSWER):
        ids = torch.tensor(tokens + made)
        top = run(of, model, ids, given, of.positions(model, ids, grids), [len(ids)])[-1].topk(2)
        made.append(int(top.indices[0]))
        if made[-1] >= VIDEO: return None
        least = min(least, float(top.values[0] - top.values[1]))
    return dict(images=images, asked=asked, tokens=made, prompt_tokens=len(tokens), margin=least)


def golden(name):
    path, config, of = HERE / "images" / name, CASES[name](), kind(name)
    of.begin(config)
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
    prompts = [prompt(of, parts, draw) for parts in of.prompts]
    pixels = [(torch.randint(256, (int(grids.prod(1).sum()), of.numbers), generator=draw) / 127.5 - 1).float() for _, grids in prompts]
    exact = families.load(path, torch.float32).double()
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    tensors = {}
    with Wide(), torch.no_grad():
        for i, ((tokens, grids), x) in enumerate(zip(prompts, pixels)):
            positions, x = of.positions(exact, tokens, grids), x.double()
            rows, given = of.rows(exact, x, grids), of.given(x, grids)
            # All images belong to the first piece.
            end = int((tokens == IMAGE).nonzero().max()) + 1
            decode = lambda n: [end] + [1] * (n - end)
            made = {"prefill": run(of, exact, tokens, given, positions, [len(tokens)])}
            made["decode"] = run(of, exact, tokens, given, positions, decode(len(tokens)))
            assert all(v.dtype == torch.float64 for v in (rows, *made.values()))
            assert (made["decode"] - made["prefill"]).abs().max() < 1e-9
            tensors |= {f"tokens.{i}": tokens.int(), f"pixels.{i}": x, f"grids.{i}": grids.int(), f"positions.{i}": positions[:, 0].int().contiguous(),
                        f"rows.{i}": rows, f"prefill.{i}": made["prefill"], f"decode.{i}": made["decode"]}
        answers = [next(filter(None, (answer(of, exact, of.images[:count], asked) for asked in ASKED))) for count in (1, 2)]
    torch.set_default_dtype(default)
    folder(path, of)
    # As releases have them.
    if name in KNOWN: safetensors.torch.save_file(KNOWN[name].stored(safetensors.torch.load_file(path / "model.safetensors")), path / "model.safetensors", {"format": "pt"})
    tensors = {name: t.to(torch.float32) if t.is_floating_point() else t for name, t in tensors.items()}
    safetensors.torch.save_file(tensors, path / "golden.safetensors")
    write_json(path / "golden.json", dict(answers=answers))
    spread, size = tensors["prefill.0"].std().item(), sum(f.stat().st_size for f in path.iterdir())
    print(f"{path.name}: {size} bytes, logits std {spread:.2f}, rows std {tensors['rows.0'].std().item():.2f}", flush=True)


if __name__ == "__main__":
    for name in sys.argv[1:] or CASES: golden(name)
