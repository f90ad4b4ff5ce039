"""Layers as vLLM sees them: what a page of the cache is, and what a step's batch looks like."""

import weakref
from copy import copy
from dataclasses import replace
from types import new_class
from typing import Any

import torch

from atomc.frameworks import part
from atomc.pages import SLACK, side_by_side

from .compat import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionImpl,
    AttentionLayerBase,
    AttentionMetadataBuilder,
    FullAttentionSpec,
    GDNAttentionMetadataBuilder,
    MambaAttentionBackendEnum,
    MambaBase,
    MLAAttentionSpec,
    SlidingWindowSpec,
    cache_shape,
)
from .compat import CommonAttentionMetadata as Batch

# Bytes of a token's half are a multiple of these, so that pages lie apart as far as kernels want.
SHARE = 8


class Builder(AttentionMetadataBuilder[Batch]):
    """Kernels want what vLLM's runner has. Its tensors hold other steps later."""

    _cudagraph_support = AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE

    @classmethod
    def get_cudagraph_support(cls, vllm_config, kv_cache_spec):
        # A step that verifies guesses has as many tokens of each sequence.
        guesses = vllm_config.speculative_config is not None
        return AttentionCGSupport.UNIFORM_BATCH if guesses else cls._cudagraph_support

    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
        return common_attn_metadata


