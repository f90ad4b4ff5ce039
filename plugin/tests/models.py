"""What the tests inside frameworks share: models with artifacts, and answers by transformers."""

import json
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PROBLEMS = [json.loads(line) for line in (EXAMPLES / "problems.jsonl").read_text().splitlines()]
GOLDEN = EXAMPLES.parent / "tests" / "golden"
SMALL = EXAMPLES.parent / "tests" / "published" / "small"
# Small models as their makers publish the large ones: with layers that draft, scales and words of
# all kinds. Those of several parts are in the tests that say so.
PUBLISHED = [
    "deepseek-v3.1",
    "deepseek-r1-mxfp4",
    "glm-4.5-air",
    "glm-4.7-fp8",
    "kimi-k2-thinking",
    "qwen3-8b-fp8",
]
# Families that differ in the compiler alone. An artifact can be compiled of what a framework makes
# of their configurations.
FAMILIES = sorted(
    folder.name
    for folder in GOLDEN.glob("family-*")
    # Frameworks have no pages for rows of blocks of tokens, and none here for heads of two sizes:
    # the artifact says so.
    if folder.name not in ("family-deepseekv4", "family-deepseekv4release")
    and not folder.name.startswith("family-gemma4")
)
# Those of which tests/published has no release, whose check is a test of the compiler.
UNPUBLISHED = [
    "family-glm",
    "family-graniteswa",
    "family-hunyuandensev1",
    "family-hunyuanmoev1",
    "family-ministral3",
]
# transformers' class refuses a fact that differs by layer, which SGLang reads.
PER_LAYER = ["family-step3p5", "family-step3p7"]
# vLLM's class of it knows a release's 60 layers alone.
UNREAD_BY_VLLM = ["family-minimaxm3"]
# Releases bring the class of this configuration as code of their own. It says no more than the
# file does.
REMOTE_CODE = ["bailing_moe"]
ATOMC = os.environ["ATOMC"]


def compile(model: Path, *options: str, out: Path | None = None) -> Path:
    out = out or model / "model.atomc"
    subprocess.run(
        [ATOMC, "compile", str(model), "--target", "host", *options, "-o", str(out)], check=True
    )
    return out


def register_remote_code() -> None:
    """Has transformers know the configurations of `REMOTE_CODE`, as a trusted release's code has it."""
    from transformers import AutoConfig, PretrainedConfig

    for kind in REMOTE_CODE:
        AutoConfig.register(
            kind, type(kind, (PretrainedConfig,), {"model_type": kind}), exist_ok=True
        )


def case(name: str) -> Path:
    """Where a model lies of which there are golden logits."""
    return next(folder / name for folder in (GOLDEN, SMALL) if (folder / name).exists())


def wider(name: str) -> bool:
    """Whether a golden model runs in float32, so that rounding chooses no other expert. Both frameworks refuse that type
    with quantised weights."""
    quantised = "quantization_config" in json.loads((case(name) / "config.json").read_text())
    return (name.startswith("mla-") or name in (*PUBLISHED, *FAMILIES)) and not quantised


def longest(name: str) -> int | None:
    """The longest sequence of a golden model, where what it promises is too much: for a small machine, or for an artifact that
    has a model's first chunk alone."""
    facts = json.loads((case(name) / "config.json").read_text())
    # Makers promise 128 Ki tokens, Kimi-Linear's 1 Mi.
    promises = case(name).parent == SMALL or "model_max_length" in facts
    return 2048 if promises else facts.get("attention_chunk_size")


def golden_model(tmp_path: Path, name: str) -> Path:
    """A folder with one of the models of which there are golden logits."""
    ignore = shutil.ignore_patterns("golden.*", "draft.safetensors", "config.v4.json")
    return shutil.copytree(case(name), tmp_path / name, ignore=ignore)


