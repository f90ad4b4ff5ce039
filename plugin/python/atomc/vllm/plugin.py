"""What vLLM calls when one of its processes starts."""

import os


def register() -> None:
    """Entry point of `vllm.general_plugins`: a model for every architecture that artifacts hold, and a load format."""
    if os.environ.get("ATOMC_DISABLE") == "1":
        return
    from vllm import ModelRegistry
    from vllm.model_executor.model_loader import register_model_loader

    from . import compat, loader

    for architecture in compat.ARCHITECTURES:
        ModelRegistry.register_model(architecture, f"{__package__}.model:{architecture}")
    register_model_loader("atomc")(loader.Loader)


def platform() -> str | None:
    """Entry point of `vllm.platform_plugins`: the host, where none of vLLM's own platforms finds a device."""
    if os.environ.get("ATOMC_DISABLE") == "1":
        return None
    from vllm.platforms import builtin_platform_plugins

    found = any(probe() for probe in builtin_platform_plugins.values())
    return None if found else f"{__package__}.platform.HostPlatform"
