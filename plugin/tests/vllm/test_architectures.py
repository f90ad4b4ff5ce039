"""Architectures of which there is no trained model, against the logits that transformers computed (tests/golden)."""

import json

import pytest
import torch
from conftest import compile, golden_model, is_ours, own
from models import (
    FAMILIES,
    PUBLISHED,
    UNPUBLISHED,
    UNREAD_BY_VLLM,
    case,
    checks,
    has_parts,
    longest,
    register_remote_code,
    wider,
)
from safetensors.torch import load_file
from vllm import SamplingParams
from vllm.transformers_utils.config import get_config

from atomc import _atomc

short, thorough = pytest.mark.short, pytest.mark.thorough
# Where vLLM has something to do: windows in all layers, in groups, and in its own attention;
# numbers that scale rows; experts; recurrent states; methods of quantisation.
CASES = [
    pytest.param("mistral", "own", marks=short),
    ("gemma3", "own"),
    ("moe-qwen3", "own"),
    pytest.param("mla-v3", "own", marks=short),
    # Keys of indexers lie behind the rows of a page; of dsa-glm some layers have none.
    ("dsa-v3.2", "own"),
    ("dsa-glm", "own"),
    pytest.param("hybrid-next", "own", marks=short),
    # vLLM has positions of three rows for it.
    pytest.param("hybrid-3.5", "own", marks=short),
    pytest.param("q-awq", "own", marks=short),
    ("q-fp8-block", "own"),
    ("q-cache", "own"),
    # vLLM renames its method.
    ("moe-gpt-oss-mxfp4", "own"),
    # Of a token one row is kept, and of a sequence a state.
    ("family-kimilinear", "own"),
    *((name, "own") for name in PUBLISHED),
]
# Of the second vLLM's engine reads a fact that differs by layer, which transformers' class refuses
# to give.
NOT_RUN = [*UNREAD_BY_VLLM, "family-step3p7"]
# What differs in the compiler alone, or in the tool that quantised.
OTHERS = [
    ("gemma3", "vllm"),
    ("granite", "own"),
    ("hybrid-next-fp8", "own"),
    ("q-int8", "own"),
    ("qwen2", "own"),
    ("qwen2-sliding", "own"),
    ("qwen2-sliding", "vllm"),
    ("smollm3-sliding", "own"),
    ("smollm3-sliding", "vllm"),
    ("olmo2", "own"),
    ("phi3-short", "own"),
    ("moe-mixtral", "own"),
    ("moe-glm", "own"),
    ("moe-gpt-oss", "own"),
    ("mla-kimi", "own"),
    ("mla-v2", "own"),
    ("mla-v2-groups", "own"),
    ("mla-v3-plain", "own"),
    ("hybrid-next-dense", "own"),
    ("hybrid-3.5-moe", "own"),
    ("hybrid-3.5-fp8", "own"),
    ("qwen3.5-27b", "own"),
    ("qwen3.5-35b-a3b", "own"),
    ("gemma-3-27b-it", "own"),
    ("mistral-small-3.1-24b-instruct-2503", "own"),
    ("q-int4-zeros", "own"),
    ("q-int4-row", "vllm"),
    ("q-gptq", "own"),
    ("q-fp8-token", "own"),
    *((name, "own") for name in FAMILIES if name not in [*NOT_RUN, "family-kimilinear"]),
]


# Ahead of engines: vLLM renames a class of configurations for DeepSeek V3.2, which Kimi-K2.5 has
# too.
@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in UNREAD_BY_VLLM])
def test_a_family_can_be_compiled_as_vllm_reads_it(name):
    """From what vLLM's own classes make of its configuration."""
    register_remote_code()
    facts = get_config(case(name), trust_remote_code=False).to_dict()
    _atomc.compile_options("vLLM", json.dumps(facts, default=str), "{}", True)


