"""Captures that vLLM breaks, with its own machinery and a graph that runs again what was captured, for want of a GPU."""

import os

os.environ["VLLM_USE_BREAKABLE_CUDAGRAPH"] = "1"

import pytest
import torch
from conftest import PROBLEMS, greedy, is_ours, own
from vllm.compilation import breakable_cudagraph
from vllm.compilation.breakable_cudagraph import BreakableCUDAGraphCapture as Capture
from vllm.config import CUDAGraphMode
from vllm.forward_context import get_forward_context


class Graph:
    """Has the launches of an engine that runs while it is captured. `replay` does them for the step that was begun last."""

    open = None

    def capture_begin(self):
        assert Graph.open is None
        Graph.open, self.launches = self, []

    def capture_end(self):
        assert Graph.open is self
        Graph.open = None

    def replay(self):
        for launch in self.launches:
            launch()


class Engine:
    """An engine with launches that are captured where a graph is open, for the plan that was picked
    then."""

    def __init__(self, engine):
        self.engine, self.each = engine, None

    def __getattr__(self, name):
        return getattr(self.engine, name)

    def begin(self, each, **step):
        assert Graph.open is None, "what a batch is must not be captured"
        if Capture.is_active():
            self.each = each
        self.engine.begin(each=self.each, **step)

    def run(self):
        Graph.open.launches.append(self.engine.run)
        return self.engine.run()


@pytest.mark.short
def test_what_was_captured_serves_all_mixtures(engine, model, monkeypatch):
    llm = engine(
        model("qwen3"),
        enable_prefix_caching=False,
        max_num_batched_tokens=48,
        enable_chunked_prefill=True,
    )
    assert is_ours(llm)
    prompts = [problem["prompt"] for problem in PROBLEMS[:24]]
    eager = greedy(llm, prompts)
    assert eager == [problem["solution"] for problem in PROBLEMS[:24]]
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(breakable_cudagraph, "weak_ref_tensor", lambda tensor: tensor)
    monkeypatch.setattr(own(llm), "engine", Engine(own(llm).engine))
    captures, mixtures, forward = {}, {}, own(llm).forward

    def captured(input_ids, positions, **inputs):
        context, size = get_forward_context(), len(positions)
        context.cudagraph_runtime_mode = CUDAGraphMode.PIECEWISE
        [batch] = {id(batch): batch for batch in context.attn_metadata.values()}.values()
        mixtures.setdefault(size, set()).add(batch.max_query_len == 1)
        if size in captures:
            capture, hidden = captures[size]
            capture.replay()
            return hidden
        with (capture := Capture()):
            hidden = forward(input_ids, positions, **inputs)
        captures[size] = capture, hidden
        return hidden

    monkeypatch.setattr(own(llm), "forward", captured)
    assert greedy(llm, prompts) == eager
    assert all(capture.num_eager_breaks == 1 for capture, _ in captures.values())
    # Prompts of as many tokens as there were requests that decoded, and the other way round.
    sizes = [size for size, seen in mixtures.items() if seen == {True}]
    longest = llm.get_tokenizer().encode(prompts[0])
    for size in sizes:
        greedy(llm, [{"prompt_token_ids": longest[:size]}], 1)
    assert sizes and all(mixtures[size] == {True, False} for size in sizes if size > 1)
    assert greedy(llm, prompts) == eager
