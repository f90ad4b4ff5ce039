"""vLLM's Triton kernels that move recurrent states between pages where guesses and prefix caching meet, in Python, for machines
without a GPU, with vLLM's arguments. A state is one run of bytes; those behind guesses are in the pages behind the first."""

from ctypes import c_int32, memmove


def copies(moved, tables, stride, starts, strides, sizes, numbers, widths, groups, *_) -> None:
    """Copies every state of some requests, of which `moved` has the row of the table, and the places there of source and target."""
    states = zip(*(t.tolist() for t in (starts, strides, sizes, numbers, widths, groups)))
    for start, apart, size, number, width, group in states:
        assert width == 0, "states of convolutions are parts of those runs of bytes"
        for row, source, target in moved:
            at = tables[group].item() + row * stride * 4
            pages = [c_int32.from_address(at + place * 4).value for place in (source, target)]
            if pages[0] != pages[1]:
                memmove(start + pages[1] * apart, start + pages[0] * apart, size * number)


def rows(requests: int, mapping) -> list[int]:
    """The row of each request that has one."""
    if mapping is None:
        return list(range(requests))
    return [row for row in mapping[:requests].tolist() if row >= 0]


def before(target, source, kept, *places_of_states, **_) -> None:
    """Before a step: the state that a request goes on from, to where it goes on."""
    *states, mapping, requests = places_of_states
    moved = [
        (row, source[row].item() + kept[row].item(), target[row].item())
        for row in rows(requests, mapping)
        if source[row] >= 0 and source[row] != target[row]
    ]
    copies(moved, *states)


def behind(
    accepted,
    source,
    scheduled,
    computed,
    guessed,
    *places_of_states,
    block_size: int,
    PRECOMPUTED_NEW_COMPUTED: bool = False,
    **_,
) -> None:
    """Behind a step: the state at the end of a block of tokens, to the page of that block."""
    *states, kept, mapping, requests = places_of_states
    moved = []
    for row in rows(requests, mapping):
        right = accepted[row].item()
        if PRECOMPUTED_NEW_COMPUTED:
            first = computed[row].item() - right + 1
        else:
            first = (computed[row] + scheduled[row] - guessed[row]).item()
        blocks = (first + right - 1) // block_size
        if (ahead := blocks * block_size - first) < 0:
            continue
        if source[row] == blocks - 1:
            kept[row] = 1
        moved.append((row, source[row].item() + ahead, blocks - 1))
    copies(moved, *states)


KERNELS = {
    "worker.mamba_utils.precopy_mamba_align_fused_kernel": before,
    "worker.mamba_utils.postprocess_mamba_fused_kernel": behind,
}
