"""Architectures of which there is no trained model, against the logits that transformers computed (tests/golden)."""

import json
import shutil

import pytest
import torch
from conftest import EXAMPLES, compile, is_ours
from safetensors.torch import load_file
from vllm import SamplingParams

GOLDEN = EXAMPLES.parent / "tests" / "golden"
CASES = [("qwen2", "own"), ("qwen2-sliding", "own"), ("qwen2-sliding", "vllm")]


@pytest.mark.parametrize("name, attention", [pytest.param("mistral", "own", marks=pytest.mark.short), *CASES])
def test_next_tokens_are_as_likely_as_with_transformers(engine, tmp_path, monkeypatch, name, attention):
    monkeypatch.setenv("ATOMC_ATTENTION", attention)
    folder = tmp_path / name
    shutil.copytree(GOLDEN / name, folder, ignore=shutil.ignore_patterns("golden.*", "config.v4.json"))
    compile(folder, "--attention", "own,caller")
    llm = engine(folder, skip_tokenizer_init=True, max_logprobs=96, max_num_batched_tokens=512)
    assert is_ours(llm)
    golden = load_file(GOLDEN / name / "golden.safetensors")
    errors = json.loads((GOLDEN / name / "golden.json").read_text())["torch_error"]["max"]
    prompts = [{"prompt_token_ids": golden[f"tokens.{i}"].tolist()} for i in range(3)]
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=96, detokenize=False)
    for i, answer in enumerate(llm.generate(prompts, params, use_tqdm=False)):
        found = answer.outputs[0].logprobs[0]
        likely = torch.tensor([found[token].logprob for token in range(96)])
        # As far off as PyTorch is with bf16, and half as much again.
        right = golden[f"prefill.{i}"][-1].float().log_softmax(-1)
        torch.testing.assert_close(likely, right, atol=1.5 * errors[i], rtol=0)
