"""One opaque model for every architecture that an artifact holds, over SGLang's pools."""

import itertools
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

import atomc
from atomc import pages
from atomc.frameworks import Driven, device, part

from . import compat, config
from .compat import LogitsProcessor
from .pool import spread

# Tables of a step after the first: pages of layers with a window, states, and a draft's pages.
WINDOW, STATE, DRAFT = 1, 2, 3


@dataclass(frozen=True)
class Tokens:
    """New tokens, request by request."""

    ids: torch.Tensor
    positions: torch.Tensor
    embeds: torch.Tensor | None
    counts: torch.Tensor
    """New tokens of each request."""
    lengths: torch.Tensor
    """Tokens of each request, with those."""
    requests: torch.Tensor
    """Where SGLang's pool has each request."""
    each: int
    """Most new tokens of a request, if they are few, or 0."""

    def only(self, rows: torch.Tensor, counts: torch.Tensor, lengths: torch.Tensor) -> "Tokens":
        """Some of the tokens, `counts` of each request; requests with none of them are left out."""
        embeds, some = None if self.embeds is None else self.embeds[rows], counts > 0
        return Tokens(
            self.ids[rows],
            self.positions[rows],
            embeds,
            counts[some],
            lengths[some],
            self.requests[some],
            self.each,
        )


def live(rows: torch.Tensor, lengths: torch.Tensor, decode: bool) -> torch.Tensor:
    """The rows of SGLang's pool that have requests. Rows that pad a captured step may name a
    running request, and must not write its pages: they get the pool's row 0, which has no owner.
    They are one token long, and no other row of a decode step is."""
    return rows.where(lengths > 1, 0) if decode else rows


def tokens_of(batch, ids, positions, embeds, of_draft: bool = False) -> Tokens:
    """What a batch of SGLang's brings: tokens of prompts, one of each request, or as many of each as a step verifies."""
    mode, lengths, each = batch.forward_mode, batch.seq_lens, 0
    if mode.is_decode():
        each, counts = 1, torch.ones_like(lengths)
        # SGLang leaves the lengths while a draft guesses one token after the other.
        lengths = positions + 1 if of_draft else lengths
    elif mode.is_target_verify():
        each = batch.spec_info.draft_token_num
        counts = torch.full_like(lengths, each)
        lengths = lengths + each
    else:
        counts = batch.extend_seq_lens
        if mode.is_draft_extend_v2():
            each = batch.spec_info.num_tokens_per_req
    return Tokens(ids.int(), positions, embeds, counts, lengths, batch.req_pool_indices, each)


