"""What the shims of all frameworks share: the environment, the artifact of a model, and its steps on torch's tensors."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from logging import Logger
from pathlib import Path
from shlex import quote
from typing import Any, Literal

import torch

import atomc
from atomc import _atomc, autocompile, ranges

# Types of weights that trainers have, and the type of the codes that are made of them where a
# checkpoint has codes.
FLOATS, CODES = (torch.bfloat16, torch.float16, torch.float32), torch.float8_e4m3fn


class Refused(ValueError):
    """An artifact does not fit what a framework was asked for."""


def setting(name: str) -> str:
    """The value of a variable of ours, empty if it is not set. Misspelt variables of ours are a ValueError. The shims read the
    environment here alone, and of it what is theirs: variables of others may be no text."""
    ours = {name: value for name, value in os.environ.items() if name.startswith("ATOMC_")}
    return _atomc.settings_of(ours).get(name, "")


def disabled() -> bool:
    return setting("ATOMC_DISABLE") == "1"


def untested(name: str, package: str, tested: tuple[str, ...]) -> str | None:
    """What to say where a release of a framework is not among those that the tests run."""
    release = version(package)
    return (
        None
        if release in tested
        else f"{name} {release} is not among the releases that are tested: {', '.join(tested)}"
    )


def attributes(
    name: str, package: str, tested: tuple[str, ...], used: dict[str, str]
) -> Callable[[str], Any]:
    """The `__getattr__` of a module that has all that is used of a framework: the names of each of its modules. Nothing is imported
    before it is used: frameworks ask for their platform first, and forgive what cannot be imported."""
    places = {name: module for module, names in used.items() for name in names.split()}

    def get(attribute: str) -> Any:
        if attribute not in places:
            raise AttributeError(attribute)
        try:
            return getattr(import_module(places[attribute]), attribute)
        except (ImportError, AttributeError) as fault:
            lacks = f"{name} {version(package)} has no {places[attribute]}.{attribute}"
            raise ImportError(f"atomc: {lacks}; tested are {', '.join(tested)}") from fault

    return get


@dataclass(frozen=True)
class Wanted:
    """What a framework says of a model before there is one."""

    framework: str
    model: Path
    named: str | None
    """The path of an artifact, if an option names one."""
    trusted: bool
    """Whether the user trusts whatever comes with the model."""
    resolved: Callable[[], tuple[str, str]]
    """The model's configuration and the framework's options, as JSON, for which an artifact is compiled where there is none."""
    gpu: str
    """Whose GPUs the framework runs on, or none."""
    asked: str
    """The framework's options that say whether requests are text alone, as JSON."""
    own: bool = True
    """Whether the artifact attends, and not the framework's layer."""


def find(wanted: Wanted, logger: Logger) -> atomc.Artifact | None:
    """The artifact of a model, if it is not the framework's own model that runs."""
    artifact, say, reason = located(wanted, logger)
    if artifact:
        return artifact
    if setting("ATOMC_STRICT") == "1":
        raise Refused(f"artifact: {reason}, and ATOMC_STRICT is set")
    say("atomc: %s; %s's own model runs", reason, wanted.framework)
    return None


def located(wanted: Wanted, logger: Logger) -> tuple:
    """The artifact that is named, else the one next to the model if its code is trusted, else one
    that is compiled now; or none, how loud to say so, and why."""
    named: str | Path | None = wanted.named
    beside = wanted.model / "model.atomc"
    # A link that leads nowhere is a fault, not a model without an artifact.
    found = not named and os.path.lexists(beside)
    if not named and not found and setting("ATOMC_AUTOCOMPILE") == "1":
        named = compiled(wanted, logger)
    if not named and not found:
        return None, logger.info, f"there is no {beside}"
    # A file next to a model may have come with it from anywhere: until it is trusted, it is not
    # unpacked.
    unasked = not named and not wanted.trusted
    if unasked and not _atomc.trusted(beside):
        return (
            None,
            logger.warning,
            f"{beside} is code that nobody trusts; `atomc trust {quote(str(beside))}` says that you do",
        )
    artifact = atomc.Artifact(named or beside)
    if unasked and not artifact.trusted():  # it was replaced meanwhile
        return None, logger.warning, f"{beside} was replaced by an artifact that is not trusted"
    if option := _atomc.lacks(
        wanted.framework, artifact.architecture, artifact.tower, wanted.asked
    ):
        part = f"{artifact.path} is of a part of {artifact.architecture}, which runs with {option}"
        return None, logger.warning, part
    return artifact, None, None


