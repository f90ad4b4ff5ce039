"""The draft of an artifact as vLLM sees it: a model of its own, with layers of its own, over the engine of the artifact's model."""

from types import new_class

import torch

from atomc.frameworks import Guessing

from . import compat
from .attention import layers, share
from .compat import eager_break_during_capture, get_forward_context
from .model import Model, measures


class DraftChoice:
    """Comes before a class of vLLM's own for drafts: an instance is of that class only where the model is vLLM's own too."""

    def __new__(cls, *, vllm_config, prefix: str = ""):
        if (target := Model.of(vllm_config)) is None or not target.engine.draft:
            return super().__new__(cls)
        # vLLM looks whether some drafts are of its own classes.
        own = cls.__mro__[cls.__mro__.index(DraftChoice) + 1]
        return new_class(own.__name__, (Draft, own))(target, vllm_config, prefix)


class Draft(Guessing):
    """Guesses the tokens after those of an artifact's model, from the rows that the model leaves."""

    has_own_embed_tokens = has_own_lm_head = False
    # Some of vLLM's classes look at this before they run.
    do_not_compile = True

    def __init__(self, target: Model, vllm_config, prefix: str):
        Guessing.__init__(self, target)
        self.model = compat.inner_model()
        self.config = vllm_config.speculative_config.draft_model_config.hf_config
        caches = [cache for cache in target.engine.cache if cache.draft]
        names = {f"{prefix}layers.{cache.layer}.attention": [cache] for cache in caches}
        self.layers = target.draft_layers = layers(
            names, vllm_config, target, target.layers.values()
        )

    def embed_input_ids(self, input_ids: torch.Tensor, *_, **__) -> torch.Tensor:
        return self.target.embed_input_ids(input_ids)

    def combine_hidden_states(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """The model has done that."""
        return hidden_states

    def forward(
        self, input_ids, positions, hidden_states, inputs_embeds=None, *_, **__
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        positions = positions[0] if positions.dim() == 2 else positions
        if measures():
            rows = torch.zeros_like(self.target.hidden[:1]).expand(len(positions), -1)
        else:
            step = lambda tokens: self.step(input_ids, positions, hidden_states, tokens)
            rows = self.target.steps(step, len(positions))
        # Logits and the next step begin with the same.
        return (rows, rows) if type(self).__name__ in compat.TWO_ROWS else rows

    def step(self, ids, positions, rows, tokens: slice) -> torch.Tensor:
        self.begin(ids, positions, rows, tokens)
        return self.target.run(tokens, None, compat.tensor_model_parallel_all_reduce)

    @eager_break_during_capture
    def begin(self, ids, positions, rows, tokens: slice) -> None:
        target = self.target
        batch = get_forward_context().attn_metadata[next(iter(self.layers))]
        starts, lengths, requests = share(batch, tokens, len(positions))
        table = batch.block_table_tensor[requests]
        target.drafted[: tokens.stop - tokens.start].copy_(rows[tokens])
        target.start(
            (ids[tokens].int(), positions[tokens].long(), starts, lengths),
            [(table.data_ptr(), table.stride(0))] * len(self.layers),
            each=target.few(batch),
            draft=True,
        )

    def compute_logits(self, hidden_states: torch.Tensor, *_, **__) -> torch.Tensor:
        gather = compat.tensor_model_parallel_all_gather
        logits = self.target.logits(hidden_states, gather, draft=True)
        if self.behind is None:
            return logits
        all_tokens = logits.new_full((len(logits), self.target.engine.vocab), -torch.inf)
        all_tokens[:, self.behind] = logits
        return all_tokens
