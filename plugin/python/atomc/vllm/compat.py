"""Where releases of vLLM differ. Whatever follows vLLM's version is here."""

import torch
from vllm.v1.attention.backend import AttentionBackend

# The architectures that artifacts can hold, and where vLLM keeps its own class for each.
ARCHITECTURES = {
    "LlamaForCausalLM": "vllm.model_executor.models.llama",
    "MistralForCausalLM": "vllm.model_executor.models.mistral",
    "Qwen2ForCausalLM": "vllm.model_executor.models.qwen2",
    "Qwen3ForCausalLM": "vllm.model_executor.models.qwen3",
}


class Backend(AttentionBackend):
    """0.26 asks a backend for the shape of a layer's cache; 0.33 always makes this one."""

    @staticmethod
    def get_kv_cache_shape(num_blocks, block_size, num_kv_heads, head_size, cache_dtype_str="auto"):
        return (num_blocks, num_kv_heads, block_size, 2 * head_size)


def register_slot_mapping(compute) -> None:
    """Puts `compute(starts, positions, table, slots, block)` where vLLM's runner launches a Triton kernel."""
    try:
        from vllm.triton_utils.dispatcher import register_kernels
    except ImportError:  # 0.26 calls an operator of its compiled kernels instead
        if not hasattr(torch.ops._C, "compute_slot_mapping_kernel_impl"):
            name, arguments = "_C::compute_slot_mapping_kernel_impl", "Tensor starts, Tensor positions, Tensor table"
            torch.library.define(name, f"({arguments}, Tensor(a!) slots, int block) -> ()")
            torch.library.impl(name, "CPU", compute)
    else:

        def launch(tokens, room, starts, positions, table, stride, slots, block, *_):
            compute(starts, positions, table, slots, block)

        register_kernels({"vllm.v1.worker.block_table.ComputeSlotMappingKernel.kernel": launch})
