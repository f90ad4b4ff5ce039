"""Slots of recurrent states where steps verify guesses. Such a step leaves the state behind each of its tokens, so a request has as
many slots as the step has tokens: SGLang's one, and others behind all of SGLang's. They are a ring: the state behind the last token
of a step goes where the step began, which it has read by then. Of the accepted tokens the last one's state is where the next step
begins, and nothing is copied."""

import torch

from . import compat, config


class Rings:
    def __init__(self, requests: int, tokens: int, first: int, device):
        self.tokens = tokens
        others = torch.arange(requests * (tokens - 1), dtype=torch.int32, device=device) + first
        self.others = others.view(requests, tokens - 1)
        # The place in its ring where each request's state is.
        self.places = torch.zeros(requests, dtype=torch.int64, device=device)

    def slots(self, own: torch.Tensor, requests: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        """Slots of requests, so many places after the one where the state of each is."""
        ring = torch.cat([own[:, None], self.others[requests]], 1)
        return ring.gather(1, (self.places[requests][:, None] + turns) % self.tokens)

    def table(self, own, requests, begun: torch.Tensor, entries: int) -> torch.Tensor:
        """The table of a step that verifies, of which earlier steps have done `begun` tokens of each request."""
        turns = torch.arange(self.tokens + 1, device=own.device) + begun[:, None]
        table = own.new_full((len(own), entries), -1)
        table[:, : self.tokens + 1] = self.slots(own, requests, turns)
        return table

    def begin(self, requests: torch.Tensor) -> None:
        """Prompts begin and end in SGLang's own slots."""
        self.places[requests] = 0

    def accept(self, requests: torch.Tensor, tokens: torch.Tensor) -> None:
        self.places[requests] = (self.places[requests] + tokens) % self.tokens


def with_rings(create, pool, **asked) -> None:
    """SGLang's pool of states, where an artifact verifies guesses: with slots of rings in the place of buffers for SGLang's kernels."""
    tokens = asked["speculative_num_draft_tokens"]
    if tokens is None or config.artifact() is None:
        return create(pool, **asked)
    own, requests, device = asked["mamba_size"], len(pool.req_to_token), asked["device"]
    room = dict(mamba_size=own + requests * (tokens - 1), speculative_num_draft_tokens=None)
    of_kernels = dict(enable_linear_replayssm=False, enable_linear_replayssm_spec=False)
    create(pool, **asked | room | of_kernels)
    # SGLang gives out those that it asked for.
    pool.mamba_allocator = type(pool.mamba_allocator)(size=own, device=device)
    pool.mamba_pool.size = own
    pool.rings = Rings(requests, tokens, own + 1, device)


def keep(pool, requests: torch.Tensor, accepted: torch.Tensor, kept, turns, on_host: bool) -> None:
    """Behind a step that verified guesses: copies states to `kept`, where SGLang asks for those behind so many of its tokens, and goes on
    behind the last that was accepted. On GPUs SGLang asks for none, as `config.check` makes sure."""
    if kept is not None and on_host:
        asked = turns > 0
        own = pool.get_mamba_indices(requests[asked]).int()
        source = pool.rings.slots(own, requests[asked], turns[asked][:, None])[:, 0]
        compat.copy_states(pool, source, kept[asked])
    pool.rings.accept(requests, accepted)
