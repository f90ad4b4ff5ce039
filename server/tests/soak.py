"""A server under clients that vanish: SOAK=SECONDS bash server/tests/run.sh starts both.

usage: python server/tests/soak.py URL PROBLEMS SECONDS PID

Clients stay for a whole answer, or go away within a request, before its answer, within a stream, or
send what is no request. Whole answers are those of lone requests all the time; at the end nothing
runs any more, and the server has the memory that it had after a third of the time.
"""

import json
import random
import re
import socket
import sys
import threading
import time
import urllib.request
from urllib.parse import urlparse

URL, PROBLEMS, SECONDS, PID = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
KEY, CLIENTS, QUESTIONS = "secret", 16, 24
# Allocators keep some of what is freed.
MEMORY = 32 << 20
ADDRESS = (urlparse(URL).hostname, urlparse(URL).port)


def head(length, key=KEY):
    lines = [
        "POST /v1/completions HTTP/1.1",
        "host: x",
        f"authorization: Bearer {key}",
        "content-type: application/json",
        f"content-length: {length}",
    ]
    return "\r\n".join([*lines, "connection: close", "", ""]).encode()


def body(prompt, **more):
    return json.dumps({"prompt": prompt, "max_tokens": 64, "temperature": 0, **more}).encode()


def opened(data):
    connection = socket.create_connection(ADDRESS, timeout=60)
    connection.sendall(data)
    return connection


def whole(data):
    """All that comes back."""
    with opened(data) as connection:
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))


def answered(prompt):
    sent = body(prompt)
    found = whole(head(len(sent)) + sent)
    assert found.startswith(b"HTTP/1.1 200"), found
    return json.loads(found.split(b"\r\n\r\n", 1)[1])["choices"][0]["text"]


def stays(prompt, expect, numbers):
    found = answered(prompt)
    assert found == expect, (prompt, found, expect)


def leaves_the_request(prompt, _, numbers):
    sent = body(prompt)
    sent = head(len(sent)) + sent
    opened(sent[: numbers.randrange(1, len(sent))]).close()


def leaves_before_the_answer(prompt, _, numbers):
    sent = body(prompt, max_tokens=300, ignore_eos=True, n=numbers.choice([1, 3]))
    connection = opened(head(len(sent)) + sent)
    time.sleep(numbers.random() * 0.02)
    connection.close()


def leaves_the_stream(prompt, _, numbers):
    sent = body(prompt, max_tokens=400, ignore_eos=True, stream=True, temperature=1.5)
    with opened(head(len(sent)) + sent) as connection:
        for _ in range(numbers.randrange(1, 9)):
            connection.recv(numbers.randrange(1, 600))


def resets(prompt, _, numbers):
    sent = body(prompt, max_tokens=400, ignore_eos=True, stream=True)
    connection = opened(head(len(sent)) + sent)
    connection.recv(1)
    # The system sends a reset, as with a client that was killed.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    connection.close()


def sends_noise(prompt, _, numbers):
    sent = bytearray(head(len(body(prompt))) + body(prompt))
    for _ in range(numbers.randrange(1, 8)):
        sent[numbers.randrange(len(sent))] = numbers.randrange(256)
    with opened(bytes(sent)) as connection:
        connection.shutdown(socket.SHUT_WR)
        try:
            while connection.recv(1 << 16):
                pass
        except ConnectionResetError:
            pass


KINDS = [
    stays,
    stays,
    leaves_the_request,
    leaves_before_the_answer,
    leaves_the_stream,
    resets,
    sends_noise,
]


def client(seed, given, until, told):
    numbers = random.Random(seed)
    while time.time() < until and not told["faults"]:
        act = numbers.choice(KINDS)
        prompt, expect = numbers.choice(given)
        try:
            act(prompt, expect, numbers)
        except (AssertionError, OSError, ValueError) as error:
            told["faults"].append(f"{act.__name__}: {error!r}")
        told["counts"][seed][act.__name__] = told["counts"][seed].get(act.__name__, 0) + 1


def metric(name):
    page = urllib.request.urlopen(f"{URL}/metrics").read().decode()
    return float(re.search(rf"^{re.escape(name)} (\S+)$", page, re.MULTILINE).group(1))


def memory():
    with open(f"/proc/{PID}/status", encoding="ascii") as file:
        return int(re.search(r"VmRSS:\s+(\d+) kB", file.read()).group(1)) << 10


def main():
    with open(PROBLEMS, encoding="utf-8") as file:
        prompts = [json.loads(line)["prompt"] for line in file][:QUESTIONS]
    given = [(prompt, answered(prompt)) for prompt in prompts]
    told = {"faults": [], "counts": [{} for _ in range(CLIENTS)]}
    start = time.time()
    every = (seed for seed in range(CLIENTS))
    threads = [
        threading.Thread(target=client, args=(seed, given, start + SECONDS, told)) for seed in every
    ]
    for thread in threads:
        thread.start()
    time.sleep(SECONDS / 3)
    before = memory()
    for thread in threads:
        thread.join()
    assert not told["faults"], told["faults"]
    for _ in range(200):
        if metric("atomc_requests_running") == 0 and metric("atomc_requests_waiting") == 0:
            break
        time.sleep(0.05)
    else:
        raise AssertionError("requests of nobody run on")
    after = memory()
    assert [answered(prompt) for prompt, _ in given] == [answer for _, answer in given]
    assert after - before < MEMORY, f"{before >> 20} MiB have become {after >> 20}"
    counts = {
        act.__name__: sum(count.get(act.__name__, 0) for count in told["counts"]) for act in KINDS
    }
    print(
        f"{sum(counts.values())} clients in {SECONDS:.0f} s: {counts}; {before >> 20} MiB, then {after >> 20}"
    )


main()
