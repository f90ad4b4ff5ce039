"""Layers with a recurrent state, which has one slot for each sequence: answers do not depend on
other sequences."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch
from conftest import compile, golden_model, is_ours, often_right, own, right, with_draft
from models import case
from PIL import Image
from safetensors.torch import load_file
from serving import Server
from vllm import SamplingParams

import atomc

short = pytest.mark.short
BOTH = dict(skip_tokenizer_init=True, disable_log_stats=False)
SHARED = [(5 * i + 3) % 80 for i in range(140)]
PROMPTS = [
    {
        "prompt_token_ids": [
            *(SHARED if k % 3 else []),
            *((7 * i + k) % 80 for i in range(20 + 9 * k)),
        ]
    }
    for k in range(16)
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a golden model and an artifact, the same for each call."""

    @cache
    def make(name: str) -> Path:
        folder = golden_model(tmp_path_factory.mktemp("recurrent"), name)
        compile(folder, "--invariant")
        return folder

    return make


# vLLM has positions of three rows for the other one.
WHOLE: tuple[str, dict] = ("hybrid-next", {})
PART: tuple[str, dict] = ("hybrid-3.5", {"language_model_only": True})
# Its other layers keep latent rows. It promises more tokens than the cache holds.
LATENT: tuple[str, dict] = ("family-kimilinear", {"max_model_len": 512})


def answers(llm, prompts, tokens=40):
    """Tokens and the logarithms of their probabilities, to the last bit."""
    params = SamplingParams(
        temperature=0, max_tokens=tokens, logprobs=0, ignore_eos=True, detokenize=False
    )
    made = [answer.outputs[0] for answer in llm.generate(prompts, params, use_tqdm=False)]
    return [
        [(token, place[token].logprob) for token, place in zip(one.token_ids, one.logprobs)]
        for one in made
    ]


def counted(llm) -> dict:
    return {metric.name: metric.value for metric in llm.get_metrics() if hasattr(metric, "value")}


@pytest.mark.parametrize(
    "model, shares", [pytest.param(WHOLE, True, marks=short), (PART, False), (LATENT, True)]
)
def test_preempted_and_shared_requests_equal_lone_ones(engine, folder, model, shares):
    """More than the cache holds at a time, with shared beginnings, prompts in chunks, steps that mix both, and slots that others
    had before."""
    folder, options = folder(model[0]), dict(BOTH, enable_prefix_caching=shares, **model[1])
    alone = engine(folder, **options)
    wanted = [answers(alone, [prompt])[0] for prompt in PROMPTS]
    page = next(iter(own(alone).layers.values())).pages()[0][1]
    small = engine(
        folder,
        **options,
        kv_cache_memory_bytes=28 * page,
        max_num_seqs=12,
        max_num_batched_tokens=96,
    )
    assert is_ours(small) and small.llm_engine.vllm_config.cache_config.mamba_cache_mode == (
        "align" if shares else "none"
    )
    for _ in range(2):
        assert answers(small, PROMPTS) == wanted
    assert counted(small)["vllm:num_preemptions"] > 0
    assert (counted(small)["vllm:prefix_cache_hits"] > 0) == shares


