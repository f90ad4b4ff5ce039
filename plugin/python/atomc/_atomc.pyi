from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Literal, Protocol

from typing_extensions import CapsuleType

__version__: str

class Error(Exception):
    """Whatever atomc refuses or cannot do."""

class ArtifactError(Error):
    """The artifact cannot be used, or not in this way."""

class DeviceError(Error):
    """The device cannot run the artifact, or failed."""

class StepError(Error):
    """A step was refused."""

class WeightsError(Error):
    """The tensors are not those of the model."""

def architectures() -> list[str]:
    """The architectures of which there can be artifacts."""

def trusted(path: str | PathLike[str]) -> bool:
    """Whether the artifact in a file is trusted (see `Artifact.trusted`), by the file's header alone: nothing is unpacked."""

def judged_options() -> list[tuple[str, str]]:
    """vLLM's options that are judged, and where its resolved configuration has each."""

def known_options() -> list[str]:
    """Every option of vLLM's that has a known fate."""

def towers() -> list[str]:
    """The architectures whose artifacts may have a tower."""

def settings_of(environment: Mapping[str, str]) -> dict[str, str]:
    """Our variables of an environment. A ValueError names what is unknown among them, and what is known."""

def named_artifact(additional: str, loader: str) -> str | None:
    """The artifact that `--additional-config` and `--model-loader-extra-config` name, both as JSON."""

def judged_sglang_options() -> list[str]:
    """SGLang's options that are judged."""

def known_sglang_options() -> list[str]:
    """Every option of SGLang's that has a known fate."""

def overriding_artifact(ours: str) -> str | None:
    """The artifact that the object `atomc` of `--json-model-override-args` names, given as JSON."""

def compile_options(framework: str, config: str, options: str, own: bool) -> list[str]:
    """The options of `atomc compile` that make an artifact for a `config.json` and the options of
    `vLLM` or `SGLang`, both as JSON. `own` says whether the artifact attends. A ValueError names an
    unsupported part of the configuration."""

def lacks(framework: str, architecture: str, tower: bool, options: str) -> str | None:
    """The option without which a framework's own class runs models of an architecture, of which artifacts, with a tower or
    without, are a part, if its options, as JSON, lack it."""

def interval_fault(config: str) -> str | None:
    """Why SGLang cannot tell which layers of a `config.json` attend, and what to do."""

class Artifact:
    """An artifact's file, checked."""

    def __init__(self, path: str | PathLike[str], *, expected: str | None = None) -> None:
        """Refuses, with the name of what differs, an artifact that something else has shaped than `expected` says: a key, or JSON with
        `producer` and `config`, as `atomc inspect --json` writes it."""
    @property
    def path(self) -> PathLike[str]: ...
    @property
    def architecture(self) -> str:
        """As `config.json` names it."""
    @property
    def key(self) -> str:
        """The compile key: what has the same key was compiled alike."""
    @property
    def fingerprint(self) -> str:
        """What identifies the whole content."""
    def trusted(self) -> bool:
        """Whether the user's list of trusted artifacts, which `atomc trust` keeps, has this
        content. A framework that finds an artifact next to a model asks before it makes a `Model`
        of it, which runs code. Where `ATOMC_REQUIRE_SIGNED_BY` names a key, the artifact needs that
        key's signature instead."""
    @property
    def draft(self) -> bool:
        """Whether it has a draft that a framework can drive."""
    @property
    def tower(self) -> bool:
        """Whether it has a tower, and so takes images."""
    @property
    def targets(self) -> list[str]: ...
    def page(self, target: str) -> tuple[int, int]:
        """The pages of a target's cache: tokens in one, and bytes of the largest."""
    @property
    def latent(self) -> bool:
        """Whether pages keep one row of each token, of which keys and values are parts."""
    @property
    def config(self) -> dict[str, Any]:
        """Every option and model fact that shaped the artifact."""
    @property
    def tensor_parallel(self) -> int:
        """Ranks that have a part of each projection."""
    @property
    def expert_parallel(self) -> int:
        """Ranks that hold some of the experts each, whole; 1 if none do."""
    @property
    def ranks(self) -> int:
        """All ranks that run the artifact."""
    @property
    def producer(self) -> str:
        """The version of atomc that wrote it."""
    def differences(self, config: str) -> list[str]:
        """What differs between a `config.json` and the model that the artifact was made of, by what the fields mean."""

