"""Two ranks on one machine, over gloo, in processes of SGLang's own."""

from conftest import PROBLEMS, compile, greedy

PROBLEMS = PROBLEMS[:16]


def test_two_ranks(engine, bare, monkeypatch):
    # SGLang wants to know whose cores are whose where there are more ranks than memory nodes.
    monkeypatch.setenv("SGLANG_CPU_OMP_THREADS_BIND", "0|1")
    folder = bare("qwen3")
    compile(folder, "--tp", "2")
    assert greedy(engine(folder, tp_size=2), [p["prompt"] for p in PROBLEMS]) == [p["solution"] for p in PROBLEMS]
