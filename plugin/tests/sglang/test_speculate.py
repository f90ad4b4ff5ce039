"""Guesses inside SGLang: answers are those without, whatever guesses."""

import re
import shutil
from pathlib import Path

import pytest
import sglang
import torch
from conftest import EXAMPLES, OURS, PROBLEMS, answers, compile, until_idle
from safetensors.torch import load_file

from atomc.sglang import compat
from atomc.sglang import guesses as kernels

pytestmark = pytest.mark.skipif(compat.OLDER, reason="it has no platform that takes kernels")

DRAFTS = Path(__file__).parents[3] / "tests" / "models"
PROMPTS = [p["prompt"] for p in PROBLEMS]
SOLUTIONS = [p["solution"] for p in PROBLEMS]
HEAD = str(DRAFTS / "qwen3-eagle3")
# For each kind the artifact's options, SGLang's options for guessing, and the tokens of a step.
KINDS = dict(
    dense=(
        EXAMPLES / "models" / "qwen3",
        ("--draft", HEAD, "--speculate", "3"),
        dict(speculative_algorithm="EAGLE3", speculative_draft_model_path=HEAD),
        3,
    ),
    latent=(
        DRAFTS / "deepseek-v3-mtp",
        ("--draft", "mtp", "--speculate", "2"),
        dict(speculative_algorithm="NEXTN"),
        2,
    ),
)
# Steps that do everything at once: prompts in chunks, mixed with answers, more requests than pages
# hold, and answers that are longer than the scheduler expects.
CROWD = dict(
    max_total_tokens=32 * 32,
    max_running_requests=16,
    chunked_prefill_size=64,
    enable_mixed_chunk=True,
    schedule_conservativeness=0.01,
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Of each kind a model with a draft, and one without."""
    made = {}
    for kind, (source, draft, *_) in KINDS.items():
        for more in (draft, ()):
            folder = tmp_path_factory.mktemp("models") / f"{kind}-{len(more)}"
            shutil.copytree(source, folder)
            # Bits of a row that do not depend on its step: it has more rows with guesses.
            compile(folder, "--decode", "1,4,16", "--context", "508", "--invariant", *more)
            made[kind, bool(more)] = folder
    return made


def guesses(kind: str) -> dict:
    *_, how, steps = KINDS[kind]
    chain = dict(speculative_eagle_topk=1, speculative_num_draft_tokens=steps + 1)
    return dict(how, speculative_num_steps=steps, **chain)


def with_and_without(folders, kind: str, ask, **options) -> list:
    """What two engines answer, without guesses and with. SGLang has the options of one engine in a process, so that there is one at a
    time."""
    found = []
    for draft in (False, True):
        how = dict(OURS, max_total_tokens=8192, **(guesses(kind) if draft else {})) | options
        llm = sglang.Engine(
            model_path=str(folders[kind, draft]), log_level="warning", context_length=500, **how
        )
        found.append(ask(llm))
        llm.shutdown()
    return found


def texts(told) -> list[str]:
    return [answer["text"] for answer in told]


def right(told) -> float:
    """The share of guesses that were right."""
    sums = [sum(answer["meta_info"][f"spec_num_{name}"] for answer in told) for name in NUMBERS]
    assert sums[1] > 100
    return sums[0] / sums[1]


NUMBERS = ("correct_drafts", "proposed_drafts")


def everything(llm) -> dict:
    """Answers of every kind."""
    shared = "".join(p + s for p, s in zip(PROMPTS[:3], SOLUTIONS))
    crowd = [shared + prompt for prompt in PROMPTS[100:108]] + PROMPTS[120:132]
    greedily = answers(llm, PROMPTS[:16])
    scored = llm.generate(
        PROMPTS[40:42],
        {"temperature": 0, "max_new_tokens": 40},
        return_logprob=True,
        logprob_start_len=0,
        top_logprobs_num=2,
    )
    sampled = [llm.generate("Q:", {"temperature": 1.0, "max_new_tokens": 24}) for _ in range(4)]
    return dict(
        greedy=greedily,
        drawn=answers(llm, PROMPTS[:4], temperature=1.0, top_k=1, top_p=0.9),
        crowd=answers(llm, crowd, 100, min_new_tokens=100),
        again=answers(llm, crowd[:4], 100, min_new_tokens=100),
        stopped=answers(llm, PROMPTS[:8], stop=["="]),
        various=[dict(text=str(len({one["text"] for one in sampled}) > 1))],
        structured=answers(llm, PROMPTS[:2], 20, regex=r"[a-c]{3}-\d"),
        longest=answers(llm, [shared * 2], None, ignore_eos=True),
        scored=scored,
        **updated(llm),
    )


def updated(llm) -> dict:
    """Answers with other weights, which SGLang gives the model and the draft, and with the same again."""
    folder = Path(llm.server_args.model_path)
    name, weights = "model.norm.weight", load_file(folder / "model.safetensors")

    def update(tensor):
        llm.begin_weight_update()
        assert llm.update_weights_from_tensor([(name, tensor)]) == (True, "Success")
        llm.end_weight_update()
        return answers(llm, PROMPTS[:4])

    changed, back = update(torch.zeros_like(weights[name])), update(weights[name])
    until_idle(llm)
    assert llm.update_weights_from_disk(str(folder))[0]
    return dict(changed=changed, back=back, read=answers(llm, PROMPTS[:16]))


@pytest.mark.parametrize("kind, least", [("dense", 0.17), ("latent", 0.55)])
def test_answers_are_those_without_guesses(folders, kind, least):
    plain, guessed = with_and_without(folders, kind, everything, **CROWD)
    for name in plain:
        assert texts(guessed[name]) == texts(plain[name]), name
    assert right(guessed["greedy"]) > least and right(guessed["read"]) > least
    assert texts(guessed["changed"]) != texts(guessed["back"])
    told = [answer["meta_info"] for answer in guessed["crowd"] + guessed["again"]]
    assert sum(one["num_retractions"] for one in told) > 0
    assert sum(one["cached_tokens"] for one in told) > 0
    assert all(re.fullmatch(r"[a-c]{3}-\d", text) for text in texts(guessed["structured"]))
    assert all(one["meta_info"]["finish_reason"]["type"] == "stop" for one in guessed["stopped"])
    for with_, without in zip(guessed["scored"], plain["scored"]):
        for which in ("input_token_logprobs", "output_token_logprobs", "output_top_logprobs"):
            assert with_["meta_info"][which] == without["meta_info"][which], which


def test_two_ranks_guess(bare, monkeypatch):
    """Each rank has a part of the model and of its draft, and all of each sequence."""
    monkeypatch.setenv("SGLANG_CPU_OMP_THREADS_BIND", "0|1")
    folder = bare("qwen3")
    compile(folder, "--tp", "2", "--context", "520", *KINDS["dense"][1])
    llm = sglang.Engine(
        model_path=str(folder),
        tp_size=2,
        context_length=500,
        log_level="warning",
        **OURS,
        **guesses("dense"),
    )
    told = answers(llm, PROMPTS[:16])
    llm.shutdown()
    assert texts(told) == SOLUTIONS[:16] and right(told) > 0.17


@pytest.mark.short
def test_guesses_are_kept_as_often_as_the_model_would_draw_them():
    """What a step keeps of a chain has the model's distribution, whatever the guesses are."""
    torch.manual_seed(0)
    rows, count, vocab = 200_000, 3, 5
    chances = torch.tensor([[0.1, 0.4, 0.2, 0.3, 0.0]] * count).expand(rows, -1, -1)
    candidates = torch.tensor([[0, 1, 4]]).expand(rows, -1)
    coins = torch.rand(rows, count), torch.rand(rows)
    tokens, right = kernels.sample(candidates, chances, coins, (1.0, 1.0))
    first = tokens[:, 0].bincount(minlength=vocab) / rows
    torch.testing.assert_close(first, chances[0, 0], atol=0.005, rtol=0)
    # A guess of a token that never comes is never kept.
    assert right.max() == 1
    second = tokens[right == 1, 1].bincount(minlength=vocab) / int((right == 1).sum())
    torch.testing.assert_close(second, chances[0, 0], atol=0.01, rtol=0)


@pytest.mark.short
def test_shares_of_the_likeliest_tokens():
    chances = torch.tensor([[0.1, 0.4, 0.2, 0.3]] * 2)
    found = kernels.likeliest(chances, torch.tensor([1, 2]))
    torch.testing.assert_close(found, torch.tensor([[0, 1.0, 0, 0], [0, 4 / 7, 0, 3 / 7]]))
    found = kernels.nucleus(chances, torch.tensor([0.4, 0.8]))
    torch.testing.assert_close(found, torch.tensor([[0, 1.0, 0, 0], [0, 4 / 9, 2 / 9, 3 / 9]]))


@pytest.mark.short
@pytest.mark.parametrize("of_step_alone", [0, 1])
def test_a_token_attends_to_those_before_it(of_step_alone):
    """As SGLang writes masks: over all tokens of a sequence, or over those of the step."""
    lengths, count = torch.tensor([2, 0]), 3
    widths = [count if of_step_alone else int(length) + count for length in lengths]
    mask = torch.ones(count * sum(widths) + 5, dtype=torch.bool)
    positions = torch.zeros(6, dtype=torch.long)
    index, following, beside = torch.full((3, 2, count), -9)
    sizes = 1, count - 1, count, of_step_alone
    kernels.chain(None, None, lengths, mask, positions, index, following, beside, *sizes)
    assert positions.tolist() == [2, 3, 4, 0, 1, 2]
    assert index.tolist() == [[0, 1, 2], [3, 4, 5]] and following.tolist() == [[1, 2, -1]] * 2
    first = mask[: count * widths[0]].view(count, -1)
    second = mask[count * widths[0] : count * sum(widths)].view(count, -1)
    causal = torch.ones(count, count, dtype=torch.bool).tril()
    before = torch.ones(count, widths[0] - count, dtype=torch.bool)
    assert torch.equal(first, torch.cat([before, causal], 1)) and torch.equal(second, causal)
    assert mask[-5:].all()
