"""Problems that vLLM solves on GPUs with an artifact beside the model, greedily: python plugin/tests/vllm/solve.py MODEL PROBLEMS [RANKS]

Then all weights are lost and come again as trainers give them, and the problems are solved once more. It ends with 1 if an answer is
not the model's own. RANKS is what the artifact was compiled for (--tp).
"""

import json
import os
import pathlib
import sys

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
        tensor.fill_(255)


def main(folder: str, path: str, ranks: str = "1") -> None:
    # For a function that workers are to call.
    os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"
    problems = [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]
    llm = LLM(folder, tensor_parallel_size=int(ranks), gpu_memory_utilization=0.2, max_num_seqs=64)
    params = SamplingParams(temperature=0, max_tokens=80)
    wrong = 0
    for weights in "loaded", "given anew":
        answers = llm.generate([p["prompt"] for p in problems], params, use_tqdm=False)
        right = sum(a.outputs[0].text == p["solution"] for a, p in zip(answers, problems))
        print(f"{right} of {len(problems)} right with {ranks} ranks, weights {weights}", flush=True)
        wrong += len(problems) - right
        llm.collective_rpc(give_anew, args=(folder,))
        llm.reset_prefix_cache()
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
