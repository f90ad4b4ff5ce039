"""Problems that vLLM solves on GPUs with an artifact beside the model, greedily: python plugin/tests/vllm/solve.py MODEL PROBLEMS [RANKS]

It ends with 1 if an answer is not the model's own. RANKS is what the artifact was compiled for (--tp).
"""

import json
import pathlib
import sys

from vllm import LLM, SamplingParams


def main(folder: str, path: str, ranks: str = "1") -> None:
    problems = [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]
    llm = LLM(folder, tensor_parallel_size=int(ranks), gpu_memory_utilization=0.2, max_num_seqs=64)
    params = SamplingParams(temperature=0, max_tokens=80)
    answers = llm.generate([p["prompt"] for p in problems], params, use_tqdm=False)
    right = sum(a.outputs[0].text == p["solution"] for a, p in zip(answers, problems))
    print(f"{right} of {len(problems)} right with {ranks} ranks", flush=True)
    sys.exit(right != len(problems))


if __name__ == "__main__":
    main(*sys.argv[1:])