class View:
    """Rows of numbers in the memory of a device, for `from_dlpack`. It keeps the owner of the
    memory alive, which may overwrite them."""

    @property
    def ptr(self) -> int: ...
    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def strides(self) -> tuple[int, int]:
        """In elements."""
    @property
    def dtype(self) -> str: ...
    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

class _Tensor(Protocol):
    def __dlpack__(self) -> CapsuleType: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

class Cache:
    """What is kept of a layer that attends, in pages that are the kernels' own inside, or of one with a recurrent state, in a slot
    for each sequence. Where the caller attends, what it has to keep."""

    @property
    def layer(self) -> int: ...
    @property
    def slot(self) -> bool:
        """Whether it is a slot, of which nothing is said but its bytes and the entries of a table."""
    @property
    def entries(self) -> int:
        """Entries of the table of a sequence's slots: one, or that of the state which a step goes on from, and one for the state
        behind each of its tokens, or the first of these for that behind the last token if they are more."""
    @property
    def draft(self) -> bool:
        """Whether it belongs to the draft. Its layers are numbered after the model's."""
    @property
    def block_tokens(self) -> int:
        """Tokens in a page."""
    @property
    def block_bytes(self) -> int:
        """Bytes of a page or a slot; 0 if the caller attends and has pages of its own."""
    @property
    def dtype(self) -> str: ...
    @property
    def heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def window(self) -> int:
        """Keys that a token sees at most, itself among them; 0 for all. Pages further back are not read."""

class Call:
    """Work of the caller's in the middle of a step."""

    @property
    def kind(self) -> Literal["embedding", "all_reduce", "attention"]:
        """`embedding`: put rows into `value`. `all_reduce`: sum `value` over all ranks, in place, and add `added`, if there
        is some. `attention`: put `k` and `v` into the cache of `layer` and attend."""
    @property
    def value(self) -> View | None: ...
    @property
    def added(self) -> View | None: ...
    @property
    def layer(self) -> int: ...
    @property
    def q(self) -> View | None: ...
    @property
    def k(self) -> View | None: ...
    @property
    def v(self) -> View | None: ...
    @property
    def out(self) -> View | None: ...
    @property
    def scale(self) -> float: ...
    @property
    def window(self) -> int:
        """Keys that a token sees, 0 for all."""

class Loading:
    """A load in progress: a context. All tensors have to be there at its end, unless it updates
    weights that are loaded."""

    def __enter__(self) -> Loading: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> bool: ...
    def scales(self, name: str) -> tuple[str, list[int], list[int]] | None:
        """For a matrix of codes in `float8_e4m3fn`: the name and the shape of its scales in the
        checkpoint, and the rows and columns that share one."""

    def feed(self, name: str, tensor: _Tensor, stream: int = 0) -> bool:
        """Takes a tensor of the checkpoint, in the memory of the host or of the model's device.
        There its weights are made in the order of the stream, which stays as long as the model, and
        this call does not wait. Returns whether weights are made of it: other parts of a model are
        passed over, and names that a model does not have are refused."""

