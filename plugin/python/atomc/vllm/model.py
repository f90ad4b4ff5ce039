"""One opaque model for every architecture that an artifact holds."""

import time
from types import SimpleNamespace, new_class
from typing import Any

import torch

import atomc
from atomc.frameworks import Driven, Refused, device, part

from . import compat, config
from .attention import Backend, Layer, SlotLayer
from .compat import (
    Attention,
    BreakableCUDAGraphCapture,
    CUDAGraphMode,
    eager_break_during_capture,
    get_forward_context,
)
from .config import logger


class Choice:
    """Comes before a class of vLLM's own: an instance is of that class only where the model has no artifact."""

    def __new__(cls, *, vllm_config, prefix: str = ""):
        began = time.perf_counter()
        if (artifact := config.find(vllm_config)) is None:
            return super().__new__(cls)
        model = Model(vllm_config, prefix, artifact)
        logger.info(
            "atomc: %s; opened in %.0f ms", model.engine, (time.perf_counter() - began) * 1e3
        )
        return model


class PassedBy:
    """Comes before vLLM's class over transformers' code, which `--model-impl transformers` chooses."""

    def __new__(cls, *, vllm_config, prefix: str = ""):
        config.pass_by(vllm_config)
        return super().__new__(cls)


def __getattr__(name: str) -> type[torch.nn.Module]:
    """What the registry names. What vLLM asks a class before there is a model is thus answered by its own class."""
    architecture = name.partition("-")[0]
    if (own := compat.own_class(architecture)) is None:
        raise AttributeError(name)
    before = Choice if architecture in compat.ARCHITECTURES else PassedBy
    return new_class(
        architecture, (before, own), exec_body=lambda body: body.update(__module__=own.__module__)
    )


