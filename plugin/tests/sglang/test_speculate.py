"""Guesses inside SGLang: answers are those without, whatever guesses."""

import shutil
from pathlib import Path

import pytest
from conftest import EXAMPLES, PROBLEMS, answers, compile, greedy

DRAFTS = Path(__file__).parents[3] / "tests" / "models"
PROMPTS = [p["prompt"] for p in PROBLEMS]
HEAD = str(DRAFTS / "qwen3-eagle3")
EAGLE3 = dict(speculative_algorithm="EAGLE3", speculative_draft_model_path=HEAD)
NEXTN = dict(speculative_algorithm="NEXTN")


def guesses(steps: int, **how) -> dict:
    chain = dict(speculative_eagle_topk=1, speculative_num_draft_tokens=steps + 1)
    return dict(speculative_num_steps=steps, context_length=480, **chain, **how)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Of each kind a model with a draft, and one without: dense with an EAGLE-3 head, and one with latent attention and experts with
    an MTP layer."""

    def make(source: Path, *options: str) -> tuple[Path, Path]:
        both = []
        for number, more in enumerate((options, ())):
            both.append(tmp_path_factory.mktemp("models") / f"{source.name}-{number}")
            shutil.copytree(source, both[-1])
            compile(both[-1], "--decode", "1,16", "--invariant", *more)
        return tuple(both)

    return dict(
        dense=make(EXAMPLES / "models" / "qwen3", "--draft", HEAD, "--speculate", "3"),
        latent=make(DRAFTS / "deepseek-v3-mtp", "--draft", "mtp", "--speculate", "2"),
    )


KINDS = [("dense", guesses(3, **EAGLE3)), ("latent", guesses(2, **NEXTN))]


@pytest.mark.parametrize("kind, how", KINDS)
def test_answers_are_those_without_guesses(engine, folders, kind, how):
    folder, bare = folders[kind]
    plain = engine(bare)
    llm = engine(folder, **how)
    found = answers(llm, PROMPTS[:24])
    print([a["meta_info"] for a in found[:2]])
    assert [a["text"] for a in found] == greedy(plain, PROMPTS[:24])
