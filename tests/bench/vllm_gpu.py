"""Throughput and time per token of vLLM on a GPU, one JSON line for each number of requests at once.

    python tests/bench/vllm_gpu.py MODEL                    # an artifact beside the model: through the plugin
    ATOMC_DISABLE=1 python tests/bench/vllm_gpu.py MODEL    # vLLM's own model

Weights are random and prompts random tokens, the same in both; each request has as many tokens before and after. Each number is the
best of its rounds, one more than `--rounds` says: the first also compiles and captures whatever is left.

vLLM's own random weights are all below 0.001, those of norms too, so scores of experts are nearly the same for all tokens: these choose
the same experts, and few weights are read. Embeddings, norms and routers are set there as they are in an artifact's random weights, so
that tokens choose apart.
"""

import argparse
import json
import os
import pathlib
import random
import statistics
import sys
import time

from vllm import LLM, SamplingParams


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def cache_bytes(model: str) -> int:
    """Of a token, in all layers: keys and values of 2 bytes, or a latent row."""
    config = json.loads((pathlib.Path(model) / "config.json").read_text())
    row = 2 * config["num_key_value_heads"] * config["head_dim"]
    if "kv_lora_rank" in config:
        row = config["kv_lora_rank"] + config["qk_rope_head_dim"]
    return 2 * row * config["num_hidden_layers"]


def spread_choices(worker) -> None:
    for name, weight in worker.get_model().named_parameters():
        if "embed" in name:
            weight.data.mul_(1000)
        elif name.endswith((".gate.weight", ".router.weight")):
            weight.data.mul_(100)
        elif "norm" in name:
            weight.data.fill_(1)
        elif name.endswith("bias"):
            weight.data.zero_()


def main() -> None:
    parse = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parse.add_argument("model")
    parse.add_argument("--requests", type=numbers, default=[1, 16, 64], help="at once")
    parse.add_argument("--prompt", type=int, default=1024, help="tokens of each prompt")
    parse.add_argument("--output", type=int, default=128, help="tokens of each answer")
    parse.add_argument("--temperature", type=float, default=0, help="1: random tokens")
    parse.add_argument("--rounds", type=int, default=2)
    parse.add_argument(
        "--ranks", type=int, default=1, help="what the artifact was compiled for (--tp)"
    )
    parse.add_argument("--experts-apart", action="store_true", help="ranks have whole experts")
    parse.add_argument("--memory", type=float, default=0.6, help="share of the GPU's")
    parse.add_argument("--cache-tokens", type=int, help="of the cache, instead of all memory")
    parse.add_argument("--hold", action="store_true", help="measure after a line of input")
    args = parse.parse_args()
    plugin = os.environ.get("ATOMC_DISABLE") != "1"
    # For a function that workers are to call.
    os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"
    # Random weights, as either side makes them.
    load = (
        {"load_format": "atomc", "model_loader_extra_config": {"random": 0}}
        if plugin
        else {"load_format": "dummy"}
    )
    if args.cache_tokens:
        load |= {"kv_cache_memory_bytes": args.cache_tokens * cache_bytes(args.model) // args.ranks}
        args.memory = 0.01
    began = time.perf_counter()
    llm = LLM(
        args.model,
        tensor_parallel_size=args.ranks,
        enable_expert_parallel=args.experts_apart,
        skip_tokenizer_init=True,
        **load,
        max_model_len=args.prompt + args.output,
        max_num_seqs=max(args.requests),
        max_num_batched_tokens=2048,
        gpu_memory_utilization=args.memory,
        enable_prefix_caching=False,
        disable_log_stats=False,
        compilation_config={"cudagraph_capture_sizes": args.requests},
    )
    if not plugin:
        llm.collective_rpc(spread_choices)
    print(
        json.dumps({"plugin": plugin, "ready_s": round(time.perf_counter() - began, 1)}), flush=True
    )
    if args.hold:
        sys.stdin.readline()
    params = SamplingParams(
        temperature=args.temperature, max_tokens=args.output, ignore_eos=True, detokenize=False
    )
    chance = random.Random(0)
    for requests in args.requests:
        best: dict = {}
        for _ in range(1 + args.rounds):
            # New prompts in each round.
            prompts = [
                {"prompt_token_ids": chance.choices(range(1000), k=args.prompt)}
                for _ in range(requests)
            ]
            start = time.perf_counter()
            answers = llm.generate(prompts, params, use_tqdm=False)
            seconds = time.perf_counter() - start
            assert all(len(answer.outputs[0].token_ids) == args.output for answer in answers)
            stats = [answer.metrics for answer in answers]
            each = [(s.last_token_ts - s.first_token_ts) / (args.output - 1) for s in stats]
            found = {
                "requests": requests,
                "tokens_s": round(requests * args.output / seconds, 1),
                "tpot_ms": round(statistics.median(each) * 1e3, 3),
                "ttft_ms": round(statistics.median(s.first_token_latency for s in stats) * 1e3, 1),
            }
            best = {
                key: (max if key == "tokens_s" else min)(value, best.get(key, value))
                for key, value in found.items()
            }
        print(json.dumps({"plugin": plugin, **best}), flush=True)


if __name__ == "__main__":
    main()
