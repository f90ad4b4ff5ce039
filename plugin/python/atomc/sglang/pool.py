"""SGLang's pools on machines without a GPU: memory that holds an artifact's pages, by hooks where pools make their buffers."""

from atomc import pages

from . import compat, config


def layers(pool, artifact, *shape: int) -> list:
    tensors, pool.memory = pages.mapped(artifact, pool.layer_num, shape, pool.size + pool.page_size, pool.store_dtype)
    return tensors


def halves(create, pool) -> None:
    if (artifact := config.artifact()) is None:
        return create(pool)
    made = layers(pool, artifact, 2, pool.size + pool.page_size, pool.head_num, pool.head_dim)
    pool.k_buffer, pool.v_buffer = [layer[0] for layer in made], [layer[1] for layer in made]


def rows(create, pool) -> None:
    if (artifact := config.artifact()) is None:
        return create(pool)
    pool.kv_buffer = layers(pool, artifact, pool.size + pool.page_size, 1, pool.kv_cache_dim)


def register() -> None:
    compat.HookRegistry.register(compat.HALVES, halves, compat.HookType.AROUND)
    compat.HookRegistry.register(compat.ROWS, rows, compat.HookType.AROUND)
