"""SGLang's platform for machines without a GPU: artifacts run on the host, and SGLang runs without its compiled kernels."""

import torch

from atomc.frameworks import Refused

from . import compat
from .compat import CpuDeviceMixin, PlatformEnum, SRTPlatform
from .guesses import verified_slots

# Requests of the longest kind that pools have room for, unless it is said how many run at once.
REQUESTS = 16
# States of each, where others may begin with some: its own, two where SGLang keeps the next, and
# those that are kept.
STATES = 8


class HostPlatform(CpuDeviceMixin, SRTPlatform):
    _enum = PlatformEnum.OOT

    def apply_server_args_defaults(self, server_args) -> None:
        """Pools take as much memory as these requests can use, as pages are touched."""
        if server_args.speculative_use_rejection_sampling:
            raise Refused(
                "--speculative-use-rejection-sampling: drafts that sample need SGLang's kernels, which are for GPUs"
            )
        if server_args.enable_watermark and server_args.speculative_algorithm:
            raise Refused("--enable-watermark: guesses are drawn without watermarks, without a GPU")
        requests = server_args.max_running_requests or REQUESTS
        if server_args.max_total_tokens is None:
            server_args.max_total_tokens = requests * compat.context_length(server_args)
        if server_args.max_mamba_cache_size is None:
            server_args.max_mamba_cache_size = requests * (
                1 if server_args.disable_radix_cache else STATES
            )

    def get_kv_pool_cls(self, *, kind: str) -> type | None:
        # These want to know the platform while they are imported.
        from .host_pools import Halves, Rows

        return {"mha": Halves, "mla": Rows}.get(kind)

    def supports_speculative_algorithm(self, algorithm: str) -> bool:
        return algorithm in compat.EAGLE

    def get_speculative_cache_locs_fn(self):
        return verified_slots

    def support_mamba_cache_extra_buffer(self) -> bool:
        return True

    def get_device(self, device_id: int = 0) -> str:
        return self.device_type

    def get_default_attention_backend(self) -> str:
        return "torch_native"

    def get_torch_profiler_activity_str(self) -> str:
        return torch.profiler.ProfilerActivity.CPU.name

    def get_torch_profiler_activity(self) -> torch.profiler.ProfilerActivity:
        return torch.profiler.ProfilerActivity.CPU
