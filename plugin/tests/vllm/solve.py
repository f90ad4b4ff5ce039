"""Problems that vLLM solves on GPUs with an artifact beside the model, greedily: python plugin/tests/vllm/solve.py MODEL PROBLEMS [RANKS]

Then all weights are lost and come again as trainers give them, and the problems are solved once more; with --sleep, after each level
of vLLM's sleep as well. It ends with 1 if fewer answers are right than the model's score.json says (without one: than there are).
RANKS is what the artifact was compiled for (--tp).
"""

import argparse
import json
import os
import pathlib
import sys
import time

import torch
from safetensors.torch import load_file
from vllm import LLM, SamplingParams


def give_anew(worker, folder: str) -> None:
    """A tensor a call, from the GPU, which overwrites it as soon as the stream has come so far."""
    model, path = worker.get_model(), pathlib.Path(folder) / "model.safetensors"
    for lost in model.memory:
        lost.fill_(255)
    for name, tensor in load_file(path, device=torch.cuda.current_device()).items():
        model.load_weights([(name, tensor)])
        tensor.view(torch.uint8).fill_(255)


def free() -> int:
    return torch.cuda.mem_get_info()[0] >> 20


def sleep(llm: LLM, folder: str, level: int) -> None:
    """Level 1 keeps weights in the host's memory; at level 2 they are lost and given anew."""
    before = free()
    llm.sleep(level=level)
    print(f"asleep at level {level}: {free() - before} MiB given back", flush=True)
    if level == 2:
        llm.wake_up(tags=["weights"])
        llm.collective_rpc(give_anew, args=(folder,))
        llm.wake_up(tags=["kv_cache"])
    else:
        llm.wake_up()
    llm.reset_prefix_cache()


def main() -> None:
    parse = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parse.add_argument("model")
    parse.add_argument("problems", type=pathlib.Path)
    parse.add_argument("ranks", nargs="?", type=int, default=1)
    parse.add_argument("--kv-cache-dtype", default="auto")
    parse.add_argument("--cache-bytes", type=int, help="of the cache, instead of a share of memory")
    parse.add_argument("--sleep", action="store_true", help="with vLLM's sleep mode")
    args = parse.parse_args()
    # For a function that workers are to call.
    os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"
    problems = [json.loads(line) for line in args.problems.read_text().splitlines()]
    score = pathlib.Path(args.model) / "score.json"
    wanted = json.loads(score.read_text())["exact"] if score.exists() else len(problems)
    llm = LLM(
        args.model,
        tensor_parallel_size=args.ranks,
        gpu_memory_utilization=0.01 if args.cache_bytes else 0.2,
        kv_cache_memory_bytes=args.cache_bytes,
        max_num_seqs=64,
        kv_cache_dtype=args.kv_cache_dtype,
        enable_sleep_mode=args.sleep,
        seed=0,
    )
    params = SamplingParams(temperature=0, max_tokens=80)
    good = True
    # What happens to the weights before the problems are solved.
    turns = ["loaded", "loaded, prefixes in the cache", "given anew"]
    turns += ["asleep at level 1", "asleep at level 2"] if args.sleep else []
    for turn in turns:
        if turn == "given anew":
            llm.collective_rpc(give_anew, args=(args.model,))
            llm.reset_prefix_cache()
        elif turn.startswith("asleep"):
            sleep(llm, args.model, int(turn[-1]))
        begin = time.perf_counter()
        answers = llm.generate([p["prompt"] for p in problems], params, use_tqdm=False)
        took = time.perf_counter() - begin
        right = sum(a.outputs[0].text == p["solution"] for a, p in zip(answers, problems))
        print(
            f"{right} of {len(problems)} right with {args.ranks} ranks, weights {turn}, {took:.2f} s",
            flush=True,
        )
        good &= right >= wanted
    sys.exit(not good)


if __name__ == "__main__":
    main()