class Model:
    """An artifact on a device of a framework's. One thread uses it at a time; others wait. It works in the process that opened it: in a
    forked child whatever computes raises `DeviceError`.

    Addresses are followed as they are: the tensors behind them have the sizes that are stated, lie in the memory of the device,
    and stay until the step's work on the stream is done.
    """

    def __init__(
        self,
        artifact: Artifact,
        device: str = "host",
        *,
        rank: int = 0,
        threads: int = 0,
        attention: Literal["own", "caller"] = "own",
        draft: bool = False,
        images: Literal["unknown", "absent", "seen"] = "unknown",
        stream: int = 0,
        allocate: Callable[[int], int] | None = None,
    ) -> None:
        """`allocate(bytes)` gives the address of zeroed memory of the device, which the caller keeps while the model lives;
        without it the model has memory of its own. `stream` is for uploads. With `draft` the artifact's draft is driven too.
        An artifact with a tower is refused if `images` are unknown: the caller gives three positions of each token. It has the tower
        too if they are seen."""
    @property
    def target(self) -> str: ...
    @property
    def variant(self) -> str:
        """The variant of the target that the device runs."""
    @property
    def device(self) -> str: ...
    @property
    def attention(self) -> Literal["own", "caller"]: ...
    @property
    def max_tokens(self) -> int:
        """Most tokens in one step."""
    @property
    def max_rows(self) -> int:
        """Most rows of logits at once."""
    @property
    def decode(self) -> list[int]:
        """Sizes of the steps of one token for each sequence that have kernels of their own, ascending."""
    @property
    def vocab(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def dtype(self) -> str:
        """The type of hidden rows."""
    @property
    def max_positions(self) -> int: ...
    @property
    def cache(self) -> list[Cache]:
        """An entry for each layer that attends, and for each slot of a layer with a recurrent state."""
    @property
    def packed_name(self) -> str:
        """The name of the file of this rank's packed weights, in the folder of a model's
        config.json."""
    def refusals(
        self, config: str, options: str, framework: Literal["vllm", "sglang"] = "vllm"
    ) -> list[str]:
        """Everything about which a `config.json` and a framework's options do not fit, a line each: options are a JSON object by the
        names of vLLM's `EngineArgs`, or of SGLang's `ServerArgs`."""
    def loading(self, *, update: bool = False, draft: bool = False) -> Loading:
        """A context in which the checkpoint's tensors are given one by one, also anew over weights that are loaded. An update of
        those, or after `unload`, may be of any tensors: what is packed together changes when all of it has come, in this update or
        later ones, and after `unload` a step is refused until all have come. With `draft`, names are those of a checkpoint of the
        draft's own."""
    def unload(self) -> None:
        """Forgets the weights. Memory of the host that is not the caller's goes back to the system until others are loaded."""
    def load(self, path: str | PathLike[str], *, verify: bool = True) -> None:
        """Loads a checkpoint's directory, or a file that `atomc pack` made. The file's checksums
        are compared unless `verify` is false."""
    def load_random(self, seed: int = 0) -> None:
        """Loads made-up weights."""
    def bind_cache(self, pages: Sequence[tuple[int, int, int, int]]) -> None:
        """Takes the pages of the cache. For each entry of `cache`: the address of its first page,
        or slot, the bytes from one to the next, their number, and any number that names its table:
        entries with the same number share one. It costs little to be given the same again. Kernels
        may read, and never write, up to 256 bytes past the last page."""
    @property
    def hidden(self) -> View:
        """The rows that the body of a step leaves, one for each token."""
    @property
    def hidden_names(self) -> list[str]:
        """What the further rows are called that steps leave, as `atomc compile --hidden` asked for:
        `hidden.2` is what enters layer 2."""
    def hidden_of(self, name: str) -> View:
        """Further rows of the step that has just run its body to the end, one for each token. They
        stay until the next step, embedding or head. Their place depends on the size of the step."""
    @property
    def draft(self) -> bool:
        """Whether the artifact's draft is driven too: steps of `begin(draft=True)`, and `draft_head`."""
    @property
    def had_weights(self) -> bool:
        """Whether there were weights once, so that what comes is an update."""

    @property
    def loaded(self) -> bool:
        """Whether there are weights."""
    @property
    def each(self) -> int:
        """Most tokens of a sequence in steps that have kernels for a few of each; 1 without such."""
    @property
    def draft_map(self) -> str | None:
        """The tensor with the difference from each of the draft's tokens to the model's number of
        it, if they differ."""
    def draft_name(self, name: str) -> str:
        """What weights are made of calls a tensor of a checkpoint that has the draft alone."""
    @property
    def draft_vocab(self) -> int:
        """Tokens that the draft guesses among; 0 without one."""
    @property
    def draft_apart(self) -> bool:
        """Whether the draft's weights lie in a checkpoint of their own."""
    @property
    def drafted(self) -> View | None:
        """The rows that each step of the model leaves for its draft, and that steps of the draft take."""
    @property
    def axes(self) -> View | None:
        """Of an artifact with a tower: the positions of a step's tokens, a row each of those of time, of rows and of columns, which
        the caller writes between `begin` and `run`."""
    @property
    def sources(self) -> View | None:
        """Of an artifact with a tower: the row of `given` that each token of a step takes, or -1, which the caller writes between
        `begin` and `run`."""
    @property
    def given(self) -> View | None:
        """Of an artifact with a tower: the rows of images that tokens of a step may take. They stay until the caller writes
        others."""
    def look(self, pixels: int, grids: Sequence[tuple[int, int, int]], rows: int) -> None:
        """Has the tower make the rows of images and of frames of videos. All is in the memory of the host, by address: `pixels`
        float32, patch after patch, as the model's processor has them, and `rows` float32, as wide as those of `given`, for what is
        made. `grids` has for each image its frames, and its rows and columns of patches."""
    @property
    def head_input(self) -> View:
        """The rows that heads read."""
    @property
    def embed_input(self) -> View:
        """The tokens that `embed` looks up, int32, one in a row."""
    def embed(self, tokens: int, stream: int = 0) -> View:
        """Embeddings of the first tokens of `embed_input`. They stay until the next step, embedding or head."""
    def begin(
        self,
        *,
        ids: int,
        positions: int,
        starts: int,
        lengths: int,
        tables: Sequence[tuple[int, int]],
        sequences: int,
        tokens: int,
        each: int = 0,
        draft: bool = False,
        embedded: bool = False,
        stream: int = 0,
    ) -> None:
        """Begins a step, of tensors by their addresses: `ids` int32 [tokens], `positions` int64 [tokens], `starts` int32
        [sequences + 1], `lengths` int32 [sequences]; of `tables`, one of int32 [sequences, stride] for each entry of `cache`, the
        stride too, and none where the caller attends. Tokens from the last start on, and sequences without tokens, are padding. A step of the
        model takes the tables of its own entries, and one of the `draft` those of the draft's. `each`: the most tokens of a sequence,
        if they are known to be few; 1 in a decode step. `embedded`: a call asks for rows in the place of the tokens' embeddings; the tokens are of the vocabulary all the same."""
    def run(self) -> Call | None:
        """Runs the body of the step up to the next call, which is the caller's to do, or to its end."""
    def head(self, rows: int, stream: int = 0) -> View:
        """Logits, float32 [rows, vocab], of the first rows of `head_input`. They stay until the next step or head. Of ranks that share
        the model out each may have a part of the vocabulary: in order of the ranks the parts are all of it."""
    def draft_head(self, rows: int, stream: int = 0) -> View:
        """The same of rows that steps of the draft have left, over the draft's vocabulary."""

class Engine:
    """An artifact on a device, with a cache and sequences of its own. One thread uses it at a time; others wait."""

    def __init__(
        self,
        artifact: Artifact,
        device: str = "host",
        *,
        threads: int = 0,
        cache_tokens: int = 0,
        slots: int = 0,
    ) -> None:
        """At most 1024 threads, 0 for all; no more tokens of cache than the device has memory for, 0 for the longest sequence; of a model
        with a recurrent state as many sequences at once as there are slots, 0 for at most 64."""
    @property
    def device(self) -> str: ...
    def load(self, path: str | PathLike[str], *, verify: bool = True) -> None:
        """Loads a checkpoint's directory, or a file that `atomc pack` made. The file's checksums
        are compared unless `verify` is false."""
    def load_random(self, seed: int = 0) -> None:
        """Loads made-up weights."""
    def add(self) -> int:
        """A new, empty sequence."""
    def drop(self, sequence: int) -> None:
        """Forgets a sequence."""
    def step(
        self, requests: Sequence[tuple[int, Sequence[int], Literal["none", "last", "all"]]]
    ) -> list[View]:
        """Gives each sequence its new tokens; the rows of logits that each wants."""
    def generate(
        self,
        prompt: Sequence[int],
        max_new: int,
        *,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
    ) -> list[int]:
        """Answers a prompt; without a temperature with the likeliest tokens. The temperature is finite and not below 0, `top_p` above 0
        and at most 1."""
