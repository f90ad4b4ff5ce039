"""All of SGLang that the shim uses, and where its releases differ."""

import os
from collections.abc import Iterable
from functools import cache
from importlib.metadata import version

import torch

from atomc import _atomc
from atomc.frameworks import Refused, attributes, setting, untested

# The releases that the tests run.
TESTED = ("0.5.23", "0.5.11")

# It has no platform for processors, and no context of a step, of ranks and of options.
OLDER = version("sglang") == "0.5.11"

# The architectures that artifacts can hold.
ARCHITECTURES = tuple(_atomc.architectures())

# SGLang's names of the classes of drafts: those that come with such models, made of the tensors
# after the last layer, and heads with a checkpoint of their own.
DRAFTS = (
    *(name + draft for name in ARCHITECTURES for draft in ("NextN", "MTP")),
    "LlamaForCausalLMEagle3",
)

# The ways of SGLang's to guess that a draft of an artifact serves, as it resolves them.
EAGLE = ("EAGLE", "EAGLE3")

# What runs instead with `--model-impl transformers`, and where SGLang has no class of its own.
TRANSFORMERS = "TransformersForCausalLM"

# Architectures by their types, where SGLang has a class for two and calls both as one of them.
CALLED = {"olmo3": "Olmo3ForCausalLM"}

# Types of which SGLang's class has one rotary embedding, where others have two: that of layers
# without a window, which releases call `rope_scaling`.
ONE_ROPE = ("olmo3",)

# Facts of a model that SGLang rounds up for processors, and where it keeps what they were.
ROUNDED = {
    "intermediate_size": "original_intermediate_size",
    "moe_intermediate_size": "original_moe_intermediate_size",
    "shared_expert_intermediate_size": "original_shared_expert_intermediate_size",
    "intermediate_size_mlp": "original_intermediate_size_mlp",
    "num_attention_heads": "original_num_attention_heads",
    "num_key_value_heads": "original_total_num_kv_heads",
}

# The functions of SGLang that are hooked (`HookRegistry`), with reasons in docs/sglang.md.
PAGE_SIZE = (
    "sglang.srt.server_args.ServerArgs._handle_page_size"
    if OLDER
    else "sglang.srt.arg_groups.overrides._page_size_default"
)
RINGS = "sglang.srt.mem_cache.memory_pool.HybridReqToTokenPool._init_mamba_pool"
HALVES = "sglang.srt.mem_cache.memory_pool.MHATokenToKVPool._create_buffers"
ROWS = "sglang.srt.mem_cache.memory_pool.MLATokenToKVPool._create_buffers"
HAS_INDEXERS = "sglang.srt.configs.model_config.is_deepseek_dsa"
MODEL_CONFIG = "sglang.srt.configs.model_config.ModelConfig.from_server_args"
WRAPPER = "sglang.srt.layers.attention.attention_registry.attn_backend_wrapper"
SAVER = "sglang.srt.utils.torch_memory_saver_adapter.TorchMemorySaverAdapter.create"
CHECKER = "sglang.srt.utils.weight_checker.WeightChecker.handle"
DRAFT_BACKEND = "sglang.srt.speculative.draft_utils.DraftBackendFactory.create_draft_extend_backend"
GUESS_BACKENDS = "sglang.srt.speculative.draft_utils.DraftBackendFactory.create_decode_backend"
LATER = "sglang.srt.speculative.spec_utils._select_top_k_tokens_later"
LAST_SLOT = "sglang.srt.mem_cache.allocation.get_last_loc"
SLOTS = "sglang.srt.mem_cache.allocation.assign_req_to_token_pool_func"
GUESS_SLOTS = "sglang.kernels.ops.speculative.cache_locs.assign_draft_cache_locs_contiguous_func"
CHAIN = "sglang.kernels.ops.speculative.spec_tree.build_tree_kernel_efficient_func"
VERIFY = "sglang.kernels.ops.speculative.spec_tree.verify_tree_greedy_func"
BONUS = "sglang.kernels.ops.speculative.eagle.fill_bonus_tokens_func"
LIKELIEST = "sglang.srt.speculative.eagle_utils._verify_uses_greedy"
SAMPLE = "sglang.srt.speculative.eagle_utils.eagle_sample"
RELEASE = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager.release_memory_occupation"
DECODE = "sglang.srt.managers.schedule_batch.ScheduleBatch.prepare_for_decode"

