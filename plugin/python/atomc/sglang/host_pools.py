"""Classes of SGLang's pools for machines without a GPU, for which it asks the platform."""

from . import pool
from .compat import MHATokenToKVPool, MLATokenToKVPool


class Halves(MHATokenToKVPool):
    """K and V of a layer are halves of one allocation."""

    def _create_buffers_normal(self) -> None:
        pool.halves(lambda _: super(Halves, self)._create_buffers_normal(), self)

    def _init_kv_copy_and_warmup(self) -> None:
        """Of guesses that are a chain none is copied to another place."""
        self._kv_copy_config = None


class Rows(MLATokenToKVPool):
    """Latent rows of a layer."""

    def _create_buffers(self) -> None:
        pool.rows(lambda _: super(Rows, self)._create_buffers(), self)
