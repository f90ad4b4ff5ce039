"""One opaque model for every architecture that an artifact holds."""

import time
from types import new_class

import torch

import atomc
from atomc.frameworks import Driven, Refused, device
from atomc.pages import by_layer

from . import compat, config
from .attention import Layer, SlotLayer, layers, share
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
        from .images import Seeing

        model = (Seeing if artifact.tower else Model)(vllm_config, prefix, artifact)
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
    before: type = Choice if architecture in compat.ARCHITECTURES else PassedBy
    if architecture in compat.DRAFTS:
        from .draft import DraftChoice

        before = DraftChoice
    return new_class(
        architecture, (before, own), exec_body=lambda body: body.update(__module__=own.__module__)
    )


def measures() -> bool:
    """Whether a step is for nothing but vLLM's measuring of memory: there is no cache yet."""
    none = get_forward_context().attn_metadata is None
    return none and not BreakableCUDAGraphCapture.is_active()


class Model(Driven):
    """An artifact with weights, over vLLM's cache."""

    supports_mrope = True
    # What vLLM asks of models that EAGLE-3 heads are for. Which rows a head takes is compiled in.
    supports_eagle3 = True
    has_own_embed_tokens = has_own_lm_head = False
    # Trainers look here for what vLLM's own modules are called that are made of several tensors.
    packed_modules_mapping: dict[str, list[str]] = {}

    def __init__(self, vllm_config, prefix: str, artifact: atomc.Artifact):
        attention, rank = config.attention(), compat.get_tensor_model_parallel_rank()
        guesses = vllm_config.speculative_config
        draft = guesses is not None and guesses.use_eagle() and artifact.draft
        images = config.images(vllm_config)
        super().__init__(artifact, device(config.gpu()), rank, attention, draft, images)
        self.own, self.latent = attention == "own", artifact.latent
        config.check(vllm_config, artifact, self.engine)
        self.make_up(vllm_config.load_config.load_format)
        self.model = compat.inner_model()
        # vLLM wants one number in the name of a layer.
        caches = [cache for cache in self.engine.cache if not cache.draft]
        name = f"{prefix}layers.{{}}.attention".format
        self.names = [name(cache.layer) for cache in caches]
        kept = {name(layer): found for layer, found in by_layer(caches).items()}
        self.layers = (
            layers(kept, vllm_config, self)
            if self.own
            else self.vllm_layers(vllm_config, self.names)
        )
        self.draft_layers: dict[str, Layer | SlotLayer] = {}
        self.leave_rows(vllm_config.scheduler_config.max_num_batched_tokens)

    @staticmethod
    def of(vllm_config) -> "Model | None":
        """The model of this process that an artifact runs."""
        kept = vllm_config.compilation_config.static_forward_context.values()
        return next((layer.model() for layer in kept if isinstance(layer, Layer)), None)

    def leave_rows(self, most: int) -> None:
        """Makes a place for a step's rows for its draft. The step may take several plans."""
        self.drafted = self.left = self.hidden[:0]
        if not self.engine.draft:
            return
        self.drafted = self.left = torch.from_dlpack(self.engine.drafted)
        if most > self.engine.max_tokens:
            self.left = self.drafted.new_zeros(most, self.drafted.shape[1])
        if not self.engine.draft_apart:
            # Instead of the hidden rows vLLM gives these to the draft.
            self.get_mtp_target_hidden_states = lambda: self.left

    def set_aux_hidden_state_layers(self, layers: tuple[int, ...]) -> None:
        """The artifact was compiled for those of its head."""

    def get_eagle3_default_aux_hidden_state_layers(self) -> tuple[int, ...]:
        return ()

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
    ) -> torch.Tensor | tuple[torch.Tensor, list[torch.Tensor]]:
        count = positions.shape[-1]
        if measures():
            rows = torch.zeros_like(self.hidden[:1]).expand(count, -1)
        else:
            step = lambda tokens: self.step(input_ids, positions, inputs_embeds, tokens)
            rows = self.steps(step, count)
        # vLLM takes what layers leave for an EAGLE-3 head from here, in a list.
        apart = self.engine.draft and self.engine.draft_apart
        return (rows, [self.left[:count]]) if apart else rows

    def step(self, ids, positions: torch.Tensor, embeds, tokens: slice) -> torch.Tensor:
        self.begin(ids, positions, tokens)
        attend = lambda layer, q, k, v: [*self.layers.values()][layer](q, k, v)
        rows = self.run(tokens, embeds, compat.tensor_model_parallel_all_reduce, attend)
        if self.left is not self.drafted:
            self.left[tokens].copy_(self.drafted[: len(rows)])
        return rows

    @eager_break_during_capture
    def begin(self, ids, positions: torch.Tensor, tokens: slice) -> None:
        """Gives the runtime some tokens of the batch. What follows reads them from the device, so
        captures break here, not at our own attention, and fit any mixture of that size."""
        context = get_forward_context()
        batch = context.attn_metadata[next(iter(self.layers))]
        places = self.places(positions, batch)
        starts, lengths, requests = share(batch, tokens, len(places))
        tables = [context.attn_metadata[name].block_table_tensor for name in self.names if self.own]
        # Pages of vLLM's are elsewhere while it measures; layers of one group have one table.
        if self.own:
            pages = {name: iter(layer.pages()) for name, layer in self.layers.items()}
            bound = [
                (*next(pages[name]), table.data_ptr()) for name, table in zip(self.names, tables)
            ]
            # All layers of a draft have one table, which is not the model's.
            own = [(*page, 0) for layer in self.draft_layers.values() for page in layer.pages()]
            self.engine.bind_cache(bound + own)
        rows = {
            name: (t[requests].data_ptr(), t.stride(0))
            for name, t in {id(t): t for t in tables}.items()
        }
        tables = [rows[id(t)] for t in tables]
        ids, embedded = (places.new_zeros(len(places)), True) if ids is None else (ids, False)
        ids, places = ids[tokens].int(), places[tokens].long()
        mixed = (
            BreakableCUDAGraphCapture.is_active()
            and context.cudagraph_runtime_mode == CUDAGraphMode.PIECEWISE
        )
        self.start(
            (ids, places, starts, lengths),
            tables,
            each=0 if mixed else self.few(batch),
            embedded=embedded,
        )
        self.see(positions, tokens)

    def places(self, positions: torch.Tensor, batch) -> torch.Tensor:
        """The number of each token in its sequence, which text has for all of its positions."""
        return positions[0] if positions.dim() == 2 else positions

    def see(self, positions: torch.Tensor, tokens: slice) -> None:
        """Gives the step that has begun what models that see images read of its tokens."""

    def few(self, batch) -> int:
        """Most tokens of a sequence in a batch, if there are kernels for so few; else 0."""
        return batch.max_query_len if batch.max_query_len <= self.engine.each else 0

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.logits(hidden_states, compat.tensor_model_parallel_all_gather)
