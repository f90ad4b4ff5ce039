"""What vLLM's configuration means for an artifact: which one, on which device, and which options it cannot serve."""

import json
import os
from functools import reduce
from pathlib import Path
from shlex import quote

import torch

import atomc
from atomc import _atomc, autocompile

from .compat import VllmConfig, current_platform, init_logger
from .settings import setting

logger = init_logger(f"vllm.{__name__}")


class Refused(ValueError):
    """An artifact does not fit vLLM's configuration."""


def find(config: VllmConfig) -> atomc.Artifact | None:
    """The artifact of this model, if it is not vLLM's own model that runs."""
    artifact, say, reason = located(config)
    if artifact:
        return artifact
    if setting("ATOMC_STRICT") == "1":
        raise Refused(f"artifact: {reason}, and ATOMC_STRICT is set")
    say("atomc: %s; vLLM's own model runs", reason)
    return None


def located(config: VllmConfig) -> tuple:
    """The artifact that is named, else the one beside the model if its code is trusted, else one that is compiled now; or
    none, how loud to say so, and why."""
    options = config.additional_config, config.load_config.model_loader_extra_config
    named = _atomc.named_artifact(*(json.dumps(option, default=str) for option in options))
    model = Path(config.model_config.model)
    beside = model / "model.atomc"
    found = not named and os.path.lexists(beside)  # a link that leads nowhere is a fault, not a model without an artifact
    if not named and not found and setting("ATOMC_AUTOCOMPILE") == "1":
        named = compiled(config, model)
    if not named and not found:
        return None, logger.info, f"there is no {beside}"
    artifact = atomc.Artifact(named or beside)
    if named or config.model_config.trust_remote_code or artifact.trusted():
        return artifact, None, None
    # What lies beside a model may have come with it from anywhere.
    return None, logger.warning, f"{beside} is code that nobody trusts; `atomc trust {quote(str(beside))}` says that you do"


def compiled(config: VllmConfig, model: Path) -> Path | None:
    """Compiles what this machine and vLLM's options want, unless it was compiled before."""
    options = ["--target", target(), "--dtype", str(config.model_config.dtype).removeprefix("torch.")]
    if (ranks := config.parallel_config.tensor_parallel_size) > 1:
        options += ["--tp", str(ranks)]
    if config.cache_config.cache_dtype in ("fp8", "fp8_e4m3"):
        options += ["--cache-dtype", "fp8"]
    if attention() == "caller":
        options += ["--attention", "own,caller"]
    return autocompile.artifact(model, *options, compiler=setting("ATOMC_COMPILER"), warn=logger.warning)


def device() -> str:
    """The device of this worker, as the runtime names it."""
    if current_platform.is_cuda_alike():
        return f"{'hip' if current_platform.is_rocm() else 'cuda'}:{torch.cuda.current_device()}"
    return "host"


def target() -> str:
    """What to compile for: ATOMC_TARGET, else this machine's chip."""
    if (named := setting("ATOMC_TARGET")) or not current_platform.is_cuda_alike():
        return named or "host"
    chip = torch.cuda.get_device_properties()
    return chip.gcnArchName.split(":")[0] if current_platform.is_rocm() else f"sm_{chip.major}{chip.minor}a"


def attention() -> str:
    """Who attends: atomc's kernels, or with ATOMC_ATTENTION=vllm the layer that vLLM chooses for this machine."""
    return "caller" if setting("ATOMC_ATTENTION") == "vllm" else "own"


def check(config: VllmConfig, artifact: atomc.Artifact, engine: atomc.Model) -> None:
    """Refuses a model that is not the artifact's, as vLLM has resolved it, and options that do not fit."""
    theirs = json.dumps(config.model_config.hf_text_config.to_dict(), default=str)
    asked = {name: reduce(lambda at, part: getattr(at, part, None), path.split("."), config) for name, path in _atomc.judged_options()}
    if refusals := engine.refusals(theirs, json.dumps(asked, default=str)):
        raise Refused(f"{artifact.path}: {refusals[0]}")


def pass_by(config: VllmConfig) -> None:
    """Says that an implementation runs that no artifact stands in for."""
    asked = f"--model-impl {config.model_config.model_impl}"
    if setting("ATOMC_STRICT") == "1":
        raise Refused(f"{asked}: no artifact runs so, and ATOMC_STRICT is set")
    logger.warning("atomc: %s: vLLM's model over transformers runs, and no artifact", asked)
