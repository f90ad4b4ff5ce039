"""Two ranks on one machine, over gloo: processes of vLLM's own, and actors on two nodes of a Ray cluster."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import LARGE, PROBLEMS, compile, large_model
from serving import Server

PROBLEMS = PROBLEMS[:16]
SCRIPT = """
import json, sys
from vllm import LLM, SamplingParams

def where(worker):
    model = worker.get_model()
    node = None
    if "ray" in sys.modules and sys.modules["ray"].is_initialized():
        node = sys.modules["ray"].get_runtime_context().get_node_id()
    return [f"{type(model).__module__}.{type(model).__name__}", model.engine.cache[0].heads, node]

if __name__ == "__main__":
    folder, prompts, options = sys.argv[1], *map(json.loads, sys.argv[2:])
    llm = LLM(folder, tensor_parallel_size=2, kv_cache_memory_bytes=8 << 20, max_num_seqs=8, **options)
    answers = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=80), use_tqdm=False)
    print("RESULT", json.dumps([llm.collective_rpc(where), [a.outputs[0].text for a in answers]]))
"""


def run(folder, scripts, options=None, environment=None):
    """Where the two ranks are, if they are ours and answer right."""
    compile(folder, "--tp", "2")
    (scripts / "script.py").write_text(SCRIPT)
    prompts = json.dumps([p["prompt"] for p in PROBLEMS])
    shared = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}
    done = subprocess.run(
        [sys.executable, scripts / "script.py", folder, prompts, json.dumps(options or {})],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, **shared, **(environment or {})},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    [result] = [
        line.removeprefix("RESULT ")
        for line in done.stdout.splitlines()
        if line.startswith("RESULT ")
    ]
    ranks, texts = json.loads(result)
    assert [rank[:2] for rank in ranks] == [["atomc.vllm.model.Model", 1]] * 2
    assert texts == [p["solution"] for p in PROBLEMS]
    return [node for _, _, node in ranks]


@pytest.mark.parametrize("name", ["llama", pytest.param("qwen3", marks=pytest.mark.short)])
def test_two_ranks(bare, tmp_path, name):
    assert run(bare(name), tmp_path) == [None, None]


@pytest.mark.timeout(600)
def test_two_ranks_on_two_nodes_of_ray(bare, tmp_path, monkeypatch):
    # Ray reports nothing to the outside, and ends no process because the machine is busy with other
    # work.
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_memory_monitor_refresh_ms", "0")
    # Its workers have the niceness 15 otherwise: with other work on the machine they import vLLM
    # for minutes.
    monkeypatch.setenv("RAY_worker_niceness", "0")
    from ray.cluster_utils import Cluster

    node = dict(num_cpus=1, num_gpus=1, object_store_memory=80 << 20)
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        cluster.add_node(**node)
        nodes = run(
            bare("qwen3"),
            tmp_path,
            {"distributed_executor_backend": "ray"},
            {"RAY_ADDRESS": cluster.address},
        )
    finally:
        cluster.shutdown()
    assert len(set(nodes)) == 2 and None not in nodes


@pytest.mark.thorough
def test_command_line_of_large_models_serves(tmp_path):
    folder = large_model(tmp_path)
    compile(folder, "--tp", "2", "--ep", "2", "--cache-dtype", "fp8")
    command = [Path(sys.executable).with_name("vllm"), "serve", folder, "--load-format", "dummy"]
    command += ["--kv-cache-memory-bytes", "16M", "--max-num-seqs", "8", *LARGE.split()]
    environment = {k: v for k, v in os.environ.items() if k != "VLLM_ENABLE_V1_MULTIPROCESSING"}
    ready = "Application startup complete"
    server = Server(command, ready, tmp_path / "log", {**environment, "VLLM_LOGGING_LEVEL": "INFO"})
    answer = server.complete("Q:", max_tokens=8, ignore_eos=True)
    server.stop()
    assert answer["usage"]["completion_tokens"] == 8
    assert server.log.read_text().count(f"of {folder}/model.atomc runs on host") == 2
