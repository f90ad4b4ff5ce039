"""SGLang's pools: on machines without a GPU memory that holds an artifact's pages and states, and on GPUs K and V of a layer in one
allocation, where a release has two. Releases that have a platform for processors ask it for classes of pools (`host_pools.py`)."""

from dataclasses import replace
from math import prod

import torch

from atomc import pages

from . import compat, config


def layers(pool, artifact, *shape: int) -> list:
    tensors, pool.memory = pages.mapped(
        artifact, pool.layer_num, shape, pool.size + pool.page_size, pool.store_dtype
    )
    return tensors


def halves(create, pool) -> None:
    if (artifact := config.artifact()) is None:
        return create(pool)
    made = layers(pool, artifact, 2, pool.size + pool.page_size, pool.head_num, pool.head_dim)
    pool.k_buffer, pool.v_buffer = [layer[0] for layer in made], [layer[1] for layer in made]


def joined(create, pool) -> None:
    """On a GPU, as later releases make them: K and V of a layer are halves of one allocation."""
    if config.artifact() is None:
        return create(pool)
    shape = 2, pool.size + pool.page_size, pool.head_num, pool.head_dim
    room = prod(shape) + pages.SLACK // pool.store_dtype.itemsize
    with pool.memory_saver_adapter.region(compat.CACHE_TAG):
        made = [
            torch.zeros(room, dtype=pool.store_dtype, device=pool.device)[: prod(shape)].view(shape)
            for _ in range(pool.layer_num)
        ]
    pool.k_buffer, pool.v_buffer = [layer[0] for layer in made], [layer[1] for layer in made]


def rows(create, pool) -> None:
    if (artifact := config.artifact()) is None:
        return create(pool)
    pool.kv_buffer = layers(pool, artifact, pool.size + pool.page_size, 1, pool.kv_cache_dim)


def spread(held) -> None:
    """States of requests as a pool of SGLang's has made them, but as far apart as kernels want them."""
    made = held.mamba_cache
    held.mamba_cache = replace(
        made, conv=[apart(one) for one in made.conv], temporal=apart(made.temporal)
    )


def apart(states: torch.Tensor) -> torch.Tensor:
    """A copy of a tensor of layers and slots, with slots that begin at the alignment of pages."""
    layers, slots, *shape = states.shape
    stride = -(-states[0, 0].nbytes // pages.STRIDE) * pages.STRIDE // states.itemsize
    memory = torch.zeros(
        layers * slots * stride + pages.SLACK // states.itemsize, dtype=states.dtype
    )
    strides = slots * stride, stride, *torch.empty(shape, device="meta").stride()
    return memory.as_strided(states.shape, strides).copy_(states)


def register() -> None:
    """Of releases that ask no platform."""
    if not compat.OLDER:
        return
    if not compat.on_host():
        compat.HookRegistry.register(compat.HALVES, joined, compat.HookType.AROUND)
        return
    compat.HookRegistry.register(compat.HALVES, halves, compat.HookType.AROUND)
    compat.HookRegistry.register(compat.ROWS, rows, compat.HookType.AROUND)
