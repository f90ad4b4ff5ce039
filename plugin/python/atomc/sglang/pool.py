"""SGLang's pools on machines without a GPU: memory that holds an artifact's pages, and that goes back while nobody serves."""

import mmap
from math import prod

import torch

from . import config
from .compat import MHATokenToKVPool, MLATokenToKVPool


class Pages:
    """Comes before a pool of SGLang's. An artifact's pages may be larger than SGLang's own, and kernels read behind the last, for
    which there is one page more."""

    def layers(self, artifact, shape: tuple[int, ...]) -> list[torch.Tensor]:
        """A tensor of this shape for each layer, with room for pages."""
        tokens, size = artifact.page("host")
        room = ((self.size + self.page_size) // tokens + 1) * size
        self.memory = [mmap.mmap(-1, room, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) for _ in range(self.layer_num)]
        return [torch.frombuffer(memory, dtype=self.store_dtype)[: prod(shape)].view(shape) for memory in self.memory]

    def release(self) -> None:
        """Gives all pages back to the system: they are zero, and take memory again when they are written."""
        for memory in self.memory:
            memory.madvise(mmap.MADV_DONTNEED)


class HalvesPool(Pages, MHATokenToKVPool):
    def _create_buffers_normal(self) -> None:
        if (artifact := config.artifact()) is None:
            return super()._create_buffers_normal()
        layers = self.layers(artifact, (2, self.size + self.page_size, self.head_num, self.head_dim))
        self.k_buffer, self.v_buffer = [layer[0] for layer in layers], [layer[1] for layer in layers]


class LatentPool(Pages, MLATokenToKVPool):
    def _create_buffers(self) -> None:
        if (artifact := config.artifact()) is None:
            return super()._create_buffers()
        self.kv_buffer = self.layers(artifact, (self.size + self.page_size, 1, self.kv_cache_dim))


POOLS = {"mha": HalvesPool, "mla": LatentPool}
