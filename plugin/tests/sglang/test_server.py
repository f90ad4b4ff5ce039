"""`sglang.launch_server` as a user starts it, and curl."""

import json
import os
import subprocess
import sys

import pytest
from conftest import ABSENT
from serving import Server, template  # noqa: F401
from serving import test_accuracy, test_chat, test_completion, test_log_says_what_runs, test_nothing_compiles, test_stream  # noqa: F401


@pytest.fixture(scope="module")
def server(model, template, tmp_path_factory):
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", model("llama"), "--chat-template", template]
    command += ["--attention-backend", "atomc", "--max-running-requests", "32"]
    server = Server(command, "The server is fired up", tmp_path_factory.mktemp("server") / "log")
    yield server
    server.stop()


def test_bench_serving(server, model, tmp_path):
    """SGLang's own benchmark of a server."""
    command = [sys.executable, "-m", "sglang.bench_serving", "--backend", "sglang", "--host", "127.0.0.1", "--port", str(server.port)]
    command += ["--model", model("llama"), "--dataset-name", "random-ids", "--tokenize-prompt", "--random-range-ratio", "1"]
    command += ["--random-input-len", "24", "--random-output-len", "8", "--num-prompts", "8", "--output-file", tmp_path / "found"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ABSENT)})
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found").read_text())
    assert (found["completed"], found["total_input_tokens"], found["total_output_tokens"]) == (8, 8 * 24, 8 * 8)
