"""One opaque model for every architecture that an artifact holds."""

import mmap
import os
import time
from importlib import import_module
from types import new_class

import torch
from vllm.distributed import get_tensor_model_parallel_rank, tensor_model_parallel_all_reduce
from vllm.forward_context import get_forward_context
from vllm.logger import init_logger
from vllm.model_executor.layers.attention import Attention
from vllm.v1.attention.backend import CommonAttentionMetadata as Batch

import atomc

from . import compat, config
from .attention import Backend, Layer

logger = init_logger(f"vllm.{__name__}")


class Choice:
    """Comes before a class of vLLM's own: an instance is of that class only where the model has no artifact."""

    def __new__(cls, *, vllm_config, prefix: str = ""):
        began = time.perf_counter()
        if (artifact := config.find(vllm_config)) is None:
            return super().__new__(cls)
        model = Model(vllm_config, prefix, artifact)
        facts = artifact.architecture, artifact.path, model.engine.device, model.engine.target, model.engine.attention
        line = "atomc: %s of %s runs on %s with target %s, attention: %s; opened in %.0f ms"
        logger.info(line, *facts, (time.perf_counter() - began) * 1e3)
        return model


def __getattr__(architecture: str) -> type[torch.nn.Module]:
    """What the registry names. What vLLM asks a class before there is a model is thus answered by its own class."""
    if architecture not in compat.ARCHITECTURES:
        raise AttributeError(architecture)
    own = getattr(import_module(compat.ARCHITECTURES[architecture]), architecture)
    return new_class(architecture, (Choice, own), exec_body=lambda body: body.update(__module__=__name__))


class Model(torch.nn.Module):
    """An artifact with weights, over vLLM's cache. It has no parameters: weights go into the runtime's buffers."""

    def __init__(self, vllm_config, prefix: str, artifact: atomc.Artifact):
        super().__init__()
        device, ranks = config.device(), vllm_config.parallel_config.tensor_parallel_size
        self.on_host, self.memory, self.bound = device == "host", [], None
        threads = max(1, len(os.sched_getaffinity(0)) // ranks) if self.on_host else 0
        options = dict(attention=config.attention(), stream=self.stream(), allocate=self.allocate)
        self.engine = atomc.Model(artifact, device, rank=get_tensor_model_parallel_rank(), threads=threads, **options)
        config.check(vllm_config, artifact, self.engine)
        self.hidden, self.head_input = torch.from_dlpack(self.engine.hidden), torch.from_dlpack(self.engine.head_input)
        names = [f"{prefix}model.layers.{layer}.self_attn.attn" for layer in range(self.engine.cache.layers)]
        self.own = self.engine.attention == "own"
        self.layers = dict(zip(names, (self.own_layers if self.own else self.vllm_layers)(vllm_config, names)))

    def own_layers(self, vllm_config, names: list[str]) -> list[Layer]:
        pages = self.engine.cache
        backend = new_class("Backend", (Backend,), exec_body=lambda body: body.update(block_tokens=pages.block_tokens))
        layers = [Layer(backend, pages) for _ in names]
        vllm_config.compilation_config.static_forward_context.update(zip(names, layers))
        return layers

    def vllm_layers(self, vllm_config, names: list[str]) -> torch.nn.ModuleList:
        pages, heads = self.engine.cache, vllm_config.model_config.get_num_attention_heads(vllm_config.parallel_config)
        shape = (heads, pages.head_dim, pages.head_dim**-0.5, pages.heads)
        return torch.nn.ModuleList(Attention(*shape, cache_config=vllm_config.cache_config, prefix=n) for n in names)

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
        self.engine.unload()

    def load_weights(self, weights) -> None:
        with self.engine.loading(update=True) as load:
            for name, tensor in weights:
                load.feed(name, tensor.detach().cpu().contiguous())

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """vLLM asks whether a model has this, and calls it for prompts that are no tokens, which `config` refuses."""
        raise NotImplementedError("an artifact takes tokens")

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None, **_) -> torch.Tensor:
        batches, tokens, most = get_forward_context().attn_metadata, len(input_ids), self.engine.max_tokens
        if batches is None:  # vLLM measures memory; there is no cache yet
            return torch.zeros_like(self.hidden[:1]).expand(tokens, -1)
        batch = batches[next(iter(self.layers))]
        if tokens <= most:
            return self.step(input_ids, positions, batch)
        # What vLLM schedules at once may be more than a plan takes.
        parts = [slice(first, min(first + most, tokens)) for first in range(0, tokens, most)]
        return torch.cat([self.step(input_ids[p], positions[p], part(batch, p)).clone() for p in parts])

    def step(self, ids: torch.Tensor, positions: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Hidden rows of some tokens. Between the runtime's launches vLLM reduces, and may attend."""
        pages = [layer.kv_cache for layer in self.layers.values()]
        if self.own and self.bound != (at := [page.data_ptr() for page in pages]):  # elsewhere while vLLM measures
            self.engine.bind_cache(at, pages[0].stride(0) * pages[0].element_size(), len(pages[0]))
            self.bound = at
        starts, lengths, tables = batch.query_start_loc, batch.seq_lens, batch.block_table_tensor
        tensors = dict(ids=ids.int(), positions=positions.long(), starts=starts, lengths=lengths, tables=tables)
        pointers = {name: tensor.data_ptr() for name, tensor in tensors.items()}
        sizes = dict(table_stride=tables.stride(0), sequences=len(lengths), tokens=len(ids))
        self.engine.begin(**pointers, **sizes, decode=batch.max_query_len == 1, stream=self.stream())
        while call := self.engine.run():
            if call.kind == "all_reduce":
                value = torch.from_dlpack(call.value)
                value.copy_(tensor_model_parallel_all_reduce(value.contiguous()))
            else:
                q, k, v = (torch.from_dlpack(x).contiguous() for x in (call.q, call.k, call.v))
                torch.from_dlpack(call.out).copy_([*self.layers.values()][call.layer](q, k, v))
        return self.hidden[: len(ids)]

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        pieces = hidden_states.split(self.engine.max_rows)
        return self.head(pieces[0]) if len(pieces) == 1 else torch.cat([self.head(piece).clone() for piece in pieces])

    def head(self, rows: torch.Tensor) -> torch.Tensor:
        self.head_input[: len(rows)].copy_(rows)
        return torch.from_dlpack(self.engine.head(rows=len(rows), stream=self.stream()))


def part(batch: Batch, tokens: slice) -> Batch:
    """The requests of a batch with only these tokens; at the ends, those that have none of them are left out."""
    first, last, host = tokens.start, tokens.stop, batch.query_start_loc_cpu
    begin = int((host[1:] <= first).sum())
    end = max(int((host[:-1] < last).sum()), begin + 1)
    starts = batch.query_start_loc[begin : end + 1]
    lengths = batch.seq_lens[begin:end] - (starts - starts.clamp(first, last))[1:]
    starts, tables = starts.clamp(first, last) - first, batch.block_table_tensor[begin:end]
    return batch.replace(query_start_loc=starts, seq_lens=lengths, block_table_tensor=tables)