def compiled(wanted: Wanted, logger: Logger) -> Path | None:
    """An artifact that fits a machine, a model and a framework's options, compiled now unless it was before."""
    try:
        facts, asked = wanted.resolved()
        options = _atomc.compile_options(wanted.framework, facts, asked, wanted.own)
    except (OSError, ValueError) as fault:  # a configuration that is not there, or not supported
        logger.warning(autocompile.FAULT, fault)
        return None
    options = ["--target", target(wanted.gpu), *options]
    return autocompile.artifact(
        wanted.model, facts, *options, compiler=setting("ATOMC_COMPILER"), warn=logger.warning
    )


def device(gpu: str) -> str:
    """The device of this process as the runtime names it: torch's current `hip` or `cuda`, or the host."""
    return f"{gpu}:{torch.cuda.current_device()}" if gpu else "host"


def target(gpu: str) -> str:
    """What to compile for: ATOMC_TARGET, else this machine's chip."""
    if (named := setting("ATOMC_TARGET")) or not gpu:
        return named or "host"
    chip = torch.cuda.get_device_properties()
    return chip.gcnArchName.split(":")[0] if gpu == "hip" else f"sm_{chip.major}{chip.minor}a"


def encoded(name: str, matrix: torch.Tensor, scales: str, shape: list[int], block: list[int]):
    """A matrix as a checkpoint stores it that has codes and scales of blocks: the largest of a block becomes the largest code."""
    (rows, columns), (high, wide) = matrix.shape, block
    padding = 0, -columns % wide, 0, -rows % high
    blocks = torch.nn.functional.pad(matrix.float(), padding)
    blocks = blocks.unflatten(1, (-1, wide)).unflatten(0, (-1, high))
    largest = torch.finfo(CODES).max
    by = blocks.abs().amax((1, 3), keepdim=True) / largest
    codes = (blocks / by.where(by > 0, 1)).clamp(-largest, largest).to(CODES)
    yield name, codes.flatten(2).flatten(0, 1)[:rows, :columns].contiguous()
    yield scales, by.reshape(shape)


class Driven(torch.nn.Module):
    """An artifact with weights that a framework drives. It has no parameters: weights go into the runtime's buffers."""

    def __init__(
        self,
        artifact: atomc.Artifact,
        device: str,
        rank: int,
        attention: Literal["own", "caller"] = "own",
        draft: bool = False,
        images: Literal["unknown", "absent", "seen"] = "unknown",
    ):
        super().__init__()
        self.on_host = device == "host"
        self.memory: list[torch.Tensor] = []
        allocate = None if self.on_host else self.allocate
        self.engine = atomc.Model(
            artifact,
            device,
            rank=rank,
            attention=attention,
            draft=draft,
            images=images,
            stream=self.stream(),
            allocate=allocate,
        )
        rows = self.engine.hidden, self.engine.head_input, self.engine.embed_input
        self.hidden, self.head_input, self.embed_input = map(torch.from_dlpack, rows)

    def stream(self) -> int:
        return 0 if self.on_host else torch.cuda.current_stream().cuda_stream

    def allocate(self, size: int) -> int:
        # The framework accounts for torch's memory.
        self.memory.append(torch.zeros(size, dtype=torch.uint8, device="cuda"))
        return self.memory[-1].data_ptr()

    def make_up(self, load_format: str) -> None:
        """Weights, where frameworks load `dummy` ones: they fill a model's parameters, of which there are none here."""
        if load_format == "dummy":
            self.engine.load_random()

    @ranges.ranged("weights")
    def load_weights(self, weights) -> set[str]:
        """Takes tensors of a checkpoint, and gives the names of those that weights are made of. Of an update, matrices may be floats
        where the checkpoint has codes, as trainers have them."""
        update, taken = self.engine.had_weights, set()
        with self.engine.loading(update=True) as load:
            for name, tensor in weights:
                of_floats = update and tensor.dim() == 2 and tensor.dtype in FLOATS
                scales = load.scales(name) if of_floats else None
                for stored, part in (
                    encoded(name, tensor.detach(), *scales) if scales else [(name, tensor.detach())]
                ):
                    if load.feed(stored, part, stream=self.stream()):
                        taken.add(stored)
        return taken

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        self.embed_input[: len(ids), 0].copy_(ids)
        return torch.from_dlpack(self.engine.embed(len(ids), stream=self.stream()))

    def steps(self, step: Callable[[slice], torch.Tensor], tokens: int) -> torch.Tensor:
        """Hidden rows of `tokens` tokens, by steps no larger than plans."""
        most = self.engine.max_tokens
        parts = [slice(first, min(first + most, tokens)) for first in range(0, tokens, most)]
        return (
            step(parts[0]) if len(parts) == 1 else torch.cat([step(part).clone() for part in parts])
        )

    def start(
        self, batch: tuple, tables: list, *, each: int, embedded: bool = False, draft: bool = False
    ) -> None:
        """Begins a step of ids, positions, starts and lengths, as `Model.begin` has them."""
        ids, positions, starts, lengths = batch
        self.engine.begin(
            ids=ids.data_ptr(),
            positions=positions.data_ptr(),
            starts=starts.data_ptr(),
            lengths=lengths.data_ptr(),
            tables=tables,
            sequences=len(lengths),
            tokens=len(ids),
            each=each,
            draft=draft,
            embedded=embedded,
            stream=self.stream(),
        )

    @ranges.ranged("step")
    def run(
        self, tokens: slice, embeds, reduce: Callable, attend: Callable | None = None
    ) -> torch.Tensor:
        """Hidden rows of the step that has begun. Between the runtime's launches the framework reduces, and may attend."""
        while call := self.engine.run():
            if call.kind == "embedding":
                torch.from_dlpack(call.value).copy_(embeds[tokens])
            elif call.kind == "all_reduce":
                value = torch.from_dlpack(call.value)
                total = reduce(value.contiguous())
                value.copy_(total if call.added is None else total + torch.from_dlpack(call.added))
            elif attend:
                q, k, v = (torch.from_dlpack(x).contiguous() for x in (call.q, call.k, call.v))
                torch.from_dlpack(call.out).copy_(attend(call.layer, q, k, v))
        return self.hidden[: tokens.stop - tokens.start]

    def logits(self, hidden: torch.Tensor, gather: Callable, draft: bool = False) -> torch.Tensor:
        """Logits of hidden rows, of the model's or of its draft's, by heads no larger than plans. Of ranks with a part of the vocabulary each `gather` makes the whole."""
        pieces = hidden.split(self.engine.max_rows)
        return (
            self.head(pieces[0], gather, draft)
            if len(pieces) == 1
            else torch.cat([self.head(p, gather, draft).clone() for p in pieces])
        )

    @ranges.ranged("head")
    def head(self, rows: torch.Tensor, gather: Callable, draft: bool = False) -> torch.Tensor:
        self.head_input[: len(rows)].copy_(rows)
        head = self.engine.draft_head if draft else self.engine.head
        logits = torch.from_dlpack(head(rows=len(rows), stream=self.stream()))
        vocab = self.engine.draft_vocab if draft else self.engine.vocab
        return gather(logits.contiguous()) if logits.shape[1] < vocab else logits