class SlotBuilder(Builder, GDNAttentionMetadataBuilder):
    """Of a sequence's pages those that its slots are in, as kernels take them: the one that a step goes on from, and one for the
    state behind each token, of which there are as many as a step verifies. With prefix caching vLLM keeps pages for each block of
    tokens that others may share, and goes on in the last. It tells the number of tokens that were kept to builders of this
    class."""

    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        AttentionMetadataBuilder.__init__(self, kv_cache_spec, layer_names, vllm_config, device)
        most = (
            vllm_config.scheduler_config.max_num_seqs,
            vllm_config.compilation_config.max_cudagraph_capture_size or 0,
        )
        self.behind = kv_cache_spec.num_speculative_blocks + 1
        entries = self.behind + 1 if self.behind > 1 else 1
        # Captured steps find it there.
        self.table = torch.zeros(max(most), entries, dtype=torch.int32, device=device)

    def build(
        self,
        common_prefix_len,
        common_attn_metadata,
        fast_build=False,
        num_accepted_tokens=None,
        num_decode_draft_tokens_cpu=None,
    ):
        batch = copy(common_attn_metadata)
        table, ends = batch.block_table_tensor, batch.seq_lens
        if self.kv_cache_spec.mamba_cache_mode != "align":
            if self.behind == 1:
                return batch
            places = self.turned(ends, torch.diff(batch.query_start_loc))
        else:
            tokens = torch.diff(batch.query_start_loc)
            guessed = num_decode_draft_tokens_cpu
            none = torch.zeros_like(tokens, dtype=torch.bool)
            verifies = none if guessed is None else (guessed >= 0).to(ends.device)
            places = self.along(tokens, verifies, num_accepted_tokens)
            places += ((ends - 1).clamp(min=0) // self.kv_cache_spec.block_size)[:, None]
        self.table[: len(ends)] = table.gather(1, places.long().clamp(max=table.shape[1] - 1))
        batch.block_table_tensor = self.table[: len(ends)]
        return batch

    def turned(self, ends, tokens):
        """Places in the table of a sequence: the state behind its first n tokens is always in the same one."""
        entries = torch.arange(self.behind + 1, device=ends.device)
        places = (ends - tokens)[:, None] + entries
        # A long step keeps the state behind its last token alone.
        places[:, 1] = torch.where(tokens > self.behind, ends, places[:, 1])
        return places.clamp(min=0) % self.behind

    def along(self, tokens, verifies, kept):
        """Places from the page on in which a sequence goes on. vLLM expects the state behind each guess there and in those after it,
        and that behind other tokens there; it copies that of the last kept token to where the next pages are."""
        if self.behind == 1:
            return torch.zeros_like(tokens)[:, None]
        entries = torch.arange(self.behind + 1, device=tokens.device)
        backwards = tokens[:, None] - entries
        turned = (~verifies & (tokens <= self.behind))[:, None] & (backwards >= 0)
        places = torch.where(turned, backwards, entries - 1)
        places[:, 0] = 0 if kept is None else kept[: len(tokens)].clamp(min=1) - 1
        return places


class Backend(AttentionBackend):
    """The backend of layers that take pages of `block_tokens`, which vLLM sees as two halves or
    one. Layers of vLLM's own attend in torch, on the host."""

    block_tokens, halves, slot_tokens, slot_bytes = 16, 2, 0, 0
    supported_dtypes = [torch.float32, torch.float16, torch.bfloat16]
    get_kv_cache_shape = classmethod(cache_shape)

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_impl_cls():
        return TorchAttention

    @staticmethod
    def get_builder_cls():
        return Builder

    @classmethod
    def get_supported_kernel_block_sizes(cls, kv_cache_spec=None):
        return [cls.block_tokens]

    @classmethod
    def get_preferred_block_size(cls, default_block_size: int) -> int:
        """All pages of a model are equally large in vLLM, those that slots are in too."""
        return max(super().get_preferred_block_size(default_block_size), cls.slot_tokens)


class SlotBackend(Backend):
    @classmethod
    def is_ssm(cls) -> bool:
        return True

    @staticmethod
    def get_builder_cls():
        return SlotBuilder


class Layer(AttentionLayerBase):
    """A layer's pages, each one run of bytes: vLLM hands them out, and only kernels know what is in
    them. A layer with an indexer has the keys of that behind its rows, in the same page."""

    def __init__(self, backend: type[Backend], caches: list, model):
        # vLLM uses only the model's layers.
        self.model = weakref.ref(model)
        first, self.kv_cache = caches[0], ()
        self.backend, self.num_heads, self.window = backend, first.heads, first.window
        self.starts, size = side_by_side(caches)
        # Kernels may read past a page, so each has that much room after it, in shares of its
        # tokens.
        self.half = -(-(size + SLACK) // first.block_tokens) // 2

    def pages(self) -> list[tuple[int, int, int]]:
        """Of each entry of the artifact's cache: where they begin, the bytes from one to the next, and how many there are."""
        [pages] = self.kv_cache
        stride = pages.stride(0) * pages.element_size()
        return [(pages.data_ptr() + start, stride, len(pages)) for start in self.starts]

    @property
    def kv_cache(self) -> tuple[torch.Tensor, ...]:
        """No tensor alone: vLLM would clear its new pages, where other layers have states, and on a processor pages of others instead.
        Kernels need no cleared pages."""
        return self.bound

    @kv_cache.setter
    def kv_cache(self, bound):
        self.bound = (bound,) if isinstance(bound, torch.Tensor) else tuple(bound)

    def get_attn_backend(self):
        return self.backend

    def get_kv_cache_spec(self, vllm_config):
        tokens = vllm_config.cache_config.block_size
        # Where a page of vLLM's has too few tokens to be as large as the slots of a layer, each
        # takes more room: vLLM splits no page into ours that it has enlarged itself.
        half, slots = self.half, self.backend.slot_bytes
        if 2 * half * tokens < slots:
            half = -(-slots // (2 * tokens * SHARE)) * SHARE
        kv = dict(block_size=tokens, num_kv_heads=1, head_size=half, dtype=torch.uint8)
        if self.backend.halves == 1:
            return MLAAttentionSpec(**{**kv, "head_size": 2 * half})
        return (
            SlidingWindowSpec(**kv, sliding_window=self.window)
            if self.window
            else FullAttentionSpec(**kv)
        )


class SlotLayer(MambaBase):
    """The slots of a layer with a recurrent state, side by side in a page of vLLM's."""

    mamba_type = MambaAttentionBackendEnum.GDN_ATTN

    def __init__(self, caches: list):
        self.starts, size = side_by_side(caches)
        self.bytes = size + SLACK
        self.entries = max(cache.entries for cache in caches)

    def get_state_shape(self):
        return ((self.bytes,),)

    def get_state_dtype(self):
        return (torch.uint8,)

    def get_attn_backend(self):
        return SlotBackend

    def get_kv_cache_spec(self, vllm_config):
        """vLLM has computed how much a page is larger than the slots of its own model. It enlarges pages of ours as well. Steps take
        as many slots as they can verify guesses, whatever vLLM guesses."""
        spec = super().get_kv_cache_spec(vllm_config)
        more = max(self.entries - 2, 0)
        return replace(spec, page_size_padded=None, num_speculative_blocks=more)

    def pages(self) -> list[tuple[int, int, int]]:
        [slots] = self.kv_cache
        return [(slots.data_ptr() + start, slots.stride(0), len(slots)) for start in self.starts]


def share(batch: Batch, tokens: slice, count: int) -> tuple:
    """Starts and lengths of some of a batch's tokens, of which there are `count` in all, and which requests these are of."""
    starts, lengths = batch.query_start_loc, batch.seq_lens
    if tokens == slice(0, count):
        return starts, lengths, slice(None)
    return part(starts, batch.query_start_loc_cpu, lengths, tokens)


def layers(kept: dict[str, list], vllm_config, model, beside=()) -> dict[str, Layer | SlotLayer]:
    """Layers of a model by their names, of what is kept of each, where vLLM finds them; `beside` are layers that there are."""
    slots = {name: SlotLayer(caches) for name, caches in kept.items() if caches[0].slot}
    all_slots = [layer for layer in (*slots.values(), *beside) if isinstance(layer, SlotLayer)]
    most = max((layer.bytes for layer in all_slots), default=0)
    paged = {name: caches for name, caches in kept.items() if not caches[0].slot}
    tokens = next(iter(paged.values()))[0].block_tokens
    kind = dict(block_tokens=tokens, halves=1 if model.latent else 2)
    backend: Any = new_class("Backend", (Backend,), exec_body=lambda body: body.update(kind))
    found = {name: Layer(backend, caches, model) for name, caches in paged.items()}
    page = min(2 * layer.half for layer in found.values()) * tokens
    backend.slot_tokens, backend.slot_bytes = -(-most // page) * tokens, most
    vllm_config.compilation_config.static_forward_context.update(slots | found)
    return slots | found


class TorchAttention(AttentionImpl[Batch]):
    """Attention outside of artifacts, in torch, on a machine without kernels for it."""

    def __init__(
        self,
        num_heads,
        head_size,
        scale,
        num_kv_heads,
        alibi,
        window,
        kv_cache_dtype,
        cap,
        *_,
        **__,
    ):
        if alibi or cap:
            raise NotImplementedError("attention with ALiBi or capped scores on the host")
        self.num_heads, self.head_size, self.num_kv_heads = num_heads, head_size, num_kv_heads
        self.scale, self.window, self.kv_cache_dtype = scale, window or 1 << 30, kv_cache_dtype

    def forward(self, layer, query, key, value, kv_cache, attn_metadata, output=None, *_, **__):
        if attn_metadata is None:
            return output.zero_()
        batch, block, starts = (
            attn_metadata,
            kv_cache.shape[2],
            attn_metadata.query_start_loc.tolist(),
        )
        slots, fresh = batch.slot_mapping[: starts[-1]], torch.cat((key, value), -1)[: starts[-1]]
        kv_cache[slots // block, :, slots % block] = fresh.to(kv_cache.dtype)
        for first, last, length, row in zip(
            starts, starts[1:], batch.seq_lens.tolist(), batch.block_table_tensor
        ):
            pages = (
                kv_cache[row[: -(-length // block)]]
                .transpose(0, 1)
                .flatten(1, 2)[:, :length]
                .to(query.dtype)
            )
            keys, values = pages.split(self.head_size, -1)
            behind = torch.arange(length - last + first, length)[:, None] - torch.arange(length)
            options = dict(
                attn_mask=(behind >= 0) & (behind < self.window), scale=self.scale, enable_gqa=True
            )
            queries = query[first:last].transpose(0, 1)
            attended = torch.nn.functional.scaled_dot_product_attention(
                queries, keys, values, **options
            )
            output[first:last] = attended.transpose(0, 1)
        return output
