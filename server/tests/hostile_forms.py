"""Bodies that ask for much of the forms of answers, by name."""

import json


def schema(s):
    return {"response_format": {"type": "json_schema", "json_schema": {"schema": s}}}


def lark(t):
    return {"structured_outputs": {"grammar": t}}


def regex(t):
    return {"structured_outputs": {"regex": t}}


def choice(c):
    return {"structured_outputs": {"choice": c}}


def props(n, p):
    return {"properties": {f"k{i}": p for i in range(n)}}


def nest(n, f, v):
    for _ in range(n):
        v = f(v)
    return v


BODIES = {
    "props-5000": schema(props(5000, {})),
    "props-2500": schema(props(2500, {})),
    "props-2000": schema(props(2000, {"type": "string"})),
    "required-3000": schema({"required": [f"k{i}" for i in range(3000)]}),
    "opt-2500": schema({**props(2500, {"type": "integer"}), "additionalProperties": False}),
    "nest-60": schema(
        nest(60, lambda v: {"type": "object", "properties": {"a": v}}, {"type": "string"})
    ),
    "nest-array-60": schema(nest(60, lambda v: {"type": "array", "items": v}, {})),
    "enum-10000": schema({"enum": [f"value {i}" for i in range(10000)]}),
    "enum-30000": schema({"enum": list(range(30000))}),
    "enum-deep": schema({"enum": ["a" * i for i in range(1000)]}),
    "allof-any-9": schema(
        {
            "allOf": [
                {"anyOf": [{"properties": {f"a{i}": {}}}, {"properties": {f"b{i}": {}}}]}
                for i in range(9)
            ]
        }
    ),
    "allof-any-20": schema(
        {
            "allOf": [
                {"anyOf": [{"properties": {f"a{i}": {}}}, {"properties": {f"b{i}": {}}}]}
                for i in range(20)
            ]
        }
    ),
    "allof-same-any": schema(
        {
            "allOf": [
                {
                    "properties": {
                        "a": {"anyOf": [{"const": i}, {"type": "array"}, {"type": "object"}]}
                    }
                }
                for i in range(12)
            ]
        }
    ),
    "allof-patterns": schema(
        {"allOf": [{"type": "string", "pattern": f"a.{{{i}}}$"} for i in range(1, 9)]}
    ),
    "allof-patterns-20": schema(
        {"allOf": [{"type": "string", "pattern": f"a.{{{i}}}$"} for i in range(1, 21)]}
    ),
    "oneof-500": schema(
        {
            "oneOf": [
                {"type": "object", "properties": {"t": {"const": i}}, "required": ["t"]}
                for i in range(500)
            ]
        }
    ),
    "anyof-2000": schema(
        {
            "anyOf": [
                {"type": "object", "properties": {f"k{i}": {}}, "required": [f"k{i}"]}
                for i in range(2000)
            ]
        }
    ),
    "refs-1000": schema(
        {
            "$ref": "#/$defs/d0",
            "$defs": {
                f"d{i}": {"items": {"$ref": f"#/$defs/d{(i + 1) % 1000}"}} for i in range(1000)
            },
        }
    ),
    "refs-200": schema(
        {
            "$ref": "#/$defs/d0",
            "$defs": {
                f"d{i}": {"type": "array", "items": {"$ref": f"#/$defs/d{(i + 1) % 200}"}}
                for i in range(200)
            },
        }
    ),
    "ref-self": schema({"$ref": "#"}),
    "ref-pair": schema(
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
    ),
    "ref-and-self": schema(
        {
            "allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
            "$defs": {
                "a": {"properties": {"x": {"$ref": "#/$defs/a"}}},
                "b": {"properties": {"x": {"$ref": "#/$defs/b"}}},
            },
        }
    ),
    "ref-web": schema({"$ref": "https://example.com/schema"}),
    "ref-file": schema({"$ref": "file:///etc/passwd"}),
    "multiple-1000003": schema({"type": "integer", "multipleOf": 1000003}),
    "multiple-9973": schema({"type": "integer", "multipleOf": 9973}),
    "multiples": schema(
        {"allOf": [{"type": "integer", "multipleOf": n} for n in (97, 89, 83, 79)]}
    ),
    "pattern-nest": schema({"type": "string", "pattern": "(" * 200 + "a" + ")*" * 200}),
    "pattern-repeat": schema({"type": "string", "pattern": "^((a{1000}){1000}){1000}$"}),
    "pattern-dots": schema({"type": "string", "pattern": ".*a" * 2000}),
    "patterns-64": schema({"patternProperties": {f"^p{i}[a-z]+$": {} for i in range(64)}}),
    "patterns-1000": schema({"patternProperties": {f"^p{i}[a-z]+$": {} for i in range(1000)}}),
    "length": schema({"type": "string", "minLength": 100000, "maxLength": 1000000}),
    "items": schema({"type": "array", "items": {"type": "string"}, "minItems": 10000}),
    "formats": schema(
        {
            "type": "array",
            "items": {
                "anyOf": [
                    {"type": "string", "format": f}
                    for f in ("uri", "email", "ipv6", "date-time", "uuid", "hostname")
                ]
            },
        }
    ),
    "blanks": schema({"type": "object", "x-guidance": {"whitespace_pattern": "(a|b)*a(a|b){500}"}}),
    "chain-1900": lark(
        "start: r0\n" + "".join(f'r{i}: "a" r{i + 1}\n' for i in range(1900)) + 'r1900: "b"\n'
    ),
    "chain-20000": lark(
        "start: r0\n" + "".join(f'r{i}: "a" r{i + 1}\n' for i in range(20000)) + 'r20000: "b"\n'
    ),
    "chain-empty": lark(
        "start: r0\n" + "".join(f'r{i}: r{i + 1}? "x"?\n' for i in range(1000)) + 'r1000: "b"?\n'
    ),
    "terminals-5000": lark(
        "start: T0\n" + "".join(f'T{i}: "a" T{i + 1}\n' for i in range(5000)) + 'T5000: "b"\n'
    ),
    "terminals-1900": lark(
        "start: T0\n" + "".join(f'T{i}: "a" T{i + 1}\n' for i in range(1900)) + 'T1900: "b"\n'
    ),
    "doubling": lark(
        "start: T0\n" + "".join(f"T{i}: T{i + 1} T{i + 1}\n" for i in range(30)) + 'T30: "b"\n'
    ),
    "doubling-17": lark(
        "start: T0\n" + "".join(f"T{i}: T{i + 1} T{i + 1}\n" for i in range(17)) + 'T17: "b"\n'
    ),
    "doubling-rules": lark(
        "start: r0\n" + "".join(f"r{i}: r{i + 1} r{i + 1}\n" for i in range(60)) + 'r60: "b"\n'
    ),
    "repeats": lark(
        "start: T0\n" + "".join(f"T{i}: T{i + 1}~1..1000\n" for i in range(6)) + 'T6: "b"\n'
    ),
    "repeat-rules": lark('start: a~100000\na: b~100000\nb: "x" | "y"\n'),
    "and-8": lark(
        "start: A\nA: " + " & ".join(f"/(.|\\n)*a(.|\\n){{{i}}}/" for i in range(1, 9)) + "\n"
    ),
    "and-20": lark(
        "start: A\nA: " + " & ".join(f"/(.|\\n)*a(.|\\n){{{i}}}/" for i in range(1, 21)) + "\n"
    ),
    "not-20": lark("start: A\nA: ~/(.|\\n)*a(.|\\n){20}/\n"),
    "ambiguous": lark('start: e\ne: e e | e e e | "a" | \n'),
    "ambiguous-50": lark(
        "start: e\ne: " + " | ".join(" ".join("e" * k) for k in range(2, 50)) + ' | "a"\n'
    ),
    "loop": lark("start: a\na: b\nb: a"),
    "loop-no-start": lark("a: b\nb: a"),
    "brackets": lark("start: " + "(" * 5000 + '"a"' + ")" * 5000),
    "brackets-28": lark("start: " + "(" * 28 + '"a"' + ")*" * 28),
    "nested-lark": lark("start: " + "%lark { start: " * 100 + '"a"' + " }" * 100),
    "substring": lark('start: A\nA: %regex { "substring_chars": "' + "abcdefghij" * 5000 + '" }\n'),
    "json-in-lark": lark("start: %json " + json.dumps(props(5000, {})) + "\n"),
    "text-open": lark('start: "' + "a" * 100000),
    "alternatives-60000": lark("start: " + " | ".join(f'"choice {i}"' for i in range(60000))),
    "alternatives-2000": lark("start: " + " | ".join(f'"choice {i}"' for i in range(2000))),
    "choice-10000": choice([f"choice number {i}" for i in range(10000)]),
    "choice-100000": choice([f"{i}" for i in range(100000)]),
    "choice-150000": choice([f"{i}" for i in range(150000)]),
    "choice-deep": choice(["a" * i for i in range(1500)]),
    "choice-none": choice([]),
    "choice-empty": choice([""]),
    "regex-nothing": regex("[^\\s\\S]"),
    "regex-nest": regex("(" * 30000),
    "regex-repeat": regex("((a{1000}){1000}){1000}"),
    "regex-unicode": regex("(\\p{L}|\\w){1000}"),
    "regex-dots": regex(".*a" * 10000),
    "regex-alternatives": regex("|".join(f"word{i}" for i in range(6000))),
    "regex-look": regex("(?=a)b"),
    "regex-states": regex("(a|b)*a(a|b){500}"),
    "stops-63k": {"stop": ["a" * 63000] * 64, "n": 16},
    "stops-16k": {"stop": [("a" * 255 + "b") for _ in range(64)], "n": 16},
    "prompts-180000": {"prompt": ["a"] * 180000},
    "prompts-17-n-16": {"prompt": ["a"] * 17, "n": 16},
    "prompt-4mb": {"prompt": "a b " * 1000000},
    "prompts-256": {"prompt": ["x " * 100] * 256},
}