class Model(Driven):
    """An artifact with weights, over vLLM's cache."""

    supports_mrope = True

    def __init__(self, vllm_config, prefix: str, artifact: atomc.Artifact):
        attention, rank = config.attention(), compat.get_tensor_model_parallel_rank()
        super().__init__(artifact, device(config.gpu()), rank, attention)
        self.own, self.latent = attention == "own", artifact.latent
        config.check(vllm_config, artifact, self.engine)
        self.make_up(vllm_config.load_config.load_format)
        # Trainers look there for modules that have loaders of weights.
        self.model = SimpleNamespace(layers=())
        # vLLM wants one number in the name of a layer.
        self.names = [f"{prefix}layers.{cache.layer}.attention" for cache in self.engine.cache]
        self.layers = (
            self.own_layers(vllm_config) if self.own else self.vllm_layers(vllm_config, self.names)
        )

    def own_layers(self, vllm_config) -> dict[str, Layer | SlotLayer]:
        kept: dict[str, list[atomc.Cache]] = {}
        for name, cache in zip(self.names, self.engine.cache):
            kept.setdefault(name, []).append(cache)
        layers = {name: SlotLayer(caches) for name, caches in kept.items() if caches[0].slot}
        most = max((layer.bytes for layer in layers.values()), default=0)
        paged = {name: cache for name, [cache, *_] in kept.items() if not cache.slot}
        tokens = next(iter(paged.values())).block_tokens
        kind = dict(block_tokens=tokens, halves=1 if self.latent else 2)
        backend: Any = new_class("Backend", (Backend,), exec_body=lambda body: body.update(kind))
        layers |= {name: Layer(backend, cache) for name, cache in paged.items()}
        page = min(2 * layers[name].half for name in paged) * tokens
        backend.slot_tokens = -(-most // page) * tokens
        vllm_config.compilation_config.static_forward_context.update(layers)
        return layers

    def vllm_layers(self, vllm_config, names: list[str]) -> dict[str, Attention]:
        heads, cache = (
            vllm_config.model_config.get_num_attention_heads(vllm_config.parallel_config),
            vllm_config.cache_config,
        )
        shapes = [(heads, c.head_dim, c.head_dim**-0.5, c.heads) for c in self.engine.cache]
        layers = [
            dict(prefix=n, per_layer_sliding_window=c.window or None)
            for n, c in zip(names, self.engine.cache)
        ]
        self.attention = torch.nn.ModuleList(
            Attention(*s, cache_config=cache, **layer) for s, layer in zip(shapes, layers)
        )
        return dict(zip(names, self.attention))

    @classmethod
    def get_mamba_state_copy_func(cls):
        """How vLLM copies the slots of a layer to another page, with prefix caching: as they are."""
        return (compat.get_temporal_copy_spec,)

    @classmethod
    def get_mamba_state_copy_funcs(cls, kinds):
        return dict.fromkeys(kinds, cls.get_mamba_state_copy_func())

    def get_mrope_input_positions(
        self, input_tokens: list[int], mm_features: list
    ) -> tuple[torch.Tensor, int]:
        """Positions in time, height and width, which are equal where all is text."""
        if mm_features:
            raise Refused(
                "an artifact has one position for each token, and those of an image have three"
            )
        return torch.arange(len(input_tokens)).expand(3, -1), 0

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        return torch.cat(
            [self.embed(ids).clone() for ids in input_ids.split(self.engine.max_tokens)]
        )

    def forward(
        self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None, **_
    ) -> torch.Tensor:
        positions = positions[0] if positions.dim() == 2 else positions
        if (
            get_forward_context().attn_metadata is None
            and not BreakableCUDAGraphCapture.is_active()
        ):
            # No cache is there yet: vLLM measures memory.
            return torch.zeros_like(self.hidden[:1]).expand(len(positions), -1)
        return self.steps(
            lambda tokens: self.step(input_ids, positions, inputs_embeds, tokens), len(positions)
        )

    def step(self, ids, positions: torch.Tensor, embeds, tokens: slice) -> torch.Tensor:
        self.begin(ids, positions, tokens)
        attend = lambda layer, q, k, v: [*self.layers.values()][layer](q, k, v)
        return self.run(tokens, embeds, compat.tensor_model_parallel_all_reduce, attend)

    @eager_break_during_capture
    def begin(self, ids, positions: torch.Tensor, tokens: slice) -> None:
        """Gives the runtime some tokens of the batch. What follows reads them from the device, so captures break here,
        not at our own attention, and fit any mixture of so many tokens."""
        context = get_forward_context()
        batch = context.attn_metadata[next(iter(self.layers))]
        starts, lengths, requests = batch.query_start_loc, batch.seq_lens, slice(None)
        if tokens != slice(0, len(positions)):
            starts, lengths, requests = part(starts, batch.query_start_loc_cpu, lengths, tokens)
        tables = [context.attn_metadata[name].block_table_tensor for name in self.names if self.own]
        # Pages of vLLM's are elsewhere while it measures; layers of one group have one table.
        if self.own:
            pages = {name: iter(layer.pages()) for name, layer in self.layers.items()}
            self.engine.bind_cache(
                [(*next(pages[name]), table.data_ptr()) for name, table in zip(self.names, tables)]
            )
        rows = {
            name: (t[requests].data_ptr(), t.stride(0))
            for name, t in {id(t): t for t in tables}.items()
        }
        tables = [rows[id(t)] for t in tables]
        ids, embedded = (positions.new_zeros(len(positions)), True) if ids is None else (ids, False)
        ids, positions = ids[tokens].int(), positions[tokens].long()
        mixed = (
            BreakableCUDAGraphCapture.is_active()
            and context.cudagraph_runtime_mode == CUDAGraphMode.PIECEWISE
        )
        self.start(
            (ids, positions, starts, lengths),
            tables,
            decode=batch.max_query_len == 1 and not mixed,
            embedded=embedded,
        )

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.logits(hidden_states, compat.tensor_model_parallel_all_gather)
