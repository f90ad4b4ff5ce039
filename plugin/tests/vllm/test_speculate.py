"""Guesses inside vLLM: answers are those without, whatever guesses."""

import shutil
from collections import Counter
from pathlib import Path

import pytest
import torch
from conftest import EXAMPLES, PROBLEMS, compile, greedy, is_ours, own, right
from safetensors.torch import load_file, save_file
from vllm import LLM, SamplingParams
from vllm.sampling_params import StructuredOutputsParams

DRAFTS = Path(__file__).parents[3] / "tests" / "models"
PROMPTS = [p["prompt"] for p in PROBLEMS]
HEAD = str(DRAFTS / "qwen3-eagle3")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Of each kind a model with a draft, and one without: dense with an EAGLE-3 head, and one with latent attention and experts with
    an MTP layer."""

    def make(source: Path, *options: str) -> tuple[Path, Path]:
        both = []
        for number, more in enumerate((options, ())):
            both.append(tmp_path_factory.mktemp("models") / f"{source.name}-{number}")
            shutil.copytree(source, both[-1])
            compile(both[-1], "--decode", "1,4", "--invariant", *more)
        return tuple(both)

    return dict(
        dense=make(EXAMPLES / "models" / "qwen3", "--draft", HEAD, "--speculate", "3"),
        latent=make(DRAFTS / "deepseek-v3-mtp", "--draft", "mtp", "--speculate", "2"),
    )


def eagle(tokens: int = 3, **more) -> dict:
    config = dict(method="eagle3", model=HEAD, num_speculative_tokens=tokens, **more)
    return dict(speculative_config=config)


def mtp(tokens: int = 2) -> dict:
    return dict(speculative_config=dict(method="mtp", num_speculative_tokens=tokens))


@pytest.mark.parametrize("kind, guesses", [("dense", eagle()), ("latent", mtp())])
def test_answers_are_those_without_guesses(engine, folders, kind, guesses):
    folder, bare = folders[kind]
    plain = engine(bare)
    llm = engine(folder, disable_log_stats=False, **guesses)
    assert is_ours(llm) and is_ours(plain)
    assert own(llm).engine.draft and not own(plain).engine.draft
    assert greedy(llm, PROMPTS[:24]) == greedy(plain, PROMPTS[:24])
    made, kept = right(llm)
    assert kept > made / 6 > 20


@pytest.fixture(scope="module")
def pair(engine, folders):
    """Engines without guesses and with them, with a cache that is too small for all requests at
    once."""
    few = dict(
        kv_cache_memory_bytes=300 << 10,
        max_model_len=192,
        max_num_batched_tokens=64,
        disable_log_stats=False,
    )
    return engine(folders["dense"][1], **few), engine(folders["dense"][0], **few, **eagle())


def texts(llm, prompts, **options) -> list[list[str]]:
    options = SamplingParams(**{"temperature": 0, "max_tokens": 60, **options})
    answers = llm.generate(prompts, options, use_tqdm=False)
    return [[output.text for output in answer.outputs] for answer in answers]


def preemptions(llm) -> int:
    return next(m.value for m in llm.get_metrics() if m.name == "vllm:num_preemptions")


def test_under_preemption_chunked_prompts_and_prefix_hits(pair):
    """Prompts, which begin alike, go through in parts of 64 tokens."""
    plain, llm = pair
    prompts = ["".join([*PROMPTS[:2], prompt]) for prompt in PROMPTS[2:34]]
    assert texts(llm, prompts) == texts(plain, prompts)
    assert preemptions(llm) > 0
    hits = {metric.name: metric.value for metric in llm.get_metrics() if hasattr(metric, "value")}
    assert hits["vllm:prefix_cache_hits"] > 0


@pytest.mark.parametrize(
    "options",
    [
        dict(stop=["has"]),
        dict(stop_token_ids=[13], max_tokens=17),
        dict(repetition_penalty=1.3, frequency_penalty=0.4),
        dict(max_tokens=1),
        dict(structured_outputs=StructuredOutputsParams(regex=r" [0-9]{2}\+[0-9]{2}=[0-9]+\. END")),
        dict(structured_outputs=StructuredOutputsParams(choice=[" yes", " no, not at all"])),
    ],
    ids=["stop", "stop token", "penalties", "one token", "regex", "choice"],
)
def test_what_ends_or_bends_answers(pair, options):
    plain, llm = pair
    assert texts(llm, PROMPTS[:12], **options) == texts(plain, PROMPTS[:12], **options)


def test_log_probabilities(pair):
    def found(llm):
        options = SamplingParams(temperature=0, max_tokens=24, logprobs=2)
        answers = llm.generate(PROMPTS[:8], options, use_tqdm=False)
        return [place for answer in answers for place in answer.outputs[0].logprobs]

    for without, with_guesses in zip(*map(found, pair), strict=True):
        assert without.keys() == with_guesses.keys()
        for token, one in without.items():
            assert abs(one.logprob - with_guesses[token].logprob) < 1e-4


def test_sampled_answers_have_the_models_distribution(pair):
    """The beginnings of many answers are as often what they are without guesses."""
    plain, llm = pair

    def counts(llm):
        options = SamplingParams(temperature=1.0, max_tokens=4, n=600, seed=11)
        [answer] = llm.generate(["Q:"], options, use_tqdm=False)
        return Counter(tuple(output.token_ids) for output in answer.outputs)

    without, with_guesses = counts(plain), counts(llm)
    tokens = [token for token, count in without.items() if count + with_guesses[token] >= 12]
    assert len(tokens) > 8
    # Chi squared of two samples: its mean is the number of tokens, and its deviation the root of
    # twice that.
    off = sum((without[t] - with_guesses[t]) ** 2 / (without[t] + with_guesses[t]) for t in tokens)
    assert off < len(tokens) + 4 * (2 * len(tokens)) ** 0.5


@pytest.mark.parametrize(
    "kind, guesses, message",
    [
        ("latent", eagle(2), "a draft for `mtp`, not `eagle3`"),
        ("dense", eagle(4), "steps of at most 3 guesses; `atomc compile --speculate 4` makes such"),
        ("dense", {}, "an EAGLE-3 head, which wants its checkpoint"),
    ],
)
def test_refusals(folders, kind, guesses, message):
    with pytest.raises(ValueError, match=message):
        LLM(str(folders[kind][0]), kv_cache_memory_bytes=16 << 20, **guesses)


def head(folder: Path, change) -> dict:
    """The options of a head with changed tensors."""
    shutil.copytree(HEAD, folder)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    config = dict(method="eagle3", model=str(folder), num_speculative_tokens=3)
    return dict(speculative_config=config)


def test_a_head_whose_tokens_have_another_order_guesses_the_same(engine, folders, tmp_path):
    def turn(tensors):
        order = torch.arange(len(tensors["d2t"])).flip(0)
        whole = order + tensors["d2t"][order]
        tensors["lm_head.weight"] = tensors["lm_head.weight"][order].contiguous()
        tensors["d2t"] = whole - torch.arange(len(whole))

    folder = folders["dense"][0]
    made = []
    for guesses in eagle(), head(tmp_path / "head", turn):
        llm = engine(folder, disable_log_stats=False, max_num_seqs=4, **guesses)
        made.append((greedy(llm, PROMPTS[:8]), right(llm)))
    assert made[0] == made[1]


def test_a_map_beyond_the_vocabulary_is_refused(folders, tmp_path):
    def leave(tensors):
        tensors["d2t"][-1] += 1000

    guesses = head(tmp_path / "head", leave)
    with pytest.raises(ValueError, match="draft: its tokens are .* of the model's"):
        LLM(str(folders["dense"][0]), kv_cache_memory_bytes=16 << 20, **guesses)
