"""What kinds of models artifacts hold, and of each how it stands in SGLang: a table in the place of branches."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

import atomc
from atomc.frameworks import Driven, Refused, latent

from . import compat
from .model import Model

# Kernels may read so many bytes behind the last page. On a device memory comes in granules, so
# those behind an allocation are there up to the end of its last one.
SLACK, GPU_GRANULE = 256, 2 << 20


@dataclass(frozen=True)
class Adapter:
    suits: Callable[[str, atomc.Artifact], bool]
    """Whether a model of this architecture with this artifact is of the kind."""
    prepare: Callable[[object], dict]
    """The facts of a model as its config.json has them, of the configuration that SGLang has made of it."""
    construct: Callable[..., torch.nn.Module]
    """The model, of its adapter, its artifact and its facts."""
    load: Callable[[torch.nn.Module, object], None]
    """Loads a checkpoint's tensors, or packed weights that are in the model's folder."""
    bind: Callable[..., tuple[int, int, int, int]]
    """The pages of a layer in SGLang's pool, as `atomc.Model.bind_cache` takes them."""
    output: Callable[..., object]
    """What SGLang samples from, of the hidden rows of a batch."""


def adapter(architecture: str, artifact: atomc.Artifact) -> Adapter:
    return next(row for row in ADAPTERS if row.suits(architecture, artifact))


def facts(config) -> dict:
    """Those of the checkpoint, where SGLang has rounded some up for processors."""
    found = config.to_dict()
    return found | {name: found[kept] for name, kept in compat.ROUNDED.items() if kept in found}


def no_draft(_, artifact: atomc.Artifact, facts: dict) -> torch.nn.Module:
    raise Refused(f"{artifact.path}: --speculative-algorithm: artifacts hold no draft, as {facts['architectures'][0]} is one")


def load(model: Model, weights) -> None:
    """Packed weights beside the model at first: SGLang reads none of its own before it is asked for them."""
    packed, model.packed = model.packed, None
    if packed and packed.exists():
        model.engine.load(packed)
    else:
        Driven.load_weights(model, weights)


def halves(cache: atomc.Cache, on_host: bool, k: torch.Tensor, v: torch.Tensor) -> tuple[int, int, int, int]:
    """Pages of K and V, which SGLang has as halves of one allocation. Nobody but our kernels looks into them."""
    if v.data_ptr() - k.data_ptr() != k.nbytes or v.untyped_storage().data_ptr() != k.untyped_storage().data_ptr():
        raise Refused(f"layer {cache.layer}: K and V of SGLang's pool are not halves of one allocation")
    return pages(cache, on_host, k)


def rows(cache: atomc.Cache, on_host: bool, k: torch.Tensor, _) -> tuple[int, int, int, int]:
    """Pages of latent rows, of which V is a part."""
    return pages(cache, on_host, k)


def pages(cache: atomc.Cache, on_host: bool, slots: torch.Tensor) -> tuple[int, int, int, int]:
    """Those that memory has, from its first slot to its end: where they are, the bytes from one to the next, how many, and the
    name of their table, of which there is one."""
    storage, blocks = slots.untyped_storage(), len(slots) // cache.block_tokens
    used, room = blocks * cache.block_bytes, lambda: storage.data_ptr() + storage.nbytes() - slots.data_ptr()
    if used > room():
        raise Refused(f"layer {cache.layer}: {blocks} pages of {cache.block_bytes} bytes, but SGLang's pool has {room()} bytes")
    if on_host and room() - used < SLACK:  # in a pool that is not ours; all that look at it see where it is then
        storage.resize_(storage.nbytes() + SLACK)
    elif room() - used + -(slots.data_ptr() + room()) % GPU_GRANULE < SLACK:
        raise Refused(f"--max-total-tokens: a pool of {len(slots)} ends where memory does; with a page more or less it does not")
    return slots.data_ptr(), cache.block_bytes, blocks, 0


def next_tokens(model: Model, ids: torch.Tensor, hidden: torch.Tensor, batch):
    """Logits of each request's last row. Where log-probabilities of prompts or hidden rows are asked for, SGLang's own code says
    of which rows, and asks our head."""
    asked = compat.LogitsMetadata.from_forward_batch(batch)
    if asked.extend_return_logprob or asked.is_prefill_only or asked.capture_hidden_mode.need_capture():
        return model.processor(ids, hidden, model.lm_head, batch)
    last = hidden if batch.forward_mode.is_decode_or_idle() else hidden[batch.extend_seq_lens.cumsum(0) - 1]
    logits, buffer = model.logits(last, model.gather), batch.next_token_logits_buffer
    if buffer is not None and buffer.shape == logits.shape:  # which captured steps leave them in
        logits = buffer.copy_(logits)
    return compat.LogitsProcessorOutput(next_token_logits=logits, mm_input_embeds=asked.mm_input_embeds)


KEYS_AND_VALUES = Adapter(lambda *_: True, facts, Model, load, halves, next_tokens)
LATENT = replace(KEYS_AND_VALUES, suits=lambda _, artifact: latent(artifact), bind=rows)
DRAFT = replace(KEYS_AND_VALUES, suits=lambda name, _: name in compat.DRAFTS, construct=no_draft)

# The first that suits is taken.
ADAPTERS = (DRAFT, LATENT, KEYS_AND_VALUES)
