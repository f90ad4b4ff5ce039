"""OpenAI's and Anthropic's Python clients against `atomc serve`: bash server/tests/run.sh starts both.

usage: python server/tests/client.py URL PROBLEMS [COUNT [CLIENTS]]

COUNT problems are asked alone and then by CLIENTS at once; answers must be the same. The other
tests take a second each at most.
"""

import json
import math
import re
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import anthropic
import openai

URL, PROBLEMS = sys.argv[1], [json.loads(line) for line in open(sys.argv[2], encoding="utf-8")]
COUNT, CLIENTS = (int(value) for value in (sys.argv[3:] + ["64", "32"][len(sys.argv) - 3 :])[:2])
CLIENT = openai.OpenAI(base_url=f"{URL}/v1", api_key="secret", max_retries=0)
CLAUDE = anthropic.Anthropic(base_url=URL, api_key="secret", max_retries=0)
PROMPT, SOLUTION = PROBLEMS[0]["prompt"], PROBLEMS[0]["solution"]
QUESTION = PROMPT.removeprefix("Q: ").removesuffix("\nA:")
MODEL = "model"


def complete(prompt=PROMPT, **more):
    return CLIENT.completions.create(
        **{"model": MODEL, "prompt": prompt, "temperature": 0, "max_tokens": 64, **more}
    )


def chat(question=QUESTION, **more):
    messages = [{"role": "user", "content": question}]
    given = {
        "model": MODEL,
        "messages": messages,
        "temperature": 0,
        "max_completion_tokens": 64,
        **more,
    }
    return CLIENT.chat.completions.create(**given)


def metric(name):
    page = urllib.request.urlopen(f"{URL}/metrics").read().decode()
    return float(re.search(rf"^{re.escape(name)} (\S+)$", page, re.M).group(1))


def refused(kind, act, text):
    try:
        act()
    except kind as error:
        assert text in str(error), error
        return
    raise AssertionError(f"nothing was refused: {text}")


def test_models():
    assert [model.id for model in CLIENT.models.list()] == [MODEL]
    assert CLIENT.models.retrieve(MODEL).id == MODEL


def test_completion():
    answer = complete()
    assert answer.choices[0].text == SOLUTION, answer
    assert answer.choices[0].finish_reason == "stop"
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert complete(max_tokens=3).choices[0].finish_reason == "length"
    both = complete([PROMPT, PROBLEMS[1]["prompt"]])
    assert [choice.text for choice in both.choices] == [SOLUTION, PROBLEMS[1]["solution"]]