def with_draft(folder: Path) -> None:
    """Gives a model of Qwen3-Next without a layer that drafts one that is its attending layer once more."""
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    layer = next(name for name in weights if ".self_attn." in name).split("self_attn.")[0]
    hidden = len(weights["model.norm.weight"])
    weights |= {
        name.replace(layer, "mtp.layers.0."): tensor.clone()
        for name, tensor in weights.items()
        if name.startswith(layer)
    }
    norm = weights["model.norm.weight"]
    weights |= {f"mtp.pre_fc_norm_{of}.weight": norm.clone() for of in ("embedding", "hidden")}
    weights["mtp.fc.weight"] = norm.new_zeros(hidden, 2 * hidden)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def often_right(folder: Path) -> None:
    """Has the draft of a golden model guess right often: layers add little to the row of a token, so that the token itself says most of
    the next, and the draft reads it. As random weights are, one guess in a hundred is right."""
    import torch
    from safetensors.torch import load_file, save_file

    config = json.loads((folder / "config.json").read_text())
    for part in (config, config.get("text_config", {})):
        part["tie_word_embeddings"] = False
    (folder / "config.json").write_text(json.dumps(config))
    weights = load_file(folder / "model.safetensors")
    for name, tensor in weights.items():
        if any(last in name for last in ("o_proj", "out_proj", "down_proj")):
            weights[name] = (0.2 * tensor.float()).to(tensor.dtype)
    fc = weights["mtp.fc.weight"]
    weights["mtp.fc.weight"] = torch.eye(*fc.shape).to(fc.dtype)
    weights["mtp.pre_fc_norm_embedding.weight"].zero_()
    inner = "model.language_model." if "text_config" in config else "model."
    weights["mtp.norm.weight"] = weights[inner + "norm.weight"].clone()
    # Of each token the likeliest is the seventh after it, but for what layers add.
    weights["lm_head.weight"] = weights[inner + "embed_tokens.weight"].roll(7, 0)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def has_parts(folder: Path) -> bool:
    """Whether a model has other parts than that of language."""
    return "text_config" in json.loads((folder / "config.json").read_text())


def checks(folder: Path, *options: str) -> str:
    """What `atomc check` says against a framework that is to run a folder's model, of which there is no artifact yet."""
    command = [ATOMC, "check", str(folder), *options]
    given = {**os.environ, "ATOMC_STRICT": "0"}
    return subprocess.run(command, env=given, capture_output=True, text=True).stderr


def large_model(tmp_path: Path) -> Path:
    """A folder with a configuration and a tokenizer alone, of a model with experts that two ranks can share out."""
    folder = tmp_path / "large"
    folder.mkdir()
    facts = json.loads((GOLDEN / "moe-qwen3" / "config.json").read_text())
    facts |= dict(
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=8,
        max_position_embeddings=2048,
        vocab_size=512,
    )
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(EXAMPLES / "models" / "llama" / file, folder)
    (folder / "config.json").write_text(json.dumps(facts))
    return folder


@pytest.fixture(scope="session", autouse=True)
def trusted(tmp_path_factory):
    """The list of trusted artifacts of these tests. The user's own list stays as it is."""
    os.environ["XDG_CONFIG_HOME"] = str(tmp_path_factory.mktemp("config"))


@pytest.fixture(scope="session")
def bare(tmp_path_factory):
    """A folder with an example model, its own for each call."""

    def make(name: str) -> Path:
        folder = tmp_path_factory.mktemp(name) / name
        shutil.copytree(EXAMPLES / "models" / name, folder)
        return folder

    return make


@pytest.fixture(scope="session")
def model(bare):
    """A folder with an example model and an artifact for it."""

    @cache
    def make(name: str, *options: str) -> Path:
        folder = bare(name)
        compile(folder, *options)
        return folder

    return make


@pytest.fixture(scope="session")
def reference():
    """The likeliest token after each beginning of an answer, and the logarithm of its probability,
    by transformers in f32. If these are the answer's own tokens, it is the greedy one."""
    import torch
    from transformers import AutoModelForCausalLM

    @cache
    def load(folder):
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    @torch.no_grad()
    def answer(folder: Path, ids: list[int], made: list[int]):
        scores = (
            load(folder)(torch.tensor([[*ids, *made[:-1]]]))
            .logits[0, len(ids) - 1 :]
            .log_softmax(-1)
        )
        return scores.argmax(-1).tolist(), scores.amax(-1).tolist()

    return answer
