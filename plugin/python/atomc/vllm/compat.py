"""All of vLLM that the shim uses, and where its releases differ."""

from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from types import SimpleNamespace

import torch

from atomc import _atomc
from atomc.frameworks import attributes

# The releases that the tests run.
TESTED = ("0.33.0", "0.30.0", "0.26.0")

# The architectures that artifacts can hold.
ARCHITECTURES = tuple(_atomc.architectures())

# What runs instead with `--model-impl transformers`, and where vLLM has no class of its own.
TRANSFORMERS = "TransformersForCausalLM"

# Everything else: of each module, the names that are used of it.
NAMES = {
    "vllm": "ModelRegistry",
    "vllm.compilation.breakable_cudagraph": "BreakableCUDAGraphCapture eager_break_during_capture",
    "vllm.config": "CUDAGraphMode CompilationMode VllmConfig",
    "vllm.distributed": "get_tensor_model_parallel_rank tensor_model_parallel_all_gather tensor_model_parallel_all_reduce",
    "vllm.forward_context": "get_forward_context",
    "vllm.logger": "init_logger",
    "vllm.model_executor.layers.attention": "Attention",
    "vllm.model_executor.layers.attention_layer_base": "AttentionLayerBase",
    "vllm.model_executor.layers.mamba.abstract": "MambaBase",
    "vllm.model_executor.layers.mamba.mamba_utils": "get_temporal_copy_spec",
    "vllm.model_executor.model_loader": "register_model_loader",
    "vllm.model_executor.model_loader.default_loader": "DefaultModelLoader",
    "vllm.model_executor.models.registry": "_VLLM_MODELS",
    "vllm.multimodal": "MULTIMODAL_REGISTRY",
    "vllm.platforms": "builtin_platform_plugins current_platform",
    "vllm.platforms.interface": "Platform PlatformEnum",
    "vllm.v1.attention.backend": "AttentionBackend AttentionCGSupport AttentionImpl AttentionMetadataBuilder CommonAttentionMetadata",
    "vllm.v1.attention.backends.gdn_attn": "GDNAttentionMetadataBuilder",
    "vllm.v1.attention.backends.registry": "MambaAttentionBackendEnum",
    "vllm.v1.kv_cache_interface": "FullAttentionSpec MLAAttentionSpec SlidingWindowSpec",
    "vllm.v1.metrics.loggers": "StatLoggerBase",
    "vllm.v1.worker.cpu_worker": "CPUWorker",
    "vllm.v1.worker.gpu_worker": "Worker",
}

# Architectures of drafts that artifacts can hold, as vLLM names them, and its own modules and
# classes for them.
DRAFTS = {
    "DeepSeekMTPModel": ("deepseek_mtp", "DeepSeekMTP"),
    "Glm4MoeMTPModel": ("glm4_moe_mtp", "Glm4MoeMTP"),
    "Glm4MoeLiteMTPModel": ("glm4_moe_lite_mtp", "Glm4MoeLiteMTP"),
    "Qwen3NextMTP": ("qwen3_next_mtp", "Qwen3NextMTP"),
    "Qwen3_5MTP": ("qwen3_5_mtp", "Qwen3_5MTP"),
    "Qwen3_5MoeMTP": ("qwen3_5_mtp", "Qwen3_5MoeMTP"),
    "LlamaForCausalLMEagle3": ("llama_eagle3", "Eagle3LlamaForCausalLM"),
    "Eagle3LlamaForCausalLM": ("llama_eagle3", "Eagle3LlamaForCausalLM"),
    "Eagle3Qwen3ForCausalLM": ("qwen3_eagle3", "Eagle3Qwen3ForCausalLM"),
}

# Those of them that leave two kinds of rows: for logits, and for their next step.
TWO_ROWS = ("DeepSeekMTP", "Eagle3LlamaForCausalLM", "Eagle3Qwen3ForCausalLM")

__getattr__ = attributes("vLLM", "vllm", TESTED, NAMES)


def own_class(architecture: str) -> type | None:
    """vLLM's class for what artifacts can hold: its own, or the one over transformers' code where a release has no other."""
    if architecture in DRAFTS:
        module, name = DRAFTS[architecture]
        return getattr(import_module(f"vllm.model_executor.models.{module}"), name)
    if architecture in (*ARCHITECTURES, TRANSFORMERS):
        models = __getattr__("_VLLM_MODELS")
        module, name = models.get(architecture) or models[TRANSFORMERS]
        within = "" if module.startswith("vllm.") else "vllm.model_executor.models."
        return getattr(import_module(within + module), name)
    return None


def gives_images() -> bool:
    """Whether a release gives artifacts images: of those that are tested the newest alone."""
    return version("vllm") not in TESTED[1:]


def input_norm(model_config) -> torch.nn.Module:
    """What vLLM leaves of an image's preparation to the model."""
    norms = import_module("vllm.model_executor.layers.fusion.mm_input_norm")
    return norms.build_mm_input_norm(model_config)


def inner_model() -> SimpleNamespace:
    """What vLLM looks for inside a model: layers with loaders of weights, and an embedding that a draft may share. Nothing is in it."""
    return SimpleNamespace(layers=(), embed_tokens=SimpleNamespace(weight=None))


def kept_name(architecture: str) -> str:
    """What a class goes by in the registry: vLLM keeps the facts of a class under this name and does not look whether it changed."""
    return f"{architecture}-{version('vllm')}-{version('atomc')}"


def cache_shape(backend, num_blocks, block_size, num_kv_heads, head_size, cache_dtype_str="auto"):
    """0.26 asks a backend for the shape of a layer's cache; later ones always make this one."""
    return (num_blocks, num_kv_heads, block_size, backend.halves * head_size)


def takes_kernels() -> bool:
    """Whether this release lets a platform replace any of its Triton kernels."""
    return find_spec("vllm.triton_utils.dispatcher") is not None


def register_kernels(compute, copy, guessing) -> None:
    """Puts `compute(starts, positions, table, slots, block)` and `copy(sources, targets, sizes)` where vLLM's runner launches Triton
    kernels, and those of `guessing`, which are called and take what vLLM's do."""
    if takes_kernels():
        dispatcher = import_module("vllm.triton_utils.dispatcher")
        slots = import_module("vllm.v1.worker.block_table").ComputeSlotMappingKernel.kernel
        # The override of another engine in this process. vLLM would look at all modules again,
        # which fails for some that others import meanwhile, as numba is with `ngram`.
        if isinstance(slots, dispatcher.KernelOverride):
            return

        def launch(tokens, room, starts, positions, table, stride, slots, block, *_):
            compute(starts, positions, table, slots, block)

        own = {
            "vllm.v1.worker.block_table.ComputeSlotMappingKernel.kernel": launch,
            "vllm.v1.worker.mamba_utils.batch_memcpy_kernel": lambda *places, **_: copy(*places),
        }
        guesses = {f"vllm.v1.{name}": kernel for name, kernel in guessing.items()}
        dispatcher.register_kernels(own | guesses)
    # 0.30 and earlier call this instead.
    elif not hasattr(torch.ops._C, "compute_slot_mapping_kernel_impl"):
        name, arguments = (
            "_C::compute_slot_mapping_kernel_impl",
            "Tensor starts, Tensor positions, Tensor table",
        )
        torch.library.define(name, f"({arguments}, Tensor(a!) slots, int block) -> ()")
        torch.library.impl(name, "CPU", compute)
