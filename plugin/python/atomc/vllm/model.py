"""One opaque model for every architecture that an artifact holds."""

import mmap
import os
import time
from collections.abc import Iterable
from importlib import import_module
from types import new_class

import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.distributed import get_tensor_model_parallel_rank, tensor_model_parallel_all_reduce
from vllm.forward_context import get_forward_context
from vllm.logger import init_logger
from vllm.model_executor.layers.attention import Attention

import atomc

from . import compat, config
from .attention import Batch, Layer, Pages

logger = init_logger(f"vllm.{__name__}")


class Choice:
    """Comes before a class of vLLM's own: an instance is of that class only where the model has no artifact."""

    def __new__(cls, *, vllm_config: VllmConfig, prefix: str = ""):
        artifact = config.find(vllm_config)
        return Model(vllm_config, prefix, artifact) if artifact else super().__new__(cls)


def __getattr__(architecture: str) -> type[nn.Module]:
    """What the registry names. What vLLM asks a class before there is a model is thus answered by its own class."""
    if architecture not in compat.ARCHITECTURES:
        raise AttributeError(architecture)
    own = getattr(import_module(compat.ARCHITECTURES[architecture]), architecture)
    return new_class(architecture, (Choice, own), exec_body=lambda body: body.update(__module__=__name__))


class Model(nn.Module):
    """An artifact with weights, over vLLM's cache. It has no parameters: what vLLM streams goes into the runtime's buffers."""

    def __init__(self, vllm_config: VllmConfig, prefix: str, artifact: atomc.Artifact):
        super().__init__()
        began = time.perf_counter()
        self.on_host = config.device() == "host"
        self.memory: list[mmap.mmap | torch.Tensor] = []
        attention, ranks = config.attention(), vllm_config.parallel_config.tensor_parallel_size
        self.engine = atomc.Model(
            artifact,
            config.device(),
            rank=get_tensor_model_parallel_rank(),
            threads=max(1, len(os.sched_getaffinity(0)) // ranks) if self.on_host else 0,
            attention=attention,
            stream=self.stream(),
            allocate=self.allocate,
        )
        config.check(vllm_config, artifact, self.engine)
        self.hidden, self.head_input = torch.from_dlpack(self.engine.hidden), torch.from_dlpack(self.engine.head_input)
        names = [f"{prefix}model.layers.{i}.self_attn.attn" for i in range(self.engine.cache.layers)]
        make = self.vllm_layers if attention == "caller" else self.own_layers
        self.layers, self.bound = dict(zip(names, make(vllm_config, names))), None
        logger.info(
            "atomc: %s of %s runs on %s with %s (%s), attention: %s; opened in %.0f ms",
            artifact.architecture,
            artifact.path,
            config.device(),
            self.engine.target,
            self.engine.variant,
            attention,
            (time.perf_counter() - began) * 1e3,
        )

    def own_layers(self, vllm_config: VllmConfig, names: list[str]) -> list[Layer]:
        pages = self.engine.cache
        backend = new_class("Pages", (Pages,), exec_body=lambda body: body.update(block_tokens=pages.block_tokens))
        layers = [Layer(backend, pages) for _ in names]
        vllm_config.compilation_config.static_forward_context.update(zip(names, layers))
        return layers

    def vllm_layers(self, vllm_config: VllmConfig, names: list[str]) -> nn.ModuleList:
        pages, model, cache = self.engine.cache, vllm_config.model_config, vllm_config.cache_config
        heads = model.get_num_attention_heads(vllm_config.parallel_config)
        scale = pages.head_dim**-0.5
        return nn.ModuleList(
            Attention(heads, pages.head_dim, scale, pages.heads, cache_config=cache, prefix=name) for name in names
        )

    def stream(self) -> int:
        return 0 if self.on_host else torch.cuda.current_stream().cuda_stream

    def allocate(self, size: int) -> int:
        """Memory that vLLM knows of: torch's on a GPU; on the host pages that can be given back."""
        if self.on_host:
            self.memory.append(mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
            return torch.frombuffer(self.memory[-1], dtype=torch.uint8).data_ptr()
        self.memory.append(torch.zeros(size, dtype=torch.uint8, device="cuda"))
        return self.memory[-1].data_ptr()

    def discard(self) -> None:
        """Gives the host's memory back: it is zero until weights are loaded again."""
        for pages in self.memory:
            pages.madvise(mmap.MADV_DONTNEED)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        with self.engine.loading() as load:
            for name, tensor in weights:
                load.feed(name, tensor.detach().cpu().contiguous())

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """vLLM asks whether a model has this, and calls it for prompts that are no tokens, which `config` refuses."""
        raise NotImplementedError("an artifact takes tokens")

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None, **_) -> torch.Tensor:
        batches = get_forward_context().attn_metadata
        if batches is None:  # vLLM measures memory; there is no cache yet
            return torch.zeros_like(self.hidden[:1]).expand(len(input_ids), -1)
        batch = batches[next(iter(self.layers))]
        self.bind()
        most = self.engine.max_tokens
        if len(input_ids) <= most:
            self.step(input_ids, positions, batch)
            return self.hidden[: len(input_ids)]
        pieces = []
        for first in range(0, len(input_ids), most):
            part = slice(first, min(first + most, len(input_ids)))
            self.step(input_ids[part], positions[part], batch.part(part.start, part.stop))
            pieces.append(self.hidden[: part.stop - part.start].clone())
        return torch.cat(pieces)

    def bind(self) -> None:
        """Takes vLLM's pages where they lie, which changes between measuring and serving."""
        layers = [layer.kv_cache for layer in self.layers.values()]
        pointers = [pages.data_ptr() for pages in layers]
        if pointers != self.bound and isinstance(next(iter(self.layers.values())), Layer):
            self.engine.bind_cache(pointers, layers[0].stride(0) * layers[0].element_size(), layers[0].shape[0])
            self.bound = pointers

    def step(self, ids: torch.Tensor, positions: torch.Tensor, batch: Batch) -> None:
        """Makes the hidden rows of some tokens. Between the runtime's launches vLLM reduces, and may attend."""
        ids, positions = ids.int(), positions.long()
        self.engine.begin(
            ids=ids.data_ptr(),
            positions=positions.data_ptr(),
            starts=batch.starts.data_ptr(),
            lengths=batch.lengths.data_ptr(),
            tables=batch.table.data_ptr(),
            table_stride=batch.table.stride(0),
            sequences=len(batch.lengths),
            tokens=len(ids),
            decode=batch.longest == 1,
            stream=self.stream(),
        )
        while call := self.engine.run():
            if call.kind == "all_reduce":
                value = torch.from_dlpack(call.value)
                value.copy_(tensor_model_parallel_all_reduce(value.contiguous()))
            else:
                q, k, v = (torch.from_dlpack(x).contiguous() for x in (call.q, call.k, call.v))
                torch.from_dlpack(call.out).copy_(list(self.layers.values())[call.layer](q, k, v))

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        pieces = hidden_states.split(self.engine.max_rows)
        if len(pieces) == 1:
            return self.head(hidden_states)
        return torch.cat([self.head(piece).clone() for piece in pieces])

    def head(self, rows: torch.Tensor) -> torch.Tensor:
        self.head_input[: len(rows)].copy_(rows)
        return torch.from_dlpack(self.engine.head(rows=len(rows), stream=self.stream()))