@pytest.mark.parametrize(
    "name, attention", [*CASES, *(pytest.param(*case, marks=thorough) for case in OTHERS)]
)
def test_next_tokens_are_as_likely_as_with_transformers(
    engine, tmp_path, monkeypatch, name, attention
):
    monkeypatch.setenv("ATOMC_ATTENTION", attention)
    register_remote_code()
    # Latent rows are the artifact's own.
    wide = wider(name)
    folder, dtype = golden_model(tmp_path, name), "float32" if wide else "auto"
    compile(
        folder,
        *(["--dtype", dtype] if wide else []),
        *(["--attention", "own,caller"] if attention == "vllm" else []),
    )
    room = dict(max_model_len=longest(name))
    room |= dict(language_model_only=True) if has_parts(folder) else {}
    llm = engine(
        folder,
        dtype=dtype,
        skip_tokenizer_init=True,
        max_logprobs=96,
        max_num_batched_tokens=512,
        **room,
    )
    assert is_ours(llm)
    golden = load_file(case(name) / "golden.safetensors")
    errors = json.loads((case(name) / "golden.json").read_text())["torch_error"]["max"]
    vocab = golden["prefill.0"].shape[1]
    prompts = [{"prompt_token_ids": golden[f"tokens.{i}"].tolist()} for i in range(3)]
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=vocab, detokenize=False)
    for i, answer in enumerate(llm.generate(prompts, params, use_tqdm=False)):
        found = answer.outputs[0].logprobs[0]
        likely = torch.tensor([found[token].logprob for token in range(vocab)])
        # As far off as PyTorch is with bf16, and half as much again; or a fiftieth.
        right = golden[f"prefill.{i}"][-1].float().log_softmax(-1)
        torch.testing.assert_close(likely, right, atol=(0.02 if wide else 1.5) * errors[i], rtol=0)


@pytest.mark.parametrize("name", UNPUBLISHED)
def test_atomc_check_says_that_vllm_runs_a_family(name):
    assert not checks(case(name), "--for", "vllm", "--max-model-len", "64")


def test_chosen_positions_of_chunks_and_of_kept_prefixes_are_those_of_a_whole_prompt(
    engine, tmp_path
):
    """Indexers choose 8 of 90 to 110 positions, and their keys lie in the pages that a prefix is kept in."""
    folder = golden_model(tmp_path, "dsa-glm")
    compile(folder, "--dtype", "float32")
    prompts = [{"prompt_token_ids": [(7 * i + k * i * i) % 96 for i in range(90)]} for k in (1, 2)]
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, detokenize=False)
    options = dict(skip_tokenizer_init=True, dtype="float32", max_num_seqs=4)

    def answers(llm):
        made = llm.generate(prompts, params, use_tqdm=False)
        return [answer.outputs[0].token_ids for answer in made], made

    whole, _ = answers(engine(folder, enable_prefix_caching=False, **options))
    llm = engine(folder, max_num_batched_tokens=32, **options)
    assert answers(llm)[0] == whole
    again, made = answers(llm)
    assert again == whole
    assert all(answer.num_cached_tokens >= 64 for answer in made)


def test_windows_give_pages_back(engine, tmp_path):
    """Sequences that are longer than the cache, in layers that see the last 8 tokens alone, have
    the tokens that they have with room for all."""
    folder = golden_model(tmp_path, "mistral")
    compile(folder)
    options = dict(skip_tokenizer_init=True, max_num_batched_tokens=64, max_num_seqs=2)
    params = SamplingParams(temperature=0, max_tokens=300, ignore_eos=True, detokenize=False)
    prompts = [{"prompt_token_ids": [(7 * i + k) % 96 for i in range(150)]} for k in (1, 2, 3)]

    def answers(**more):
        llm = engine(folder, **options, **more)
        made = [
            answer.outputs[0].token_ids for answer in llm.generate(prompts, params, use_tqdm=False)
        ]
        return own(llm).engine.cache, made

    cache, wanted = answers()
    assert [layer.window for layer in cache] == [8] * len(cache)
    pages = 12
    assert pages * cache[0].block_tokens < 450
    _, found = answers(kv_cache_memory_bytes=pages * len(cache) * (cache[0].block_bytes + 1024))
    assert found == wanted


@pytest.mark.parametrize("name", ["gemma3", pytest.param("qwen2-sliding", marks=thorough)])
def test_mixed_windows_give_pages_back(engine, tmp_path, name):
    """Of two layers one has a window: a cache that holds a sequence's pages of one layer alone is enough for both."""
    folder = golden_model(tmp_path, name)
    compile(folder)
    options = dict(skip_tokenizer_init=True, max_num_batched_tokens=64, max_num_seqs=1)
    params = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True, detokenize=False)
    prompts = [{"prompt_token_ids": [(7 * i + k) % 96 for i in range(300)]} for k in (1, 2)]

    def answers(**more):
        llm = engine(folder, **options, **more)
        made = [
            answer.outputs[0].token_ids for answer in llm.generate(prompts, params, use_tqdm=False)
        ]
        return own(llm).engine.cache, made

    cache, wanted = answers()
    assert sorted(bool(layer.window) for layer in cache) == [False, True]
    pages = 24
    assert pages * cache[0].block_tokens < 2 * 500
    _, found = answers(kv_cache_memory_bytes=pages * (cache[0].block_bytes + 1024))
    assert found == wanted
