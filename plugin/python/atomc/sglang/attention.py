"""The attention backend `atomc`: SGLang's pools, and nothing to prepare. Artifacts attend themselves."""

from atomc.frameworks import Guessing, Refused

from . import compat, rings
from .compat import AttentionBackend


class Backend(AttentionBackend):
    needs_cpu_seq_lens = False

    def __init__(self, runner):
        super().__init__()
        self.req_to_token_pool, self.token_to_kv_pool = (
            runner.req_to_token_pool,
            runner.token_to_kv_pool,
        )
        self.mask = compat.unread_mask(runner)

    @property
    def verify_mask(self):
        """Where SGLang writes which tokens attend to which. It is never read."""
        return self.mask

    def init_forward_metadata(self, forward_batch) -> None: ...

    def update_mamba_state_after_mtp_verify(
        self,
        last_correct_step_indices,
        mamba_track_indices,
        mamba_steps_to_track,
        model,
        req_pool_indices=None,
    ) -> None:
        """SGLang tells which tokens of a step it has accepted, of a model with recurrent states: the last one of each request, and the
        one behind which it keeps a state, or none."""
        turns = None if mamba_steps_to_track is None else mamba_steps_to_track + 1
        kept = mamba_track_indices, turns
        rings.keep(
            self.req_to_token_pool,
            req_pool_indices,
            last_correct_step_indices + 1,
            *kept,
            model.on_host,
        )

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


class Guesses(Backend):
    """The backend of each guess of a draft after the first one. SGLang has one for each."""

    def __init__(self, runner, steps: int):
        super().__init__(runner)
        self.attn_backends = [Backend(runner) for _ in range(steps)]


def of_draft(make, factory):
    """SGLang's backend for prompts of a draft, and what a step has kept: of ours this one, whatever the model's is."""
    runner = factory.draft_model_runner
    if not isinstance(runner.model, Guessing):
        return make(factory)
    runner.model.target.draft_pool = runner.token_to_kv_pool
    return Backend(runner)


def of_guesses(make, factory):
    """SGLang's backends for guesses of a draft."""
    runner, steps = factory.draft_model_runner, factory.speculative_num_steps
    if not isinstance(runner.model, Guessing):
        return make(factory)
    return Guesses(runner, steps) if steps > 1 else None


def wrapped(wrap, runner, backend):
    """SGLang's backend for recurrent layers next to attention. Artifacts compute these layers."""
    return backend if isinstance(backend, Backend) else wrap(runner, backend)
