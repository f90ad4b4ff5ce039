"""The draft of an artifact as SGLang sees it: a model of its own, with a pool of its own, over the engine of the artifact's model."""

from collections import deque
from types import SimpleNamespace
from typing import Any

import torch

import atomc
from atomc.frameworks import Guessing, Refused

from .compat import LogitsProcessor
from .model import tokens_of


def draft(artifact: atomc.Artifact, architecture: str) -> "Draft":
    """That of an artifact, in the place of SGLang's class."""
    if not artifact.draft:
        raise Refused(
            f"{artifact.path}: --speculative-algorithm: it has no draft, as {architecture} is one"
        )
    return Draft()


class Draft(Guessing):
    """Guesses the tokens after those of an artifact's model, from the rows that the model leaves."""

    def __init__(self):
        super().__init__(None)
        # A checkpoint that SGLang reads before it gives the draft anything of the model.
        self.waiting = None
        self.processor: Any = None
        self.shapes: dict[str, torch.Size] = {}

    def load_weights(self, weights) -> set[str]:
        if self.target is None:
            self.waiting = weights
            return set()
        mine = self.own(weights)
        super().load_weights(mine)
        deque(mine, maxlen=0)  # of packed weights the names are still to see
        return set()

    def own(self, weights):
        """Those of its checkpoint, as it was at first: with an update SGLang gives a draft what it gives the model."""
        is_first = not self.shapes
        for name, tensor in weights:
            if is_first:
                self.shapes[name] = tensor.shape
            if self.shapes.get(name) == tensor.shape:
                yield name, tensor

    def set_embed(self, embed: torch.Tensor) -> None:
        """The model itself comes with its embedding, which is the engine's."""
        self.shared = (embed.model,)
        waiting, self.waiting = self.waiting, None
        if waiting is not None:
            self.load_weights(waiting)
        engine = self.target.engine
        self.processor = LogitsProcessor(
            SimpleNamespace(vocab_size=engine.draft_vocab), skip_all_gather=True
        )
        logits = lambda _, hidden, bias: self.target.logits(hidden, self.target.gather, draft=True)
        self.lm_head = SimpleNamespace(quant_method=SimpleNamespace(apply=logits))

    def set_embed_and_head(self, embed: torch.Tensor, _) -> None:
        self.set_embed(embed)

    @property
    def hot_token_id(self) -> torch.Tensor | None:
        """The model's number of each token of the draft's, as SGLang calls it."""
        return self.behind

    def forward(self, input_ids, positions, forward_batch, input_embeds=None):
        rows, target = forward_batch.spec_info.hidden_states, self.target
        if forward_batch.forward_mode.is_idle() or not len(input_ids):
            hidden = target.hidden[:1].expand(len(input_ids), -1)
        else:
            some = tokens_of(forward_batch, input_ids, positions, input_embeds, of_draft=True)
            step = lambda part: target.step(some, forward_batch, part, rows)
            hidden = target.steps(step, len(input_ids))
        return self.processor(input_ids, hidden, self.lm_head, forward_batch)
