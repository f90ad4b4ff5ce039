"""What 8 clients at once are answered, for a comparison of servers with and without `--speculate`.

usage: python server/tests/guesses.py URL PROBLEMS OUT [COUNT]

OUT gets a line of JSON for each of COUNT requests of many kinds: choices, without ids and times.
What is printed at the end is how many tokens the draft guessed, and how many of them were right.
"""

import json
import re
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import openai

URL, OUT = sys.argv[1], sys.argv[3]
PROBLEMS = [json.loads(line) for line in open(sys.argv[2], encoding="utf-8")]
COUNT = int(sys.argv[4]) if len(sys.argv) > 4 else 96
CLIENTS = 8
CLIENT = openai.OpenAI(base_url=f"{URL}/v1", api_key="secret", max_retries=0)
SCHEMA = {
    "type": "object",
    "properties": {"apples": {"type": "integer"}, "who": {"enum": ["Ana", "Ben"]}},
    "required": ["apples", "who"],
    "additionalProperties": False,
}
KINDS = [
    {},
    {"temperature": 1.0, "seed": 5, "n": 3},
    {"logprobs": 2},
    {"stop": ". "},
    {"extra_body": {"structured_outputs": {"json": SCHEMA}}, "max_tokens": 100},
    {"presence_penalty": 0.5, "frequency_penalty": 0.3, "logit_bias": {"60": 2, "61": -3}},
    {"max_tokens": 7, "extra_body": {"ignore_eos": True}},
    {"extra_body": {"structured_outputs": {"regex": r"[A-Z][a-z]{2,5} has \d{2}"}}},
]


def metric(name):
    page = urllib.request.urlopen(f"{URL}/metrics").read().decode()
    return int(re.search(rf"^atomc_{name} (\d+)$", page, re.M).group(1))


def ask(index):
    asked = {"temperature": 0, "max_tokens": 64, **KINDS[index % len(KINDS)]}
    prompt = PROBLEMS[index // 2 % len(PROBLEMS)]["prompt"]
    if index % 5 == 0:
        # The same request as a stream.
        told = {}
        for chunk in CLIENT.completions.create(model="model", prompt=prompt, stream=True, **asked):
            for choice in chunk.choices:
                text, _ = told.get(choice.index, ("", None))
                told[choice.index] = (text + choice.text, choice.finish_reason)
        return [told[number] for number in sorted(told)]
    answer = CLIENT.completions.create(model="model", prompt=prompt, **asked)
    choices = sorted(answer.choices, key=lambda choice: choice.index)
    return [choice.model_dump(exclude_none=True) for choice in choices]


with ThreadPoolExecutor(CLIENTS) as pool:
    answers = list(pool.map(ask, range(COUNT)))
with open(OUT, "w", encoding="utf-8") as out:
    out.writelines(json.dumps(answer, sort_keys=True) + "\n" for answer in answers)
print(metric("guessed_tokens_total"), metric("guessed_tokens_right_total"))
