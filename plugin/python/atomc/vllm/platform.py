"""vLLM's platform for machines without a GPU: artifacts run on the host, and vLLM runs without its compiled kernels."""

import torch

from atomc.frameworks import Refused

from .compat import Platform, PlatformEnum


class HostPlatform(Platform):
    _enum = PlatformEnum.OOT
    device_name = device_type = "cpu"
    dispatch_key = "CPU"
    dist_backend = "gloo"
    # Inductor would compile C++ for the first request that wants probabilities.
    simple_compile_backend = "eager"
    ray_device_key = "GPU"  # a rank takes one of those that `ray start --num-gpus` declares

    @classmethod
    def check_and_update_config(cls, vllm_config) -> None:
        # These want to know the platform while they are imported.
        from .compat import CompilationMode, CUDAGraphMode, takes_kernels

        if vllm_config.speculative_config is not None and not takes_kernels():
            raise Refused(
                "--speculative-config: without a GPU this release of vLLM lacks its kernels, and takes no others"
            )

        if vllm_config.parallel_config.worker_cls == "auto":
            vllm_config.parallel_config.worker_cls = f"{__package__}.worker.HostWorker"
        compilation = vllm_config.compilation_config
        compilation.mode = CompilationMode.NONE
        compilation.cudagraph_mode = CUDAGraphMode.NONE
        compilation.cudagraph_capture_sizes = []

    @classmethod
    def get_attn_backend_cls(cls, *_, **__) -> str:
        return f"{__package__}.attention.Backend"

    @classmethod
    def set_device(cls, device: torch.device) -> None:
        torch.cpu.set_device(device)

    @classmethod
    def manual_seed_all(cls, seed: int) -> None:
        torch.manual_seed(seed)

    @classmethod
    def is_pin_memory_available(cls) -> bool:
        return False

    @classmethod
    def support_hybrid_kv_cache(cls) -> bool:
        return True

    def is_sleep_mode_available(self) -> bool:
        return True
