"""Guesses inside vLLM: answers are those without, whatever guesses."""

import json
import shutil
from pathlib import Path

import pytest
from conftest import EXAMPLES, PROBLEMS, compile, greedy, is_ours, own
from vllm import SamplingParams

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


def right(llm) -> tuple[int, int]:
    """Guesses that were made, and that were right."""
    found = {metric.name: metric.value for metric in llm.get_metrics() if hasattr(metric, "value")}
    return tuple(found[f"vllm:spec_decode_num_{kind}_tokens"] for kind in ("draft", "accepted"))


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
