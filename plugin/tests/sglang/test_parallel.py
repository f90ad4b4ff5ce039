"""Two ranks on one machine, over gloo, in processes of SGLang's own."""

import json
import os
import subprocess
import sys

import pytest
from conftest import ABSENT, LARGE, PROBLEMS, compile, greedy, large_model
from serving import Server

PROBLEMS = PROBLEMS[:16]


def test_two_ranks(engine, bare, monkeypatch):
    # SGLang wants a list of each rank's cores where there are more ranks than memory nodes.
    monkeypatch.setenv("SGLANG_CPU_OMP_THREADS_BIND", "0|1")
    folder = bare("qwen3")
    compile(folder, "--tp", "2")
    assert greedy(engine(folder, tp_size=2), [p["prompt"] for p in PROBLEMS]) == [
        p["solution"] for p in PROBLEMS
    ]


SCRIPT = """
import json, sys
import sglang

if __name__ == "__main__":
    folder, prompts = sys.argv[1], json.loads(sys.argv[2])
    pool = dict(page_size=32, max_total_tokens=4096, max_running_requests=16)
    ranks = dict(tp_size=2, dp_size=2, enable_dp_attention=True)
    engine = sglang.Engine(model_path=folder, attention_backend="atomc", log_level="warning", device="cpu", **pool, **ranks)
    greedy = {"temperature": 0, "max_new_tokens": 80}
    # All at once, so that both ranks have some; then one, for which the other rank has none; then
    # one whose rows go through SGLang's processor of logits.
    texts = [answer["text"] for answer in engine.generate(prompts, greedy)]
    alone = engine.generate(prompts[0], greedy)["text"]
    told = engine.generate(prompts[0], greedy, return_logprob=True, logprob_start_len=0)
    scores = told["meta_info"]["input_token_logprobs"]
    print("RESULT", json.dumps([texts, alone, told["text"], len(scores) == told["meta_info"]["prompt_tokens"]]))
    engine.shutdown()
"""


def test_ranks_with_batches_of_their_own(model, tmp_path):
    """Attention of a batch on each rank, of which one is idle where there is one request. SGLang does this on a processor only as
    it runs there with its own kernels, of which it asks for the package, and calls none."""
    (tmp_path / "script.py").write_text(SCRIPT)
    absent = dict(
        SGLANG_USE_CPU_ENGINE="1", PYTHONPATH=str(ABSENT), SGLANG_CPU_OMP_THREADS_BIND="0|1"
    )
    command = [
        sys.executable,
        tmp_path / "script.py",
        model("qwen3"),
        json.dumps([p["prompt"] for p in PROBLEMS]),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=250, env={**os.environ, **absent}
    )
    assert done.returncode == 0, done.stderr
    [found] = [
        line.removeprefix("RESULT ")
        for line in done.stdout.splitlines()
        if line.startswith("RESULT ")
    ]
    right = [p["solution"] for p in PROBLEMS]
    assert json.loads(found) == [right, right[0], right[0], True]


@pytest.mark.thorough
def test_command_line_of_large_models_serves(tmp_path):
    folder = large_model(tmp_path)
    compile(folder, "--tp", "2", "--ep", "2", "--cache-dtype", "fp8")
    command = [
        sys.executable,
        "-m",
        "sglang.launch_server",
        "--model-path",
        folder,
        "--load-format",
        "dummy",
    ]
    command += ["--attention-backend", "atomc", "--max-running-requests", "8", *LARGE.split()]
    environment = {**os.environ, "SGLANG_CPU_OMP_THREADS_BIND": "0|1"}
    server = Server(command, "The server is fired up", tmp_path / "log", environment)
    answer = server.complete("Q:", max_tokens=8, ignore_eos=True)
    server.stop()
    assert answer["usage"]["completion_tokens"] == 8
    assert server.log.read_text().count(f"of {folder}/model.atomc runs on host") == 2
