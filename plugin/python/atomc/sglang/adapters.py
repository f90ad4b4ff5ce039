"""What kinds of models artifacts hold, and of each how it stands in SGLang: a table in the place of branches."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

import atomc
from atomc import pages
from atomc.frameworks import Driven

from . import compat
from .model import Model


@dataclass(frozen=True)
class Adapter:
    suits: Callable[[str, atomc.Artifact], bool]
    """Whether a model of this architecture with this artifact is of the kind."""
    prepare: Callable[[object], dict]
    """The facts of a model as its config.json has them, of the configuration that SGLang has made of it."""
    construct: Callable[..., torch.nn.Module]
    """The model, of its adapter, its artifact and its facts."""
    load: Callable[[torch.nn.Module, object], set[str]]
    """Loads a checkpoint's tensors, or packed weights that are in the model's folder. The names of those tensors."""
    bind: Callable[..., list[tuple[int, int, int]]]
    """The pages of a layer's caches in SGLang's pool, as `atomc.Model.bind_cache` takes them, without a table's name."""
    rows: int
    """Rows of each head that SGLang's pool has of a token."""
    output: Callable[..., object]
    """What SGLang samples from, of the hidden rows of a batch."""

    @property
    def apart(self) -> "Adapter":
        """That of a draft with a checkpoint of its own, which keeps keys and values whatever its model keeps."""
        return KEYS_AND_VALUES


def adapter(architecture: str, artifact: atomc.Artifact) -> Adapter:
    return next(row for row in ADAPTERS if row.suits(architecture, artifact))


def facts(config) -> dict:
    """Those of the checkpoint, where SGLang has rounded some up for processors."""
    whole = config.to_dict()
    if config.model_type in compat.ONE_ROPE:
        whole["rope_scaling"] = whole.pop("rope_parameters", None)
    exact = lambda found: (
        found | {name: found[kept] for name, kept in compat.ROUNDED.items() if kept in found}
    )
    return exact(whole) | {
        name: exact(part) for name, part in whole.items() if name == "text_config"
    }


def load(model: Model, weights) -> set[str]:
    """Loads packed weights first: SGLang reads none of its own before it is asked for them."""
    packed, model.packed = model.packed, None
    if packed and packed.exists():
        model.engine.load(packed)
        return set()
    return Driven.load_weights(model, weights)


def rows(
    caches: list[atomc.Cache], on_host: bool, k: torch.Tensor, _
) -> list[tuple[int, int, int]]:
    """Pages of latent rows, of which V is a part, and of an indexer's keys behind them."""
    return pages.within(caches, on_host, k)


def next_tokens(model: Model, ids: torch.Tensor, hidden: torch.Tensor, batch):
    """Logits of each request's last row. Where log-probabilities of prompts or hidden rows are asked for, or rows for a draft, SGLang's
    own code says of which rows, and asks our head."""
    asked = compat.LogitsMetadata.from_forward_batch(batch)
    if (
        asked.extend_return_logprob
        or asked.is_prefill_only
        or asked.capture_hidden_mode.need_capture()
    ):
        return model.processor(ids, hidden, model.lm_head, batch, model.take_left())
    last = (
        hidden
        if batch.forward_mode.is_decode_or_idle()
        else hidden[batch.extend_seq_lens.cumsum(0) - 1]
    )
    logits, buffer = model.logits(last, model.gather), batch.next_token_logits_buffer
    if buffer is not None and buffer.shape == logits.shape:  # which captured steps leave them in
        logits = buffer.copy_(logits)
    return compat.LogitsProcessorOutput(
        next_token_logits=logits, mm_input_embeds=asked.mm_input_embeds
    )


KEYS_AND_VALUES = Adapter(lambda *_: True, facts, Model, load, pages.halves, 2, next_tokens)
LATENT = replace(KEYS_AND_VALUES, suits=lambda _, artifact: artifact.latent, bind=rows, rows=1)

# The first that suits is taken.
ADAPTERS = (LATENT, KEYS_AND_VALUES)
