"""A server under hostile requests: `HOSTILE="1000 20000" bash server/tests/run.sh` starts both.

usage: python server/tests/hostile.py URL PROBLEMS PID [COUNT [NOISE [SECONDS]]]

Eight honest clients ask short questions all the time. Beside them one hostile request after the
other is computed: COUNT of the list, evenly chosen (all, unless COUNT is given), and then NOISE
requests that are damaged copies of good ones, or of the list's short ones (20000). Held:

- no hostile request ends the server, and each gets an answer;
- the slowest honest answer beside a hostile request takes at most 250 ms more than the slowest
  without one;
- honest answers are those of lone requests;
- after each hostile request the process has at most 20 % more memory than before the first, when
  large requests that are not hostile had been served.

A machine has other work. So a hostile request is at fault if it is so three times of three, of
which each is held against honest clients alone right before it. With SECONDS what is not done by
then is left out, and that is said; at the sixth fault the rest is, so that this ends.
"""

import json
import os
import random
import re
import socket
import sys
import threading
import time
from urllib.parse import urlparse

from hostile_list import CHATS, COMPLETIONS, form, hostile

URL, PROBLEMS, PID = sys.argv[1], sys.argv[2], int(sys.argv[3])
COUNT = int(sys.argv[4]) if len(sys.argv) > 4 else 10**9
NOISE = int(sys.argv[5]) if len(sys.argv) > 5 else 20_000
KEY, CLIENTS, QUESTIONS = "secret", 8, 16
# Seconds that an honest answer may take more during a hostile request.
MORE = 0.25
# Share of memory that may be left of a hostile request.
MEMORY = 1.2
# Seconds in which a hostile request has an answer, and in which its memory is given back.
PATIENCE, REST = 60, 5
# How often a hostile request is tried before it is at fault.
TRIES = 3
# Seconds of honest clients alone, before all and before another try.
ALONE, AGAIN = 5, 2
# Seconds that all may take, and faults behind which nothing more is tried.
SECONDS = float(sys.argv[6]) if len(sys.argv) > 6 else float("inf")
MOST_FAULTS = 5
# Of so many damaged requests one is of the list, if it has at most so many bytes.
LISTED, SHORT = 16, 2000
ADDRESS = (urlparse(URL).hostname, urlparse(URL).port)
# Statuses that answer a request, or say what is wrong with it or that there is too much to do.
ANSWERS = ("200", "400", "404", "408", "413", "415", "422", "429", "503")


def posted(path, sent, kind="application/json"):
    lines = [
        f"POST {path} HTTP/1.1",
        f"host: {ADDRESS[0]}:{ADDRESS[1]}",
        f"authorization: Bearer {KEY}",
        f"content-type: {kind}",
        f"content-length: {len(sent)}",
        "connection: close",
    ]
    return "\r\n".join([*lines, "", ""]).encode() + sent


def asked(data, timeout):
    """All that comes back."""
    with socket.create_connection(ADDRESS, timeout=timeout) as connection:
        try:
            connection.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            # A server may answer before it has read everything.
            pass
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))


def noise(numbers, listed):
    """A damaged copy of a good request, or of one that is not: bytes changed, cut, repeated, numbers and words replaced."""
    good = [
        (
            COMPLETIONS,
            b'{"prompt": "Q: Ana has 12", "max_tokens": 8, "temperature": 0, "stop": ["\\n"]}',
        ),
        (
            COMPLETIONS,
            b'{"prompt": [1, 2, 3], "n": 2, "logprobs": 3, "stream": true, "max_tokens": 3}',
        ),
        (
            COMPLETIONS,
            b'{"prompt": "a", "structured_outputs": {"choice": ["yes", "no"]}, "max_tokens": 4}',
        ),
        (
            COMPLETIONS,
            b'{"prompt": "a", "structured_outputs": {"regex": "(a|b)+c{2,9}"}, "max_tokens": 4}',
        ),
        (
            COMPLETIONS,
            b'{"prompt": "a", "structured_outputs": {"grammar": "start: X+\\nX: /[a-c]/ | \\"d\\""}}',
        ),
        (
            CHATS,
            b'{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "response_format": {"type":'
            b' "json_schema", "json_schema": {"schema": {"type": "object", "properties": {"a": {"type":'
            b' "integer"}, "b": {"enum": ["x", 1, null]}}, "required": ["a"]}}}}',
        ),
        (
            CHATS,
            b'{"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}], "max_tokens": 4,'
            b' "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]}',
        ),
    ]
    words = [
        b"null",
        b"-1",
        b"1e999",
        b"[]",
        b"{}",
        b'""',
        b"18446744073709551616",
        b"true",
        b'"\\u0000"',
    ]
    path, sent = numbers.choice(good if numbers.randrange(LISTED) else listed)
    for _ in range(numbers.randrange(1, 5)):
        at, kind = numbers.randrange(len(sent) + 1), numbers.randrange(5)
        to = min(len(sent), at + numbers.randrange(1, 20))
        if kind == 0:
            sent = sent[:at] + bytes([numbers.randrange(256)]) + sent[at + 1 :]
        elif kind == 1:
            sent = sent[:at] + sent[to:]
        elif kind == 2:
            sent = sent[:to] + sent[at:to] * numbers.choice([1, 2, 50]) + sent[to:]
        else:
            values = list(re.finditer(rb'-?\d+|"[^"]*"|true', sent))
            if values:
                value = numbers.choice(values)
                sent = sent[: value.start()] + numbers.choice(words) + sent[value.end() :]
    return posted(path, sent)


