"""One opaque model for every architecture that an artifact holds, over SGLang's pools."""

import time
from pathlib import Path
from types import SimpleNamespace

import torch

import atomc
from atomc.frameworks import Driven, Refused, device, disabled, find, part

from . import compat, config
from .compat import LogitsProcessor
from .config import logger

# Kernels may read so many bytes behind the last page. On a device memory comes in granules, so
# those behind an allocation are there up to the end of its last one.
SLACK, GRANULE, GPU_GRANULE = 256, 4096, 2 << 20


def make(architecture: str, hf_config, options: dict) -> torch.nn.Module:
    """The model of the artifact, or one of SGLang's own class."""
    own = compat.own_class
    if disabled():
        return own(architecture)(hf_config, **options)
    compat.check_release()
    if architecture == compat.TRANSFORMERS:
        config.pass_by()
        return own(architecture)(hf_config, **options)
    began = time.perf_counter()
    if (artifact := find(config.wanted(compat.options(config.CHOOSING)), logger)) is None:
        return own(architecture)(hf_config, **options)
    model = Model(hf_config, artifact)
    logger.info("atomc: %s; opened in %.0f ms", model.engine, (time.perf_counter() - began) * 1e3)
    return model


class Model(Driven):
    """An artifact with weights, over SGLang's pools: the whole forward, from tokens to logits."""

    def __init__(self, hf_config, artifact: atomc.Artifact):
        super().__init__(artifact, device(compat.gpu()), compat.get_parallel().tp_rank)
        config.check(hf_config, artifact, self.engine)
        self.block_tokens, self.pool = self.engine.cache[0].block_tokens, None
        self.packed = Path(compat.options(["model_path"])["model_path"], self.engine.packed_name)
        # Which rows want logits, and log-probabilities of prompts, are SGLang's; the head is ours.
        self.processor = LogitsProcessor(SimpleNamespace(vocab_size=self.engine.vocab), skip_all_gather=True)
        gather = compat.tensor_model_parallel_all_gather
        head = SimpleNamespace(apply=lambda _, hidden, bias: self.logits(hidden, gather))
        self.lm_head = SimpleNamespace(quant_method=head)

    def load_weights(self, weights) -> None:
        """Those of the model's folder at first, which may be packed: SGLang reads none before it is asked for them."""
        packed, self.packed = self.packed, None
        if packed and packed.exists():
            self.engine.load(packed)
        else:
            super().load_weights(weights)

    def forward(self, input_ids, positions, forward_batch, input_embeds=None):
        ids = input_ids.int()
        step = lambda tokens: self.step(ids, positions, forward_batch, input_embeds, tokens)
        hidden = self.steps(step, len(ids)) if len(ids) else self.hidden[:0]
        return self.processor(input_ids, hidden, self.lm_head, forward_batch)

    def step(self, ids, positions, batch, embeds, tokens: slice) -> torch.Tensor:
        """Hidden rows of some tokens."""
        self.bind(compat.get_token_to_kv_pool())
        decode = batch.forward_mode.is_decode()
        new = batch.seq_lens.new_ones(len(batch.seq_lens)) if decode else batch.extend_seq_lens
        starts = torch.nn.functional.pad(new.cumsum(0), (1, 0)).int()
        lengths, requests = batch.seq_lens.int(), slice(None)
        if tokens != slice(0, len(ids)):
            starts, lengths, requests = part(starts, starts.cpu(), lengths, tokens)
        # A slot is a token of a page: the table has the page of each page's first slot.
        slots = compat.get_req_to_token_pool().req_to_token
        longest = int(batch.seq_lens_cpu.max()) if self.on_host else slots.shape[1]
        table = slots[:, : longest : self.block_tokens][batch.req_pool_indices[requests]] // self.block_tokens
        ids, positions = ids[tokens], positions[tokens].long()
        tensors = dict(ids=ids, positions=positions, starts=starts, lengths=lengths)
        pointers = {name: tensor.data_ptr() for name, tensor in tensors.items()}
        tables = [(table.data_ptr(), table.stride(0))] * len(self.engine.cache)
        sizes = dict(tables=tables, sequences=len(lengths), tokens=len(ids))
        self.engine.begin(**pointers, **sizes, decode=decode, embedded=embeds is not None, stream=self.stream())
        return self.run(tokens, embeds, compat.tensor_model_parallel_all_reduce)

    def bind(self, pool) -> None:
        """Takes the pages of SGLang's pool. K and V of a layer are halves of one allocation, in which nobody but our kernels looks."""
        if pool is not self.pool:
            self.engine.bind_cache([self.pages(cache, *pool.get_kv_buffer(cache.layer)) for cache in self.engine.cache])
            self.pool = pool

    def pages(self, cache: atomc.Cache, k: torch.Tensor, v: torch.Tensor) -> tuple[int, int, int, int]:
        """Where those of a layer are, the bytes from one to the next, how many, and the name of their table: there is one."""
        half, blocks = v.data_ptr() - k.data_ptr(), len(k) // cache.block_tokens
        storage, used = k.untyped_storage(), blocks * cache.block_bytes
        room = storage.data_ptr() + storage.nbytes() - k.data_ptr()
        if half != k.nbytes or v.untyped_storage().data_ptr() != storage.data_ptr() or used > room:
            had = f"{room} bytes for K of {k.nbytes}, V {half} behind it"
            raise Refused(f"layer {cache.layer}: {blocks} pages of {cache.block_bytes} bytes, but SGLang's pool has {had}")
        granule = GRANULE if self.on_host else GPU_GRANULE
        if room - used + -(storage.data_ptr() + storage.nbytes()) % granule < SLACK:
            raise Refused(f"--max-total-tokens: a pool of {len(k)} ends where memory does; with a page more or less it does not")
        return k.data_ptr(), cache.block_bytes, blocks, 0
