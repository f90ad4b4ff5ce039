"""vLLM's worker for machines without a GPU."""

from contextlib import nullcontext
from ctypes import memmove

import psutil
import torch

from . import guesses, states
from .compat import CPUWorker, Worker, register_kernels


class Seeded(torch.Generator):
    """A request's generator that takes back what a step has drawn: vLLM does so with prompts that a step has not come to the end of, by
    an offset, which generators of processors do not have."""

    before: torch.Tensor

    def begin(self) -> None:
        """A step begins, up to which it is taken back."""
        self.before = self.get_state()

    def get_offset(self) -> int:
        """Counted from where the generator is."""
        return 0

    def set_offset(self, offset: int) -> None:
        if offset < 0:
            self.set_state(self.before)


class Steps:
    """What vLLM asks for of steps. Where one fails the next has no tokens, and fails too: the first fault is the one that is raised."""

    fault: BaseException | None = None

    def __enter__(self) -> None: ...

    def __exit__(self, _, fault: BaseException | None, __) -> None:
        before, self.fault = self.fault, fault
        if fault and before:
            raise before


class HostWorker(CPUWorker):
    """vLLM's CPU worker without what it calls of its compiled kernels."""

    def __init__(self, *args, **kwargs):
        Worker.__init__(self, *args, **kwargs)
        self.parallel_config.disable_custom_all_reduce = True
        self.steps = Steps()
        register_kernels(slot_mapping, copy, guesses.KERNELS | states.KERNELS)

    def execute_model(self, *args, **kwargs):
        with self.steps:
            return super().execute_model(*args, **kwargs)

    def sample_tokens(self, *args, **kwargs):
        with self.steps:
            begin(self.model_runner)
            return super().sample_tokens(*args, **kwargs)

    def _maybe_get_memory_pool_context(self, tag):
        return nullcontext()

    def determine_available_memory(self) -> int:
        """What was asked for, or what all sequences together can use, up to a quarter of what is free: the cache is touched."""
        specs = self.model_runner.get_kv_cache_spec().values()
        page = max(spec.page_size_bytes for spec in specs)  # as large vLLM makes all
        longest = sum(
            spec.max_memory_usage_bytes(self.vllm_config) * page // spec.page_size_bytes
            for spec in specs
        )
        spare = page * len(specs)  # vLLM leaves a page of each layer empty
        useful = self.scheduler_config.max_num_seqs * longest + spare
        return self.cache_config.kv_cache_memory_bytes or min(
            useful, psutil.virtual_memory().available // 4
        )

    def sleep(self, level: int = 1) -> None:
        """Level 1 would move weights to the host, where they are; level 2 gives their memory back."""
        if level == 2:
            self.model_runner.get_model().engine.unload()

    def wake_up(self, tags: list[str] | None = None) -> None:
        """Weights that were given back come with `reload_weights`."""


def begin(runner) -> None:
    """Gives requests that have a seed generators that take back a step."""
    for row, generator in runner.input_batch.generators.items():
        if not isinstance(generator, Seeded):
            seeded = Seeded(device=generator.device).set_state(generator.get_state())
            request = runner.requests[runner.input_batch.req_ids[row]]
            request.generator = runner.input_batch.generators[row] = generator = seeded
        generator.begin()


def slot_mapping(starts, positions, table, slots, block) -> None:
    """The place of each token in the cache; none for tokens after the last request."""
    counts = (starts[1:] - starts[:-1]).long()
    rows = torch.repeat_interleave(torch.arange(len(counts)), counts)
    page, place = positions[: len(rows)] // block, positions[: len(rows)] % block
    slots.fill_(-1)[: len(rows)] = table[rows, page] * block + place


def copy(sources, targets, sizes) -> None:
    """Slots of sequences to other pages."""
    for source, target, size in zip(sources.tolist(), targets.tolist(), sizes.tolist()):
        memmove(target, source, size)
