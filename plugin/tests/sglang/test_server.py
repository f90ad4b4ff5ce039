"""`sglang.launch_server` as a user starts it, and curl."""

import sys

import pytest
from serving import Server, template  # noqa: F401
from serving import test_accuracy, test_chat, test_completion, test_log_says_what_runs, test_nothing_compiles, test_stream  # noqa: F401


@pytest.fixture(scope="module")
def server(model, template, tmp_path_factory):
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", model("llama"), "--chat-template", template]
    command += ["--attention-backend", "atomc", "--max-running-requests", "32"]
    server = Server(command, "The server is fired up", tmp_path_factory.mktemp("server") / "log")
    yield server
    server.stop()
