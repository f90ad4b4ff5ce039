"""An artifact with a tower: vLLM prepares images and schedules them, the tower makes rows of them, and steps take these."""

from typing import Any

import torch

import atomc

from . import compat
from .model import Model


class Tower(torch.nn.Module):
    """The artifact's tower, where vLLM's class of a model has its own."""

    def __init__(self, model: "Seeing", model_config):
        super().__init__()
        self.look, self.width = model.engine.look, model.given.shape[1]
        self.dtype, self.device = model_config.dtype, model.given.device
        self.spatial_merge_size = model_config.hf_config.vision_config.spatial_merge_size
        self.normal = compat.input_norm(model_config)

    def forward(self, pixels: torch.Tensor, grid_thw: torch.Tensor) -> torch.Tensor:
        """Rows of all images, one for each of their tokens."""
        pixels = self.normal(pixels, torch.float32).cpu().contiguous()
        rows = torch.empty(len(pixels) // self.spatial_merge_size**2, self.width)
        self.look(pixels.data_ptr(), [tuple(grid) for grid in grid_thw.tolist()], rows.data_ptr())
        return rows.to(self.device, self.dtype)


class Seeing(Model):
    """An artifact with a tower and weights, over vLLM's cache."""

    supports_multimodal = True

    def __init__(self, vllm_config, prefix: str, artifact: atomc.Artifact):
        super().__init__(vllm_config, prefix, artifact)
        engine, config = self.engine, vllm_config.model_config
        inputs = engine.axes, engine.sources, engine.given
        self.axes, self.sources, self.given = map(torch.from_dlpack, inputs)
        # Steps embed tokens themselves, unless a prompt may have other embeddings.
        self.requires_raw_input_tokens = not config.enable_prompt_embeds
        # The row that each token of a batch takes, where captured steps find it.
        most = vllm_config.scheduler_config.max_num_batched_tokens
        self.taken = self.sources.new_full((most,), -1)
        self.rows = self.given[:0]
        self.before = torch.zeros(1, dtype=torch.int64)
        # vLLM's class knows how a request's images are given and where their tokens are. It is no
        # module of this one, whose weights are in the engine.
        own: Any = compat.own_class(artifact.architecture)
        theirs = own.__new__(own)
        torch.nn.Module.__init__(theirs)
        theirs.config = config.hf_config
        theirs.use_data_parallel = theirs.is_multimodal_pruning_enabled = False
        if config.supports_multimodal_inputs:
            theirs.visual = Tower(self, config)
        self.theirs: tuple[Any] = (theirs,)

    def get_mrope_input_positions(
        self, input_tokens: list[int], mm_features: list
    ) -> tuple[torch.Tensor, int]:
        return self.theirs[0].get_mrope_input_positions(input_tokens, mm_features)

    def embed_multimodal(self, **images) -> tuple[torch.Tensor, ...]:
        return self.theirs[0].embed_multimodal(**images)

    def embed_input_ids(
        self, input_ids: torch.Tensor, multimodal_embeddings=None, *, is_multimodal=None
    ) -> torch.Tensor:
        """Keeps the rows of images for the step that follows, which embeds its tokens itself."""
        self.taken.fill_(-1)
        self.rows = self.given[:0]
        if multimodal_embeddings:
            self.rows = torch.cat(tuple(multimodal_embeddings))
            self.before = torch.nn.functional.pad(is_multimodal.cpu().cumsum(0), (1, 0))
            taken = torch.arange(len(self.rows), dtype=torch.int32, device=self.taken.device)
            self.taken[is_multimodal.nonzero().flatten().to(self.taken.device)] = taken
        # Steps of a plan find them there, captured ones too.
        if len(input_ids) <= self.engine.max_tokens:
            self.given[: len(self.rows)].copy_(self.rows)
            self.rows = self.rows[:0]
        if not self.requires_raw_input_tokens:
            return super().embed_input_ids(input_ids)
        return self.hidden.new_zeros(1, self.hidden.shape[1]).expand(len(input_ids), -1)

    def places(self, positions: torch.Tensor, batch) -> torch.Tensor:
        ends, lengths = batch.query_start_loc[1:], batch.seq_lens
        tokens = torch.arange(positions.shape[-1], dtype=ends.dtype, device=ends.device)
        of = torch.searchsorted(ends, tokens, right=True)
        padding = of == len(lengths)
        of = of.clamp(max=len(lengths) - 1)
        return (lengths[of] - ends[of] + tokens).masked_fill(padding, 0)

    def see(self, positions: torch.Tensor, tokens: slice) -> None:
        count, taken = tokens.stop - tokens.start, self.taken[tokens]
        if len(self.rows):
            # A part of a batch that is larger than plans.
            ends = torch.tensor([tokens.start, tokens.stop]).clamp(max=len(self.before) - 1)
            first, last = self.before[ends].tolist()
            self.given[: last - first].copy_(self.rows[first:last])
            taken = (taken - first).clamp(min=-1)
        self.axes[:, :count].copy_(positions.expand(3, -1)[:, tokens])
        self.sources[:count, 0].copy_(taken)