class Honest:
    """Clients with short questions, and how long each took, with when it ended."""

    def __init__(self, prompts):
        self.prompts, self.faults, self.is_over = prompts, [], False
        self.expect = {prompt: self.answer(prompt) for prompt in prompts}
        self.took, self.lock = [], threading.Lock()
        self.threads = [
            threading.Thread(target=self.client, args=(i,), daemon=True) for i in range(CLIENTS)
        ]
        for thread in self.threads:
            thread.start()

    def answer(self, prompt):
        sent = json.dumps({"prompt": prompt, "max_tokens": 16, "temperature": 0}).encode()
        found = asked(posted(COMPLETIONS, sent), PATIENCE)
        if not found.startswith(b"HTTP/1.1 200"):
            raise ValueError(found[:300])
        return json.loads(found.split(b"\r\n\r\n", 1)[1])["choices"][0]["text"]

    def client(self, seed):
        numbers = random.Random(seed)
        while not self.is_over:
            prompt, start = numbers.choice(self.prompts), time.monotonic()
            try:
                found = self.answer(prompt)
                if found != self.expect[prompt]:
                    self.faults.append(f"{prompt!r}: {found!r}, not {self.expect[prompt]!r}")
            except (OSError, ValueError) as error:
                self.faults.append(f"an honest client: {error!r}")
            end = time.monotonic()
            with self.lock:
                self.took.append((end, end - start))
            time.sleep(0.02)

    def slowest(self, since):
        """Of the answers that ended since then, those under way among them."""
        # Each client has an answer that began before now.
        until = time.monotonic()
        for _ in range(int(PATIENCE / 0.02)):
            with self.lock:
                done = sum(end - took >= until for end, took in self.took)
            if done >= CLIENTS or self.is_over:
                break
            time.sleep(0.02)
        with self.lock:
            return max((took for end, took in self.took if end >= since), default=0)

    def end(self):
        self.is_over = True
        for thread in self.threads:
            thread.join()


def memory():
    """Bytes that the server has; none once it has ended."""
    try:
        with open(f"/proc/{PID}/status", encoding="ascii") as file:
            found = re.search(r"VmRSS:\s+(\d+) kB", file.read())
    except FileNotFoundError:
        return 0
    return int(found.group(1)) << 10 if found else 0


def settled(most):
    """The memory of the process, once it is at most `most`, or has had time to be."""
    until = time.monotonic() + REST
    while (found := memory()) > most and time.monotonic() < until:
        time.sleep(0.05)
    return found


def rested():
    """The memory of the process, once it becomes no less."""
    found = memory()
    for _ in range(REST):
        time.sleep(2)
        before, found = found, memory()
        if found >= before * 0.99:
            break
    return found


def attempt(data):
    """The status of an answer, or what came in its place; and the seconds that it took."""
    start = time.monotonic()
    try:
        found = asked(data, PATIENCE)
    except OSError as error:
        return repr(error), time.monotonic() - start
    return found[9:12].decode("ascii", "replace") or "closed", time.monotonic() - start


