"""`sglang.launch_server` as a user starts it, and curl."""

import gzip
import json
import os
import subprocess
import sys
from importlib.metadata import version

import pytest
from conftest import ABSENT
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


@pytest.fixture(scope="module")
def server(model, template, tmp_path_factory):  # noqa: F811
    command = [
        sys.executable,
        "-m",
        "sglang.launch_server",
        "--model-path",
        model("llama"),
        "--chat-template",
        template,
    ]
    command += ["--attention-backend", "atomc", "--max-running-requests", "32"]
    folder = tmp_path_factory.mktemp("server")
    profiles = {"SGLANG_TORCH_PROFILER_DIR": str(folder / "profiles")}
    server = Server(command, "The server is fired up", folder / "log", {**os.environ, **profiles})
    server.profiles = folder / "profiles"
    yield server
    server.stop()


@pytest.mark.skipif(version("sglang") == "0.5.11", reason="its platforms know no processor")
def test_profiles_and_checks_of_weights(server):
    """A profile shows our ranges, weights that cannot be compared are said to be such, and the server goes on."""
    server.curl("start_profile", "--fail-with-body", "-X", "POST")
    assert server.complete(PROMPT)["choices"][0]["text"] == SOLUTION
    server.curl("stop_profile", "--fail-with-body", "-X", "POST")
    [trace] = server.profiles.rglob("*.trace.json.gz")
    assert "atomc: step" in gzip.decompress(trace.read_bytes()).decode()
    body = ["-H", "Content-Type: application/json", "-d", '{"action": "checksum"}']
    assert "packed, and no parameters" in server.curl("weights_checker", *body)
    assert server.complete(PROMPT)["choices"][0]["text"] == SOLUTION


def test_bench_serving(server, model, tmp_path):
    """SGLang's own benchmark of a server."""
    command = [
        sys.executable,
        "-m",
        "sglang.bench_serving",
        "--backend",
        "sglang",
        "--host",
        "127.0.0.1",
        "--port",
        str(server.port),
    ]
    command += [
        "--model",
        model("llama"),
        "--dataset-name",
        "random-ids",
        "--tokenize-prompt",
        "--random-range-ratio",
        "1",
    ]
    command += [
        "--random-input-len",
        "24",
        "--random-output-len",
        "8",
        "--num-prompts",
        "8",
        "--output-file",
        tmp_path / "found",
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ABSENT)}
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found").read_text())
    assert (found["completed"], found["total_input_tokens"], found["total_output_tokens"]) == (
        8,
        8 * 24,
        8 * 8,
    )
