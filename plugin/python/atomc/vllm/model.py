"""One opaque model for every architecture that an artifact holds."""

import time
from types import new_class

import torch

import atomc

from . import compat, config
from .attention import Backend, Layer
from .compat import Attention, BreakableCUDAGraphCapture, CUDAGraphMode
from .compat import eager_break_during_capture, get_forward_context, init_logger

logger = init_logger(f"vllm.{__name__}")


class Choice:
    """Comes before a class of vLLM's own: an instance is of that class only where the model has no artifact."""

    def __new__(cls, *, vllm_config, prefix: str = ""):
        began = time.perf_counter()
        if (artifact := config.find(vllm_config)) is None:
            return super().__new__(cls)
        model = Model(vllm_config, prefix, artifact)
        logger.info("atomc: %s; opened in %.0f ms", model.engine, (time.perf_counter() - began) * 1e3)
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
    return new_class(architecture, (before, own), exec_body=lambda body: body.update(__module__=own.__module__))


class Model(torch.nn.Module):
    """An artifact with weights, over vLLM's cache. It has no parameters: weights go into the runtime's buffers."""

    def __init__(self, vllm_config, prefix: str, artifact: atomc.Artifact):
        super().__init__()
        device, rank = config.device(), compat.get_tensor_model_parallel_rank()
        self.on_host, self.own, self.memory = device == "host", config.attention() == "own", []
        options = dict(stream=self.stream(), allocate=None if self.on_host else self.allocate)
        self.engine = atomc.Model(artifact, device, rank=rank, attention=config.attention(), **options)
        config.check(vllm_config, artifact, self.engine)
        rows = self.engine.hidden, self.engine.head_input, self.engine.embed_input
        self.hidden, self.head_input, self.embed_input = map(torch.from_dlpack, rows)
        names = [f"{prefix}model.layers.{cache.layer}.self_attn.attn" for cache in self.engine.cache]
        self.layers = dict(zip(names, (self.own_layers if self.own else self.vllm_layers)(vllm_config, names)))

    def own_layers(self, vllm_config, names: list[str]) -> list[Layer]:
        tokens = self.engine.cache[0].block_tokens
        backend = new_class("Backend", (Backend,), exec_body=lambda body: body.update(block_tokens=tokens))
        windows = [cache.window for cache in self.engine.cache]  # as soon as one layer sees all keys, all are kept
        layers = [Layer(backend, cache, max(windows) if all(windows) else 0) for cache in self.engine.cache]
        vllm_config.compilation_config.static_forward_context.update(zip(names, layers))
        return layers

    def vllm_layers(self, vllm_config, names: list[str]) -> torch.nn.ModuleList:
        heads, cache = vllm_config.model_config.get_num_attention_heads(vllm_config.parallel_config), vllm_config.cache_config
        shapes = [(heads, c.head_dim, c.head_dim**-0.5, c.heads) for c in self.engine.cache]
        layers = [dict(prefix=n, per_layer_sliding_window=c.window or None) for n, c in zip(names, self.engine.cache)]
        return torch.nn.ModuleList(Attention(*s, cache_config=cache, **layer) for s, layer in zip(shapes, layers))

    def stream(self) -> int:
        return 0 if self.on_host else torch.cuda.current_stream().cuda_stream

    def allocate(self, size: int) -> int:
        self.memory.append(torch.zeros(size, dtype=torch.uint8, device="cuda"))  # which vLLM accounts for
        return self.memory[-1].data_ptr()

    def load_weights(self, weights) -> None:
        with self.engine.loading(update=True) as load:
            for name, tensor in weights:
                load.feed(name, tensor.detach(), stream=self.stream())

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.embed(ids).clone() for ids in input_ids.split(self.engine.max_tokens)])

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        self.embed_input[: len(ids), 0].copy_(ids)
        return torch.from_dlpack(self.engine.embed(len(ids), stream=self.stream()))

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None, **_) -> torch.Tensor:
        tokens, most = len(positions), self.engine.max_tokens
        if get_forward_context().attn_metadata is None and not BreakableCUDAGraphCapture.is_active():
            return torch.zeros_like(self.hidden[:1]).expand(tokens, -1)  # vLLM measures memory; there is no cache yet
        parts = [slice(first, min(first + most, tokens)) for first in range(0, tokens, most)]  # no larger than plans
        steps = (self.step(input_ids, positions, inputs_embeds, part) for part in parts)
        return next(steps) if len(parts) == 1 else torch.cat([rows.clone() for rows in steps])

    def step(self, ids, positions: torch.Tensor, embeds, tokens: slice) -> torch.Tensor:
        """Hidden rows of some tokens. Between the runtime's launches vLLM reduces, and may attend."""
        self.begin(ids, positions, tokens)
        while call := self.engine.run():
            if call.kind == "embedding":
                torch.from_dlpack(call.value).copy_(embeds[tokens])
            elif call.kind == "all_reduce":
                value = torch.from_dlpack(call.value)
                value.copy_(compat.tensor_model_parallel_all_reduce(value.contiguous()))
            else:
                q, k, v = (torch.from_dlpack(x).contiguous() for x in (call.q, call.k, call.v))
                torch.from_dlpack(call.out).copy_([*self.layers.values()][call.layer](q, k, v))
        return self.hidden[: tokens.stop - tokens.start]

    @eager_break_during_capture
    def begin(self, ids, positions: torch.Tensor, tokens: slice) -> None:
        """Gives the runtime some tokens of the batch. What follows reads them from the device, so captures break here,
        not at our own attention, and fit any mixture of so many tokens."""
        context = get_forward_context()
        batch = context.attn_metadata[next(iter(self.layers))]
        starts, lengths, requests = part(batch, tokens if tokens != slice(0, len(positions)) else None)
        kept = [(context.attn_metadata[n].block_table_tensor, layer.kv_cache) for n, layer in self.layers.items() if self.own]
        if self.own:  # vLLM's pages are elsewhere while it measures; layers that it has in one group have one table
            pages = [(m.data_ptr(), m.stride(0) * m.element_size(), len(m), t.data_ptr()) for t, m in kept]
            self.engine.bind_cache(pages)
        tables = [(t[requests].data_ptr(), t.stride(0)) for t, _ in kept]
        ids, embedded = (positions.new_zeros(len(positions)), True) if ids is None else (ids, False)
        ids, positions = ids[tokens].int(), positions[tokens].long()
        tensors = dict(ids=ids, positions=positions, starts=starts, lengths=lengths)
        pointers = {name: tensor.data_ptr() for name, tensor in tensors.items()}
        sizes = dict(tables=tables, sequences=len(lengths), tokens=len(ids))
        mixed = BreakableCUDAGraphCapture.is_active() and context.cudagraph_runtime_mode == CUDAGraphMode.PIECEWISE
        options = dict(decode=batch.max_query_len == 1 and not mixed, embedded=embedded, stream=self.stream())
        self.engine.begin(**pointers, **sizes, **options)

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        pieces = hidden_states.split(self.engine.max_rows)
        return self.head(pieces[0]) if len(pieces) == 1 else torch.cat([self.head(piece).clone() for piece in pieces])

    def head(self, rows: torch.Tensor) -> torch.Tensor:
        self.head_input[: len(rows)].copy_(rows)
        logits = torch.from_dlpack(self.engine.head(rows=len(rows), stream=self.stream()))
        shared = logits.shape[1] < self.engine.vocab
        return compat.tensor_model_parallel_all_gather(logits.contiguous()) if shared else logits


def part(batch, tokens: slice | None) -> tuple[torch.Tensor, torch.Tensor, slice]:
    """Starts, lengths and requests of a batch with only these tokens, without the requests at the ends that have none."""
    if tokens is None:
        return batch.query_start_loc, batch.seq_lens, slice(None)
    first, last, host = tokens.start, tokens.stop, batch.query_start_loc_cpu
    begin = int((host[1:] <= first).sum())
    end = max(int((host[:-1] < last).sum()), begin + 1)
    starts = batch.query_start_loc[begin : end + 1]
    lengths = batch.seq_lens[begin:end] - (starts - starts.clamp(first, last))[1:]
    return starts.clamp(first, last) - first, lengths, slice(begin, end)