def test_stream():
    for answer in (complete(stream=True, stream_options={"include_usage": True}),):
        chunks = list(answer)
        assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == SOLUTION
        assert len(chunks) > 10 and chunks[-1].usage.completion_tokens > 10
    chunks = list(chat(stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == SOLUTION
    assert (
        chunks[0].choices[0].delta.role == "assistant"
        and chunks[-1].choices[0].finish_reason == "stop"
    )


def test_chat():
    answer = chat()
    assert (
        answer.choices[0].message.content == SOLUTION
        and answer.choices[0].message.role == "assistant"
    )


def test_stop():
    words = SOLUTION.split(". ")
    for stop in (". ", [words[-1][:7], "nowhere"]):
        text = complete(stop=stop).choices[0].text
        assert text == SOLUTION.split(stop if isinstance(stop, str) else stop[0])[0], text
        assert "".join(chunk.choices[0].text for chunk in complete(stop=stop, stream=True)) == text


def test_seeds_and_n():
    # The model is sure of itself, so it has to be heated.
    some = {"temperature": 3.0, "max_tokens": 20, "n": 3, "seed": 7}
    one, two = complete(**some), complete(**some)
    texts = [choice.text for choice in one.choices]
    assert texts == [choice.text for choice in two.choices] and len(set(texts)) > 1, texts
    assert texts != [choice.text for choice in complete(**{**some, "seed": 8}).choices]
    cold = complete(**some, extra_body={"top_k": 1})
    assert {choice.text for choice in cold.choices} == {SOLUTION[:0] + cold.choices[0].text}
    assert cold.choices[0].text == complete(max_tokens=20).choices[0].text
    assert complete(**some, extra_body={"min_p": 1.0}).choices[0].text == cold.choices[0].text


def test_penalties_and_bias():
    plain = complete().choices[0].text
    assert complete(extra_body={"repetition_penalty": 100.0}).choices[0].text != plain
    forced = [
        complete(max_tokens=3, logit_bias={str(token): 100}, logprobs=0) for token in range(60, 64)
    ]
    texts = [answer.choices[0].logprobs.tokens for answer in forced]
    assert (
        all(len(set(tokens)) == 1 for tokens in texts) and len({tokens[0] for tokens in texts}) == 4
    ), texts


def test_logprobs():
    told = chat(logprobs=True, top_logprobs=3).choices[0].logprobs.content
    assert "".join(token.token for token in told) == SOLUTION
    assert all(
        token.logprob == token.top_logprobs[0].logprob and len(token.top_logprobs) == 3
        for token in told
    )
    scored = complete(PROMPT + SOLUTION, max_tokens=0, echo=True, logprobs=1).choices[0]
    assert scored.text == PROMPT + SOLUTION and scored.logprobs.token_logprobs[0] is None
    # The model's likelihoods of a prompt's tokens are those of the same tokens when it chooses
    # them.
    tail = scored.logprobs.token_logprobs[-len(told) :]
    assert all(math.isclose(a, b.logprob, abs_tol=1e-3) for a, b in zip(tail, told)), (tail, told)


def test_forms():
    schema = {
        "type": "object",
        "properties": {
            "apples": {"type": "integer", "minimum": 0, "maximum": 99},
            "who": {"enum": ["Ana", "Ben"]},
        },
        "required": ["apples", "who"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    found = json.loads(
        chat(response_format=form, max_completion_tokens=300).choices[0].message.content
    )
    assert (
        set(found) == {"apples", "who"}
        and 0 <= found["apples"] <= 99
        and found["who"] in ("Ana", "Ben")
    )
    found = (
        complete(extra_body={"structured_outputs": {"regex": r"[A-Z][a-z]{2,5} has \d{2}"}})
        .choices[0]
        .text
    )
    assert re.fullmatch(r"[A-Z][a-z]{2,5} has \d{2}", found), found


def test_tools():
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    more = {"tools": tools, "extra_body": {"structured_outputs": {"choice": [call]}}}
    choice = chat(**more).choices[0]
    assert (
        choice.finish_reason == "tool_calls" and choice.message.tool_calls[0].function.name == "add"
    )
    assert json.loads(choice.message.tool_calls[0].function.arguments) == {"a": 1}
    deltas = [chunk.choices[0].delta.tool_calls for chunk in chat(stream=True, **more)]
    (made,) = [delta[0] for delta in deltas if delta]
    assert made.index == 0 and made.function.name == "add"


def respond(**more):
    given = {"model": MODEL, "input": QUESTION, "temperature": 0, "max_output_tokens": 64, **more}
    return CLIENT.responses.create(**given)


TOOL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
CHOICE = {"extra_body": {"structured_outputs": {"choice": [TOOL]}}}


def test_responses():
    answer = respond()
    assert answer.output_text == SOLUTION and answer.status == "completed", answer
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    assert respond(max_output_tokens=3).incomplete_details.reason == "max_output_tokens"
    events = list(respond(stream=True))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == SOLUTION and len(deltas) > 10
    assert events[0].type == "response.created" and events[-1].type == "response.completed"
    assert events[-1].response.output_text == SOLUTION
    with CLIENT.responses.stream(model=MODEL, input=QUESTION, temperature=0) as stream:
        assert stream.get_final_response().output_text == SOLUTION
    turns = [{"role": "user", "content": QUESTION}]
    assert respond(input=turns).output_text == SOLUTION
    tools = [{"type": "function", "name": "add", "parameters": {"type": "object"}}]
    (call,) = respond(tools=tools, **CHOICE).output
    assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "add", {"a": 1})
    refused(openai.BadRequestError, lambda: respond(previous_response_id="r"), "not kept")


def sampled(temperature=0, extra_body=None, **given):
    """The client has no parameter for the temperature, which the interface has."""
    return {"extra_body": {"temperature": temperature, **(extra_body or {})}, **given}


def say(**more):
    talk = [{"role": "user", "content": QUESTION}]
    given = sampled(**{"model": MODEL, "messages": talk, "max_tokens": 64, **more})
    return CLAUDE.messages.create(**given)


def test_messages():
    answer = say()
    assert answer.content[0].text == SOLUTION and answer.stop_reason == "end_turn", answer
    assert say(max_tokens=3).stop_reason == "max_tokens"
    cut = say(stop_sequences=[". ", "nowhere"])
    assert (cut.content[0].text, cut.stop_reason) == (SOLUTION.split(". ")[0], "stop_sequence")
    assert cut.stop_sequence == ". "
    talk = [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}]
    given = {"model": MODEL, "messages": talk, "max_tokens": 64}
    with CLAUDE.messages.stream(**sampled(**given)) as stream:
        assert "".join(stream.text_stream) == SOLUTION
        assert stream.get_final_message().usage.output_tokens == answer.usage.output_tokens
    count = CLAUDE.messages.count_tokens(model=MODEL, messages=talk).input_tokens
    assert count == answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0)
    tools = [{"name": "add", "input_schema": {"type": "object"}}]
    used = say(tools=tools, **CHOICE)
    assert (used.stop_reason, used.content[0].name, used.content[0].input) == (
        "tool_use",
        "add",
        {"a": 1},
    )
    with CLAUDE.messages.stream(**sampled(**given, tools=tools, **CHOICE)) as stream:
        assert stream.get_final_message().content[0].input == {"a": 1}
    refused(anthropic.NotFoundError, lambda: say(model="claude"), "not served")
    refused(anthropic.BadRequestError, lambda: say(temperature=-1), "temperature")
    other = anthropic.Anthropic(base_url=URL, api_key="other", max_retries=0)
    ask = lambda: other.messages.create(model=MODEL, messages=talk, max_tokens=1)
    refused(anthropic.AuthenticationError, ask, "API key")


def post(path, body, **headers):
    headers = {"authorization": "Bearer secret", "content-type": "application/json", **headers}
    request = urllib.request.Request(f"{URL}{path}", json.dumps(body).encode(), headers)
    return json.load(urllib.request.urlopen(request))


def test_tokens():
    found = post("/tokenize", {"prompt": PROMPT})
    assert found["count"] == len(found["tokens"]) == complete().usage.prompt_tokens
    assert post("/detokenize", {"tokens": found["tokens"]})["prompt"] == PROMPT


def test_salt():
    told = lambda salt: complete(max_tokens=1, extra_body={"cache_salt": salt}).usage
    first, second = told("one"), told("one")
    assert first.prompt_tokens_details.cached_tokens == 0, first
    assert second.prompt_tokens_details.cached_tokens > 0, second
    assert told("two").prompt_tokens_details.cached_tokens == 0


def test_errors():
    refused(openai.NotFoundError, lambda: complete(model="gpt-4"), "not served")
    refused(openai.BadRequestError, lambda: complete(temperature=-1), "temperature")
    refused(openai.BadRequestError, lambda: complete([5] * 600), "600 tokens")
    refused(
        openai.NotFoundError, lambda: CLIENT.embeddings.create(model=MODEL, input="x"), "embeddings"
    )
    other = openai.OpenAI(base_url=f"{URL}/v1", api_key="other", max_retries=0)
    refused(openai.AuthenticationError, lambda: other.models.list(), "API key")


def test_vanishing():
    gone = metric('atomc_requests_total{end="gone"}')
    for _ in range(20):
        stream = complete(
            stream=True, max_tokens=400, extra_body={"ignore_eos": True}, temperature=1.5
        )
        next(iter(stream))
        stream.close()
    for _ in range(100):
        if metric("atomc_requests_running") == 0:
            assert metric('atomc_requests_total{end="gone"}') > gone
            return
        time.sleep(0.02)
    raise AssertionError("requests of nobody run on")


def test_load():
    problems = PROBLEMS[:COUNT]
    ask = lambda problem: complete(problem["prompt"]).choices[0].text
    start = time.time()
    alone = [ask(problem) for problem in problems]
    between = time.time()
    with ThreadPoolExecutor(CLIENTS) as pool:
        together = list(pool.map(ask, problems))
    end = time.time()
    assert together == alone, [pair for pair in zip(together, alone) if pair[0] != pair[1]]
    right = sum(answer == problem["solution"] for answer, problem in zip(alone, problems))
    assert right >= 0.98 * len(problems), right
    print(
        f"{len(problems)} problems, {right} exact: {between - start:.2f} s alone, "
        f"{end - between:.2f} s by {CLIENTS} clients"
    )


for name, test in list(globals().items()):
    if name.startswith("test_"):
        start = time.time()
        test()
        print(f"{name}: {time.time() - start:.2f} s", flush=True)