# The tag of pools among what torch_memory_saver keeps.
CACHE_TAG = "kv_cache"

# Everything else: of each module, the names that are used of it.
NAMES = {
    "sglang.srt.layers.attention.attention_registry": "register_attention_backend",
    "sglang.srt.layers.attention.base_attn_backend": "AttentionBackend",
    "sglang.srt.layers.logits_processor": "LogitsMetadata LogitsProcessor LogitsProcessorOutput",
    "sglang.srt.mem_cache.memory_pool": "HybridLinearKVPool MHATokenToKVPool MLATokenToKVPool",
    "sglang.srt.mem_cache.swa_memory_pool": "SWAKVPool",
    "sglang.srt.models.registry": "import_model_classes",
    "sglang.srt.platforms": "current_platform",
    "sglang.srt.plugins.hook_registry": "HookRegistry HookType",
}

BEFORE = {
    "sglang.srt.configs.model_config": "ModelConfig",
    "sglang.srt.layers.dp_attention": "get_attention_tp_group get_attention_tp_rank",
    "sglang.srt.server_args": "add_attention_backend_choices add_deterministic_attention_backend_choices get_global_server_args "
    "add_radix_supported_deterministic_attention_backend_choices",
    "sglang.srt.utils": "is_cuda is_hip",
}
SINCE = {
    "sglang.srt.arg_groups.choices": "add_attention_backend_choices add_deterministic_attention_backend_choices "
    "add_radix_supported_deterministic_attention_backend_choices",
    "sglang.srt.arg_groups.overrides": "model_config_of",
    "sglang.srt.configs.model_config": "is_deepseek_dsa",
    "sglang.srt.constants": "GPU_MEMORY_ALL_TYPES",
    "sglang.srt.layers.attention.verify_mask": "maybe_create_verify_mask",
    "sglang.srt.managers.io_struct": "ReleaseMemoryOccupationReqOutput",
    "sglang.srt.managers.scheduler_components.weight_updater": "_export_static_state",
    "sglang.srt.model_executor.forward_context": "get_req_to_token_pool get_token_to_kv_pool",
    "sglang.srt.platforms.cpu": "CpuDeviceMixin",
    "sglang.srt.platforms.device_mixin": "PlatformEnum",
    "sglang.srt.platforms.interface": "SRTPlatform",
    "sglang.srt.runtime_context": "get_parallel get_server_args",
    "sglang.srt.speculative.eagle_utils": "_verify_coins",
}
NAMES |= BEFORE if OLDER else SINCE

__getattr__ = attributes("SGLang", "sglang", TESTED, NAMES)


def given():
    """SGLang's arguments in this process."""
    return __getattr__("get_global_server_args" if OLDER else "get_server_args")()


def take_page(view, tokens: int) -> dict:
    """Says of arguments that are being resolved how large pages are."""
    if OLDER:
        view.page_size = tokens
    return {"page_size": tokens}


def ranks() -> tuple:
    """The rank of this process among those that have one batch, and their group: with attention of several batches, not all."""
    if OLDER:
        return __getattr__("get_attention_tp_rank")(), __getattr__("get_attention_tp_group")()
    return (parallel := __getattr__("get_parallel")()).attn_tp_rank, parallel.attn_tp_group


def agree(*values: torch.Tensor) -> None:
    """Gives all ranks that have one batch what the first has drawn."""
    _, group = ranks()
    if group.world_size > 1:
        for value in values:
            group.broadcast(value, src=0)


def pools(batch) -> tuple:
    """SGLang's pool of tokens, and that of requests, which has the slots of each, and its state's."""
    if OLDER:
        return batch.token_to_kv_pool, batch.req_to_token_pool
    return __getattr__("get_token_to_kv_pool")(), __getattr__("get_req_to_token_pool")()


def marks(batch, on_host: bool) -> torch.Tensor | None:
    """For each request, the new tokens after which SGLang keeps its state, or 0; none if it keeps
    none. Captured steps could not look and keep none, as `config.check` makes sure."""
    decode = batch.forward_mode.is_decode()
    if (
        OLDER
        or batch.mamba_track_mask is None
        or (decode and not on_host)
        or not batch.mamba_track_mask.any()
    ):
        return None
    behind = torch.ones_like(batch.seq_lens) if decode else batch.mamba_track_aligned_lens()
    return behind * batch.mamba_track_mask


