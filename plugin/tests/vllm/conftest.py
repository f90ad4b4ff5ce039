"""What the tests share: models with artifacts, engines, and answers by transformers."""

import json
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
PROBLEMS = [json.loads(line) for line in (EXAMPLES / "problems.jsonl").read_text().splitlines()]
ATOMC = os.environ["ATOMC"]
# Most engines live in the process of the tests, which can then look at them; what is said of processes is in the server's tests.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"


def compile(model: Path, *options: str, out: Path | None = None) -> Path:
    out = out or model / "model.atomc"
    subprocess.run([ATOMC, "compile", str(model), "--target", "host", *options, "-o", str(out)], check=True)
    return out


@pytest.fixture(scope="session", autouse=True)
def trusted(tmp_path_factory):
    """The list of trusted artifacts of these tests: that of whoever runs them stays as it is."""
    os.environ["XDG_CONFIG_HOME"] = str(tmp_path_factory.mktemp("config"))


@pytest.fixture(scope="session")
def bare(tmp_path_factory):
    """A folder with an example model, its own for each call."""

    def make(name: str) -> Path:
        folder = tmp_path_factory.mktemp(name) / name
        shutil.copytree(EXAMPLES / "models" / name, folder)
        return folder

    return make


@pytest.fixture(scope="session")
def model(bare):
    """A folder with an example model and an artifact beside it."""

    @cache
    def make(name: str, *options: str) -> Path:
        folder = bare(name)
        compile(folder, *options)
        return folder

    return make


@pytest.fixture(scope="module")
def engine():
    """Engines by their arguments, for as long as the tests of a file run."""
    from vllm import LLM

    made = {}

    def make(folder: Path, **options):
        key = (folder, repr(sorted(options.items())))
        if key not in made:
            made[key] = LLM(str(folder), **{"kv_cache_memory_bytes": 16 << 20, "max_num_seqs": 16, **options})
        return made[key]

    return make


def own(llm):
    """The model inside an engine."""
    return llm.llm_engine.model_executor.driver_worker.worker.get_model()


def is_ours(llm) -> bool:
    import atomc.vllm.model

    return type(own(llm)) is atomc.vllm.model.Model


def greedy(llm, prompts, tokens=80, **options):
    from vllm import SamplingParams

    answers = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=tokens, **options), use_tqdm=False)
    return [answer.outputs[0].text for answer in answers]


@pytest.fixture(scope="session")
def reference():
    """Greedy tokens and the logarithms of their probabilities, by transformers in f32."""
    import torch
    from transformers import AutoModelForCausalLM

    @cache
    def load(folder):
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    @torch.no_grad()
    def answer(folder: Path, ids: list[int], tokens: int):
        made, scores = list(ids), []
        for _ in range(tokens):
            logits = load(folder)(torch.tensor([made])).logits[0, -1].log_softmax(-1)
            made.append(int(logits.argmax()))
            scores.append(float(logits.max()))
            if made[-1] == 1:
                break
        return made[len(ids) :], scores

    return answer
