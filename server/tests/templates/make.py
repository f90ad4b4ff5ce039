"""Makes cases.json: conversations, and the prompts that transformers makes of them.

usage: python server/tests/templates/make.py     (needs transformers and jinja2)

The templates are written for these tests, in the ways that published ones are.
"""

import json
from pathlib import Path

from transformers.utils.chat_template_utils import render_jinja_template

HERE = Path(__file__).parent

CHATML = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if message.role == "user" and not message.content.startswith('<tool_response>') %}
        {%- set ns.last = index %}
        {%- break %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "system" and loop.first %}{%- continue %}{%- endif %}
    {%- if message.role == "assistant" %}
        {{- '<|im_start|>' + message.role + '\\n' }}
        {%- set content = message.content if message.content is string else '' %}
        {%- if '</think>' in content %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- generation %}
        {{- content }}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n<tool_call>\\n{"name": "' ~ call.function.name ~ '", "arguments": ' }}
            {{- call.function.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {%- endgeneration %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + message.content.strip() + '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

ALTERNATING = """{{ bos_token }}{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{% endif %}
{% if message['role'] == 'user' %}
{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}
{{ ' ' + message['content'] | trim + eos_token }}{% endif %}
{% endfor %}"""

HEADERS = """{{- bos_token }}
{%- set loop_messages = messages %}
{%- if tools is not none and tools %}
    {{- "Tools: " + tools | map(attribute='function') | map(attribute='name') | join(', ') + "\\n" }}
    {{- tools[0] | tojson(indent=4) }}
{%- endif %}
{%- for message in loop_messages %}
    {%- set content = '<|start|>' + message['role'].title() + '<|end|>\\n\\n' + message['content'] | trim %}
    {{- content.replace('\\t', ' ') }}
    {%- for key, value in message.items() | sort %}
        {%- if key not in ('role', 'content') %}{{- ' ' ~ key ~ '=' ~ value | tojson(sort_keys=true) }}{%- endif %}
    {%- endfor %}
    {{- '<|eot|>' if not loop.last else '<|last|>' }}
{%- endfor %}
{% if add_generation_prompt %}{{ '<|start|>Assistant<|end|>\\n\\n' }}{% endif %}
{%- set numbers = [1, 2.5, true, none, 1e-7, 1e16, 0.0001, 12345678.5, 'x'] %}
{{ numbers | tojson }} {{ {'b': 1, 'a': {'c': []}} | tojson }} {{ [] | tojson(indent=2) }} {{ 'é<&>"' | tojson }}
{{ ['a', 'b'] | tojson(separators=(',', ':')) }} {{ 'é' | tojson(ensure_ascii=true) }} {{ {'a': [1, {}]} | tojson(indent=2) }}
{%- macro shout(text, mark='!') %}{{ text | upper }}{{ mark }}{% endmacro %}
{{ shout('done') }} {{ messages | selectattr('role', 'equalto', 'user') | list | length }} {{ '%s-%d' | format('a', 3) }}
"""

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": 'The weather in a city, e.g. "Köln" <now>',
            "parameters": {
                "type": "object",
                "properties": {
                    "zeta": {"type": "string"},
                    "city": {"type": "string", "enum": ["Köln", "Rom"]},
                },
                "required": ["city"],
            },
        },
    }
]
USER = {"role": "user", "content": "Wie ist es in Köln?"}
SYSTEM = {"role": "system", "content": "Be brief."}
CALLED = [
    SYSTEM,
    USER,
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "id": "1",
                "type": "function",
                "function": {"name": "weather", "arguments": {"zeta": "ü", "city": "Köln"}},
            }
        ],
    },
    {"role": "tool", "content": " 21 degrees\n", "tool_call_id": "1"},
    {"role": "tool", "content": "sunny", "tool_call_id": "2"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nIt is 21 degrees."},
    {"role": "user", "content": "Thanks!\t\n"},
]
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


def case(template, messages, generate=True, tools=None, **more):
    """A case with the prompt, or without if the template refuses the conversation."""
    prompt = None
    try:
        (prompt,), _ = render_jinja_template(
            [messages],
            tools=tools,
            chat_template=template,
            add_generation_prompt=generate,
            **SPECIAL,
            **more,
        )
    except Exception as error:  # what a template raises is an error of Jinja's
        assert "alternate" in str(error), error
    return {
        "template": template,
        "messages": messages,
        "generate": generate,
        "tools": tools or [],
        "more": more,
        "prompt": prompt,
    }


CASES = [
    case(CHATML, [USER]),
    case(CHATML, [SYSTEM, USER], generate=False),
    case(CHATML, [SYSTEM, USER], tools=TOOLS),
    case(CHATML, CALLED, tools=TOOLS),
    case(CHATML, CALLED, enable_thinking=False),
    case(ALTERNATING, [USER, {"role": "assistant", "content": " Gut. "}, USER]),
    case(ALTERNATING, [USER, USER]),
    case(HEADERS, CALLED[:2]),
    case(HEADERS, [SYSTEM, {**USER, "name": {"z": 1, "a": "ß"}}], tools=TOOLS, generate=False),
]
text = json.dumps({"special": SPECIAL, "cases": CASES}, ensure_ascii=False, indent=1)
(HERE / "cases.json").write_text(text + "\n", encoding="utf-8")
