"""Two ranks on one machine, over gloo."""

import json
import os
import subprocess
import sys

import pytest

from conftest import PROBLEMS, compile

SCRIPT = """
import json, sys
from vllm import LLM, SamplingParams

def classes(worker):
    model = worker.get_model()
    return [f"{type(model).__module__}.{type(model).__name__}", model.engine.cache.heads]

if __name__ == "__main__":
    folder, prompts = sys.argv[1], json.loads(sys.argv[2])
    llm = LLM(folder, tensor_parallel_size=2, kv_cache_memory_bytes=8 << 20, max_num_seqs=8)
    answers = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=80), use_tqdm=False)
    print("RESULT", json.dumps([llm.collective_rpc(classes), [a.outputs[0].text for a in answers]]))
"""


@pytest.mark.parametrize("name", ["llama", pytest.param("qwen3", marks=pytest.mark.short)])
def test_two_ranks(bare, tmp_path, name):
    folder = bare(name)
    compile(folder, "--tp", "2")
    (tmp_path / "script.py").write_text(SCRIPT)
    problems = PROBLEMS[:16]
    done = subprocess.run(
        [sys.executable, tmp_path / "script.py", folder, json.dumps([p["prompt"] for p in problems])],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_ALLOW_INSECURE_SERIALIZATION": "1"},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    [result] = [line.removeprefix("RESULT ") for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    ranks, texts = json.loads(result)
    assert ranks == [["atomc.vllm.model.Model", 1]] * 2
    assert texts == [p["solution"] for p in problems]