@pytest.mark.parametrize("shares", [True, False])
@pytest.mark.parametrize("guesses", [3, 2])
def test_answers_with_guesses_are_those_without(engine, tmp_path_factory, guesses, shares):
    """A step leaves the state behind each guess, of three at most: with preemption, prompts in chunks, and shared beginnings."""
    folder, bare = (golden_model(tmp_path_factory.mktemp("drafts"), "draft-next") for _ in range(2))
    compile(folder, "--invariant", "--decode", "1,4", "--draft", "mtp", "--speculate", "3")
    compile(bare, "--invariant", "--decode", "1,4")
    options = dict(BOTH, enable_prefix_caching=shares, max_num_batched_tokens=96)
    wanted = answers(engine(bare, **options), PROMPTS)
    config = dict(method="mtp", num_speculative_tokens=guesses)
    whole = engine(folder, **options, speculative_config=config)
    assert own(whole).engine.each == 4 and own(whole).engine.draft
    assert answers(whole, PROMPTS) == wanted
    made, kept = right(whole)
    assert made > 1000 and kept > 0
    page = next(iter(own(whole).layers.values())).pages()[0][1]
    small = dict(kv_cache_memory_bytes=40 * page, max_num_seqs=12)
    few = engine(folder, **options, **small, speculative_config=config)
    for _ in range(2):
        assert answers(few, PROMPTS) == wanted
    assert counted(few)["vllm:num_preemptions"] > 0
    assert (counted(few)["vllm:prefix_cache_hits"] > 0) == shares
    # Steps without guesses take the same slots.
    assert answers(engine(folder, **options), PROMPTS) == wanted


@pytest.mark.parametrize("tokens", [32, 64, 256])
def test_blocks_of_a_size_that_is_given(engine, folder, tokens):
    """Also of fewer tokens than fill what the slots of a layer take."""
    options = dict(BOTH, enable_prefix_caching=False, kv_cache_memory_bytes=64 << 20)
    wanted = answers(engine(folder(WHOLE[0]), **options), PROMPTS[:6])
    llm = engine(folder(WHOLE[0]), block_size=tokens, **options)
    assert is_ours(llm) and answers(llm, PROMPTS[:6]) == wanted


def test_pages_hold_the_slots_of_a_layer(engine, folder):
    """All pages are equally large: as many tokens are in one as fill it."""
    llm = engine(folder(PART[0]), **BOTH, enable_prefix_caching=False, **PART[1])
    layers, caches = own(llm).layers, own(llm).engine.cache
    slots = {
        cache.layer: [c.block_bytes for c in caches if c.layer == cache.layer]
        for cache in caches
        if cache.slot
    }
    [paged] = [cache for cache in caches if not cache.slot]
    strides = {
        int(name.split(".")[1]): [stride for _, stride, _ in layer.pages()]
        for name, layer in layers.items()
    }
    room = (
        llm.llm_engine.vllm_config.cache_config.block_size
        // paged.block_tokens
        * strides[paged.layer][0]
    )
    assert sorted(slots) == [0, 2] and all(strides[layer] == [room, room] for layer in slots)
    assert all(sum(sizes) < room < 2 * sum(sizes) for sizes in slots.values())


def test_images_are_refused(engine, folder):
    llm = engine(folder(PART[0]), **BOTH, enable_prefix_caching=False, **PART[1])
    with pytest.raises(
        ValueError, match="Multi-modal processor not available for text-only models"
    ):
        llm.generate(
            {
                "prompt_token_ids": [1, 2, 3],
                "multi_modal_data": {"image": Image.new("RGB", (64, 64))},
            },
            use_tqdm=False,
        )


def test_a_server_answers_as_the_engine_alone(folder, tmp_path):
    folder = folder(WHOLE[0])
    command = [
        sys.executable,
        "-m",
        "vllm.entrypoints.cli.main",
        "serve",
        folder,
        "--skip-tokenizer-init",
    ]
    command += ["--kv-cache-memory-bytes", "16M", "--max-num-seqs", "8"]
    environment = {k: v for k, v in os.environ.items() if k != "VLLM_ENABLE_V1_MULTIPROCESSING"}
    server = Server(
        command,
        "Application startup complete",
        tmp_path / "log",
        {**environment, "VLLM_LOGGING_LEVEL": "INFO"},
    )
    alone = atomc.Engine(atomc.Artifact(folder / "model.atomc"))
    alone.load(folder)
    for prompt in PROMPTS[:4]:
        ids = prompt["prompt_token_ids"]
        made = server.complete(
            ids, max_tokens=20, ignore_eos=True, return_token_ids=True, detokenize=False
        )
        wanted = alone.generate(ids, 20)
        assert wanted and made["choices"][0]["token_ids"][: len(wanted)] == wanted
    server.stop()


