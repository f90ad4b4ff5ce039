"""All of SGLang that the shim uses, and where its releases differ."""

import os
from functools import cache

from atomc import _atomc
from atomc.frameworks import Refused, attributes, setting, untested

# The releases that the tests run.
TESTED = ("0.5.23",)

# The architectures that artifacts can hold.
ARCHITECTURES = tuple(name for name, _ in _atomc.architectures())

# What SGLang calls the classes of drafts that come with such models: of the tensors behind the last
# layer, which artifacts leave out.
DRAFTS = tuple(name + draft for name in ARCHITECTURES for draft in ("NextN", "MTP"))

# What runs instead with `--model-impl transformers`, and where SGLang has no class of its own.
TRANSFORMERS = "TransformersForCausalLM"

# Facts of a model that SGLang rounds up for processors, and where it keeps what they were.
ROUNDED = {
    "intermediate_size": "original_intermediate_size",
    "moe_intermediate_size": "original_moe_intermediate_size",
    "num_attention_heads": "original_num_attention_heads",
    "num_key_value_heads": "original_total_num_kv_heads",
}

# What is called behind or in the place of SGLang's own by its hooks.
PAGE_SIZE = "sglang.srt.arg_groups.overrides._page_size_default"
SAVER = "sglang.srt.utils.torch_memory_saver_adapter.TorchMemorySaverAdapter.create"
RELEASE = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager.release_memory_occupation"

# Everything else by its name, and the module that has it.
NAMES = {
    "AttentionBackend": "sglang.srt.layers.attention.base_attn_backend",
    "CpuDeviceMixin": "sglang.srt.platforms.cpu",
    "HookRegistry": "sglang.srt.plugins.hook_registry",
    "HookType": "sglang.srt.plugins.hook_registry",
    "LogitsMetadata": "sglang.srt.layers.logits_processor",
    "LogitsProcessor": "sglang.srt.layers.logits_processor",
    "LogitsProcessorOutput": "sglang.srt.layers.logits_processor",
    "MHATokenToKVPool": "sglang.srt.mem_cache.memory_pool",
    "MLATokenToKVPool": "sglang.srt.mem_cache.memory_pool",
    "PlatformEnum": "sglang.srt.platforms.device_mixin",
    "SRTPlatform": "sglang.srt.platforms.interface",
    "add_attention_backend_choices": "sglang.srt.arg_groups.choices",
    "current_platform": "sglang.srt.platforms",
    "get_parallel": "sglang.srt.runtime_context",
    "get_req_to_token_pool": "sglang.srt.model_executor.forward_context",
    "get_server_args": "sglang.srt.runtime_context",
    "get_token_to_kv_pool": "sglang.srt.model_executor.forward_context",
    "import_model_classes": "sglang.srt.models.registry",
    "model_config_of": "sglang.srt.arg_groups.overrides",
    "register_attention_backend": "sglang.srt.layers.attention.attention_registry",
}

__getattr__ = attributes("SGLang", "sglang", TESTED, NAMES)


def check_release() -> None:
    """Refuses a release that the tests do not run: what the shim takes for granted may have changed without a name's being gone."""
    if (fault := untested("SGLang", "sglang", TESTED)) and setting("ATOMC_UNSUPPORTED_VERSION") != "1":
        raise Refused(f"atomc: {fault}; ATOMC_UNSUPPORTED_VERSION=1 runs artifacts all the same")


@cache
def own_class(architecture: str) -> type:
    """SGLang's class for what artifacts can hold: its own, or the one over transformers' code where it has no other."""
    classes = __getattr__("import_model_classes")("sglang.srt.models")
    return classes.get(architecture) or classes[TRANSFORMERS]


def gpu() -> str:
    """Whose GPUs SGLang runs on here: `hip`, `cuda`, or none."""
    platform = __getattr__("current_platform")
    return "hip" if platform.is_rocm() else "cuda" if platform.is_cuda() else ""


def has_kernels() -> bool:
    """Whether SGLang is asked to run on the processor with kernels of its own, by the variable that it reads there."""
    return os.environ.get("SGLANG_USE_CPU_ENGINE", "0") == "1"


def context_length(server_args=None) -> int:
    """The length of sequences that SGLang takes, of arguments that are being resolved, or those of this process."""
    return __getattr__("model_config_of")(server_args or __getattr__("get_server_args")()).context_len


def options(names: list[str]) -> dict:
    """SGLang's options by their names, as it has resolved them. None are there before it has."""
    resolved = __getattr__("get_server_args")().resolved_dict()
    return {name: resolved[name] for name in names}
