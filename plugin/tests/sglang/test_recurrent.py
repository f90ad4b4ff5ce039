"""Layers with a recurrent state, which has one slot for each request: answers do not depend on
other requests."""

import json
import re

import pytest
import sglang
import torch
from conftest import OURS, TEXT_ALONE, compile, every_other, golden_model, often_right, with_draft
from models import has_parts
from safetensors.torch import load_file, save_file

import atomc
from atomc.sglang import compat

short = pytest.mark.short
PROMPTS = [[(7 * i + k) % 80 for i in range(20 + 13 * k)] for k in range(14)]
OPTIONS = dict(
    device="cpu", skip_tokenizer_init=True, disable_radix_cache=True, max_running_requests=8
)


def answers(engine, prompts, tokens=60):
    """Tokens and the logarithms of their probabilities, to the last bit, and how often each was taken back, where a release says so."""
    params = {"temperature": 0, "max_new_tokens": tokens}
    made = [
        answer["meta_info"]
        for answer in engine.generate(
            input_ids=prompts, sampling_params=params, return_logprob=True
        )
    ]
    scores = [[(token, score) for score, token, _ in one["output_token_logprobs"]] for one in made]
    return scores, [one.get("num_retractions", 1) for one in made]


def cached(engine, prompt) -> int:
    """With how many tokens of others a request begins."""
    return engine.generate(input_ids=prompt, sampling_params={"max_new_tokens": 1})["meta_info"][
        "cached_tokens"
    ]


