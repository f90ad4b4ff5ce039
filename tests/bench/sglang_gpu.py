"""Throughput and time per token of SGLang with an artifact on a GPU, one JSON line for each number of requests at once.

    SGLANG_EXTERNAL_MODEL_PACKAGE=atomc.sglang python tests/bench/sglang_gpu.py MODEL

Weights are random and prompts random tokens; each request has as many tokens before and after, and comes as a stream. Each number
is the best of its rounds, one more than `--rounds` says. `--problems FILE` lets it solve problems with the model's own weights instead, three times: as they come, with their
prefixes in the radix cache, and with a cache that is too small for all.
"""

import argparse
import asyncio
import json
import pathlib
import random
import statistics
import sys
import time

import sglang


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def engine(args, **options):
    return sglang.Engine(
        model_path=args.model,
        attention_backend="atomc",
        sampling_backend="pytorch",
        page_size=64,
        cuda_graph_bs=args.requests,
        max_running_requests=max(args.requests),
        chunked_prefill_size=2048,
        disable_piecewise_cuda_graph=True,
        **options,
    )


async def stream(llm, prompt: list[int], output: int) -> tuple[float, float]:
    """When the first token came, and the last."""
    params = {"temperature": 0, "max_new_tokens": output, "ignore_eos": True}
    first = last = 0.0
    count = 0
    async for part in await llm.async_generate(
        input_ids=prompt, sampling_params=params, stream=True
    ):
        last = time.perf_counter()
        first = first or last
        count = part["meta_info"]["completion_tokens"]
    assert count == output, count
    return first, last


async def together(llm, prompts: list[list[int]], output: int) -> list[tuple[float, float]]:
    return await asyncio.gather(*(stream(llm, prompt, output) for prompt in prompts))


def measure(args) -> None:
    began = time.perf_counter()
    room = (args.prompt + args.output + 128) * max(args.requests)
    llm = engine(
        args,
        load_format="dummy",
        skip_tokenizer_init=True,
        disable_radix_cache=True,
        context_length=args.prompt + args.output + 64,
        max_total_tokens=args.cache_tokens or room,
        mem_fraction_static=args.memory,
    )
    print(json.dumps({"ready_s": round(time.perf_counter() - began, 1)}), flush=True)
    chance = random.Random(0)
    for requests in args.requests:
        best: dict = {}
        for _ in range(1 + args.rounds):
            prompts = [chance.choices(range(1000), k=args.prompt) for _ in range(requests)]
            start = time.perf_counter()
            times = llm.loop.run_until_complete(together(llm, prompts, args.output))
            seconds = time.perf_counter() - start
            each = [(last - first) / (args.output - 1) for first, last in times]
            found = {
                "requests": requests,
                "tokens_s": round(requests * args.output / seconds, 1),
                "tpot_ms": round(statistics.median(each) * 1e3, 3),
                "ttft_ms": round(statistics.median(first - start for first, _ in times) * 1e3, 1),
            }
            best = {
                key: (max if key == "tokens_s" else min)(value, best.get(key, value))
                for key, value in found.items()
            }
        print(json.dumps(best), flush=True)
    llm.shutdown()


def solve(args) -> bool:
    problems = [json.loads(line) for line in args.problems.read_text().splitlines()]
    prompts, params = [p["prompt"] for p in problems], {"temperature": 0, "max_new_tokens": 80}
    score = pathlib.Path(args.model) / "score.json"
    wanted = json.loads(score.read_text())["exact"] if score.exists() else len(problems)
    good = True
    for turns, room in ((("first", "prefixes in the cache"), 32768), (("small cache",), 2048)):
        llm = engine(args, max_total_tokens=room, mem_fraction_static=args.memory)
        for turn in turns:
            answers = llm.generate(prompts, params)
            right = sum(a["text"] == p["solution"] for a, p in zip(answers, problems))
            cached = sum(a["meta_info"]["cached_tokens"] for a in answers)
            print(
                f"{right} of {len(problems)} right, {turn}, {cached} tokens from the cache",
                flush=True,
            )
            good &= right >= wanted
        llm.shutdown()
    return good


def main() -> None:
    parse = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parse.add_argument("model")
    parse.add_argument("--requests", type=numbers, default=[1, 16, 64], help="at once")
    parse.add_argument("--prompt", type=int, default=1024, help="tokens of each prompt")
    parse.add_argument("--output", type=int, default=128, help="tokens of each answer")
    parse.add_argument("--rounds", type=int, default=2)
    parse.add_argument("--memory", type=float, default=0.8, help="share of the GPU's")
    parse.add_argument("--cache-tokens", type=int, help="of the cache, if not what all take")
    parse.add_argument("--problems", type=pathlib.Path, help="to solve, instead of measuring")
    args = parse.parse_args()
    if args.problems:
        sys.exit(not solve(args))
    measure(args)


if __name__ == "__main__":
    main()
