"""A framework's server as a user starts it, curl, and what holds of every such server. Tests that are imported from here ask for
the fixtures `server` and `model`, which the file of a framework has."""

import json
import os
import re
import signal
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from models import PROBLEMS

PROMPT, SOLUTION = PROBLEMS[0]["prompt"], PROBLEMS[0]["solution"]
COMPILERS = ("atomc", "clang", "ptxas", "ld.lld", "cc1plus")


class Server:
    """A command that serves a model called `m`, from the moment that its log says `ready`."""

    def __init__(
        self, command: list, ready: str, log: Path, environment: dict[str, str] | None = None
    ):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.log = log
        self.process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(self.port), "--served-model-name", "m"],
            stdout=log.open("w"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment,
        )
        while ready not in log.read_text():
            assert self.process.poll() is None, log.read_text()[-4000:]
            time.sleep(0.2)

    def get(self, path: str) -> str:
        return self.curl(path, "--fail")

    def post(self, path: str, **body) -> str:
        posted = ["-H", "Content-Type: application/json", "-d", json.dumps({"model": "m", **body})]
        return self.curl(f"v1/{path}", "--fail-with-body", *posted)

    def curl(self, path: str, *options: str) -> str:
        done = subprocess.run(
            ["curl", "-sS", *options, f"http://127.0.0.1:{self.port}/{path}"],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def complete(self, prompt: str, **options) -> dict:
        return json.loads(
            self.post(
                "completions", prompt=prompt, **{"temperature": 0, "max_tokens": 80, **options}
            )
        )

    def right(self) -> int:
        """How many of all problems it solves, many at a time."""
        with ThreadPoolExecutor(32) as pool:
            answers = list(
                pool.map(lambda p: self.complete(p["prompt"])["choices"][0]["text"], PROBLEMS)
            )
        return sum(answer == problem["solution"] for answer, problem in zip(answers, PROBLEMS))

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
def template(tmp_path_factory) -> str:
    """A chat template that leaves messages as they are."""
    file = tmp_path_factory.mktemp("template") / "template.jinja"
    file.write_text("{% for message in messages %}{{ message.content }}{% endfor %}")
    return str(file)


def test_log_says_what_runs(server, model):
    log = server.log.read_text()
    found = re.search(
        r"atomc: (\w+) of (\S+) runs on host:\S+ with target host, attention: own; opened in (\d+) ms",
        log,
    )
    assert found[1] == "LlamaForCausalLM" and Path(found[2]) == model("llama") / "model.atomc"
    assert int(found[3]) < 1000


def test_completion(server):
    answer = server.complete(PROMPT)
    assert answer["choices"][0]["text"] == SOLUTION
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_stream(server):
    lines = server.post(
        "completions", prompt=PROMPT, temperature=0, max_tokens=80, stream=True
    ).splitlines()
    events = [line.removeprefix("data: ") for line in lines if line]
    assert events[-1] == "[DONE]" and len(events) > 10
    assert "".join(json.loads(event)["choices"][0]["text"] for event in events[:-1]) == SOLUTION


def test_chat(server):
    body = {"messages": [{"role": "user", "content": PROMPT}], "temperature": 0, "max_tokens": 80}
    answer = json.loads(server.post("chat/completions", **body, logprobs=True, top_logprobs=2))
    assert answer["choices"][0]["message"]["content"] == SOLUTION
    assert all(
        len(token["top_logprobs"]) == 2 for token in answer["choices"][0]["logprobs"]["content"]
    )


def test_accuracy(server):
    """All 500 held-out problems, as transformers solves them."""
    assert server.right() == len(PROBLEMS) == 500


def test_nothing_compiles(server):
    """No compiler runs below the server, and no process of it has LLVM."""
    for pid in server.processes():
        assert Path(f"/proc/{pid}/comm").read_text().strip() not in COMPILERS
        assert "libLLVM" not in Path(f"/proc/{pid}/maps").read_text()
