"""All architectures, against the logits that transformers computed (tests/golden)."""

import json

import pytest
import torch
from conftest import TEXT_ALONE, compile, every_other, forked, golden_model, logits, runner
from models import (
    FAMILIES,
    PER_LAYER,
    PUBLISHED,
    UNPUBLISHED,
    case,
    checks,
    has_parts,
    longest,
    register_remote_code,
    wider,
)
from safetensors.torch import load_file
from sglang.srt.utils.hf_transformers_utils import get_config

from atomc import _atomc

CASES = [
    "llama3",
    "qwen2",
    "qwen2-sliding",
    "qwen3",
    "mistral",
    "smollm3-sliding",
    "granite",
    "olmo2",
    "phi3-short",
    "gemma3",
]
# SGLang runs these only with backends of its own choice, and a processor has none of them: ours
# takes the place of one.
BACKENDS = ["moe-gpt-oss", "family-exaone4", "family-exaonemoe"]
EXPERTS = ["moe-qwen3", "moe-mixtral", "moe-glm"]
# What SGLang keeps of a token is one row, in pools of their own kind.
LATENT = ["dsa-v3.2", "dsa-glm", "mla-v3", "mla-kimi", "mla-v2", "mla-v2-groups", "mla-v3-plain"]
# A sequence has a state, in addition to slots of its tokens.
RECURRENT = ["hybrid-next", "hybrid-3.5", "hybrid-3.5-moe"]
CONVOLUTIONS = ["family-lfm2", "family-lfm2moe"]
# SGLang has no pools for what these keep.
REFUSED = {
    "family-mistral3": "not of latent rows",
    "family-mistral4": "not of latent rows",
    "family-minimaxm3": "no room for the keys that choose blocks",
    "family-minimaxm3text": "no room for the keys that choose blocks",
}
# SGLang's class of it says of a router without correction where the file says nothing.
UNREAD = ["family-bailinghybrid"]
READABLE = [name for name in FAMILIES if name not in [*PER_LAYER, *UNREAD]]
QUANTISED = ["q-awq", "q-int4-zeros", "q-int8", "q-fp8-block", "q-fp8-token"]

# These differ from others of their kind in the compiler alone.
THOROUGH = (
    "mla-v2 mla-v2-groups mla-v3-plain qwen2 smollm3-sliding granite olmo2 phi3-short".split()
)
THOROUGH += ["hybrid-3.5-moe", "q-int4-zeros", "q-fp8-token", *FAMILIES]
# Of a token one row is kept, and of a sequence a state.
THOROUGH.remove("family-kimilinear")
ALL = [*CASES, *EXPERTS, "moe-gpt-oss", *LATENT, *RECURRENT, *QUANTISED, *PUBLISHED]
ALL += [name for name in READABLE if name not in REFUSED]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.thorough] * (name in THOROUGH)) for name in ALL],
)
def test_next_tokens_are_as_likely_as_with_transformers(tmp_path, monkeypatch, name):
    folder = golden_model(tmp_path, name)
    register_remote_code()
    if name in RECURRENT:
        every_other(folder)
    wide = wider(name)
    if wide:  # SGLang keeps what convolutions have seen in bfloat16 otherwise
        monkeypatch.setenv("SGLANG_MAMBA_CONV_DTYPE", "float32")
    dtype = "float32" if wide else "auto"
    compile(folder, *(["--dtype", dtype] if wide else []))
    golden = load_file(case(name) / "golden.safetensors")
    errors = json.loads((case(name) / "golden.json").read_text())["torch_error"]["max"]
    prompts = [golden[f"tokens.{i}"].tolist() for i in range(3)]

    def made():
        import atomc.sglang.model

        if name in BACKENDS:
            from sglang.srt.layers.attention.attention_registry import register_attention_backend

            from atomc.sglang.attention import Backend

            register_attention_backend("triton")(Backend)
        options = (
            dict(attention_backend="triton")
            if name in BACKENDS
            else dict(disable_radix_cache=name in (*RECURRENT, *CONVOLUTIONS))
        )
        options |= TEXT_ALONE if has_parts(folder) else {}
        options |= dict(context_length=longest(name))
        loaded = runner(folder, dtype=dtype, **options)
        if name == "moe-gpt-oss":  # a pool for layers with a window, and a larger one for others
            pool = loaded.torch_runner.token_to_kv_pool
            assert pool.size_swa < pool.size
            # From here on slots of the one are not those of the other.
            loaded.torch_runner.token_to_kv_pool_allocator.swa_attn_allocator.alloc(pool.page_size)
        assert type(loaded.torch_runner.model) is atomc.sglang.model.Model
        return logits(loaded, prompts)

    for i, found in enumerate(forked(made)):
        # As far off as PyTorch is with bf16, and half as much again; or a fiftieth.
        right = golden[f"prefill.{i}"][-1].float().log_softmax(-1)
        torch.testing.assert_close(
            found.log_softmax(-1), right, atol=(0.02 if wide else 1.5) * errors[i], rtol=0
        )


def test_chosen_positions_of_chunks_and_of_kept_prefixes_are_those_of_a_whole_prompt(
    engine, tmp_path
):
    """Indexers choose 8 of 90 to 110 positions, and their keys lie in the pages that a prefix is kept in."""
    folder = golden_model(tmp_path, "dsa-glm")
    compile(folder, "--dtype", "float32")
    prompts = [[(7 * i + k * i * i) % 96 for i in range(90)] for k in (1, 2)]
    options = dict(skip_tokenizer_init=True, dtype="float32", max_running_requests=4)

    def answers(made):
        asked = {"temperature": 0, "max_new_tokens": 20, "ignore_eos": True}
        return made.generate(input_ids=prompts, sampling_params=asked)

    tokens = lambda made: [answer["output_ids"] for answer in made]
    whole = tokens(answers(engine(folder, disable_radix_cache=True, **options)))
    cut = engine(folder, chunked_prefill_size=32, **options)
    assert tokens(answers(cut)) == whole
    again = answers(cut)
    assert tokens(again) == whole
    assert all(answer["meta_info"]["cached_tokens"] >= 64 for answer in again)


@pytest.mark.parametrize("name", READABLE)
def test_a_family_can_be_compiled_as_sglang_reads_it(name):
    """From what SGLang's own classes make of its configuration."""
    register_remote_code()
    facts = get_config(str(case(name)), trust_remote_code=False).to_dict()
    _atomc.compile_options("SGLang", json.dumps(facts, default=str), "{}", True)


@pytest.mark.parametrize("name", UNPUBLISHED)
def test_atomc_check_says_that_sglang_runs_a_family(name):
    assert not checks(case(name), "--for", "sglang", "--context-length", "64")


@pytest.mark.parametrize("name", REFUSED)
def test_atomc_check_says_what_sglang_has_no_pools_for(name):
    said = checks(
        case(name),
        "--for",
        "sglang",
        "--json-model-override-args",
        TEXT_ALONE["json_model_override_args"],
    )
    assert REFUSED[name] in said
