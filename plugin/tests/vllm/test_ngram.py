"""Guesses without a draft, which vLLM finds in the prompt. It imports numba for them, and its own
dispatcher of kernels cannot look through numba's modules: so they have a file, and with it a
process, of their own."""

import shutil

import pytest
from conftest import EXAMPLES, PROBLEMS, compile, golden_model, greedy, own, right
from vllm import SamplingParams

NGRAM = dict(method="ngram", num_speculative_tokens=3, prompt_lookup_max=3)


def test_guesses_without_a_draft(engine, tmp_path):
    """A step verifies them with kernels for a few tokens of each sequence."""
    folder = tmp_path / "qwen3"
    shutil.copytree(EXAMPLES / "models" / "qwen3", folder)
    compile(folder, "--speculate", "3")
    llm = engine(folder, disable_log_stats=False, speculative_config=NGRAM)
    assert own(llm).engine.each == 4 and not own(llm).engine.draft
    prompts, solutions = zip(*((p["prompt"], p["solution"]) for p in PROBLEMS[:24]))
    assert greedy(llm, prompts) == list(solutions)
    assert right(llm)[1] > 0
    # Another engine of the process takes the kernels that are there.
    assert greedy(engine(folder), prompts[:4]) == list(solutions[:4])


@pytest.mark.parametrize("shares", [True, False])
def test_recurrent_states_go_back_behind_wrong_guesses(engine, tmp_path, shares):
    """Answers that repeat themselves have right guesses and wrong ones."""
    folders = [golden_model(tmp_path / name, "hybrid-next") for name in ("with", "without")]
    compile(folders[0], "--invariant", "--decode", "1,4", "--speculate", "3")
    compile(folders[1], "--invariant", "--decode", "1,4")
    prompts = [
        {"prompt_token_ids": [(7 * i * i + k) % 80 for i in range(9 + 30 * k)]} for k in range(8)
    ]
    options = dict(skip_tokenizer_init=True, disable_log_stats=False, enable_prefix_caching=shares)
    params = SamplingParams(temperature=0, max_tokens=90, ignore_eos=True, detokenize=False)
    made = []
    every = dict(speculative_config={**NGRAM, "prompt_lookup_min": 1})
    for folder, guesses in zip(folders, (every, {})):
        llm = engine(folder, max_num_batched_tokens=96, **options, **guesses)
        found = llm.generate(prompts, params, use_tqdm=False)
        made.append([answer.outputs[0].token_ids for answer in found])
        if guesses:
            guessed, kept = right(llm)
    assert made[0] == made[1]
    assert guessed > 500 and kept > 5, (guessed, kept)
