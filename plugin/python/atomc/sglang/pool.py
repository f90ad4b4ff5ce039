"""SGLang's pools on machines without a GPU: memory that holds an artifact's pages, and that goes back while nobody serves."""

from atomc import pages

from . import config
from .compat import MHATokenToKVPool, MLATokenToKVPool


class Pages:
    """Comes before a pool of SGLang's."""

    def layers(self, artifact, *shape: int) -> list:
        slots = self.size + self.page_size
        tensors, self.memory = pages.mapped(artifact, self.layer_num, shape, slots, self.store_dtype)
        return tensors

    def release(self) -> None:
        pages.give_back(self.memory)


class HalvesPool(Pages, MHATokenToKVPool):
    def _create_buffers_normal(self) -> None:
        if (artifact := config.artifact()) is None:
            return super()._create_buffers_normal()
        layers = self.layers(artifact, 2, self.size + self.page_size, self.head_num, self.head_dim)
        self.k_buffer, self.v_buffer = [layer[0] for layer in layers], [layer[1] for layer in layers]


class LatentPool(Pages, MLATokenToKVPool):
    def _create_buffers(self) -> None:
        if (artifact := config.artifact()) is None:
            return super()._create_buffers()
        self.kv_buffer = self.layers(artifact, self.size + self.page_size, 1, self.kv_cache_dim)


POOLS = {"mha": HalvesPool, "mla": LatentPool}
