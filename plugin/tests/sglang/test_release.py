"""What a release shows in a moment: the first one shows the rest too."""

import pytest
from conftest import PROBLEMS, answers, greedy

pytestmark = [pytest.mark.short, pytest.mark.thorough]
PROMPTS, SOLUTIONS = [p["prompt"] for p in PROBLEMS[:16]], [p["solution"] for p in PROBLEMS[:16]]
MODEL = "qwen3", "--dtype", "float32"


@pytest.fixture(scope="module")
def small(engine, model):
    """Prompts in chunks, pages that SGLang does not ask for, and room for a few requests."""
    return engine(
        model(*MODEL),
        device="cpu",
        dtype="float32",
        max_running_requests=16,
        chunked_prefill_size=64,
    )


def test_batches_and_prefixes(small):
    assert greedy(small, PROMPTS) == SOLUTIONS
    made = answers(small, [PROMPTS[0] + SOLUTIONS[0] + prompt for prompt in PROMPTS[:4]] * 2)
    assert [one["text"] for one in made[:4]] == [one["text"] for one in made[4:]]
    assert sum(one["meta_info"]["cached_tokens"] for one in made) > 0


def test_tokens_and_probabilities_are_those_of_transformers(small, model, reference):
    """SGLang's processor of logits runs over our head where probabilities of prompts are asked for."""
    prompt = PROMPTS[5]
    answer = small.generate(
        prompt, {"temperature": 0, "max_new_tokens": 40}, return_logprob=True, logprob_start_len=0
    )
    [ids] = small.tokenizer_manager.tokenizer([prompt])["input_ids"]
    tokens, scores = reference(model(*MODEL), ids, answer["output_ids"])
    assert answer["output_ids"] == tokens
    made = answer["meta_info"]["output_token_logprobs"]
    assert all(abs(found - score) < 1e-3 for (found, _, _), score in zip(made, scores))
    assert len(answer["meta_info"]["input_token_logprobs"]) == len(ids)
