"""What vLLM calls when one of its processes starts."""

from atomc.frameworks import disabled, untested

from . import compat


def register() -> None:
    """Entry point of `vllm.general_plugins`: a model for every architecture that artifacts hold, and a load format."""
    if disabled():
        return
    from .loader import Loader

    if fault := untested("vLLM", "vllm", compat.TESTED):
        compat.init_logger(f"vllm.{__name__}").warning("atomc: %s", fault)
    for architecture in (*compat.ARCHITECTURES, compat.TRANSFORMERS, *compat.DRAFTS):
        name = f"{__package__}.model:{compat.kept_name(architecture)}"
        compat.ModelRegistry.register_model(architecture, name)
    compat.register_model_loader("atomc")(Loader)


def platform() -> str | None:
    """Entry point of `vllm.platform_plugins`: the host, where none of vLLM's own platforms finds a device."""
    try:
        if disabled():
            return None
    except ValueError:
        pass  # vLLM says nothing of what is raised here, and shows what `register` raises
    found = any(probe() for probe in compat.builtin_platform_plugins.values())
    return None if found else f"{__package__}.platform.HostPlatform"