def keep_states(batch, tracked: torch.Tensor) -> None:
    """Copies states of requests to where SGLang has asked for them."""
    pool = __getattr__("get_req_to_token_pool")()
    now, kept = (
        pool.get_mamba_indices(batch.req_pool_indices[tracked]),
        batch.mamba_track_indices[tracked],
    )
    copy_states(pool, now, kept)


def copy_states(pool, source: torch.Tensor, target: torch.Tensor) -> None:
    """Copies states from slots to others of a pool of requests."""
    places = map(pool.translate_mamba_indices, (source, target))
    pool.mamba_pool.copy_from(*places)


def parts(pool) -> list:
    """The pools that a pool of several kinds of layers is made of, or that pool."""
    if isinstance(pool, __getattr__("HybridLinearKVPool")):
        return [pool.full_kv_pool]
    return (
        [pool.full_kv_pool, pool.swa_kv_pool]
        if isinstance(pool, __getattr__("SWAKVPool"))
        else [pool]
    )


def windowed(pool, layer: int) -> bool:
    """Whether slots of a layer are those of a pool that keeps the window of each sequence alone."""
    return len(parts(pool)) > 1 and pool.layers_mapping[layer][1]


def check_release() -> None:
    """Refuses a release that the tests do not run: what the shim takes for granted may have changed without a name's being gone."""
    if (fault := untested("SGLang", "sglang", TESTED)) and setting(
        "ATOMC_UNSUPPORTED_VERSION"
    ) != "1":
        raise Refused(f"atomc: {fault}; ATOMC_UNSUPPORTED_VERSION=1 runs artifacts all the same")


@cache
def own_class(architecture: str) -> type:
    """SGLang's class for what artifacts can hold: its own, or the one over transformers' code where it has no other."""
    classes = __getattr__("import_model_classes")("sglang.srt.models")
    return classes.get(architecture) or classes[TRANSFORMERS]


def gpu() -> str:
    """The GPUs that SGLang runs on here: `hip`, `cuda`, or none."""
    if OLDER:  # whose platforms are those of plugins alone
        is_hip, is_cuda = __getattr__("is_hip"), __getattr__("is_cuda")
        return "hip" if is_hip() else "cuda" if is_cuda() else ""
    platform = __getattr__("current_platform")
    return "hip" if platform.is_rocm() else "cuda" if platform.is_cuda() else ""


def has_kernels() -> bool:
    """Whether SGLang is asked to run on the processor with kernels of its own, by the variable that it reads there."""
    return os.environ.get("SGLANG_USE_CPU_ENGINE", "0") == "1"


def is_chosen() -> bool:
    """Whether SGLang is to look for models in a package: without one nothing of SGLang is touched."""
    return bool(os.environ.get("SGLANG_EXTERNAL_MODEL_PACKAGE"))


def on_host() -> bool:
    """Whether the platform and the pools are the plugin's."""
    return not torch.accelerator.is_available() and not has_kernels()


def context_length(server_args=None) -> int:
    """The length of sequences that SGLang takes, of arguments that are being resolved, or those of this process."""
    of = __getattr__("ModelConfig").from_server_args if OLDER else __getattr__("model_config_of")
    return of(server_args or given()).context_len


def unread_mask(runner):
    """The smallest that SGLang has of masks for steps that verify guesses, of a model that has such steps."""
    if OLDER:
        return None
    count = options(["speculative_num_draft_tokens"])["speculative_num_draft_tokens"]
    most, longest = runner.max_running_requests, runner.model_config.context_len
    return __getattr__("maybe_create_verify_mask")(
        is_draft_runner=runner.is_draft_worker,
        skip_prefill=False,
        max_bs=most,
        max_context_len=longest,
        num_draft_tokens=count,
        device=runner.device,
        is_read=False,
    )


def options(names: Iterable[str]) -> dict:
    """SGLang's options by their names, as it has resolved them. None are there before it has, and not all in each release."""
    if OLDER:
        return {name: getattr(given(), name, None) for name in names}
    resolved = given().resolved_dict()
    return {name: resolved.get(name) for name in names}
