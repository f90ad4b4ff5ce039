"""Requests that ask for much, or that are none: a name, a path and a body each."""

import json

from hostile_forms import BODIES

# Stands where a deep schema comes.
DEEP = "deep"
COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"


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


def more_forms():
    """Those with names of their own."""
    for name, fields in BODIES.items():
        yield name, COMPLETIONS, {"prompt": "Q: Ana", "max_tokens": 16, **fields}


def hostile():
    """All of them, with a body as it is sent."""
    for part in (schemas, grammars, expressions, choices, large, chats, bodies, more_forms):
        for name, path, content in part():
            sent = content if isinstance(content, bytes) else json.dumps(content).encode()
            yield name, path, sent
