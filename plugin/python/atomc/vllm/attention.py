"""Attention layers as vLLM sees them: what a page of the cache is, and what a step's batch looks like."""

import torch

from atomc.pages import SLACK

from .compat import AttentionBackend, AttentionCGSupport, AttentionImpl, AttentionLayerBase, AttentionMetadataBuilder
from .compat import CommonAttentionMetadata as Batch
from .compat import FullAttentionSpec, MLAAttentionSpec, SlidingWindowSpec, cache_shape


class Builder(AttentionMetadataBuilder[Batch]):
    """Kernels want what vLLM's runner has. Its tensors hold other steps later."""

    _cudagraph_support = AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE

    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
        return common_attn_metadata


class Backend(AttentionBackend):
    """Whose layers take pages of `block_tokens`, in vLLM's eyes of two halves or of one. Layers of vLLM's own attend in torch, on
    the host."""

    block_tokens, halves = 16, 2
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


class Layer(AttentionLayerBase):
    """A layer's pages, each one run of bytes: vLLM hands them out, and only kernels know what is in them."""

    def __init__(self, backend: type[Backend], cache):
        self.backend, self.num_heads, self.window, self.kv_cache = backend, cache.heads, cache.window, torch.empty(0)
        # Kernels may read behind a page, so each has that much room after it, in shares of its
        # tokens.
        self.half = -(-(cache.block_bytes + SLACK) // cache.block_tokens) // 2

    def get_attn_backend(self):
        return self.backend

    def get_kv_cache_spec(self, vllm_config):
        kv = dict(block_size=vllm_config.cache_config.block_size, num_kv_heads=1, head_size=self.half, dtype=torch.uint8)
        if self.backend.halves == 1:
            return MLAAttentionSpec(**{**kv, "head_size": 2 * self.half})
        return SlidingWindowSpec(**kv, sliding_window=self.window) if self.window else FullAttentionSpec(**kv)


class TorchAttention(AttentionImpl[Batch]):
    """Attention of vLLM's own models, and of artifacts whose caller attends, on a machine without kernels for it."""

    def __init__(self, num_heads, head_size, scale, num_kv_heads, alibi, window, kv_cache_dtype, cap, *_, **__):
        if alibi or cap:
            raise NotImplementedError("attention with ALiBi or capped scores on the host")
        self.num_heads, self.head_size, self.num_kv_heads = num_heads, head_size, num_kv_heads
        self.scale, self.window, self.kv_cache_dtype = scale, window or 1 << 30, kv_cache_dtype

    def forward(self, layer, query, key, value, kv_cache, attn_metadata, output=None, *_, **__):
        if attn_metadata is None:
            return output.zero_()
        batch, block, starts = attn_metadata, kv_cache.shape[2], attn_metadata.query_start_loc.tolist()
        slots, fresh = batch.slot_mapping[: starts[-1]], torch.cat((key, value), -1)[: starts[-1]]
        kv_cache[slots // block, :, slots % block] = fresh.to(kv_cache.dtype)
        for first, last, length, row in zip(starts, starts[1:], batch.seq_lens.tolist(), batch.block_table_tensor):
            pages = kv_cache[row[: -(-length // block)]].transpose(0, 1).flatten(1, 2)[:, :length].to(query.dtype)
            keys, values = pages.split(self.head_size, -1)
            behind = torch.arange(length - last + first, length)[:, None] - torch.arange(length)
            options = dict(attn_mask=(behind >= 0) & (behind < self.window), scale=self.scale, enable_gqa=True)
            queries = query[first:last].transpose(0, 1)
            attended = torch.nn.functional.scaled_dot_product_attention(queries, keys, values, **options)
            output[first:last] = attended.transpose(0, 1)
        return output
