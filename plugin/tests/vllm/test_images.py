"""Prompts with images through an artifact's tower: vLLM prepares and schedules them, and answers are those of transformers and of
vLLM's own model. Models are those of `tests/golden/images.py`: tiny, with random weights."""

import json
import os
import random
import shutil
import subprocess
from functools import cache
from pathlib import Path
from unittest import mock

import numpy
import pytest
import torch
from conftest import ATOMC, compile, own
from models import GOLDEN
from PIL import Image
from vllm import LLM, EngineArgs, SamplingParams
from vllm.utils.argparse_utils import FlexibleArgumentParser

import atomc
from atomc.vllm import compat
from atomc.vllm.images import Seeing

LONG = bool(os.environ.get("ATOMC_TEST_LONG"))
NAMES = ["qwen3vl", "3.5-moe", *(["qwen3vlmoe", "3.5"] if LONG else [])]
# Tokens of text, and those of an image and of a video with what stands around them.
WORDS, IMAGE, VIDEO = range(70), [78, 79, 77], [78, 76, 77]
COUNT = 50 if LONG else 20
OPTIONS = dict(
    dtype="float32", kv_cache_memory_bytes=32 << 20, max_num_seqs=8, disable_log_stats=False
)
# Steps of vLLM's are larger than plans of the artifact's, and smaller than prompts.
PARTS = dict(max_num_batched_tokens=80)
COMPILED = ["--dtype", "float32", "--tower", "--patches", "256", "--prefill", "64"]


def picture(draw, height: int, width: int) -> Image.Image:
    return Image.fromarray(draw.integers(0, 256, (height, width, 3), dtype=numpy.uint8))


def prompts(count: int) -> list[dict]:
    """Text with no image and up to three, of odd sizes; the last two differ in the image alone."""
    chosen, made = random.Random(3), []
    for i in range(count):
        draw, images = numpy.random.default_rng(i), []
        ids = [chosen.choice(WORDS) for _ in range(chosen.randrange(1, 9))]
        for _ in range(i % 4):
            images.append(picture(draw, chosen.randrange(9, 120), chosen.randrange(9, 120)))
            ids += [*IMAGE, *(chosen.choice(WORDS) for _ in range(chosen.randrange(6)))]
        made.append(asked([*ids, chosen.choice(WORDS)], images))
    for seed in (100, 101):
        images = [picture(numpy.random.default_rng(seed), 61, 63)]
        made.append(asked([*range(40), *IMAGE, 7, 9], images))
    return made


def asked(ids: list[int], images: list) -> dict:
    return dict(prompt_token_ids=ids, multi_modal_data=dict(image=images) if images else {})


def answers(llm, prompts, tokens=12) -> list:
    params = SamplingParams(
        temperature=0,
        max_tokens=tokens,
        ignore_eos=True,
        detokenize=False,
        allowed_token_ids=list(WORDS),
    )
    return llm.generate(prompts, params, use_tqdm=False)


