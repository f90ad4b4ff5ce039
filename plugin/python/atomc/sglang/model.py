"""One opaque model for every architecture that an artifact holds, over SGLang's pools."""

from pathlib import Path
from types import SimpleNamespace

import torch

import atomc
from atomc import pages
from atomc.frameworks import Driven, device, part

from . import compat, config
from .compat import LogitsProcessor


# The table of states, among those of pages.
STATE = 2


class Model(Driven):
    """An artifact with weights, over SGLang's pools: the whole forward, from tokens to logits."""

    def __init__(self, adapter, artifact: atomc.Artifact, facts: dict):
        rank, group = compat.ranks()
        super().__init__(artifact, device(compat.gpu()), rank)
        config.check(facts, artifact, self.engine)
        asked = compat.options(["model_path", "load_format"])
        self.make_up(asked["load_format"])
        if not compat.on_host():
            for cache in self.paged():
                pages.fits(cache, adapter.rows)
        self.adapter, self.pool, self.block_tokens = adapter, None, self.paged()[0].block_tokens
        self.packed = Path(asked["model_path"], self.engine.packed_name)
        self.reduce, self.gather = group.all_reduce, group.all_gather
        # Which rows want logits, and log-probabilities of prompts, are SGLang's; the head is ours.
        self.processor = LogitsProcessor(SimpleNamespace(vocab_size=self.engine.vocab), skip_all_gather=True)
        head = SimpleNamespace(apply=lambda _, hidden, bias: self.logits(hidden, self.gather))
        self.lm_head = SimpleNamespace(quant_method=head)

    def paged(self) -> list[atomc.Cache]:
        return [cache for cache in self.engine.cache if not cache.slot]

    def load_weights(self, weights) -> None:
        self.adapter.load(self, weights)

    def forward(self, input_ids, positions, forward_batch, input_embeds=None):
        ids = input_ids.int()
        step = lambda tokens: self.step(ids, positions, forward_batch, input_embeds, tokens)
        # A rank without a request, which others wait for, has nothing of its own to compute: its
        # rows, if it has some, are padding.
        idle = forward_batch.forward_mode.is_idle() or not len(ids)
        hidden = self.hidden[:1].expand(len(ids), -1) if idle else self.steps(step, len(ids))
        return self.adapter.output(self, input_ids, hidden, forward_batch)

    def step(self, ids, positions, batch, embeds, tokens: slice) -> torch.Tensor:
        """Hidden rows of some tokens."""
        pool, of_requests = compat.pools(batch)
        self.bind(pool, of_requests)
        slots = of_requests.req_to_token
        decode = batch.forward_mode.is_decode()
        new = batch.seq_lens.new_ones(len(batch.seq_lens)) if decode else batch.extend_seq_lens
        starts = torch.nn.functional.pad(new.cumsum(0), (1, 0)).int()
        lengths, requests = batch.seq_lens.int(), slice(None)
        if tokens != slice(0, len(ids)):
            starts, lengths, requests = part(starts, starts.cpu(), lengths, tokens)
        # A slot is a token of a page: the table has the page of each page's first slot.
        longest = int(batch.seq_lens_cpu.max()) if self.on_host else slots.shape[1]
        rows = batch.req_pool_indices[requests]
        firsts = slots[:, : longest : self.block_tokens][rows]
        kept = [self.kind(pool, cache) for cache in self.engine.cache]
        # Layers with a window may have slots of their own.
        taken = {own: pool.translate_loc_from_full_to_swa(firsts) if own else firsts for own in set(kept) - {STATE}}
        places = {own: (first // self.block_tokens).int() for own, first in taken.items()}
        if STATE in kept:
            places[STATE] = of_requests.get_mamba_indices(rows).int()[:, None]
        ids, positions = ids[tokens], positions[tokens].long()
        tensors = dict(ids=ids, positions=positions, starts=starts, lengths=lengths)
        pointers = {name: tensor.data_ptr() for name, tensor in tensors.items()}
        tables = [(places[own].data_ptr(), places[own].stride(0)) for own in kept]
        sizes = dict(tables=tables, sequences=len(lengths), tokens=len(ids))
        self.engine.begin(**pointers, **sizes, decode=decode, embedded=embeds is not None, stream=self.stream())
        return self.run(tokens, embeds, self.reduce)

    def kind(self, pool, cache: atomc.Cache) -> int:
        """Which of a step's tables is a layer's: pages, pages of layers with a window, or states, of a kind for each size."""
        return STATE if cache.slot else int(compat.windowed(pool, cache.layer))

    def bind(self, pool, of_requests) -> None:
        """Takes the pages of SGLang's pool, and the states of layers that have such: of the convolution, then the recurrent one."""
        if pool is self.pool:
            return
        bound, states = [], {}
        for cache in self.engine.cache:
            if cache.slot:
                if cache.layer not in states:
                    of_layer = of_requests.mamba2_layer_cache(cache.layer)
                    states[cache.layer] = iter((*of_layer.conv, of_layer.temporal))
                page = pages.slot(cache, next(states[cache.layer]))
            else:
                page = self.adapter.bind(cache, self.on_host, *pool.get_kv_buffer(cache.layer))
            # Slots of one table are equally far apart.
            bound.append((*page, STATE + page[1] if cache.slot else self.kind(pool, cache)))
        self.engine.bind_cache(bound)
        self.pool = pool
