"""Servers beside each other, under the same load in turn: python server/tests/beside.py NAME=URL ...

Each round asks each server the same new prompts, from so many clients at once, so that a machine
that others use is the same for all. The table has medians over the rounds, and ratios of the
first server to each other one in the same round. Prompts are tokens: nothing depends on how a
server cuts text up.
"""

import argparse
import http.client
import json
import random
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from urllib.parse import urlparse


@dataclass(frozen=True)
class Server:
    name: str
    host: str
    port: int


@dataclass(frozen=True)
class Round:
    """What one server did in one round."""

    tokens_per_second: float
    first: float
    gap: float


@dataclass(frozen=True)
class Answer:
    tokens: int
    first: float
    seconds: float


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("servers", nargs="+", metavar="NAME=URL")
    parser.add_argument("--clients", default="1,8", help="clients at once, with commas")
    parser.add_argument("--prompt", type=int, default=128, help="tokens of a prompt")
    parser.add_argument("--answer", type=int, default=64, help="tokens of an answer")
    parser.add_argument(
        "--requests", type=int, default=1, help="requests of each client in a round"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--vocab", type=int, default=500, help="prompts have tokens below this")
    return parser.parse_args()


def server(text):
    name, url = text.split("=", 1)
    parsed = urlparse(url)
    return Server(name, parsed.hostname, parsed.port)


def ask(server, prompt, tokens):
    """A stream: how many tokens it says it had, when the first came, when the last."""
    body = {
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    connection = http.client.HTTPConnection(server.host, server.port, timeout=600)
    start = time.perf_counter()
    connection.request(
        "POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"}
    )
    response = connection.getresponse()
    if response.status != 200:
        raise SystemExit(f"{server.name}: {response.status} {response.read()[:300]}")
    first, used = None, None
    for line in response:
        if line.startswith(b"data: {"):
            first = first or time.perf_counter() - start
            if b'"usage"' in line:
                used = json.loads(line[6:]).get("usage") or used
    connection.close()
    if used is None or used["completion_tokens"] != tokens:
        raise SystemExit(f"{server.name}: {used} where {tokens} tokens were wanted")
    return Answer(tokens, first, time.perf_counter() - start)


def load(server, prompts, clients, tokens):
    start = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        answers = list(pool.map(lambda prompt: ask(server, prompt, tokens), prompts))
    wall = time.perf_counter() - start
    gaps = [(answer.seconds - answer.first) / max(answer.tokens - 1, 1) for answer in answers]
    return Round(
        sum(answer.tokens for answer in answers) / wall,
        statistics.median(answer.first for answer in answers),
        statistics.median(gaps),
    )


def measure(servers, clients, given, numbers):
    """Rounds of each server, in turns of which each begins with another."""
    found = {server: [] for server in servers}
    for index in range(given.rounds + 1):
        count = clients * given.requests
        prompts = [
            [numbers.randrange(2, given.vocab) for _ in range(given.prompt)] for _ in range(count)
        ]
        for server in servers[index % len(servers) :] + servers[: index % len(servers)]:
            done = load(server, prompts, clients, given.answer)
            # The first round warms up.
            if index > 0:
                found[server].append(done)
    return found


def main():
    given = arguments()
    servers, numbers = [server(text) for text in given.servers], random.Random(1)
    print("| clients | server | tokens/s (from, to) | first token | between tokens | ratio |")
    print("|---|---|---|---|---|---|")
    for clients in (int(count) for count in given.clients.split(",")):
        found = measure(servers, clients, given, numbers)
        base = found[servers[0]]
        for one, rounds in found.items():
            speeds = [done.tokens_per_second for done in rounds]
            first = statistics.median(done.first for done in rounds) * 1e3
            gap = statistics.median(done.gap for done in rounds) * 1e3
            ratio = statistics.median(
                a.tokens_per_second / b.tokens_per_second for a, b in zip(base, rounds)
            )
            print(
                f"| {clients} | {one.name} | {statistics.median(speeds):.1f} ({min(speeds):.1f}, {max(speeds):.1f}) "
                f"| {first:.0f} ms | {gap:.1f} ms | {ratio:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