def tokens(made: list) -> list[list[int]]:
    return [list(answer.outputs[0].token_ids) for answer in made]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a golden model, with an artifact unless it is bare."""

    @cache
    def make(name: str, *options: str, bare: bool = False) -> Path:
        place = tmp_path_factory.mktemp("images") / name
        ignore = shutil.ignore_patterns("golden.*")
        shutil.copytree(GOLDEN / "images" / name, place, ignore=ignore)
        if not bare:
            compile(place, *(options or COMPILED))
        return place

    return make


def likeliest(folder: Path, prompt: dict, made: list[int]) -> list[int]:
    """The likeliest token after each beginning of an answer, by transformers with its own processor, in f32."""
    model, processor = loaded(folder)
    images = prompt["multi_modal_data"].get("image")
    seen = dict(processor.image_processor(images=images, return_tensors="pt")) if images else {}
    grids, ids = iter(seen.get("image_grid_thw", torch.empty(0, 3)).tolist()), []
    for token in prompt["prompt_token_ids"]:
        ids += [token] * (numpy.prod(next(grids)) // 4 if token == IMAGE[1] else 1)
    whole = torch.tensor([[*ids, *made[:-1]]])
    with torch.no_grad():
        logits = model(input_ids=whole, mm_token_type_ids=(whole == IMAGE[1]).int(), **seen).logits
    return logits[0, len(ids) - 1 :, : len(WORDS)].argmax(-1).tolist()


@cache
def loaded(folder: Path) -> tuple:
    from transformers import AutoModelForImageTextToText, AutoProcessor

    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    return model, AutoProcessor.from_pretrained(folder)


@pytest.mark.parametrize("name", NAMES)
def test_answers_are_those_of_transformers(engine, folder, name):
    """Also of prompts in parts that end within images, and that share computed beginnings."""
    llm = engine(folder(name), **OPTIONS, **PARTS, enable_prefix_caching=True)
    assert isinstance(own(llm), Seeing) and own(llm).engine.max_tokens == 64
    asked = prompts(COUNT)
    made = answers(llm, asked)
    for prompt, answer in zip(asked, tokens(made)):
        assert answer == likeliest(folder(name), prompt, answer)
    again = answers(llm, asked)
    assert tokens(again) == tokens(made)
    assert sum(answer.num_cached_tokens for answer in again) > 1000


def test_answers_are_those_of_vllms_own_model(engine, folder):
    """Which runs on this machine for Qwen3-VL without experts alone: of images, and of frames of videos between them."""
    options = dict(OPTIONS, limit_mm_per_prompt=dict(image=3, video=1))
    ours, theirs = (engine(folder("qwen3vl", bare=bare), **options) for bare in (False, True))
    assert isinstance(own(ours), Seeing) and "atomc" not in type(own(theirs)).__module__
    asked = prompts(COUNT) + [video(2 + i, i % 2) for i in range(4)]
    assert tokens(answers(ours, asked)) == tokens(answers(theirs, asked))


def video(count: int, images: int) -> dict:
    """A video of some frames, with an image behind it or none."""
    draw = numpy.random.default_rng(count)
    frames = draw.integers(0, 256, (count, 30 + 7 * count, 40, 3), dtype=numpy.uint8)
    facts = dict(
        fps=2.0,
        duration=count / 2,
        total_num_frames=count,
        frames_indices=list(range(count)),
        video_backend="opencv",
        do_sample_frames=False,
    )
    data = dict(video=[(frames, facts)], image=[picture(draw, 33, 44) for _ in range(images)])
    ids = [5, 6, *VIDEO, 7, 8, *IMAGE * images, 9]
    return dict(prompt_token_ids=ids, multi_modal_data={k: v for k, v in data.items() if v})


def test_weights_of_the_tower_come_with_the_models(engine, folder):
    llm = engine(folder("qwen3vl"), **OPTIONS, enable_sleep_mode=True)
    asked = prompts(4)
    wanted = tokens(answers(llm, asked))
    llm.sleep(level=2)
    llm.wake_up()
    with pytest.raises(atomc.StepError, match="the weights are not loaded"):
        own(llm).embed(torch.zeros(1, dtype=torch.int32))
    llm.collective_rpc("reload_weights")
    llm.reset_prefix_cache()
    llm.llm_engine.engine_core.reset_encoder_cache()
    assert tokens(answers(llm, asked)) == wanted


def test_text_alone_with_a_tower(engine, folder):
    """The tower stays closed, and vLLM refuses images."""
    llm = engine(folder("3.5"), **OPTIONS, language_model_only=True)
    assert isinstance(own(llm), Seeing)
    text = [prompt for prompt in prompts(8) if not prompt["multi_modal_data"]]
    for prompt, answer in zip(text, tokens(answers(llm, text))):
        assert answer == likeliest(folder("3.5"), prompt, answer)
    with pytest.raises(ValueError, match="text-only"):
        answers(llm, prompts(2)[1:])
    with pytest.raises(atomc.ArtifactError, match="images: the tower was not opened"):
        numbers = torch.zeros(4 * 96)
        own(llm).engine.look(numbers.data_ptr(), [(1, 2, 2)], numbers.data_ptr())


def test_prompts_as_embeddings_beside_images(engine, folder):
    llm = engine(folder("qwen3vl"), **OPTIONS, **PARTS, enable_prompt_embeds=True)
    table = loaded(folder("qwen3vl"))[0].get_input_embeddings().weight.detach()
    asked = prompts(8)
    given = [
        prompt
        if prompt["multi_modal_data"]
        else dict(prompt_embeds=table[prompt["prompt_token_ids"]])
        for prompt in asked
    ]
    for prompt, answer in zip(asked, tokens(answers(llm, given))):
        assert answer == likeliest(folder("qwen3vl"), prompt, answer)


SMALL = ["--dtype", "float32", "--tower", "--patches", "64"]
FITS = '{"max_pixels":1024}'
ROWS = [
    (COMPILED, "", None),
    (SMALL, "", "a tower for 1024 pixels of an image or frame, of which vLLM makes up to 4096"),
    (SMALL, f"--mm-processor-kwargs {FITS}", None),
    (SMALL, "--language-model-only", None),
    (COMPILED, "--enable-mm-embeds", "none that come from elsewhere"),
    (COMPILED, "--video-pruning-rate 0.5", "none: 0, if the artifact has a tower"),
]


@pytest.mark.parametrize("how, options, refusal", ROWS)
def test_atomc_check_says_whether_vllm_starts(folder, how, options, refusal):
    model = folder("qwen3vl", *how)
    words = ["--dtype", "float32", *options.split()]
    checked = subprocess.run(
        [ATOMC, "check", model, *words, "--for", "vllm"], capture_output=True, text=True
    )
    small = ["--load-format", "dummy", "--kv-cache-memory-bytes", "16777216", "--max-num-seqs", "4"]
    given = EngineArgs.add_cli_args(FlexibleArgumentParser()).parse_args(
        ["--model", str(model), *small, *words]
    )
    asked = EngineArgs.from_cli_args(given)
    fields = {n: getattr(asked, n) for n in vars(given) if hasattr(asked, n)}
    if refusal is None:
        assert checked.returncode == 0, checked.stderr
        assert isinstance(own(LLM(**fields)), Seeing)
    else:
        assert refusal in " ".join(checked.stderr.replace("│", " ").split())
        with pytest.raises(Exception, match=refusal):
            LLM(**fields)


@pytest.mark.parametrize("name", ["gemma3", "mistral3"])
def test_towers_of_other_families_are_refused_by_name(folder, name):
    """Where tokens have one position, or see those behind them: also with text alone."""
    model = folder(name)
    command = [ATOMC, "check", model, "--dtype", "float32", "--language-model-only"]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode and "was compiled with --tower" in " ".join(checked.stderr.split())
    with pytest.raises(atomc.ArtifactError, match="was compiled with --tower"):
        LLM(str(model), **OPTIONS, language_model_only=True)


@pytest.mark.skipif(not LONG, reason="it compiles two large towers")
def test_an_artifact_that_is_compiled_sees(folder, monkeypatch, tmp_path):
    """With as large a tower as vLLM's processor makes images, as `atomc check` has it."""
    model = folder("3.5", bare=True)
    facts = json.loads((model / "preprocessor_config.json").read_text())
    facts["size"]["longest_edge"] = 16 * 5000
    (model / "preprocessor_config.json").write_text(json.dumps(facts))
    monkeypatch.setenv("ATOMC_AUTOCOMPILE", "1")
    monkeypatch.setenv("ATOMC_COMPILER", ATOMC)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    checked = subprocess.run(
        [ATOMC, "check", model, "--dtype", "float32"], capture_output=True, text=True
    )
    assert "--tower --patches 5008" in checked.stdout, checked.stderr
    llm = LLM(str(model), **OPTIONS)
    assert isinstance(own(llm), Seeing)
    asked = prompts(4)
    for prompt, answer in zip(asked, tokens(answers(llm, asked))):
        assert answer == likeliest(model, prompt, answer)


def test_older_releases_are_refused_by_name(folder):
    with mock.patch.object(compat, "gives_images", lambda: False):
        with pytest.raises(atomc.ArtifactError, match="was compiled with --tower"):
            LLM(str(folder("qwen3vl")), **OPTIONS)
