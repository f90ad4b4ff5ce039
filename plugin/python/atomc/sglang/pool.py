"""SGLang's pool of K and V on machines without a GPU."""

from math import prod

import torch

from . import config
from .compat import MHATokenToKVPool


class Pool(MHATokenToKVPool):
    """SGLang's pool with room for an artifact's pages, which may be larger than SGLang's own, and one page more, because kernels
    read behind the last."""

    def _create_buffers_normal(self) -> None:
        if (artifact := config.artifact()) is None:
            return super()._create_buffers_normal()
        rows, (tokens, size) = self.size + self.page_size, artifact.page("host")
        shape = (2, rows, self.head_num, self.head_dim)
        room = (rows // tokens + 1) * size // self.store_dtype.itemsize
        layers = [torch.zeros(room, dtype=self.store_dtype)[: prod(shape)].view(shape) for _ in range(self.layer_num)]
        self.k_buffer, self.v_buffer = [layer[0] for layer in layers], [layer[1] for layer in layers]
