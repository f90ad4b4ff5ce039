"""Trains a model of Qwen3-VL's kind that counts shapes in pictures, which this script draws.

    python tests/models/counting.py train OUT      one GPU, some minutes
    python tests/models/counting.py problems OUT   300 held-out problems, with their pictures
    python tests/models/counting.py score OUT      accuracy with transformers

A picture has up to five circles, squares and triangles of each of three colours, its sides have 60 to
132 pixels, which are seldom multiples of a patch. A question names a colour: `How many red shapes?`,
` 2 circles, 0 squares, 1 triangles.` A processor makes the picture's sides multiples of 16 pixels.
Needs torch, tokenizers and pillow; `train` and `score` need transformers 5.17 or later.
"""

import base64
import functools
import io
import json
import math
import random
import sys
import time
from pathlib import Path

import torch
import transformers
from PIL import Image, ImageDraw
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn import functional as F

SEED, HELD_OUT, MOST = 20261129, 300, 5
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
COLOURS = dict(red=(214, 40, 40), green=(46, 160, 67), blue=(38, 84, 200))
SHAPES = ["circles", "squares", "triangles"]
PATCH, MERGE = 8, 2
UNIT = PATCH * MERGE
SIDES = range(64, 129, UNIT)
SPECIAL = ["<|pad|>", "<|end|>", "<|vision_start|>", "<|image_pad|>", "<|vision_end|>"]
END, START, PAD, STOP = 1, 2, 3, 4
PNG = "data:image/png;base64,"
MARK = "<|vision_start|><|image_pad|><|vision_end|>"
TEMPLATE = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
    "{% if p.type == 'image' %}"
    + MARK
    + "{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}"
)
TEXT = dict(
    vocab_size=320,
    hidden_size=128,
    intermediate_size=320,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    max_position_embeddings=1024,
    tie_word_embeddings=True,
    bos_token_id=None,
    eos_token_id=END,
    pad_token_id=0,
    rope_parameters=dict(
        rope_type="default", rope_theta=10000.0, mrope_section=[6, 5, 5], mrope_interleaved=True
    ),
)
VISION = dict(
    depth=4,
    hidden_size=128,
    intermediate_size=256,
    num_heads=4,
    patch_size=PATCH,
    spatial_merge_size=MERGE,
    temporal_patch_size=2,
    num_position_embeddings=64,
    out_hidden_size=128,
    deepstack_visual_indexes=[1],
)


def draw_shape(draw, shape, colour, at, size):
    """A shape in the middle of `at` that reaches `size` pixels to each side."""
    (x, y), fill = at, COLOURS[colour]
    if shape == "circles":
        draw.ellipse((x - size, y - size, x + size, y + size), fill=fill)
    elif shape == "squares":
        draw.rectangle((x - size, y - size, x + size, y + size), fill=fill)
    else:
        draw.polygon([(x, y - size), (x - size, y + size), (x + size, y + size)], fill=fill)


