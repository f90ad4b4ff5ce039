"""vLLM serves models through atomc artifacts. vLLM finds this package by its entry points; see docs/vllm.md."""