SCRIPT = """
import json, sys
from vllm import LLM, SamplingParams

if __name__ == "__main__":
    folder, prompts, vocab = sys.argv[1], *map(json.loads, sys.argv[2:])
    options = dict(skip_tokenizer_init=True, max_logprobs=vocab, kv_cache_memory_bytes=8 << 20, max_num_seqs=8)
    llm = LLM(folder, tensor_parallel_size=2, **options)
    classes = llm.collective_rpc(lambda worker: type(worker.get_model()).__module__)
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=vocab, detokenize=False)
    answers = llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
    found = [[a.outputs[0].logprobs[0][token].logprob for token in range(vocab)] for a in answers]
    print("RESULT", json.dumps([classes, found]))
"""


def in_a_process(tmp_path, script: str, *arguments):
    """The result that a script prints, whose engine has processes of its own."""
    (tmp_path / "script.py").write_text(script)
    shared = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}
    done = subprocess.run(
        [sys.executable, tmp_path / "script.py", *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, **shared},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    [result] = [
        line.removeprefix("RESULT ")
        for line in done.stdout.splitlines()
        if line.startswith("RESULT ")
    ]
    return json.loads(result)


@short
@pytest.mark.timeout(600)
def test_two_ranks(tmp_path):
    name = "hybrid-next-dense"
    folder = golden_model(tmp_path, name)
    compile(folder, "--tp", "2")
    golden = load_file(case(name) / "golden.safetensors")
    errors = json.loads((case(name) / "golden.json").read_text())["torch_error"]["max"]
    prompts = json.dumps([golden[f"tokens.{i}"].tolist() for i in range(3)])
    vocab = str(golden["prefill.0"].shape[1])
    classes, found = in_a_process(tmp_path, SCRIPT, folder, prompts, vocab)
    assert classes == ["atomc.vllm.model"] * 2
    for i, likely in enumerate(found):
        right = golden[f"prefill.{i}"][-1].float().log_softmax(-1)
        torch.testing.assert_close(torch.tensor(likely), right, atol=1.5 * errors[i], rtol=0)


GUESSES = """
import json, sys
from vllm import LLM, SamplingParams

if __name__ == "__main__":
    folder, prompts, options = sys.argv[1], *map(json.loads, sys.argv[2:])
    llm = LLM(
        folder, dtype="float32", tensor_parallel_size=2, skip_tokenizer_init=True, kv_cache_memory_bytes=16 << 20,
        max_num_seqs=8, max_num_batched_tokens=96, disable_log_stats=False, **options,
    )
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, detokenize=False)
    answers = [answer.outputs[0] for answer in llm.generate(prompts, params, use_tqdm=False)]
    counts = {metric.name: metric.value for metric in llm.get_metrics() if hasattr(metric, "value")}
    guesses = [counts.get(f"vllm:spec_decode_num_{kind}_tokens") for kind in ("draft", "accepted")]
    print("RESULT", json.dumps([[list(one.token_ids) for one in answers], guesses]))
"""


@pytest.mark.timeout(900)
def test_two_ranks_guess(tmp_path):
    """Each rank has a part of each state behind each guess."""
    made = []
    guesses = dict(speculative_config=dict(method="mtp", num_speculative_tokens=3))
    for draft, options in ((), {}), (("--draft", "mtp", "--speculate", "3"), guesses):
        folder = golden_model(tmp_path / str(len(draft)), "hybrid-next-dense")
        with_draft(folder)
        often_right(folder)
        compile(folder, "--dtype", "float32", "--decode", "1,4", "--tp", "2", *draft)
        asked = json.dumps(PROMPTS), json.dumps(options)
        made.append(in_a_process(tmp_path, GUESSES, folder, *asked))
    (plain, _), (guessed, (guesses_made, kept)) = made
    assert guessed == plain
    assert guesses_made > 500 and kept > 40