def turned(folder):
    """Exchanges the two layers, so that the attending one comes last, as in SGLang's models. SGLang
    takes another model of the same sizes for it."""
    config, other = json.loads((folder / "config.json").read_text()), {"0": "1", "1": "0"}
    # SGLang looks for it outside.
    rotary = {"partial_rotary_factor": config["rope_parameters"]["partial_rotary_factor"]}
    # The value is zero, and 0.5.11 rounds that up.
    experts = dict(moe_intermediate_size=32, shared_expert_intermediate_size=32)
    (folder / "config.json").write_text(
        json.dumps(config | rotary | experts | {"layer_types": config["layer_types"][::-1]})
    )
    rename = lambda name: re.sub(r"(?<=layers\.)[01]", lambda layer: other[layer[0]], name)
    weights = {
        rename(name): tensor for name, tensor in load_file(folder / "model.safetensors").items()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    every_other(folder)


@pytest.mark.parametrize("verified", [pytest.param((), marks=short), ("--speculate", "3")])
def test_retracted_requests_equal_lone_ones(engine, tmp_path_factory, verified):
    """More than the cache holds at a time, prompts in chunks, steps that mix them with answers, and slots that others had before. An
    artifact whose steps can keep states behind several tokens keeps one here."""
    folder = golden_model(tmp_path_factory.mktemp("recurrent"), "hybrid-next-dense")
    turned(folder)
    compile(folder, "--invariant", *verified)
    small = engine(
        folder,
        **OPTIONS,
        max_total_tokens=32 * 32,
        chunked_prefill_size=64,
        enable_mixed_chunk=True,
        schedule_conservativeness=0.01,
    )
    alone = [answers(small, [prompt])[0][0] for prompt in PROMPTS]
    retractions = 0  # of all rounds: after one the scheduler admits fewer requests for a while
    for _ in range(2):
        made, retracted = answers(small, PROMPTS)
        assert made == alone
        retractions += sum(retracted)
    assert retractions > 0


@pytest.mark.parametrize("name", ["hybrid-3.5", "family-kimilinear"])
def test_requests_begin_with_states_of_others(engine_of_test, tmp_path_factory, name):
    """States that SGLang keeps after prompts and within answers, while there is room for a few
    alone: a request that begins with one gets the answer that it gets without."""
    folder = golden_model(tmp_path_factory.mktemp("states"), name)
    if has_parts(folder):
        every_other(folder)
    compile(folder, "--invariant")
    options = OPTIONS | (TEXT_ALONE if has_parts(folder) else {})
    options |= dict(
        context_length=512,
        disable_radix_cache=False,
        mamba_track_interval=64,
        chunked_prefill_size=128,
        enable_mixed_chunk=True,
    )
    small = engine_of_test(
        folder,
        **options,
        max_total_tokens=48 * 32,
        max_mamba_cache_size=40,
        schedule_conservativeness=0.01,
    )
    other = [7 * i % 79 for i in range(150)]
    prompts = [*PROMPTS, *([*other[: 40 + 9 * k], *PROMPTS[k][:30]] for k in range(12))]
    alone = []
    for prompt in prompts:
        small.flush_cache()
        alone.append(answers(small, [prompt])[0][0])
    small.flush_cache()
    # Prefixes of answers too: a prompt that continues an answer begins after it.
    longer = [prompt + [token for token, _ in answer] for prompt, answer in zip(prompts, alone)]
    retractions = 0
    for _ in range(2):
        made, retracted = answers(small, prompts)
        assert made == alone
        retractions += sum(retracted)
    hits = [cached(small, prompt) for prompt in longer]
    assert (
        retractions > 0 and sum(hit > 0 for hit in hits) > 4 and all(hit % 32 == 0 for hit in hits)
    )
    again = [answers(small, [prompt], 8)[0][0] for prompt in longer]
    small.flush_cache()
    assert again == [answers(small, [prompt], 8)[0][0] for prompt in longer]


def guessing(guesses: int) -> dict:
    chain = dict(speculative_eagle_topk=1, speculative_num_draft_tokens=guesses + 1)
    return dict(speculative_algorithm="NEXTN", speculative_num_steps=guesses, **chain)


def with_and_without(folders, ask, guesses: int, **options) -> list:
    """What two engines answer, without guesses and with. SGLang has the options of one engine in a process, so that there is one at a
    time."""
    found = []
    for folder, how in zip(folders, ({}, guessing(guesses))):
        llm = sglang.Engine(
            model_path=str(folder), log_level="warning", **{**OURS, **OPTIONS, **options, **how}
        )
        found.append(ask(llm))
        llm.shutdown()
    return found


def right(told) -> int:
    return sum(one["spec_num_correct_drafts"] for one in told)


def crowd(llm) -> dict:
    """Answers of more requests than the cache holds at a time, twice; of prompts that continue them; and of some alone. Tokens with the
    logarithms of their probabilities, and what SGLang says of each."""
    other = [7 * i % 79 for i in range(150)]
    prompts = [*PROMPTS, *([*other[: 40 + 9 * k], *PROMPTS[k][:30]] for k in range(12))]

    def ask(prompts, tokens):
        # SGLang has room for all that is asked for where an answer has no end of its own.
        params = {"temperature": 0, "max_new_tokens": tokens}
        made = llm.generate(input_ids=prompts, sampling_params=params, return_logprob=True)
        return [one["meta_info"] for one in made]

    first, second = ask(prompts, 110), ask(prompts, 110)
    answers = [[token for _, token, _ in one["output_token_logprobs"]] for one in first]
    longer = [[*prompt, *answer] for prompt, answer in zip(prompts, answers)]
    alone = [ask([prompt], 60)[0] for prompt in prompts[:4]]
    return dict(first=first, second=second, longer=ask(longer, 20), alone=alone)


@pytest.mark.skipif(compat.OLDER, reason="it has no platform that takes kernels")
@pytest.mark.parametrize(
    "name, guesses, shares",
    [("draft-next", 3, False), ("draft-next", 2, True), ("draft-3.5-moe", 3, True)],
)
def test_answers_with_guesses_are_those_without(tmp_path, name, guesses, shares):
    """A step leaves the state behind each guess, of three at most: with retraction, prompts in chunks, and beginnings that others have
    left, also within answers. As many guesses are right as in an engine of ours."""
    folders = [golden_model(tmp_path / kind, name) for kind in ("bare", "draft")]
    for folder, more in zip(folders, ((), ("--draft", "mtp", "--speculate", "3"))):
        often_right(folder)
        every_other(folder)
        compile(folder, "--invariant", "--decode", "1,4", *more)
    options = dict(
        context_length=450,
        disable_radix_cache=not shares,
        chunked_prefill_size=128,
        max_total_tokens=32 * 32,
        max_running_requests=14,
        schedule_conservativeness=0.01,
        **(dict(mamba_track_interval=64, max_mamba_cache_size=60) if shares else {}),
        **(TEXT_ALONE if name != "draft-next" else {}),
    )
    plain, guessed = with_and_without(folders, crowd, guesses, **options)
    for kind in plain:
        for with_, without in zip(guessed[kind], plain[kind], strict=True):
            assert with_["output_token_logprobs"] == without["output_token_logprobs"], kind
    assert sum(one["num_retractions"] for one in guessed["first"] + guessed["second"]) > 0
    begun = [one["cached_tokens"] for one in guessed["longer"]]
    assert (sum(tokens > 0 for tokens in begun) > 4) == shares
    own = atomc.Engine(atomc.Artifact(folders[1] / "model.atomc"), draft=True)
    own.load(folders[1])
    for prompt, told in zip(PROMPTS, guessed["alone"]):
        answer = own.generate(prompt, 60, speculate=guesses)
        assert answer == [token for _, token, _ in told["output_token_logprobs"]]
        _, kept, steps = own.guesses
        # The last step may keep more than is asked for.
        assert told["spec_verify_ct"] == steps and 0 <= right([told]) - kept < guesses
    made = sum(one["spec_num_proposed_drafts"] for one in guessed["first"])
    assert right(guessed["first"]) > made / 4 > 200


@pytest.mark.skipif(compat.OLDER, reason="it has no platform that takes kernels")
def test_two_ranks_guess(tmp_path, monkeypatch):
    """Each rank has a part of each state behind each guess."""
    monkeypatch.setenv("SGLANG_CPU_OMP_THREADS_BIND", "0|1")
    monkeypatch.setenv("SGLANG_MAMBA_CONV_DTYPE", "float32")
    folders = [golden_model(tmp_path / kind, "hybrid-next-dense") for kind in ("bare", "draft")]
    for folder, more in zip(folders, ((), ("--draft", "mtp", "--speculate", "3"))):
        turned(folder)
        with_draft(folder)
        often_right(folder)
        compile(folder, "--dtype", "float32", "--decode", "1,4", "--tp", "2", *more)
    params = {"temperature": 0, "max_new_tokens": 40}
    ask = lambda llm: llm.generate(input_ids=PROMPTS, sampling_params=params)
    options = dict(tp_size=2, dtype="float32", context_length=450)
    plain, guessed = with_and_without(folders, ask, 3, **options)
    assert [one["output_ids"] for one in guessed] == [one["output_ids"] for one in plain]
    assert right([one["meta_info"] for one in guessed]) > 40


def test_two_ranks(engine, tmp_path, monkeypatch):
    """They answer as one does."""
    monkeypatch.setenv("SGLANG_CPU_OMP_THREADS_BIND", "0|1")
    folders = [golden_model(tmp_path / ranks, "hybrid-next-dense") for ranks in ("1", "2")]
    for folder, ranks in zip(folders, ("1", "2")):
        turned(folder)
        compile(folder, "--dtype", "float32", "--tp", ranks)
    made = []
    for folder, ranks in zip(folders, (1, 2)):
        monkeypatch.setenv("SGLANG_MAMBA_CONV_DTYPE", "float32")
        made.append(
            answers(engine(folder, **OPTIONS, dtype="float32", tp_size=ranks), PROMPTS[:6], 20)[0]
        )
    one, two = made
    assert [[token for token, _ in answer] for answer in one] == [
        [token for token, _ in answer] for answer in two
    ]
    scores = [torch.tensor([[score for _, score in answer] for answer in each]) for each in made]
    torch.testing.assert_close(*scores, atol=1e-4, rtol=0)
