"""Memory of a framework's as pages of an artifact."""

import mmap
from collections.abc import Iterable
from math import prod

import torch

import atomc
from atomc.frameworks import Refused

# Bytes that kernels may read past the last page. Device memory comes in granules, so the bytes
# after an allocation exist up to the end of its last granule.
SLACK, GPU_GRANULE = 256, 2 << 20
# What pages and slots begin at a multiple of, and what they lie apart.
ALIGN, STRIDE = 64, 256


def tokens(artifact: atomc.Artifact, asked: int) -> int:
    """As many tokens as are asked for, or more: whole pages of the artifact on each of its targets."""
    page = max(artifact.page(target)[0] for target in artifact.targets)
    return -(-asked // page) * page


def by_layer(caches: Iterable[atomc.Cache]) -> dict[int, list[atomc.Cache]]:
    """Entries of an artifact's cache, of each layer: an indexer's keys come after a layer's rows."""
    found: dict[int, list[atomc.Cache]] = {}
    for cache in caches:
        found.setdefault(cache.layer, []).append(cache)
    return found


def side_by_side(caches: list[atomc.Cache]) -> tuple[list[int], int]:
    """Where each of a layer's caches begins in a page that has all of them, and the bytes of that."""
    starts, size = [], 0
    for cache in caches:
        starts.append(size)
        size += -(-cache.block_bytes // ALIGN) * ALIGN
    return starts, size


def fits(caches: list[atomc.Cache], rows: int) -> None:
    """Refuses pages of padded numbers that are larger than a pool's slots of their tokens, with
    `rows` rows of each head."""
    numbers = sum(cache.block_tokens * cache.heads * cache.head_dim for cache in caches)
    room = rows * numbers * getattr(torch, caches[0].dtype).itemsize
    if room < (size := side_by_side(caches)[1]):
        layer = (
            f"layer {caches[0].layer}: pages of {size} bytes, as rows are multiples of 32 numbers"
        )
        raise Refused(f"{layer}, but the framework's pools have {room} bytes for one")


def within(
    caches: list[atomc.Cache], on_host: bool, slots: torch.Tensor
) -> list[tuple[int, int, int]]:
    """The pages of a layer in the memory of slots of tokens, up to its end: for each of its caches
    their address, the bytes from one to the next, and their number. Only our kernels know their
    contents."""
    layer, blocks = caches[0].layer, len(slots) // caches[0].block_tokens
    storage, (starts, size) = slots.untyped_storage(), side_by_side(caches)
    used, room = (
        blocks * size,
        lambda: storage.data_ptr() + storage.nbytes() - slots.data_ptr(),
    )
    if used > room():
        raise Refused(
            f"layer {layer}: {blocks} pages of {size} bytes, but the pool has {room()} bytes"
        )
    # A pool that is not ours; all that look at it see where it is then.
    if on_host and room() - used < SLACK:
        storage.resize_(storage.nbytes() + SLACK)
    elif room() - used + -(slots.data_ptr() + room()) % GPU_GRANULE < SLACK:
        raise Refused(
            f"--max-total-tokens: a pool of {len(slots)} ends where memory does; with a page more or less it does not"
        )
    return [(slots.data_ptr() + start, size, blocks) for start in starts]


def halves(
    caches: list[atomc.Cache], on_host: bool, k: torch.Tensor, v: torch.Tensor
) -> list[tuple[int, int, int]]:
    """Pages of K and V, which have to be halves of one allocation."""
    if (
        v.data_ptr() - k.data_ptr() != k.nbytes
        or v.untyped_storage().data_ptr() != k.untyped_storage().data_ptr()
    ):
        layer = f"layer {caches[0].layer}"
        raise Refused(f"{layer}: K and V of the pool are not halves of one allocation")
    return within(caches, on_host, k)


def slot(cache: atomc.Cache, states: torch.Tensor) -> tuple[int, int, int]:
    """Slots of a layer in a tensor that has a state of the same size in each, but for what rounds it up."""
    if -(-(size := states[0].nbytes) // STRIDE) * STRIDE != cache.block_bytes:
        raise Refused(
            f"layer {cache.layer}: states of {cache.block_bytes} bytes, but the framework's pool has {size} bytes for one"
        )
    return states.data_ptr(), states.stride(0) * states.itemsize, len(states)


def mapped(
    artifact: atomc.Artifact, layers: int, shape: tuple[int, ...], slots: int, dtype: torch.dtype
) -> tuple[list, list]:
    """A tensor of this shape for each layer, in host memory with room for the slots of tokens, and
    those mappings. An artifact's pages may be larger than the tensor, and kernels read past the
    last one, so there is one page more."""
    held, size = artifact.page("host")
    room = (slots // held + 1) * size
    memory = [mmap.mmap(-1, room, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) for _ in range(layers)]
    return [torch.frombuffer(one, dtype=dtype)[: prod(shape)].view(shape) for one in memory], memory


def give_back(memory: list[mmap.mmap]) -> None:
    """Gives mapped pages back to the system: they are zero, and take memory again when they are written."""
    for one in memory:
        one.madvise(mmap.MADV_DONTNEED)
