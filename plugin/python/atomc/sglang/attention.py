"""The attention backend `atomc`: SGLang's pools, and nothing to prepare. Artifacts attend themselves."""

from atomc.frameworks import Refused

from .compat import AttentionBackend


class Backend(AttentionBackend):
    needs_cpu_seq_lens = False

    def __init__(self, runner):
        super().__init__()
        self.req_to_token_pool, self.token_to_kv_pool = (
            runner.req_to_token_pool,
            runner.token_to_kv_pool,
        )

    def init_forward_metadata(self, forward_batch) -> None: ...

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None: ...

    def init_forward_metadata_capture_cuda_graph(self, *_, **__) -> None:
        """0.5.11 calls these two where later releases call what prepares nothing by itself."""

    def init_forward_metadata_replay_cuda_graph(self, *_, **__) -> None: ...

    def get_cuda_graph_seq_len_fill_value(self) -> int:
        return 1

    def get_cpu_graph_seq_len_fill_value(self) -> int:
        return 1

    def support_triton(self) -> bool:
        return False

    def forward(self, *_, **__):
        raise Refused("--attention-backend atomc: SGLang's own model runs, and needs another one")


def wrapped(wrap, runner, backend):
    """SGLang's backend for layers with a recurrent state, beside one that attends: artifacts compute these layers themselves."""
    return backend if isinstance(backend, Backend) else wrap(runner, backend)