class Guessing(torch.nn.Module):
    """The draft of an artifact as a framework sees it: a model of its own, over the engine of the artifact's model."""

    def __init__(self, target: Driven | None):
        torch.nn.Module.__init__(self)  # a framework's class may come behind this one
        # No part of this model: its weights are in the engine.
        self.shared: tuple[Any] = (target,)
        # The model's number of each token of the draft's, where they differ.
        self.behind: torch.Tensor | None = None
        self.is_new = True

    @property
    def target(self) -> Any:
        """The model, once it is known."""
        return self.shared[0]

    def load_weights(self, weights) -> set[str]:
        """Those of a checkpoint of the draft's own. Others came with the model's."""
        engine = self.target.engine
        if not engine.draft_apart:
            return set()
        is_new, self.is_new = self.is_new, False
        if engine.loaded and is_new:
            # Packed weights have come with the model's, and made-up ones.
            maps = (tensor for name, tensor in weights if self.is_map(name))
            return self.renumber(next(maps)) if engine.draft_map else set()
        with engine.loading(update=True, draft=True) as load:
            for name, tensor in weights:
                if self.is_map(name):
                    self.renumber(tensor)
                else:
                    load.feed(name, tensor.detach(), stream=self.target.stream())
        return set()

    def is_map(self, name: str) -> bool:
        return self.target.engine.draft_name(name) == self.target.engine.draft_map

    def renumber(self, behind: torch.Tensor) -> set[str]:
        tokens = torch.arange(len(behind)) + behind.cpu().long()
        if int(tokens.min()) < 0 or int(tokens.max()) >= self.target.engine.vocab:
            raise Refused(f"draft: its tokens are {tokens.min()} to {tokens.max()} of the model's")
        self.behind = tokens.to(self.target.hidden.device)
        return set()


def part(
    starts: torch.Tensor, on_host: torch.Tensor, lengths: torch.Tensor, tokens: slice
) -> tuple:
    """Starts and lengths of a batch with only these tokens, and which requests: without those at the ends that have none. `on_host`
    are the starts as the host has them."""
    first, last = tokens.start, tokens.stop
    begin = int((on_host[1:] <= first).sum())
    end = max(int((on_host[:-1] < last).sum()), begin + 1)
    of = starts[begin : end + 1]
    return (
        of.clamp(first, last) - first,
        lengths[begin:end] - (of - of.clamp(first, last))[1:],
        slice(begin, end),
    )
