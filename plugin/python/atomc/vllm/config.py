"""What vLLM's configuration means for an artifact: which one, on which device, and which options it cannot serve."""

import os
import shutil
import subprocess
from hashlib import sha256
from pathlib import Path

import torch
from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.platforms import current_platform

import atomc

logger = init_logger(f"vllm.{__name__}")

# Facts of config.json, by the artifact's names.
FACTS = {
    "vocab": "vocab_size",
    "hidden": "hidden_size",
    "intermediate": "intermediate_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "positions": "max_position_embeddings",
    "eps": "rms_norm_eps",
    "tied": "tie_word_embeddings",
}
DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}


class Refused(ValueError):
    """An artifact and vLLM's configuration do not fit; the message names the field."""


def find(config: VllmConfig) -> atomc.Artifact | None:
    """The artifact of this model: the one that is named, else the one beside it, else one that is compiled now."""
    options = {**config.additional_config, **config.load_config.model_loader_extra_config}
    named, model = options.get("artifact"), Path(config.model_config.model)
    path = Path(named) if named else model / "model.atomc"
    if named and not path.exists():
        raise Refused(f"artifact: {path} does not exist")
    if not path.exists() and os.environ.get("ATOMC_AUTOCOMPILE") == "1":
        path = compiled(config, model) or path
    if path.exists():
        return atomc.Artifact(str(path))
    if os.environ.get("ATOMC_STRICT") == "1":
        raise Refused(f"artifact: {path} does not exist, and ATOMC_STRICT is set")
    logger.info("atomc: there is no %s; vLLM's own model runs", path)
    return None


def compiled(config: VllmConfig, model: Path) -> Path | None:
    """Compiles `model` unless the same compiler has compiled the same configuration before."""
    compiler = shutil.which(os.environ.get("ATOMC_COMPILER", "atomc"))
    if compiler is None or not (model / "config.json").exists():
        logger.warning("atomc: ATOMC_AUTOCOMPILE takes the compiler (ATOMC_COMPILER) and %s/config.json", model)
        return None
    options = ["--target", target(), "--dtype", {v: k for k, v in DTYPES.items()}[dtype(config)]]
    if (ranks := config.parallel_config.tensor_parallel_size) > 1:
        options += ["--tp", str(ranks)]
    if attention() == "caller":
        options += ["--attention", "own,caller"]
    version = subprocess.run([compiler, "--version"], check=True, capture_output=True, text=True).stdout
    content = sha256("\0".join([version, *options]).encode())
    for name in ("config.json", "generation_config.json"):
        content.update((model / name).read_bytes() if (model / name).exists() else b"")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "atomc"
    path = cache / f"{content.hexdigest()}.atomc"
    if not path.exists():
        logger.info("atomc: compiling %s for %s", model, target())
        cache.mkdir(parents=True, exist_ok=True)
        done = subprocess.run([compiler, "compile", str(model), *options, "-o", str(path)], capture_output=True, text=True)
        if done.returncode:
            raise Refused(f"ATOMC_AUTOCOMPILE: {done.stderr.strip()}")
    return path


def device() -> str:
    """The device of this worker, as the runtime names it."""
    if current_platform.is_cuda_alike():
        return f"{'hip' if current_platform.is_rocm() else 'cuda'}:{torch.cuda.current_device()}"
    return "host"


def target() -> str:
    """What to compile for: ATOMC_TARGET, else this machine's chip."""
    if named := os.environ.get("ATOMC_TARGET"):
        return named
    if not current_platform.is_cuda_alike():
        return "host"
    chip = torch.cuda.get_device_properties()
    return chip.gcnArchName.split(":")[0] if current_platform.is_rocm() else f"sm_{chip.major}{chip.minor}a"


def attention() -> str:
    """Who attends: atomc's kernels, or with ATOMC_ATTENTION=vllm the layer that vLLM chooses for this machine."""
    asked = os.environ.get("ATOMC_ATTENTION", "own")
    if asked not in ("own", "vllm"):
        raise Refused(f"ATOMC_ATTENTION: {asked!r} is neither own nor vllm")
    return "caller" if asked == "vllm" else "own"


def dtype(config: VllmConfig) -> str:
    return str(config.model_config.dtype).removeprefix("torch.")


def check(config: VllmConfig, artifact: atomc.Artifact, engine: atomc.Model) -> None:
    """Refuses what differs, and what is not served. This is the whole translation between the two configurations."""
    model, cache, parallel = config.model_config, config.cache_config, config.parallel_config
    facts, text, pages = artifact.config["model"], model.hf_text_config, engine.cache
    cache_dtype = DTYPES[pages.dtype]
    equal = [
        ("config.json: architectures", model.architectures[0], artifact.architecture),
        *((f"config.json: {name}", getattr(text, name, None), facts[fact]) for fact, name in FACTS.items()),
        ("--dtype", dtype(config), DTYPES[engine.dtype]),
        ("--kv-cache-dtype", cache_dtype if cache.cache_dtype == "auto" else cache.cache_dtype, cache_dtype),
        ("--tensor-parallel-size", parallel.tensor_parallel_size, artifact.tensor_parallel),
        ("--pipeline-parallel-size", parallel.pipeline_parallel_size, 1),
        ("--decode-context-parallel-size", parallel.decode_context_parallel_size, 1),
        ("--runner", model.runner_type, "generate"),
        ("--quantization", model.quantization, None),
        ("--enable-lora", config.lora_config is not None, False),
        ("--speculative-config", config.speculative_config is not None, False),
        ("--kv-transfer-config", config.kv_transfer_config is not None, False),
        ("--enable-dbo", parallel.enable_dbo, False),
        ("--enable-prompt-embeds", model.enable_prompt_embeds, False),
        ("--load-format dummy", config.load_config.load_format == "dummy", False),
    ]
    for field, asked, held in equal:
        if asked != held and not (asked is None and field.startswith("config.json")):
            raise Refused(f"{artifact.path}: {field}: vLLM has {asked}, the artifact {held}")
    if model.max_model_len > engine.max_positions:
        asked, held = model.max_model_len, engine.max_positions
        raise Refused(f"{artifact.path}: --max-model-len: vLLM has {asked}, the artifact at most {held}")
    if engine.attention == "caller" and config.scheduler_config.max_num_batched_tokens > engine.max_tokens:
        asked, held = config.scheduler_config.max_num_batched_tokens, engine.max_tokens
        raise Refused(f"{artifact.path}: --max-num-batched-tokens: vLLM has {asked}, the artifact at most {held}")
    if cache.user_specified_block_size and cache.block_size % pages.block_tokens:
        asked, held = cache.block_size, pages.block_tokens
        raise Refused(f"{artifact.path}: --block-size: vLLM has {asked}, the artifact multiples of {held}")
