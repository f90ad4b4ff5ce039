"""What vLLM's configuration means for an artifact: which one, on which device, and which options it cannot serve."""

import os
from pathlib import Path
from shlex import quote

import torch
from transformers import PretrainedConfig
from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.platforms import current_platform

import atomc
from atomc import autocompile

logger = init_logger(f"vllm.{__name__}")

CACHES = {"fp8": "float8_e4m3fn", "fp8_e4m3": "float8_e4m3fn"}


class Refused(ValueError):
    """An artifact does not fit vLLM's configuration."""


def find(config: VllmConfig) -> atomc.Artifact | None:
    """The artifact of this model: the one that is named, else the one beside it if its code is trusted, else one that is
    compiled now."""
    named = {**config.additional_config, **config.load_config.model_loader_extra_config}.get("artifact")
    model = Path(config.model_config.model)
    beside, say, reason = model / "model.atomc", logger.info, f"there is no {model / 'model.atomc'}"
    found = not named and beside.exists()
    if not named and not found and os.environ.get("ATOMC_AUTOCOMPILE") == "1":
        named = compiled(config, model)
    if named:
        return atomc.Artifact(named)
    if found:  # and may have come with the model from anywhere
        artifact = atomc.Artifact(beside)
        if config.model_config.trust_remote_code or artifact.trusted():
            return artifact
        say, reason = logger.warning, f"{beside} is code that nobody trusts; `atomc trust {quote(str(beside))}` says that you do"
    if os.environ.get("ATOMC_STRICT") == "1":
        raise Refused(f"artifact: {reason}, and ATOMC_STRICT is set")
    say("atomc: %s; vLLM's own model runs", reason)
    return None


def compiled(config: VllmConfig, model: Path) -> Path | None:
    """Compiles what this machine and vLLM's options want, unless it was compiled before."""
    options = ["--target", target(), "--dtype", str(config.model_config.dtype).removeprefix("torch.")]
    if (ranks := config.parallel_config.tensor_parallel_size) > 1:
        options += ["--tp", str(ranks)]
    if config.cache_config.cache_dtype in CACHES:
        options += ["--cache-dtype", "fp8"]
    if attention() == "caller":
        options += ["--attention", "own,caller"]
    return autocompile.artifact(model, *options, warn=logger.warning)


def device() -> str:
    """The device of this worker, as the runtime names it."""
    if current_platform.is_cuda_alike():
        return f"{'hip' if current_platform.is_rocm() else 'cuda'}:{torch.cuda.current_device()}"
    return "host"


def target() -> str:
    """What to compile for: ATOMC_TARGET, else this machine's chip."""
    if (named := os.environ.get("ATOMC_TARGET")) or not current_platform.is_cuda_alike():
        return named or "host"
    chip = torch.cuda.get_device_properties()
    return chip.gcnArchName.split(":")[0] if current_platform.is_rocm() else f"sm_{chip.major}{chip.minor}a"


def attention() -> str:
    """Who attends: atomc's kernels, or with ATOMC_ATTENTION=vllm the layer that vLLM chooses for this machine."""
    asked = os.environ.get("ATOMC_ATTENTION", "own")
    if asked not in ("own", "vllm"):
        raise Refused(f"ATOMC_ATTENTION: {asked!r} is neither own nor vllm")
    return "caller" if asked == "vllm" else "own"


def check(config: VllmConfig, artifact: atomc.Artifact, engine: atomc.Model) -> None:
    """Refuses what differs, and what is not served. Here is the whole translation between the two configurations."""
    model, cache, parallel = config.model_config, config.cache_config, config.parallel_config
    fields, dtype, pages = artifact.config["model"]["fields"], str(model.dtype).split(".")[1], engine.cache.dtype
    kv, (theirs, _) = cache.cache_dtype, PretrainedConfig.get_config_dict(model.model)
    equal = [(f"config.json: {name}", theirs.get(name), held) for name, held in fields.items()] + [
        ("config.json: architectures", model.architectures[0], artifact.architecture),
        ("--dtype", dtype, engine.dtype),
        ("--kv-cache-dtype", CACHES.get(kv, pages if kv == "auto" else kv), pages),
        ("--tensor-parallel-size", parallel.tensor_parallel_size, artifact.tensor_parallel),
        ("--runner", model.runner_type, "generate"),
    ]
    unserved = {"--quantization": model.quantization, "--load-format": config.load_config.load_format == "dummy"}
    unserved |= {"--speculative-config": config.speculative_config, "--kv-transfer-config": config.kv_transfer_config}
    unserved |= {"--enable-lora": config.lora_config, "--enable-dbo": parallel.enable_dbo}
    unserved |= {"--pipeline-parallel-size": parallel.pipeline_parallel_size > 1}
    unserved |= {"--decode-context-parallel-size": parallel.decode_context_parallel_size > 1}
    own, block, longest = engine.attention == "own", engine.cache.block_tokens, engine.max_positions
    step, asks = config.scheduler_config.max_num_batched_tokens, cache.user_specified_block_size and own
    bounds = [
        ("--max-model-len", model.max_model_len, f"at most {longest}", model.max_model_len <= longest),
        ("--block-size", cache.block_size, f"multiples of {block}", not asks or cache.block_size % block == 0),
        ("--max-num-batched-tokens", step, f"at most {engine.max_tokens}", own or step <= engine.max_tokens),
    ]
    bounds += [(field, asked, held, asked == held) for field, asked, held in equal]
    for field, asked, held, fits in bounds + [(field, asked, "none", not asked) for field, asked in unserved.items()]:
        if not fits:
            raise Refused(f"{artifact.path}: {field}: vLLM has {asked}, the artifact {held}")
