"""What SGLang calls when one of its processes starts."""

from atomc.frameworks import disabled

from . import compat


def register() -> None:
    """Entry point of `sglang.srt.plugins`: our attention backend, pages that fit, and memory that holds them."""
    if disabled() or not compat.is_chosen():
        return
    from . import config, guesses, memory, pool, rings
    from .attention import Backend, of_draft, of_guesses, wrapped

    compat.add_attention_backend_choices(["atomc"])
    # It is one if the artifact is, which `config.check` asks, and whatever of a prefix is kept.
    compat.add_deterministic_attention_backend_choices(["atomc"])
    compat.add_radix_supported_deterministic_attention_backend_choices(["atomc"])
    compat.register_attention_backend("atomc")(Backend)
    compat.HookRegistry.register(compat.WRAPPER, wrapped, compat.HookType.AROUND)
    compat.HookRegistry.register(compat.PAGE_SIZE, config.page_size, compat.HookType.AROUND)
    compat.HookRegistry.register(compat.CHECKER, memory.checked, compat.HookType.AROUND)
    pool.register()
    if not compat.OLDER:
        compat.HookRegistry.register(
            compat.MODEL_CONFIG, config.without_indexers, compat.HookType.AROUND
        )
        compat.HookRegistry.register(
            compat.HAS_INDEXERS, config.has_indexers, compat.HookType.AROUND
        )
        compat.HookRegistry.register(compat.RINGS, rings.with_rings, compat.HookType.AROUND)
        compat.HookRegistry.register(compat.DRAFT_BACKEND, of_draft, compat.HookType.AROUND)
        compat.HookRegistry.register(compat.GUESS_BACKENDS, of_guesses, compat.HookType.AROUND)
    if compat.on_host():
        memory.register()
        guesses.register()


def platform() -> str | None:
    """Entry point of `sglang.srt.platforms`: the host, where there is nothing else, of releases that know processors."""
    return (
        None
        if disabled() or not compat.is_chosen() or compat.OLDER or not compat.on_host()
        else f"{__package__}.platform.HostPlatform"
    )
