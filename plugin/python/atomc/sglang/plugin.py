"""What SGLang calls when one of its processes starts."""

import torch

from atomc.frameworks import disabled

from . import compat


def register() -> None:
    """Entry point of `sglang.srt.plugins`: offers our attention backend, pages that fit, and on the host gives memory back."""
    if disabled():
        return
    from . import config, memory
    from .attention import Backend

    compat.add_attention_backend_choices(["atomc"])
    compat.register_attention_backend("atomc")(Backend)
    compat.HookRegistry.register(compat.PAGE_SIZE, config.page_size, compat.HookType.AROUND)
    if platform():
        memory.register()


def platform() -> str | None:
    """Entry point of `sglang.srt.platforms`: the host, where there is nothing else."""
    if disabled() or torch.accelerator.is_available() or compat.has_kernels():
        return None
    return f"{__package__}.platform.HostPlatform"
