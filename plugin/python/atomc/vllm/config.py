"""What vLLM's configuration means for an artifact: which one, on which device, and which options it cannot serve."""

import dataclasses
import json
from dataclasses import is_dataclass
from enum import Enum
from functools import reduce
from pathlib import Path
from typing import Literal

import atomc
from atomc import _atomc, frameworks
from atomc.frameworks import Refused, Wanted, setting

from . import compat
from .compat import MULTIMODAL_REGISTRY, VllmConfig, current_platform, init_logger

logger = init_logger(f"vllm.{__name__}")


def wanted(config: VllmConfig) -> Wanted:
    extra = config.additional_config, config.load_config.model_loader_extra_config
    named = _atomc.named_artifact(*(json.dumps(option, default=str) for option in extra))
    model, own = config.model_config, attention() == "own"
    asked = json.dumps(
        {"language_model_only": getattr(model.multimodal_config, "language_model_only", False)}
    )
    return Wanted(
        "vLLM",
        Path(model.model),
        named,
        model.trust_remote_code,
        lambda: resolved(config),
        gpu(),
        asked,
        own,
    )


def resolved(config: VllmConfig) -> tuple[str, str]:
    """The model's configuration and the options that are judged, as vLLM has resolved them, as JSON."""
    facts = config.model_config.hf_config.to_dict()
    found = [
        (name, reduce(lambda at, part: getattr(at, part, None), path.split("."), config))
        for name, path in _atomc.judged_options()
    ]
    asked = {name: fields(value) for name, value in found if value is not None}
    if images(config) == "seen" and config.model_config.architecture in _atomc.towers():
        asked["processors"] = processors(config)
    return json.dumps(facts, default=str), json.dumps(asked, default=name)


def images(config: VllmConfig) -> Literal["unknown", "absent", "seen"]:
    """What vLLM gives of images, if an artifact has a tower."""
    if not compat.gives_images():
        return "unknown"
    return "seen" if config.model_config.supports_multimodal_inputs else "absent"


def processors(config: VllmConfig) -> dict[str, int]:
    """Most pixels of an image, and of a frame of a video, as vLLM's processors of the model make them."""
    info = MULTIMODAL_REGISTRY.create_processor(config.model_config).info
    kinds = dict(image=info.get_image_processor, video=info.get_video_processor)
    limits = info.allowed_mm_limits
    return {kind: of().size["longest_edge"] for kind, of in kinds.items() if limits.get(kind)}


def name(value) -> str:
    """What users call a value of vLLM's: a type of torch's, or one of several choices."""
    return value.name if isinstance(value, Enum) else str(value).removeprefix("torch.")


def fields(value):
    """A value, or what is in one of vLLM's configurations."""
    if not is_dataclass(value) or isinstance(value, type):
        return value
    return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}


def find(config: VllmConfig) -> atomc.Artifact | None:
    """The artifact of this model, if it is not vLLM's own model that runs."""
    return frameworks.find(wanted(config), logger)


def gpu() -> str:
    """The GPUs that vLLM runs on here: `hip`, `cuda`, or none."""
    return (
        ""
        if not current_platform.is_cuda_alike()
        else "hip"
        if current_platform.is_rocm()
        else "cuda"
    )


def attention() -> Literal["own", "caller"]:
    """Which side attends: atomc's kernels, or with ATOMC_ATTENTION=vllm vLLM's layer."""
    return "caller" if setting("ATOMC_ATTENTION") == "vllm" else "own"


def check(config: VllmConfig, artifact: atomc.Artifact, engine: atomc.Model) -> None:
    """Refuses a model that is not the artifact's, as vLLM has resolved it, and options that do not fit."""
    if refusals := engine.refusals(*resolved(config)):
        raise Refused(f"{artifact.path}: {refusals[0]}")


def pass_by(config: VllmConfig) -> None:
    """Says that an implementation runs that no artifact stands in for."""
    asked = f"--model-impl {config.model_config.model_impl}"
    if setting("ATOMC_STRICT") == "1":
        raise Refused(f"{asked}: no artifact runs so, and ATOMC_STRICT is set")
    logger.warning("atomc: %s: vLLM's model over transformers runs, and no artifact", asked)