class Model(Driven):
    """An artifact with weights, over SGLang's pools: the whole forward, from tokens to logits."""

    def __init__(self, adapter, artifact: atomc.Artifact, facts: dict):
        rank, group = compat.ranks()
        guesses = compat.options(["speculative_algorithm"])["speculative_algorithm"]
        draft = guesses in compat.EAGLE and artifact.draft
        super().__init__(artifact, device(compat.gpu()), rank, draft=draft)
        config.check(facts, artifact, self.engine)
        self.adapter = adapter
        asked = compat.options(["model_path", "load_format"])
        self.make_up(asked["load_format"])
        if not compat.on_host():
            for caches in pages.by_layer(self.paged()).values():
                pages.fits(caches, self.adapter_of(caches[0]).rows)
        self.pool, self.block_tokens = None, self.paged()[0].block_tokens
        self.drafted = torch.from_dlpack(self.engine.drafted) if draft else self.hidden[:0]
        # Rows that a step has left for the draft, and the draft's pool.
        self.left: list[torch.Tensor] = []
        self.draft_pool: Any = None
        self.packed: Path | None = Path(asked["model_path"], self.engine.packed_name)
        self.reduce, self.gather = group.all_reduce, group.all_gather
        # Which rows want logits, and log-probabilities of prompts, are SGLang's; the head is ours.
        self.processor = LogitsProcessor(
            SimpleNamespace(vocab_size=self.engine.vocab), skip_all_gather=True
        )
        head = SimpleNamespace(apply=lambda _, hidden, bias: self.logits(hidden, self.gather))
        self.lm_head = SimpleNamespace(quant_method=head)

    def paged(self) -> list[atomc.Cache]:
        return [cache for cache in self.engine.cache if not cache.slot]

    def adapter_of(self, cache: atomc.Cache):
        """The adapter of a layer's pages. A head with its own checkpoint keeps keys and values."""
        return self.adapter.apart if cache.draft and self.engine.draft_apart else self.adapter

    def load_weights(self, weights) -> set[str]:
        return self.adapter.load(self, weights)

    def set_eagle3_layers_to_capture(self, layers: list[int] | None = None) -> None:
        """The artifact was compiled for those of its head."""

    def get_embed_and_head(self) -> tuple[torch.Tensor, torch.Tensor]:
        """What SGLang gives a draft of a model's: no weights, which are the engine's, but the model."""
        embed = self.hidden[:0]
        embed.model = self
        return embed, embed

    def take_left(self) -> list[torch.Tensor] | None:
        """Rows that the last forward has left for the draft, in a list as layers leave them in SGLang; none without a draft."""
        left, self.left = self.left, []
        return [left[0] if len(left) == 1 else torch.cat(left)] if left else None

    def forward(self, input_ids, positions, forward_batch, input_embeds=None):
        # A rank without a request, which others wait for, has nothing of its own to compute: its
        # rows, if it has some, are padding.
        if forward_batch.forward_mode.is_idle() or not len(input_ids):
            hidden = self.hidden[:1].expand(len(input_ids), -1)
        else:
            hidden = self.computed(
                forward_batch, tokens_of(forward_batch, input_ids, positions, input_embeds)
            )
        return self.adapter.output(self, input_ids, hidden, forward_batch)

    def computed(self, batch, whole: Tokens) -> torch.Tensor:
        """Hidden rows. Where SGLang keeps a state, for other requests to begin with, a step ends there, and another has the rest."""
        run = lambda some: self.steps(lambda tokens: self.step(some, batch, tokens), len(some.ids))
        marks = compat.marks(batch, self.on_host)
        if marks is None:
            return run(whole)
        first = torch.where(marks > 0, marks, whole.counts)
        owner = torch.arange(len(first), device=first.device).repeat_interleave(whole.counts)
        place = (
            torch.arange(len(owner), device=first.device)
            - (whole.counts.cumsum(0) - whole.counts)[owner]
        )
        early, hidden = (
            place < first[owner],
            self.hidden.new_zeros(len(whole.ids), self.hidden.shape[1]),
        )
        rest = whole.counts - first
        for number, (rows, counts, lengths) in enumerate(
            ((early, first, whole.lengths - rest), (~early, rest, whole.lengths))
        ):
            if len(rows := rows.nonzero()[:, 0]):
                hidden[rows] = run(whole.only(rows, counts, lengths))
            if number == 0:
                compat.keep_states(batch, marks > 0)
        return hidden

    def step(
        self, some: Tokens, batch, tokens: slice, rows: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Hidden rows of some tokens; of the draft, if there are rows that it begins with."""
        pool, of_requests = compat.pools(batch)
        draft = rows is not None
        if rows is not None:
            self.drafted[: tokens.stop - tokens.start].copy_(rows[tokens])
        else:
            self.bind(pool, of_requests)
        ids, slots = some.ids, of_requests.req_to_token
        starts = torch.nn.functional.pad(some.counts.cumsum(0), (1, 0)).int()
        lengths, requests = some.lengths.int(), slice(None)
        if tokens != slice(0, len(ids)):
            starts, lengths, requests = part(starts, starts.cpu(), lengths, tokens)
        # A slot is a token of a page: the table has the page of each page's first slot.
        longest = int(lengths.max()) if self.on_host else slots.shape[1]
        of = live(some.requests[requests], lengths, batch.forward_mode.is_decode())
        firsts = slots[:, : longest : self.block_tokens][of]
        kept = [self.kind(pool, cache) for cache in self.engine.cache if cache.draft == draft]
        # Layers with a window may have slots of their own.
        taken = {
            own: pool.translate_loc_from_full_to_swa(firsts) if own == WINDOW else firsts
            for own in set(kept) - {STATE}
        }
        places = {own: (first // self.block_tokens).int() for own, first in taken.items()}
        if STATE in kept:
            before = lengths - starts.diff() - (some.lengths - some.counts)[requests]
            mode = batch.forward_mode
            places[STATE] = self.slots(of_requests, of, starts.diff(), before, mode)
        ids, positions = ids[tokens], some.positions[tokens].long()
        tables = [(places[own].data_ptr(), places[own].stride(0)) for own in kept]
        self.start(
            (ids, positions, starts, lengths),
            tables,
            each=some.each if some.each <= self.engine.each else 0,
            embedded=some.embeds is not None,
            draft=draft,
        )
        hidden = self.run(tokens, some.embeds, self.reduce)
        if self.engine.draft and not draft:
            # The draft's own steps begin in the same place.
            self.left.append(self.drafted[: len(hidden)].clone())
        return hidden

    def slots(self, pool, of: torch.Tensor, tokens: torch.Tensor, before, mode) -> torch.Tensor:
        """The table of slots of requests: of a step that verifies guesses those of their rings. In other steps each has one, and keeps the
        state behind the last of its new tokens alone. `before` are those of a step's tokens that are done."""
        entries = max(cache.entries for cache in self.engine.cache if cache.slot)
        own, rings = pool.get_mamba_indices(of).int(), getattr(pool, "rings", None)
        if rings and mode.is_target_verify():
            return rings.table(own, of, before, entries)
        if rings and mode.is_decode():
            own = rings.slots(own, of, torch.zeros_like(of)[:, None])[:, 0]
        elif rings:
            rings.begin(of)
        if entries == 1:
            return own[:, None]
        last = torch.where(tokens < entries, tokens, 1).clamp(min=1).long()
        table = own.new_full((len(own), entries), -1).scatter_(1, last[:, None], own[:, None])
        table[:, 0] = own
        return table

    def kind(self, pool, cache: atomc.Cache) -> int:
        """Which of a step's tables is a layer's: pages, pages of layers with a window, or states, of a kind for each size."""
        if cache.draft:
            return DRAFT
        return STATE if cache.slot else int(compat.windowed(pool, cache.layer))

    def bind(self, pool, of_requests) -> None:
        """Takes the pages of SGLang's pool, and the states of layers that have such: of the convolution, then the recurrent one."""
        if pool is self.pool:
            return
        if self.pool is None and compat.on_host() and any(c.slot for c in self.engine.cache):
            spread(of_requests.mamba_pool)
        bound, of_draft = [], itertools.count()
        for caches in pages.by_layer(self.engine.cache).values():
            first = caches[0]
            if first.draft:
                of_layer = self.draft_pool.get_kv_buffer(next(of_draft))
                found = self.adapter_of(first).bind(caches, self.on_host, *of_layer)
            elif first.slot:
                states = of_requests.mamba2_layer_cache(first.layer)
                found = [pages.slot(*one) for one in zip(caches, (*states.conv, states.temporal))]
            else:
                of_layer = pool.get_kv_buffer(first.layer)
                found = self.adapter.bind(caches, self.on_host, *of_layer)
            # Slots of one table are equally far apart.
            bound += [
                (*page, STATE + page[1] if first.slot else self.kind(pool, first)) for page in found
            ]
        self.engine.bind_cache(bound)
        self.pool = pool
