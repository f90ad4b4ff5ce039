#!/usr/bin/env bash
# vLLM, as it is, with an artifact beside the model. VLLM_PYTHON is one that has vLLM and the
# package (pip install ./plugin); `bash plugin/tests/run.sh --prepare vllm` makes one for machines
# without a GPU.
source "$(dirname "$0")/common.sh"
python=${VLLM_PYTHON:-${VENVS:-target}/vllm/0.33.0/bin/python}

cp -r $qwen3 "$out/qwen3"
atomc compile "$out/qwen3" --target host -o "$out/qwen3/model.atomc"
# What would vLLM do with it, without vLLM?
atomc check "$out/qwen3" --max-model-len 512
ATOMC_STRICT=1 "$python" - "$out/qwen3" "$question" >"$out/log" 2>&1 <<'PY' || { cat "$out/log" && exit 1; }
import sys
from vllm import LLM, SamplingParams

if __name__ == "__main__":
    folder, question = sys.argv[1:]
    llm = LLM(folder, max_model_len=512, max_num_seqs=4)
    [answer] = llm.generate([question], SamplingParams(temperature=0, max_tokens=64), use_tqdm=False)
    print("answer:", answer.outputs[0].text)
PY
said 'atomc: Qwen3ForCausalLM' <"$out/log"
said 'answer: ' <"$out/log" | said 'Ana has 15 apples'
