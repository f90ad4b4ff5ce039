"""`vllm serve` as a user starts it, and curl."""

import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from serving import (  # noqa: F401
    PROMPT,
    SOLUTION,
    Server,
    template,
    test_accuracy,
    test_chat,
    test_completion,
    test_log_says_what_runs,
    test_nothing_compiles,
    test_stream,
)

import atomc

pytestmark = pytest.mark.short


@pytest.fixture(scope="module")
def server(model, template, tmp_path_factory):  # noqa: F811
    environment = {k: v for k, v in os.environ.items() if k != "VLLM_ENABLE_V1_MULTIPROCESSING"}
    command = [
        Path(sys.executable).with_name("vllm"),
        "serve",
        model("llama"),
        "--chat-template",
        template,
    ]
    command += ["--kv-cache-memory-bytes", "16M", "--max-num-seqs", "32", "--enable-sleep-mode"]
    folder = tmp_path_factory.mktemp("server")
    environment |= {
        "VLLM_LOGGING_LEVEL": "INFO",
        "VLLM_SERVER_DEV_MODE": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "compiled"),
    }
    server = Server(command, "Application startup complete", folder / "log", environment)
    server.compiled = folder / "compiled"
    yield server
    server.stop()


def test_metrics_say_what_runs(server, model):
    [line] = [
        line
        for line in server.get("metrics").splitlines()
        if line.startswith("atomc:artifact_info{")
    ]
    labels, path = dict(re.findall(r'(\w+)="([^"]*)"', line)), model("llama") / "model.atomc"
    named = dict(
        engine="0",
        model_name="m",
        architecture="LlamaForCausalLM",
        artifact=str(path),
        attention="own",
    )
    assert labels == {**named, "fingerprint": atomc.Artifact(path).fingerprint} and line.endswith(
        "} 1.0"
    )


def test_probabilities_compile_nothing(server):
    """What vLLM compiles with torch where somebody asks for them, it runs as it is."""
    answer = server.complete(PROMPT, max_tokens=2, logprobs=2)
    assert len(answer["choices"][0]["logprobs"]["tokens"]) == 2
    assert not [file for file in server.compiled.rglob("*") if file.is_file()]


def test_requests_wait_for_weights(server):
    """Of a server that slept at level 2 and wakes by tags, as vLLM wants it: weights, which come anew, and then the cache."""
    post = lambda path, *more: server.curl(path, "--fail-with-body", "-X", "POST", *more)
    post("sleep?level=2")
    post("wake_up?tags=weights")
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(server.complete, PROMPT)
        time.sleep(2)
        assert not asked.done()
        post(
            "collective_rpc",
            "-H",
            "Content-Type: application/json",
            "-d",
            '{"method": "reload_weights"}',
        )
        post("wake_up?tags=kv_cache")
        assert asked.result()["choices"][0]["text"] == SOLUTION


def test_structured_output(server):
    answer = server.complete(PROMPT, structured_outputs={"choice": ["apples", "cakes"]})
    assert answer["choices"][0]["text"] in ("apples", "cakes")


def test_bench_serve(server, model, tmp_path):
    """vLLM's own benchmark of a server."""
    command = [
        Path(sys.executable).with_name("vllm"),
        "bench",
        "serve",
        "--host",
        "127.0.0.1",
        "--port",
        str(server.port),
        "--model",
        "m",
    ]
    command += [
        "--tokenizer",
        model("llama"),
        "--dataset-name",
        "random",
        "--random-input-len",
        "24",
        "--random-output-len",
        "8",
    ]
    command += [
        "--num-prompts",
        "8",
        "--ignore-eos",
        "--save-result",
        "--result-dir",
        tmp_path,
        "--result-filename",
        "found",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found").read_text())
    assert (found["completed"], found["total_output_tokens"]) == (8, 8 * 8)
