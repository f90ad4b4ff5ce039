"""Attention layers as vLLM sees them: what a cache page is, and what a step's batch looks like."""

from dataclasses import dataclass

import torch
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.v1.attention.backend import AttentionCGSupport, AttentionImpl, AttentionMetadataBuilder
from vllm.v1.kv_cache_interface import FullAttentionSpec

import atomc

from . import compat


@dataclass
class Batch:
    """A step's requests. The tensors are the runner's own, and hold other steps later."""

    starts: torch.Tensor
    starts_cpu: torch.Tensor
    lengths: torch.Tensor
    table: torch.Tensor
    slots: torch.Tensor
    longest: int

    def part(self, first: int, last: int) -> "Batch":
        """The same requests with only some of their tokens; at the ends, those that have none of them are left out."""
        ends, begins = self.starts_cpu[1:], self.starts_cpu[:-1]
        some = slice(int((ends <= first).sum()), max(int((begins < last).sum()), 1))
        edges = slice(some.start, some.stop + 1)
        starts, starts_cpu = self.starts[edges], self.starts_cpu[edges]
        left = (starts - starts.clamp(first, last))[1:]
        return Batch(
            (starts.clamp(first, last) - first).int(),
            starts_cpu.clamp(first, last) - first,
            (self.lengths[some] - left).int(),
            self.table[some],
            self.slots[first:last],
            self.longest,
        )


class Builder(AttentionMetadataBuilder[Batch]):
    _cudagraph_support = AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE

    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(self, common_prefix_len, common_attn_metadata, fast_build=False) -> Batch:
        c = common_attn_metadata
        return Batch(
            c.query_start_loc,
            c.query_start_loc_cpu,
            c.seq_lens,
            c.block_table_tensor,
            c.slot_mapping,
            c.max_query_len,
        )


class Pages(compat.Backend):
    """The backend of layers that attend in atomc's kernels, which take pages of `block_tokens`."""

    block_tokens: int

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_impl_cls():
        raise NotImplementedError("atomc's kernels attend, not a layer of vLLM's")

    @staticmethod
    def get_builder_cls():
        return Builder

    @classmethod
    def get_supported_kernel_block_sizes(cls, kv_cache_spec=None):
        return [cls.block_tokens]


class Layer(AttentionLayerBase):
    """A layer's pages, each one run of bytes: vLLM hands them out, and only kernels know what is in them."""

    def __init__(self, backend: type[Pages], pages: atomc.Cache):
        self.backend, self.num_heads, self.kv_cache = backend, pages.heads, torch.empty(0)
        # Kernels may read up to 256 bytes behind a page, so each has that much room after it, in shares of its tokens.
        self.token_bytes = -(-(pages.block_bytes + 256) // pages.block_tokens)

    def get_attn_backend(self):
        return self.backend

    def get_kv_cache_spec(self, vllm_config):
        block = vllm_config.cache_config.block_size
        # One head of bytes. vLLM takes a key to be as long as a value; here both are half of what a token has.
        return FullAttentionSpec(block_size=block, num_kv_heads=1, head_size=self.token_bytes // 2, dtype=torch.uint8)


class TorchBackend(compat.Backend):
    """Attention in torch for the host: of vLLM's own models, and of artifacts whose caller attends."""

    accept_output_buffer = True
    supported_dtypes = [torch.float32, torch.float16, torch.bfloat16]

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_impl_cls():
        return TorchAttention

    @staticmethod
    def get_builder_cls():
        return Builder


class TorchAttention(AttentionImpl[Batch]):
    def __init__(self, num_heads, head_size, scale, num_kv_heads=None, alibi_slopes=None, sliding_window=None,
                 kv_cache_dtype="auto", logits_soft_cap=None, *_, **__):
        if alibi_slopes or logits_soft_cap:
            raise NotImplementedError("attention with ALiBi or capped scores on the host")
        self.num_heads, self.head_size, self.scale, self.num_kv_heads = num_heads, head_size, scale, num_kv_heads
        self.window, self.kv_cache_dtype = sliding_window or 1 << 30, kv_cache_dtype

    def forward(self, layer, query, key, value, kv_cache, attn_metadata, output=None, *_, **__):
        if attn_metadata is None:
            return output.zero_()
        batch, block, width = attn_metadata, kv_cache.shape[2], self.head_size
        starts = batch.starts.tolist()
        slots = batch.slots[: starts[-1]]
        kv_cache[slots // block, :, slots % block] = torch.cat((key, value), -1)[: starts[-1]].to(kv_cache.dtype)
        for start, end, length, row in zip(starts, starts[1:], batch.lengths.tolist(), batch.table):
            if start == end:
                continue
            pages = kv_cache[row[: -(-length // block)]].transpose(0, 1).flatten(1, 2)[:, :length].to(query.dtype)
            behind = torch.arange(length - end + start, length)[:, None] - torch.arange(length)
            attended = torch.nn.functional.scaled_dot_product_attention(
                query[start:end].transpose(0, 1), pages[..., :width], pages[..., width:],
                attn_mask=(behind >= 0) & (behind < self.window), scale=self.scale, enable_gqa=True,
            )
            output[start:end] = attended.transpose(0, 1)
        return output
