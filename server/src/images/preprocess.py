"""Images and what transformers' processor makes of them, for the tests beside this file.

    pip install torch==2.14.0 torchvision==0.29.0 transformers==5.20.2 pillow==13.0.0 numpy
    python server/src/images/preprocess.py

Numbers are written as the bytes that they come from: (byte - 127.5) / 127.5. What processors other
than Qwen's make is in folders of its own, in patches as well.
"""

import json
from pathlib import Path

import numpy as np
from PIL import Image
from transformers import Gemma3ImageProcessor, PixtralImageProcessor, Qwen2VLImageProcessor

HERE = Path(__file__).resolve().parent
SIZE = {"shortest_edge": 1024, "longest_edge": 4096}
processor = Qwen2VLImageProcessor(
    patch_size=4,
    merge_size=2,
    temporal_patch_size=2,
    size=SIZE,
    image_mean=[0.5] * 3,
    image_std=[0.5] * 3,
)


def drawn(height, width, channels, seed):
    """Waves with noise, so that neighbours differ and sums end at the bounds of a byte."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    waves = [np.sin(x / (3 + c) + c) * np.cos(y / (4 + c)) for c in range(channels)]
    return np.clip(
        127 + 110 * np.stack(waves, -1) + rng.normal(0, 40, (height, width, channels)), 0, 255
    ).astype(np.uint8)


IMAGES = {
    "larger.png": Image.fromarray(drawn(97, 131, 3, 1)),
    "smaller.png": Image.fromarray(drawn(19, 23, 3, 2)),
    "same.png": Image.fromarray(drawn(40, 56, 3, 3)),
    "narrow.png": Image.fromarray(drawn(9, 160, 3, 4)),
    "alpha.png": Image.fromarray(drawn(45, 37, 4, 5), "RGBA"),
    "grey.png": Image.fromarray(drawn(51, 33, 1, 6)[..., 0], "L"),
    "palette.png": Image.fromarray(drawn(44, 61, 3, 7)).quantize(32),
    "lossless.webp": Image.fromarray(drawn(50, 70, 3, 8)),
    "photo.jpg": Image.fromarray(drawn(64, 48, 3, 9)),
}


def written(values, path):
    """Writes numbers as the bytes that they come from."""
    values = values.double().numpy() * 127.5 + 127.5
    assert np.abs(values - values.round()).max() < 1e-3, path
    path.write_bytes(values.round().astype(np.uint8).tobytes())


def patched(image, merge, patch=4):
    """The patches of an image, one block of merged ones after the other, and their grid."""
    _, height, width = image.shape
    rows, columns = height // patch, width // patch
    blocks = image.reshape(3, rows // merge, merge, patch, columns // merge, merge, patch)
    return blocks.permute(1, 4, 2, 5, 0, 3, 6), [1, rows, columns]


for name, image in IMAGES.items():
    image.save(HERE / name, **({"lossless": True} if name.endswith("webp") else {}))


def qwen(image):
    made = processor(images=[image], return_tensors="pt")
    return made["pixel_values"], made["image_grid_thw"][0].tolist()


# Patches of two by two become a token, as the processor of texts says.
WITHIN = PixtralImageProcessor(
    size={"longest_edge": 64},
    patch_size={"height": 8, "width": 8},
    image_mean=[0.5] * 3,
    image_std=[0.5] * 3,
)


def within(image):
    return patched(WITHIN(images=[image], return_tensors="pt")["pixel_values"][0], 2)


SAME = Gemma3ImageProcessor(
    size={"height": 32, "width": 32}, image_mean=[0.5] * 3, image_std=[0.5] * 3
)


def same(image):
    return patched(SAME(images=[image], return_tensors="pt")["pixel_values"][0], 2)


for folder, made_of in [("", qwen), ("within", within), ("same", same)]:
    here, grids = HERE / folder, {}
    here.mkdir(exist_ok=True)
    for name in IMAGES:
        # What is read back is what is processed.
        values, grids[name] = made_of(Image.open(HERE / name).convert("RGB"))
        written(values, here / f"{name}.bin")
    (here / "grids.json").write_text(json.dumps(grids, indent=2) + "\n")
    print(grids)