def picture(rng, width, height):
    """A picture, and the number of its shapes by colour and shape. None lies on another."""
    image = Image.new("RGB", (width, height), tuple(rng.randint(225, 255) for _ in range(3)))
    draw, taken = ImageDraw.Draw(image), []
    counts = {(c, s): 0 for c in COLOURS for s in SHAPES}
    for _ in range(rng.randint(1, width * height // 1600)):
        size = rng.randint(5, 8)
        at = rng.randint(size, width - 1 - size), rng.randint(size, height - 1 - size)
        kind = rng.choice(list(COLOURS)), rng.choice(SHAPES)
        apart = all(
            max(abs(at[0] - x), abs(at[1] - y)) > size + other + 1 for (x, y), other in taken
        )
        if apart and counts[kind] < MOST:
            draw_shape(draw, kind[1], kind[0], at, size)
            taken.append((at, size))
            counts[kind] += 1
    return image, counts


def question(colour):
    return f"How many {colour} shapes?\n"


def answer(counts, colour):
    return " " + ", ".join(f"{counts[colour, shape]} {shape}" for shape in SHAPES) + "."


def make_tokenizer():
    made = Tokenizer(models.BPE())
    digits = pre_tokenizers.Digits(individual_digits=True)
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    made.decoder = decoders.ByteLevel()
    counts = {(c, s): 0 for c in COLOURS for s in SHAPES}
    corpus = [question(c) + answer(counts, c) for c in COLOURS] * 50
    trainer = trainers.BpeTrainer(
        vocab_size=TEXT["vocab_size"],
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(corpus, trainer)
    return made


def patches(images):
    """Numbers of the patches of pictures of one size, in the order of a processor: `[B, N, numbers]`."""
    count, height, width, _ = images.shape
    x = (images.float() / 127.5 - 1).permute(0, 3, 1, 2)
    x = x.reshape(count, 3, height // UNIT, MERGE, PATCH, width // UNIT, MERGE, PATCH)
    x = x.permute(0, 2, 5, 3, 6, 1, 4, 7)[:, :, :, :, :, :, None].expand(*[-1] * 6, 2, -1, -1)
    return x.reshape(count, height // PATCH * (width // PATCH), -1)


def positions(rows, columns, before, behind):
    """The three positions of tokens of text, of an image, and of text."""
    t = torch.arange(before).expand(3, -1)
    row = torch.arange(rows).repeat_interleave(columns)
    column = torch.arange(columns).repeat(rows)
    seen = torch.stack([torch.zeros_like(row), row, column]) + before
    rest = torch.arange(behind).expand(3, -1) + before + max(rows, columns)
    return torch.cat([t, seen, rest], dim=1)


def tower(visual, x, height, width):
    """The rows of pictures of one size, all at once: transformers' tower loops over pictures."""
    rows, columns = height // PATCH, width // PATCH
    where = [torch.arange(n, device=x.device) for n in (rows, columns)]
    where = torch.stack(torch.meshgrid(*where, indexing="ij"), -1)
    where = (
        where.reshape(rows // MERGE, MERGE, columns // MERGE, MERGE, 2)
        .transpose(1, 2)
        .reshape(-1, 2)
    )
    side, places = math.isqrt(VISION["num_position_embeddings"]), visual.pos_embed.weight
    at = where * constant(((side - 1) / (rows - 1), (side - 1) / (columns - 1)))
    low, share = at.floor().long(), at - at.floor()
    high = (low + 1).clamp(max=side - 1)
    embedded = 0
    for down in (0, 1):
        for across in (0, 1):
            r = high[:, 0] if down else low[:, 0]
            c = high[:, 1] if across else low[:, 1]
            part = (share[:, 0] if down else 1 - share[:, 0]) * (
                share[:, 1] if across else 1 - share[:, 1]
            )
            embedded = embedded + part[:, None] * places[r * side + c]
    weight = visual.patch_embed.proj.weight
    x = F.linear(x, weight.reshape(weight.shape[0], -1), visual.patch_embed.proj.bias) + embedded
    heads, size = VISION["num_heads"], VISION["hidden_size"] // VISION["num_heads"]
    frequency = 10000.0 ** -(torch.arange(0, size // 2, 2, device=x.device) / (size // 2))
    angle = (where[:, :, None] * frequency).reshape(len(where), -1)
    cos, sin = (torch.cat([f(angle)] * 2, -1)[None, None] for f in (torch.cos, torch.sin))

    deep = []
    for number, block in enumerate(visual.blocks):
        q, k, v = (
            block.attn.qkv(block.norm1(x))
            .reshape(*x.shape[:2], 3, heads, size)
            .permute(2, 0, 3, 1, 4)
        )
        seen = F.scaled_dot_product_attention(
            turned(q, cos, sin).to(v.dtype), turned(k, cos, sin).to(v.dtype), v
        )
        x = x + block.attn.proj(seen.transpose(1, 2).reshape(x.shape))
        x = x + block.mlp(block.norm2(x))
        if number in VISION["deepstack_visual_indexes"]:
            merger = visual.deepstack_merger_list[VISION["deepstack_visual_indexes"].index(number)]
            deep.append(merger(x.reshape(-1, x.shape[-1])))
    return visual.merger(x.reshape(-1, x.shape[-1])), deep


def turned(v, cos, sin):
    first, second = v.chunk(2, -1)
    return v * cos + torch.cat([-second, first], -1) * sin


def normed(v, norm):
    return F.rms_norm(v.float(), v.shape[-1:], norm.weight.float(), norm.variance_epsilon)


def table(placed):
    """Cosines and sines of tokens with three positions, whose frequencies take turns."""
    size, (_, rows, columns) = TEXT["head_dim"], TEXT["rope_parameters"]["mrope_section"]
    frequency = TEXT["rope_parameters"]["rope_theta"] ** -(
        torch.arange(0, size, 2, device=placed.device) / size
    )
    angles = placed[..., None] * frequency
    angle = angles[0].clone()
    angle[:, 1 : 3 * rows : 3] = angles[1, :, 1 : 3 * rows : 3]
    angle[:, 2 : 3 * columns : 3] = angles[2, :, 2 : 3 * columns : 3]
    return [torch.cat([f(angle)] * 2, -1)[None, None] for f in (torch.cos, torch.sin)]


def language(text, x, turns, at, deep):
    """The rows behind the language part, without what transformers asks of a mask."""
    heads, shared, size = (
        TEXT[name] for name in ("num_attention_heads", "num_key_value_heads", "head_dim")
    )

    def split(v, count):
        return v.reshape(*v.shape[:2], count, size).transpose(1, 2)

    for number, layer in enumerate(text.layers):
        own, y = layer.self_attn, normed(x, layer.input_layernorm)
        q, k, v = (
            split(own.q_proj(y), heads),
            split(own.k_proj(y), shared),
            split(own.v_proj(y), shared),
        )
        q, k = (
            turned(normed(part, norm), *turns).to(v.dtype)
            for part, norm in ((q, own.q_norm), (k, own.k_norm))
        )
        k, v = (part.repeat_interleave(heads // shared, 1) for part in (k, v))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + own.o_proj(seen.transpose(1, 2).reshape(*x.shape[:2], -1))
        y = normed(x, layer.post_attention_layernorm)
        x = x + layer.mlp.down_proj(F.silu(layer.mlp.gate_proj(y)) * layer.mlp.up_proj(y))
        if number < len(deep):
            first, end = at
            x = torch.cat([x[:, :first], x[:, first:end] + deep[number], x[:, end:]], 1)
    return normed(x, text.norm)


def logits_of(model, ids, x, height, width, placed):
    """Logits of texts with a picture each, behind their first token."""
    rows, deep = tower(model.model.visual, x, height, width)
    shaped = lambda v: v.reshape(len(ids), -1, v.shape[-1])
    embedded, end = model.model.language_model.embed_tokens(ids), 1 + height * width // UNIT**2
    embedded = torch.cat([embedded[:, :1], shaped(rows).to(embedded.dtype), embedded[:, end:]], 1)
    out = language(
        model.model.language_model, embedded, table(placed), (1, end), [shaped(v) for v in deep]
    )
    return model.lm_head(out)


def make_model():
    config = transformers.Qwen3VLConfig(
        text_config=TEXT,
        vision_config=VISION,
        image_token_id=PAD,
        vision_start_token_id=START,
        vision_end_token_id=STOP,
        video_token_id=TEXT["vocab_size"] - 1,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    return transformers.Qwen3VLForConditionalGeneration._from_config(config).float()


@functools.cache
def constant(numbers):
    """Numbers on the device: a graph of a step copies none there."""
    return torch.tensor(numbers, device=DEVICE)


def drawn(count, height, width):
    """Pictures of one size and the numbers of their shapes, by the rules of `picture`: all at once,
    on the GPU."""
    tries = height * width // 1600
    size = torch.randint(5, 9, (count, tries), device=DEVICE)
    x, y = (
        (torch.rand(count, tries, device=DEVICE) * (side - 2 * size)).long() + size
        for side in (width, height)
    )
    kind = torch.randint(len(COLOURS) * len(SHAPES), (count, tries), device=DEVICE)
    wanted = (
        torch.arange(tries, device=DEVICE)
        < (1 + torch.rand(count, device=DEVICE) * tries).long()[:, None]
    )
    kept = torch.zeros(count, tries, dtype=torch.bool, device=DEVICE)
    for i in range(tries):
        far = (
            torch.maximum((x - x[:, i : i + 1]).abs(), (y - y[:, i : i + 1]).abs())
            > size + size[:, i : i + 1] + 1
        )
        few = (kept & (kind == kind[:, i : i + 1])).sum(1) < MOST
        kept[:, i] = wanted[:, i] & few & (far | ~kept).all(1)
    images = torch.randint(225, 256, (count, 1, 1, 3), device=DEVICE, dtype=torch.int16)
    images, colours = (
        images.expand(-1, height, width, -1).clone(),
        constant(tuple(COLOURS.values())).short(),
    )
    down, across = torch.arange(height, device=DEVICE)[:, None], torch.arange(width, device=DEVICE)
    for i in range(tries):
        left, top, reach, shape, seen = (
            v[:, i, None, None] for v in (x, y, size, kind % len(SHAPES), kept)
        )
        dx, dy = (across - left).abs(), down - top
        circle = dx * dx + dy * dy <= reach * (reach + 1)
        square = (dx <= reach) & (dy.abs() <= reach)
        triangle = (dy.abs() <= reach) & (2 * dx <= dy + reach)
        inside = torch.where(shape == 0, circle, torch.where(shape == 1, square, triangle)) & seen
        images = torch.where(
            inside[..., None], colours[kind[:, i] // len(SHAPES)][:, None, None], images
        )
    counts = torch.zeros(count, len(COLOURS) * len(SHAPES), dtype=torch.long, device=DEVICE)
    counts.scatter_add_(1, kind, kept.long())
    return images, counts.reshape(count, len(COLOURS), len(SHAPES))


def prepared(images, height, width):
    """Pictures in a size that a processor makes of theirs."""
    if images.shape[1:3] == (height, width):
        return images
    x = images.permute(0, 3, 1, 2).float()
    x = F.interpolate(x, size=(height, width), mode="bicubic", antialias=True)
    return x.round().clamp(0, 255).permute(0, 2, 3, 1)


class Texts:
    """The tokens of a question and each possible answer: all answers have as many."""

    def __init__(self, tokenizer):
        encode = lambda text: tokenizer.encode(text).ids
        self.question = torch.tensor([encode(question(c)) for c in COLOURS], device=DEVICE)
        none = {(c, s): 0 for c in COLOURS for s in SHAPES}
        some = dict.fromkeys(none, 1)
        zero, one = (
            torch.tensor(encode(answer(counts, "red")) + [END], device=DEVICE)
            for counts in (none, some)
        )
        self.answer, self.digits = zero, (zero != one).nonzero()[:, 0]
        first = [
            tokenizer.encode(answer({**none, ("red", "circles"): n}, "red")).ids
            for n in range(MOST + 1)
        ]
        self.numbers = torch.tensor([ids[int(self.digits[0])] for ids in first], device=DEVICE)

    def batch(self, counts, tokens):
        """Tokens of pictures, questions and answers, and the number of those before the answer."""
        count = len(counts)
        colour = torch.randint(len(COLOURS), (count,), device=DEVICE)
        told = self.answer.expand(count, -1).clone()
        told[:, self.digits] = self.numbers[counts[torch.arange(count, device=DEVICE), colour]]
        seen = constant((START, *[PAD] * tokens, STOP)).expand(count, -1)
        asked = self.question[colour]
        return torch.cat([seen, asked, told], 1), seen.shape[1] + asked.shape[1]


class Step:
    """A step of training with pictures of one size, all of it a graph of the GPU: a small model's
    step is launches."""

    def __init__(self, model, optimiser, texts, batch, own, size):
        self.parts, self.batch, self.own, self.size = (model, optimiser, texts), batch, own, size
        rows, columns = (side // UNIT for side in size)
        behind = texts.question.shape[1] + len(texts.answer) + 1
        self.placed = positions(rows, columns, 1, behind).to(DEVICE)
        if DEVICE == "cuda":
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for _ in range(3):
                    self.run()
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.loss, self.right = self.run()

    def run(self):
        model, optimiser, texts = self.parts
        height, width = self.size
        images, counts = drawn(self.batch, *self.own)
        ids, start = texts.batch(counts, height * width // UNIT**2)
        with torch.autocast(DEVICE, torch.bfloat16, cache_enabled=False):
            seen = patches(prepared(images, height, width))
            logits = logits_of(model, ids, seen, height, width, self.placed)
        told = logits[:, start - 1 : -1].float().transpose(1, 2)
        loss = F.cross_entropy(told, ids[:, start:])
        optimiser.zero_grad(set_to_none=False)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimiser.step()
        return loss.detach(), (told.argmax(1) == ids[:, start:]).all(1).float().mean()

    def take(self):
        if DEVICE == "cuda":
            self.graph.replay()
            return self.loss, self.right
        return self.run()


def train(out, batch=512, rate=1e-3, seconds=220, kinds=8):
    tokenizer, rng = make_tokenizer(), random.Random(SEED)
    texts, model, began, step = Texts(tokenizer), make_model().to(DEVICE).train(), time.time(), 0
    learning = torch.tensor(0.0, device=DEVICE)
    betas, graphs = (0.9, 0.98), DEVICE == "cuda"
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=learning, betas=betas, weight_decay=0.01, capturable=graphs
    )
    steps = []
    for _ in range(kinds):
        size = rng.choice(SIDES), rng.choice(SIDES)
        own = [max(60, side + rng.randint(-UNIT // 2 + 1, UNIT // 2 - 1)) for side in size]
        steps.append(Step(model, optimiser, texts, batch, own, size))
    print(f"{kinds} sizes after {time.time() - began:.0f}s", flush=True)
    began, done = time.time(), 0.0
    while done < 1:
        done = min(1, (time.time() - began) / seconds)
        learning.fill_(
            rate * min(1, (step + 1) / 500) * (0.49 * (1 + math.cos(math.pi * done)) + 0.02)
        )
        loss, right = rng.choice(steps).take()
        if step % 1000 == 0 or done >= 1:
            print(
                step,
                round(loss.item(), 4),
                round(right.item(), 3),
                f"{time.time() - began:.0f}s",
                flush=True,
            )
        if step % 20 == 0 and graphs:
            torch.cuda.synchronize()
        step += 1
    save(model, tokenizer, Path(out))


def save(model, tokenizer, out):
    out.mkdir(parents=True, exist_ok=True)
    model.to(torch.bfloat16).save_pretrained(out)
    tokenizer.save(str(out / "tokenizer.json"))
    described = dict(
        tokenizer_class="PreTrainedTokenizerFast",
        eos_token="<|end|>",
        pad_token="<|pad|>",
        chat_template=TEMPLATE,
    )
    (out / "tokenizer_config.json").write_text(json.dumps(described, indent=1) + "\n")
    bounds = dict(shortest_edge=64 * 64, longest_edge=256 * 256)
    prepared = dict(
        image_processor_type="Qwen2VLImageProcessorFast",
        size=bounds,
        patch_size=PATCH,
        merge_size=MERGE,
        temporal_patch_size=2,
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
    )
    (out / "preprocessor_config.json").write_text(json.dumps(prepared, indent=1) + "\n")


def problems(out):
    """Each with its picture as a `data:` address."""
    rng = random.Random(SEED)
    with (Path(out) / "problems.jsonl").open("w") as file:
        for _ in range(HELD_OUT):
            image, counts = picture(rng, rng.randint(60, 132), rng.randint(60, 132))
            colour, png = rng.choice(list(COLOURS)), io.BytesIO()
            image.save(png, "png", optimize=True)
            address = PNG + base64.b64encode(png.getvalue()).decode()
            problem = dict(
                images=[address], prompt=MARK + question(colour), solution=answer(counts, colour)
            )
            file.write(json.dumps(problem) + "\n")


def opened(address):
    return Image.open(io.BytesIO(base64.b64decode(address.removeprefix(PNG))))


@torch.no_grad()
def score(out):
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor

    folder, good = Path(out), 0
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    prepare = Qwen2VLImageProcessor.from_pretrained(folder)
    cls = transformers.Qwen3VLForConditionalGeneration
    model = cls.from_pretrained(folder, dtype=torch.bfloat16).to(DEVICE).eval()
    lines = (folder / "problems.jsonl").read_text().splitlines()
    for one in map(json.loads, lines):
        seen = prepare(images=[opened(address) for address in one["images"]], return_tensors="pt")
        ids, grid = tokenizer.encode(one["prompt"]).ids, seen["image_grid_thw"]
        at, tokens = ids.index(PAD), int(grid.prod()) // MERGE**2
        ids = torch.tensor([ids[:at] + [PAD] * tokens + ids[at + 1 :]], device=DEVICE)
        made = model.generate(
            input_ids=ids,
            mm_token_type_ids=(ids == PAD).int(),
            pixel_values=seen["pixel_values"].to(DEVICE),
            image_grid_thw=grid.to(DEVICE),
            max_new_tokens=24,
            do_sample=False,
            eos_token_id=END,
            pad_token_id=0,
        )
        text = tokenizer.decode(made[0, ids.shape[1] :].tolist())
        good += text.strip() == one["solution"].strip()
    found = dict(exact=good, of=len(lines), transformers=transformers.__version__, dtype="bfloat16")
    (folder / "score.json").write_text(json.dumps(found) + "\n")
    print(found)


if __name__ == "__main__":
    what, *paths = sys.argv[1:]
    dict(train=train, problems=problems, score=score)[what](*paths)
