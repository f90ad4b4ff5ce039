"""sglang.Engine through artifacts, in its own processes."""

import json
import re

import pytest
from conftest import PROBLEMS, answers, greedy, until_idle

PROMPTS = [p["prompt"] for p in PROBLEMS]
SOLUTIONS = [p["solution"] for p in PROBLEMS]
MODEL = "qwen3", "--dtype", "float32"


@pytest.fixture(scope="module")
def small(engine, model):
    """An engine that has to do everything at once: prompts in chunks, steps that mix them with answers, and a cache that holds
    a few requests at a time. In f32, so that tokens are the same in whatever company they are made."""
    pool = dict(
        dtype="float32",
        max_total_tokens=32 * 32,
        max_running_requests=16,
        chunked_prefill_size=64,
        enable_mixed_chunk=True,
    )
    # It expects answers to be far shorter than asked for, and takes requests back where they are
    # not.
    return engine(
        model(*MODEL),
        **pool,
        schedule_conservativeness=0.01,
        enable_return_hidden_states=True,
        enable_memory_saver=True,
    )


def test_tokens_and_logprobs_are_those_of_transformers(small, model, reference):
    for prompt in PROMPTS[40:43]:
        answer = small.generate(
            prompt,
            {"temperature": 0, "max_new_tokens": 50},
            return_logprob=True,
            top_logprobs_num=3,
        )
        [ids] = small.tokenizer_manager.tokenizer([prompt])["input_ids"]
        tokens, scores = reference(model(*MODEL), ids, answer["output_ids"])
        assert answer["output_ids"] == tokens and (tokens[-1] == 1 or len(tokens) == 50)
        made = answer["meta_info"]["output_token_logprobs"]
        assert [token for _, token, _ in made] == tokens
        assert all(abs(found - score) < 1e-3 for (found, _, _), score in zip(made, scores))
        assert all(
            len(place) == 3 and place[0][1] == token
            for place, token in zip(answer["meta_info"]["output_top_logprobs"], tokens)
        )


def test_logprobs_of_prompts(small, model):
    import torch
    from transformers import AutoModelForCausalLM

    prompt = " ".join(PROMPTS[:4])
    answer = small.generate(
        prompt, {"temperature": 0, "max_new_tokens": 1}, return_logprob=True, logprob_start_len=0
    )
    found = answer["meta_info"]["input_token_logprobs"]
    ids = torch.tensor([[token for _, token, _ in found]])
    with torch.no_grad():
        scores = (
            AutoModelForCausalLM.from_pretrained(model(*MODEL), dtype=torch.float32)(ids)
            .logits[0]
            .log_softmax(-1)
        )
    right = scores[:-1].gather(1, ids[0, 1:, None])[:, 0]
    torch.testing.assert_close(
        torch.tensor([score for score, _, _ in found[1:]]).exp(), right.exp(), atol=1e-3, rtol=0
    )


def test_retracted_and_shared_requests_equal_lone_ones(small):
    """More than the cache holds at a time, with shared beginnings."""
    shared = "".join(p + s for p, s in zip(PROMPTS[:3], SOLUTIONS))
    prompts = [shared + prompt for prompt in PROMPTS[100:108]] + PROMPTS[120:132]
    # The scheduler does not count these, unlike `ignore_eos`.
    long = dict(tokens=100, min_new_tokens=100)
    small.flush_cache()
    alone = [greedy(small, [prompt], **long)[0] for prompt in prompts]
    small.flush_cache()
    made = answers(small, prompts, **long)
    assert [answer["text"] for answer in made] == alone
    told = [answer["meta_info"] for answer in made]
    assert sum(one["num_retractions"] for one in told) > 0
    assert sum(one["cached_tokens"] for one in told) > 0


def test_structured_output(small):
    def text(**options):
        return greedy(small, PROMPTS[:1], 20, **options)[0]

    assert re.fullmatch(r"[a-c]{3}-\d", text(regex=r"[a-c]{3}-\d"))
    assert json.loads(text(ebnf='root ::= "{\\"n\\": " [1-9] [0-9] "}"'))["n"] in range(10, 100)


def test_sampling_parameters(small):
    def text(**options):
        return small.generate("Q:", {"max_new_tokens": 24, **options})["text"]

    assert len({text(temperature=1.0) for _ in range(4)}) > 1
    assert text(top_k=1) == text(temperature=0)


def test_hidden_states(small):
    answer = small.generate(
        PROMPTS[0], {"temperature": 0, "max_new_tokens": 2}, return_hidden_states=True
    )
    prompt, *_ = answer["meta_info"]["hidden_states"]
    told = answer["meta_info"]
    assert len(prompt) == told["prompt_tokens"] - told["cached_tokens"] and len(prompt[0]) == 192


def test_weights_are_updated_in_place(small, model):
    import torch
    from safetensors.torch import load_file

    folder = model(*MODEL)
    name, weights = "model.norm.weight", load_file(folder / "model.safetensors")

    def update(tensor):
        small.begin_weight_update()
        assert small.update_weights_from_tensor([(name, tensor)]) == (True, "Success")
        small.end_weight_update()

    before = greedy(small, PROMPTS[:2])
    update(torch.zeros_like(weights[name]))
    assert greedy(small, PROMPTS[:2]) != before
    update(weights[name])
    assert greedy(small, PROMPTS[:2]) == before == SOLUTIONS[:2]
    until_idle(small)
    assert small.update_weights_from_disk(str(folder))[:2] == (
        True,
        "Succeeded to update model weights.",
    )
    assert greedy(small, PROMPTS[:2]) == before


def test_memory_goes_back_and_weights_come_in_buckets(small, model):
    """As trainers do it that share a machine with the engine: everything is released, then weights come back, all of them anew in
    flattened buckets, and the cache after them."""
    from safetensors.torch import load_file
    from sglang.srt.utils import MultiprocessingSerializer
    from sglang.srt.weight_sync.tensor_bucket import FlattenedTensorBucket

    before = greedy(small, PROMPTS[:2])
    until_idle(small)
    small.release_memory_occupation()
    small.resume_memory_occupation(tags=["weights"])
    weights = list(load_file(model(*MODEL) / "model.safetensors").items())
    small.begin_weight_update()
    for some in (weights[::2], weights[1::2]):
        bucket = FlattenedTensorBucket(named_tensors=some)
        given = dict(flattened_tensor=bucket.get_flattened_tensor(), metadata=bucket.get_metadata())
        given = [MultiprocessingSerializer.serialize(given, output_str=True)]
        assert small.update_weights_from_tensor(given, load_format="flattened_bucket") == (
            True,
            "Success",
        )
    small.end_weight_update()
    small.resume_memory_occupation(tags=["kv_cache", "cuda_graph"])
    assert greedy(small, PROMPTS[:2]) == before == SOLUTIONS[:2]
