"""Requests about memory: checks of weights, and `release_memory_occupation` on machines without a
GPU, where torch_memory_saver does not know the memory."""

import torch
from torch.overrides import TorchFunctionMode

from atomc import pages
from atomc.frameworks import Driven, Refused

from . import compat
from .config import logger

OPTIONS = ("enable_memory_saver", "enable_weights_cpu_backup")


def saver(create, enable: bool):
    """SGLang's saver that saves nothing, in the place of torch_memory_saver: `released` does the rest."""
    return create(enable=False)


class Unpinned(TorchFunctionMode):
    """Within it nothing is pinned."""

    def __torch_function__(self, function, types, arguments=(), named=None):
        pins = function is torch.Tensor.pin_memory
        return arguments[0] if pins else function(*arguments, **(named or {}))


def decoded(prepare, batch):
    """Where SGLang keeps states of answers it pins memory without asking for what, and a machine without a GPU has nothing to do so."""
    with Unpinned():
        return prepare(batch)


def checked(handle, checker, *arguments, **options):
    """SGLang compares parameters, of which there are none here: it would find nothing wrong whatever the weights are."""
    if isinstance(checker._get_model(), Driven):
        raise Refused("/weights_checker: the weights of an artifact are packed, and no parameters")
    return handle(checker, *arguments, **options)


def released(_, manager, request):
    """Gives back what the tags name, if SGLang was started to. Weights stay with a backup, which would be in the same memory; else
    the next ones have to be all. In the place of SGLang's own, which waits for a GPU at its end."""
    runner, asked = manager.tp_worker.model_runner, compat.options(OPTIONS)
    tags = request.tags or compat.GPU_MEMORY_ALL_TYPES
    manager.offload_tags.update(tags)
    if "kv_cache" in tags:
        manager.flush_cache()
    if "weights" in tags:
        manager.stashed_model_static_state = compat._export_static_state(runner.model)
    if asked["enable_memory_saver"] and not isinstance(runner.model, Driven):
        logger.warning(
            "atomc: --enable-memory-saver: SGLang's own model keeps its memory on a machine without a GPU"
        )
    elif asked["enable_memory_saver"]:
        give_back(runner, tags, keeps=asked["enable_weights_cpu_backup"])
    return compat.ReleaseMemoryOccupationReqOutput()


def give_back(runner, tags, keeps: bool) -> None:
    if "kv_cache" in tags:
        pages.give_back(
            [one for pool in compat.parts(runner.token_to_kv_pool) for one in pool.memory]
        )
    if "weights" in tags and not keeps:
        runner.model.engine.unload()


def register() -> None:
    if compat.OLDER:  # which asks torch_memory_saver itself
        return
    around = compat.HookType.AROUND
    compat.HookRegistry.register(compat.SAVER, saver, around)
    compat.HookRegistry.register(compat.DECODE, decoded, around)
    compat.HookRegistry.register(compat.RELEASE, released, around)
