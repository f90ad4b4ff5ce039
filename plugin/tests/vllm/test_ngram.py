"""Guesses without a draft, which vLLM finds in the prompt. It imports numba for them, and its own
dispatcher of kernels cannot look through numba's modules: so they have a file, and with it a
process, of their own."""

import shutil

from conftest import EXAMPLES, PROBLEMS, compile, greedy, own, right


def test_guesses_without_a_draft(engine, tmp_path):
    """A step verifies them with kernels for a few tokens of each sequence."""
    folder = tmp_path / "qwen3"
    shutil.copytree(EXAMPLES / "models" / "qwen3", folder)
    compile(folder, "--speculate", "3")
    config = dict(method="ngram", num_speculative_tokens=3, prompt_lookup_max=3)
    llm = engine(folder, disable_log_stats=False, speculative_config=config)
    assert own(llm).engine.each == 4 and not own(llm).engine.draft
    prompts, solutions = zip(*((p["prompt"], p["solution"]) for p in PROBLEMS[:24]))
    assert greedy(llm, prompts) == list(solutions)
    assert right(llm)[1] > 0
    # Another engine of the process takes the kernels that are there.
    assert greedy(engine(folder), prompts[:4]) == list(solutions[:4])