class Trial:
    """Hostile requests beside honest clients, and what was wrong."""

    def __init__(self, honest):
        self.honest, self.faults, self.statuses, self.done = honest, [], {}, 0
        self.worst, self.longest, self.most = (0.0, ""), (0.0, ""), 0
        self.alone, self.before = self.without(ALONE), memory()
        self.first = self.alone

    def without(self, seconds):
        """The slowest honest answer while nothing else is asked."""
        start = time.monotonic()
        time.sleep(seconds)
        return self.honest.slowest(start)

    def request(self, name, data):
        """One of the list."""
        for again in range(TRIES):
            if again:
                self.alone = self.without(AGAIN)
            start = time.monotonic()
            status, took = attempt(data)
            slow, left = self.honest.slowest(start), settled(self.before * MEMORY)
            told = (
                f"{name}: {status} in {took:.2f} s, honest {slow * 1000:.0f} ms"
                f" ({self.alone * 1000:.0f} alone), {left >> 20} MiB ({self.before >> 20} before)"
            )
            if os.environ.get("VERBOSE"):
                print(told, flush=True)
            if left == 0:
                sys.exit("\n".join([*self.faults, f"the server has ended at «{name}»"]))
            is_quick, is_small = slow <= self.alone + MORE, left <= self.before * MEMORY
            if status in ANSWERS and is_quick and is_small:
                break
        else:
            self.faults.append(told)
        self.done += 1
        self.statuses[status] = self.statuses.get(status, 0) + 1
        self.worst = max(self.worst, (slow - self.alone, name))
        self.longest, self.most = max(self.longest, (took, name)), max(self.most, left)

    def damaged(self, number, data):
        """One that is damaged."""
        status, took = attempt(data)
        if status not in (*ANSWERS, "405"):
            self.faults.append(f"noise {number}: {status} in {took:.2f} s")
        if memory() == 0:
            sys.exit("\n".join([*self.faults, f"the server has ended at noise {number}"]))

    def is_over(self, until):
        return time.monotonic() > until or len(self.faults) > MOST_FAULTS


def main():
    with open(PROBLEMS, encoding="utf-8") as file:
        prompts = [json.loads(line)["prompt"] for line in file][:QUESTIONS]
    until = time.monotonic() + SECONDS
    # What the first request of a kind makes is made: a vocabulary for grammars, buffers.
    for data in warm():
        attempt(data)
    rested()
    honest = Honest(prompts)
    trial, listed = Trial(honest), list(hostile())
    chosen = listed[:: max(1, len(listed) // COUNT)]
    for name, path, sent in chosen:
        if trial.is_over(until):
            break
        trial.request(name, posted(path, sent))
    numbers, count = random.Random(7), 0
    short = [(path, sent) for _, path, sent in listed if len(sent) <= SHORT]
    while count < NOISE and not trial.is_over(until):
        count += 1
        trial.damaged(count, noise(numbers, short))
    honest.end()
    left_out = len(chosen) - trial.done, NOISE - count
    print(
        f"{trial.done} hostile requests of {len(listed)} and {count} damaged ones, {left_out} left"
        f" out: {trial.statuses}; honest answers {trial.first * 1000:.0f} ms at most alone, and"
        f" {trial.worst[0] * 1000:.0f} more beside «{trial.worst[1]}»; the longest took"
        f" {trial.longest[0]:.2f} s («{trial.longest[1]}»); {trial.before >> 20} MiB, then at most"
        f" {trial.most >> 20} and {memory() >> 20} at the end"
    )
    faults = trial.faults + honest.faults[:5]
    if faults:
        sys.exit("\n".join(faults))
    if trial.done == 0:
        sys.exit("no hostile request was computed")


def warm():
    """Large requests that a client may well have."""
    user = {"role": "user", "content": "hello " * 20}
    properties = {f"k{i}": {"type": "string"} for i in range(1500)}
    requests = [
        form("", regex="a+"),
        form("", choice=[f"choice {i}" for i in range(10_000)]),
        form("", dict(properties=properties)),
        ("", COMPLETIONS, dict(prompt="word " * 100_000, max_tokens=4)),
        (
            "",
            COMPLETIONS,
            dict(prompt=["a"] * 16, n=16, max_tokens=64, logprobs=20, ignore_eos=True),
        ),
        ("", CHATS, dict(messages=[user] * 20_000, max_tokens=4)),
    ]
    for _, path, body in requests:
        yield posted(path, json.dumps(body).encode())


main()
