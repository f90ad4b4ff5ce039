"""What requests about memory do: checks of weights, and on machines without a GPU, of whose memory torch_memory_saver knows nothing,
`release_memory_occupation`."""

from atomc import pages
from atomc.frameworks import Driven, Refused

from . import compat
from .config import logger

OPTIONS = ("enable_memory_saver", "enable_weights_cpu_backup")
# What is released where no tag is given.
TAGS = ("kv_cache", "weights")


def saver(create, enable: bool):
    """SGLang's saver that saves nothing, in the place of torch_memory_saver: `released` does the rest."""
    return create(enable=False)


def device_module(get, device=None):
    """Torch's for this machine, which SGLang waits for: a torch that was built for GPUs would look for one."""
    return get(device or "cpu")


def pinned(pin, tensor, *_):
    """Where SGLang keeps states of answers it pins memory without asking for what, and a machine without a GPU has nothing to do so."""
    return tensor


def checked(handle, checker, *arguments, **options):
    """SGLang compares parameters, of which there are none here: it would find nothing wrong whatever the weights are."""
    if isinstance(checker._get_model(), Driven):
        raise Refused("/weights_checker: the weights of an artifact are packed, and no parameters")
    return handle(checker, *arguments, **options)


def released(result, manager, request) -> None:
    """Gives back what the tags name, if SGLang was started to. Weights stay with a backup, which would be in the same memory; else
    the next ones have to be all."""
    runner, asked = manager.tp_worker.model_runner, compat.options(OPTIONS)
    if not asked["enable_memory_saver"]:
        return
    if not isinstance(runner.model, Driven):
        return logger.warning(
            "atomc: --enable-memory-saver: SGLang's own model keeps its memory on a machine without a GPU"
        )
    tags = request.tags or TAGS
    if "kv_cache" in tags:
        pages.give_back(
            [one for pool in compat.parts(runner.token_to_kv_pool) for one in pool.memory]
        )
    if "weights" in tags and not asked["enable_weights_cpu_backup"]:
        runner.model.engine.unload()


def register() -> None:
    if compat.OLDER:  # which asks torch_memory_saver itself
        return
    around, after = compat.HookType.AROUND, compat.HookType.AFTER
    compat.HookRegistry.register(compat.SAVER, saver, around)
    compat.HookRegistry.register("torch.get_device_module", device_module, around)
    compat.HookRegistry.register("torch.Tensor.pin_memory", pinned, around)
    compat.HookRegistry.register(compat.RELEASE, released, after)
