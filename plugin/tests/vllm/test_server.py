"""`vllm serve` as a user starts it, and curl."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import atomc
from conftest import PROBLEMS

pytestmark = pytest.mark.short


class Server:
    def __init__(self, folder: Path, log: Path, *options: str):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.log, command = log, Path(sys.executable).with_name("vllm")
        environment = {k: v for k, v in os.environ.items() if k != "VLLM_ENABLE_V1_MULTIPROCESSING"}
        environment["VLLM_LOGGING_LEVEL"] = "INFO"
        self.process = subprocess.Popen(
            [command, "serve", folder, "--host", "127.0.0.1", "--port", str(self.port), "--served-model-name", "m", *options],
            stdout=log.open("w"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment,
        )
        while "Application startup complete" not in log.read_text():
            assert self.process.poll() is None, log.read_text()[-4000:]
            time.sleep(0.2)

    def post(self, path: str, **body) -> str:
        command = ["curl", "-sS", "--fail-with-body", "-H", "Content-Type: application/json", "-d", json.dumps({"model": "m", **body})]
        done = subprocess.run([*command, f"http://127.0.0.1:{self.port}/v1/{path}"], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def complete(self, prompt: str, **options) -> dict:
        return json.loads(self.post("completions", prompt=prompt, **{"temperature": 0, "max_tokens": 80, **options}))

    def processes(self) -> list[int]:
        """The server's own process and all below it."""
        found = [self.process.pid]
        for pid in found:
            for task in Path(f"/proc/{pid}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
        return found

    def stop(self) -> None:
        os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def server(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    template = folder / "template.jinja"
    template.write_text("{% for message in messages %}{{ message.content }}{% endfor %}")
    options = ["--kv-cache-memory-bytes", "16M", "--max-num-seqs", "32", "--chat-template", str(template)]
    server = Server(model("llama"), folder / "log", *options)
    yield server
    server.stop()


PROMPT, SOLUTION = PROBLEMS[0]["prompt"], PROBLEMS[0]["solution"]


def test_log_says_what_runs(server, model):
    log = server.log.read_text()
    found = re.search(r"atomc: (\w+) of (\S+) runs on host:\S+ with target host, attention: own; opened in (\d+) ms", log)
    assert found[1] == "LlamaForCausalLM" and Path(found[2]) == model("llama") / "model.atomc"
    assert int(found[3]) < 1000


def test_metrics_say_what_runs(server, model):
    command = ["curl", "-sS", "--fail", f"http://127.0.0.1:{server.port}/metrics"]
    [line] = [line for line in subprocess.check_output(command, text=True).splitlines() if line.startswith("atomc:artifact_info{")]
    labels, path = dict(re.findall(r'(\w+)="([^"]*)"', line)), model("llama") / "model.atomc"
    named = dict(engine="0", model_name="m", architecture="LlamaForCausalLM", artifact=str(path), attention="own")
    assert labels == {**named, "fingerprint": atomc.Artifact(path).fingerprint} and line.endswith("} 1.0")


def test_completion(server):
    answer = server.complete(PROMPT)
    assert answer["choices"][0]["text"] == SOLUTION
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_stream(server):
    lines = server.post("completions", prompt=PROMPT, temperature=0, max_tokens=80, stream=True).splitlines()
    events = [line.removeprefix("data: ") for line in lines if line]
    assert events[-1] == "[DONE]" and len(events) > 10
    assert "".join(json.loads(event)["choices"][0]["text"] for event in events[:-1]) == SOLUTION


def test_chat(server):
    body = {"messages": [{"role": "user", "content": PROMPT}], "temperature": 0, "max_tokens": 80}
    answer = json.loads(server.post("chat/completions", **body, logprobs=True, top_logprobs=2))
    assert answer["choices"][0]["message"]["content"] == SOLUTION
    assert all(len(token["top_logprobs"]) == 2 for token in answer["choices"][0]["logprobs"]["content"])


def test_structured_output(server):
    answer = server.complete(PROMPT, structured_outputs={"choice": ["apples", "cakes"]})
    assert answer["choices"][0]["text"] in ("apples", "cakes")


def test_accuracy(server):
    """All 500 held-out problems, as transformers solves them."""
    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(lambda p: server.complete(p["prompt"])["choices"][0]["text"], PROBLEMS))
    assert sum(a == p["solution"] for a, p in zip(answers, PROBLEMS)) == len(PROBLEMS) == 500


def test_nothing_compiles(server):
    """No compiler runs below the server, and no process of it has LLVM."""
    for pid in server.processes():
        assert Path(f"/proc/{pid}/comm").read_text().strip() not in ("atomc", "clang", "ptxas", "cc1plus")
        assert "libLLVM" not in Path(f"/proc/{pid}/maps").read_text()
