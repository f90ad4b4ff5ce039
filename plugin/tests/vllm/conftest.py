"""What the tests share: engines, and what is in `models.py`."""

import gc
import os
from pathlib import Path

import pytest

pytest.register_assert_rewrite("serving")
from models import (  # noqa: E402, F401
    ATOMC,
    EXAMPLES,
    PROBLEMS,
    bare,
    compile,
    golden_model,
    large_model,
    model,
    often_right,
    reference,
    trusted,
    with_draft,
)

# Most engines live in the process of the tests, which can then look at them; what is said of
# processes is in the server's tests.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

# What AMD's guides have for large models with experts, with two ranks.
LARGE = "--tensor-parallel-size 2 --enable-expert-parallel --trust-remote-code --kv-cache-dtype fp8 --no-enable-prefix-caching"
LARGE += ' --async-scheduling --compilation-config {"cudagraph_mode":"FULL_AND_PIECEWISE"}'


@pytest.fixture(scope="module")
def engine():
    """Engines by their arguments, for as long as the tests of a file run."""
    from vllm import LLM

    gc.freeze()  # what modules have, which every engine would have gone through several times
    made = {}

    def make(folder: Path, **options):
        key = (folder, repr(sorted(options.items())))
        if key not in made:
            made[key] = LLM(
                str(folder), **{"kv_cache_memory_bytes": 16 << 20, "max_num_seqs": 16, **options}
            )
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

    answers = llm.generate(
        prompts, SamplingParams(temperature=0, max_tokens=tokens, **options), use_tqdm=False
    )
    return [answer.outputs[0].text for answer in answers]


def right(llm) -> tuple[int, int]:
    """Guesses that were made, and that were right."""
    found = {metric.name: metric.value for metric in llm.get_metrics() if hasattr(metric, "value")}
    return tuple(found[f"vllm:spec_decode_num_{kind}_tokens"] for kind in ("draft", "accepted"))
