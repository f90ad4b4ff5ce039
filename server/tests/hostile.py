"""A server under hostile requests: `HOSTILE=all bash server/tests/run.sh` starts both.

usage: python server/tests/hostile.py URL PROBLEMS PID [COUNT [NOISE]]

Eight honest clients ask short questions all the time. Beside them one hostile request after the
other is computed: COUNT of the list, evenly chosen (all, unless COUNT is given), and then NOISE
requests that are damaged copies of good ones (20000). Held:

- no hostile request ends the server, and each gets an answer;
- the slowest honest answer beside a hostile request takes at most 250 ms more than the slowest
  without one;
- honest answers are those of lone requests;
- after each hostile request the process has at most 20 % more memory than before the first, when
  large requests that are not hostile had been served.

A machine has other work: a hostile request is at fault if it is so three times of three.
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

URL, PROBLEMS, PID = sys.argv[1], sys.argv[2], int(sys.argv[3])
COUNT = int(sys.argv[4]) if len(sys.argv) > 4 else 10**9
NOISE = int(sys.argv[5]) if len(sys.argv) > 5 else 20_000
KEY, CLIENTS, QUESTIONS = "secret", 8, 16
# What an honest answer may take more beside a hostile request, in seconds.
MORE = 0.25
# Share of memory that may be left of a hostile request.
MEMORY = 1.2
# Seconds in which a hostile request has an answer, and in which its memory is given back.
PATIENCE, REST = 60, 5
# How often a hostile request is tried before it is at fault.
TRIES = 3
# Seconds of honest clients alone.
ALONE = float(os.environ.get("ALONE", "5"))
ADDRESS = (urlparse(URL).hostname, urlparse(URL).port)
# Stands where a deep schema comes.
DEEP = "deep"
# Statuses that answer a request, or say what is wrong with it or that there is too much to do.
ANSWERS = ("200", "400", "404", "408", "413", "415", "422", "429", "503")
COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"


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


# The list. A hostile request is a name, a path and a body.


def form(name, schema=None, **structured):
    """An answer of a form: a schema, or what vLLM calls structured outputs."""
    if schema is not None:
        shape = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        return name, COMPLETIONS, dict(prompt="a", max_tokens=4, response_format=shape)
    return name, COMPLETIONS, dict(prompt="a", max_tokens=4, structured_outputs=structured)


def nested(depth, key):
    """A schema that is so deep, as text: Python writes none that is deeper than its own stack."""
    before, after = {
        "properties": ('{"type": "object", "required": ["a"], "properties": {"a": ', "}}"),
        "items": ('{"type": "array", "items": ', "}"),
        "anyOf": ('{"anyOf": [{"type": "null"}, ', "]}"),
    }[key]
    _, path, body = form("", dict(type=DEEP))
    schema = before * depth + '{"type": "string"}' + after * depth
    sent = json.dumps(body).replace(json.dumps(dict(type=DEEP)), schema)
    return f"{depth} deep {key}", path, sent.encode()


def schemas():
    kinds = [{}, {"type": "string"}, {"type": "integer", "minimum": 7}, {"type": "number"}]
    for count in (1000, 2000, 5000, 20000):
        for place, kind in enumerate(kinds):
            properties = {f"k{i}": kind for i in range(count)}
            yield form(f"{count} properties {place}", dict(properties=properties))
        properties = {f"k{i}": {"type": "string"} for i in range(count)}
        closed = dict(type="object", properties=properties, additionalProperties=False)
        yield form(f"{count} required properties", closed | {"required": list(properties)})
        yield form(f"enum of {count}", dict(enum=[f"word {i}" for i in range(count)]))
        yield form(f"enum of {count} numbers", dict(enum=list(range(count))))
        for key in ("anyOf", "oneOf", "allOf"):
            parts = [{"type": "string", "maxLength": i + 1} for i in range(count)]
            yield form(f"{key} of {count}", {key: parts})
    for depth in (50, 120, 400, 3000):
        for key in ("properties", "items", "anyOf"):
            yield nested(depth, key)
    chain = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(20000)}
    yield form("chain of 20000 references", {"$ref": "#/$defs/d0", "$defs": chain | {"d20000": {}}})
    yield form("a reference to itself", {"$ref": "#"})
    yield form(
        "references in a circle", {"$ref": "#/a", "a": {"$ref": "#/b"}, "b": {"$ref": "#/a"}}
    )
    yield form("a reference to elsewhere", {"$ref": "http://localhost/x"})
    doubling = {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(60)}
    yield form("doubling references", {"$ref": "#/$defs/d0", "$defs": doubling | {"d60": {}}})
    both = {"$ref": "#/$defs/d1", "properties": {"x": {"$ref": "#"}}}
    yield form(
        "doubling allOf",
        {"allOf": [both] * 30, "$defs": {"d1": {"allOf": [{"type": "object"}] * 30}}},
    )
    for most in (1000, 100_000, 10**9):
        yield form(f"strings of {most}", dict(type="string", minLength=most - 1, maxLength=most))
        yield form(
            f"arrays of {most}", dict(type="array", items={}, minItems=most - 1, maxItems=most)
        )
    yield form("integers of many digits", dict(type="integer", minimum=10**300, maximum=10**301))
    yield form("multiples", dict(type="number", multipleOf=1e-300))
    yield form(
        "a pattern of patterns", dict(type="string", pattern="^(([a-z]{1,500}){1,500}){1,500}$")
    )
    patterns = {f"^(a{{1,{i + 1}}}b)+$": {"type": "string"} for i in range(500)}
    yield form("500 patterns of properties", dict(type="object", patternProperties=patterns))
    yield form("a schema of numbers", [1, 2, 3])
    yield form(
        "blanks without end", {"x-guidance": {"whitespace_pattern": "(.|\n)*"}, "type": "object"}
    )


def grammars():
    for count in (1000, 5000, 20000):
        chain = "\n".join(f"r{i}: r{i + 1}" for i in range(count))
        yield form(f"chain of {count} rules", grammar=f'start: r0\n{chain}\nr{count}: "a"')
        words = "\n".join(f'T{i}: "word{i}"' for i in range(count))
        named = " | ".join(f"T{i}" for i in range(count))
        yield form(f"{count} terminals", grammar=f"start: {named}\n{words}")
        lexemes = "\n".join(f"T{i}: /[a-z]{{1,{i % 50 + 1}}}{i}/" for i in range(count))
        yield form(f"{count} expressions", grammar=f"start: {named}\n{lexemes}")
        yield form(f"{count} brackets", grammar="start: " + "(" * count + '"a"' + ")" * count)
        yield form(f"{count} choices of a rule", grammar="start: " + " | ".join(['"a"'] * count))
        yield form(f"{count} optional items", grammar="start: " + '"a"? ' * count)
    yield form("rules without end", grammar="start: a\na: b\nb: a")
    yield form("a rule of itself", grammar="start: start")
    yield form("an empty loop", grammar='start: (("a"?)*)*')
    yield form("ambiguous", grammar='start: e\ne: e e | e e e | "a"')
    yield form("no rule", grammar="a: b")
    yield form("repeats of repeats", grammar='start: (("a"{1,999}){1,999}){1,999}')
    yield form(
        "nested terminals",
        grammar="start: A\n"
        + "\n".join(f"{chr(65 + i)}: {chr(66 + i)} {chr(66 + i)}" for i in range(25))
        + "\nZ: /[a-z]+/",
    )
    yield form("imports", grammar="%import common.NUMBER\n%import /etc/passwd\nstart: NUMBER")
    yield form("not a grammar", grammar="\0" * 1000)
    yield form("an ignored blank", grammar='%ignore /( )*/\nstart: "a"')


def expressions():
    yield form("nothing", regex=r"[^\s\S]")
    yield form("repeats of repeats of letters", regex="((a{1,1000}){1,1000}){1,1000}")
    yield form("any of unicode", regex=r"(\p{L}{1,100}\p{N}{1,100}){1,100}")
    yield form("states that double", regex="(a|b)*a" + "(a|b)" * 40)
    yield form("many that end in a", regex="(.*a){500}")
    yield form("any text twice", regex=".*.*.*.*.*=.*")
    yield form("ahead", regex="(?=a)(?!b)a")
    yield form("back", regex=r"(a)\1")
    yield form("flags", regex="(?i)" + "straße" * 500)
    for count in (1000, 50_000, 1_000_000):
        yield form(f"{count} brackets of an expression", regex="(" * count + "a" + ")" * count)
        yield form(f"{count} stars", regex="a" + "*" * count)
        yield form(
            f"{count} choices of an expression", regex="|".join(f"w{i}" for i in range(count // 10))
        )
        yield form(f"{count} letters", regex="a" * count)
        yield form(f"{count} optional letters", regex="a?" * (count // 2))


def choices():
    for count in (1000, 10_000, 20_000, 60_000, 150_000):
        yield form(f"{count} choices", choice=[f"choice {i}" for i in range(count)])
    yield form("choices that begin alike", choice=["a" * i for i in range(1, 2000)])
    yield form("one long choice", choice=["abc " * 500_000])
    yield form("no choice", choice=[])
    yield form("empty choices", choice=[""] * 1000)
    yield form("choices of one letter", choice=[chr(0x4E00 + i) for i in range(20_000)])


def large():
    """Much of what a request may have."""

    def completion(name, **fields):
        return name, COMPLETIONS, dict(prompt="a", max_tokens=4) | fields

    yield completion(
        "stops", prompt=["a"] * 16, n=16, stop=["b" * 63_000 + str(i) for i in range(64)]
    )
    yield completion("many stops", stop=["x"] * 100_000)
    yield completion(
        "stops of letters", n=16, stop=["a" * 60_000] * 64, max_tokens=200, ignore_eos=True
    )
    yield completion("prompts", prompt=["a"] * 180_000)
    yield completion("prompts of tokens", prompt=[[1]] * 180_000)
    yield completion("a prompt of text", prompt="word " * 800_000)
    yield completion("a prompt of one letter", prompt="a" * 4_000_000)
    yield completion("a prompt of marks", prompt="\u0301" * 600_000)
    yield completion("a prompt of special tokens", prompt="<|end|>" * 300_000)
    yield completion("a prompt of tokens", prompt=[1] * 1_000_000)
    yield completion("a token too large", prompt=[2**31] * 1000)
    yield completion("biases", logit_bias={str(i): 1 for i in range(250_000)})
    yield completion("ends", stop_token_ids=[1] * 1_000_000)
    yield completion("answers", prompt=["a"] * 256, n=16)
    yield completion("answers of one prompt", n=10**6)
    yield completion(
        "the longest answers", prompt=["a"] * 16, n=16, max_tokens=10**9, ignore_eos=True
    )
    yield completion("one long answer", max_tokens=10**9, ignore_eos=True, logprobs=20)
    yield completion(
        "long answers in a stream",
        n=16,
        max_tokens=10**9,
        ignore_eos=True,
        stream=True,
        logprobs=20,
    )
    yield completion("echoes", prompt=["word " * 60] * 256, echo=True, logprobs=20)
    yield completion("unknown fields", **{f"field{i}": i for i in range(200_000)})
    yield completion("a name", model="x" * 3_000_000)
    yield completion("a seed", seed=2**63 - 1)
    for field in ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty"):
        yield completion(f"{field} of 1e30", **{field: 1e30})
    yield completion("top_k of 2**62", top_k=2**62)
    yield completion("min_tokens", min_tokens=2**62, max_tokens=2**62)


def chats():
    def chat(name, messages, **fields):
        return name, CHATS, dict(messages=messages, max_tokens=4) | fields

    user = {"role": "user", "content": "hello"}
    yield chat("messages", [user] * 80_000)
    yield chat("parts", [{"role": "user", "content": [{"type": "text", "text": "a"}] * 100_000}])
    deep = []
    for _ in range(100):
        deep = [deep]
    yield chat("deep content", [{"role": "user", "content": deep}])
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    many = [dict(tool, function=dict(tool["function"], name=f"f{i}")) for i in range(10_000)]
    yield chat("tools", [user], tools=many)
    yield chat("tools that must be called", [user], tools=many, tool_choice="required")
    wide = {"type": "object", "properties": {f"k{i}": {"type": "string"} for i in range(5000)}}
    named = {"type": "function", "function": {"name": "f", "parameters": wide}}
    yield chat("a wide tool", [user], tools=[named], tool_choice="required")
    yield chat("a role", [{"role": "r" * 2_000_000, "content": ""}])
    yield chat(
        "told to the template", [user], chat_template_kwargs={f"k{i}": i for i in range(100_000)}
    )
    yield chat(
        "messages told to the template", [user], chat_template_kwargs={"messages": [user] * 50_000}
    )
    yield chat("no messages", [])
    yield chat(
        "pictures",
        [
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": "data:," + "A" * 3_000_000}}
                ],
            }
        ],
    )


def bodies():
    """What is no request. A body is bytes here."""
    yield "100000 lists", COMPLETIONS, b"[" * 100_000
    yield "100000 objects", COMPLETIONS, b'{"a":' * 100_000
    yield "lists in a field", COMPLETIONS, b'{"prompt":"a","x":' + b"[" * 120 + b"]" * 120 + b"}"
    yield (
        "a number of a million digits",
        COMPLETIONS,
        b'{"prompt":"a","seed":' + b"9" * 1_000_000 + b"}",
    )
    yield "escapes", COMPLETIONS, b'{"prompt":"' + rb"\u0061" * 500_000 + b'"}'
    yield "half of a pair", COMPLETIONS, rb'{"prompt":"\ud800"}'
    yield "no UTF-8", COMPLETIONS, b'{"prompt":"\xff\xfe"}'
    yield "blanks", COMPLETIONS, b" " * 4_000_000
    yield "the same field", COMPLETIONS, b"{" + b'"n":1,' * 200_000 + b'"prompt":"a"}'
    yield "more than may be", COMPLETIONS, b'{"prompt":"' + b"a" * 5_000_000 + b'"}'
    yield "nothing", CHATS, b""
    yield "nothing to tokenise", "/tokenize", b'{"prompt":' + b'"a' + b" b" * 1_000_000 + b'"}'
    yield "tokens to text", "/detokenize", json.dumps({"tokens": [5] * 1_000_000}).encode()
    yield (
        "a conversation of Anthropic's form",
        "/v1/messages",
        json.dumps(
            {"max_tokens": 4, "messages": [{"role": "user", "content": "a"}] * 50_000}
        ).encode(),
    )
    yield "input of a response", "/v1/responses", json.dumps({"input": "word " * 700_000}).encode()


def hostile():
    for part in (schemas, grammars, expressions, choices, large, chats, bodies):
        for name, path, content in part():
            sent = content if isinstance(content, bytes) else json.dumps(content).encode()
            yield name, posted(path, sent)


def noise(numbers):
    """A damaged copy of a good request: bytes changed, cut, repeated, numbers and words replaced."""
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
    path, sent = numbers.choice(good)
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
    """The memory of the process, once it is at most so much or has had time to be."""
    until = time.monotonic() + REST
    while (found := memory()) > most and time.monotonic() < until:
        time.sleep(0.05)
    return found


def attempt(data):
    """The status of an answer, or what came in its place; and the seconds that it took."""
    start = time.monotonic()
    try:
        found = asked(data, PATIENCE)
    except OSError as error:
        return repr(error), time.monotonic() - start
    return found[9:12].decode("ascii", "replace") or "closed", time.monotonic() - start


def main():
    with open(PROBLEMS, encoding="utf-8") as file:
        prompts = [json.loads(line)["prompt"] for line in file][:QUESTIONS]
    faults, statuses = [], {}
    # What the first request of a kind makes is made: a vocabulary for grammars, buffers.
    for data in warm():
        attempt(data)
    settled(0)
    honest, start = Honest(prompts), time.monotonic()
    time.sleep(ALONE)
    alone, before = honest.slowest(start), memory()
    listed = list(hostile())
    every = max(1, len(listed) // COUNT)
    worst, longest = (0.0, ""), (0.0, "")
    for name, data in listed[::every]:
        for _ in range(TRIES):
            start = time.monotonic()
            status, took = attempt(data)
            slow, left = honest.slowest(start), settled(before * MEMORY)
            told = (
                f"{name}: {status} in {took:.2f} s, honest {slow * 1000:.0f} ms, {left >> 20} MiB"
            )
            if os.environ.get("VERBOSE"):
                print(told, flush=True)
            if left == 0:
                sys.exit("\n".join([*faults, f"the server has ended at «{name}»"]))
            is_fine = status in ANSWERS and slow <= alone + MORE and left <= before * MEMORY
            if is_fine:
                break
        else:
            faults.append(told)
        statuses[status] = statuses.get(status, 0) + 1
        worst, longest = max(worst, (slow, name)), max(longest, (took, name))
    numbers, count = random.Random(7), 0
    for count in range(1, NOISE + 1):
        status, took = attempt(noise(numbers))
        if status not in ("200", "400", "413", "422"):
            faults.append(f"noise {count}: {status} in {took:.2f} s")
        if len(faults) > 20:
            break
    honest.end()
    print(
        f"{len(listed[::every])} hostile requests of {len(listed)} and {count} damaged ones: {statuses};"
        f" honest answers {alone * 1000:.0f} ms at most alone, {worst[0] * 1000:.0f} beside «{worst[1]}»;"
        f" the longest took {longest[0]:.2f} s («{longest[1]}»); {before >> 20} MiB, then {memory() >> 20}"
    )
    faults += honest.faults[:5]
    if faults:
        sys.exit("\n".join(faults))


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
