"""What SGLang's configuration means for an artifact: which one, and which options it cannot serve."""

import json
import logging
from pathlib import Path

import torch

import atomc
from atomc import _atomc, frameworks, pages
from atomc.frameworks import Refused, Wanted, disabled, located, setting

from . import compat

logger = logging.getLogger(__name__)


# SGLang's options that decide which artifact a model has.
CHOOSING = (
    "model_path",
    "trust_remote_code",
    "json_model_override_args",
    "language_model_only",
    "enable_multimodal",
)
# Options that an artifact is compiled for where there is none, as given: SGLang has not resolved
# some of them when it asks for pages.
COMPILING = (
    "dtype",
    "kv_cache_dtype",
    "tp_size",
    "ep_size",
    "dp_size",
    "enable_dp_attention",
    "context_length",
    "enable_deterministic_inference",
    "speculative_algorithm",
    "speculative_num_steps",
    "speculative_draft_model_path",
)

# Options that decide where states are kept for other requests.
STATES = ("device", "mamba_radix_cache_strategy", "mamba_track_interval")
# Others that decide how options are judged.
BESIDE = ("model_path", "attention_backend")


def wanted(asked: dict) -> Wanted:
    overrides = json.loads(asked["json_model_override_args"] or "{}")
    named = _atomc.overriding_artifact(json.dumps(overrides.pop("atomc", None)))

    def resolved() -> tuple[str, str]:
        facts = json.loads(Path(asked["model_path"], "config.json").read_text()) | overrides
        return json.dumps(facts), json.dumps({name: asked[name] for name in COMPILING})

    said = {name: asked[name] for name in ("language_model_only", "enable_multimodal")}
    # 0.5.11 does not look for it there.
    said |= {} if compat.OLDER else {"json_model_override_args": overrides}
    return Wanted(
        "SGLang",
        Path(asked["model_path"]),
        named,
        asked["trust_remote_code"],
        resolved,
        compat.gpu(),
        json.dumps(said),
    )


def artifact() -> atomc.Artifact | None:
    """The artifact that runs in this process, as far as its options say."""
    return None if disabled() else located(wanted(compat.options(CHOOSING + COMPILING)), logger)[0]


def page_size(default, view) -> dict:
    """The page that SGLang is about to take: where that is no page of the artifact, nor some, the next that is, as SGLang does it
    for kernels of its own that have their pages."""
    made = default(view) or {}
    asked = made.get("page_size", view.page_size)
    artifact = located(
        wanted({name: getattr(view, name, None) for name in CHOOSING + COMPILING}), logger
    )[0]
    if artifact is None:
        return made
    check_layers(view)
    if (taken := pages.tokens(artifact, asked)) == asked:
        return made
    logger.warning("atomc: --page-size %d: %d is taken, as pages are the artifact's", asked, taken)
    return compat.take_page(view, taken)


def without_indexers(create, server_args, *options, **named):
    """SGLang's configuration of a model whose layers have indexers, as of one whose layers have
    none, and have an indexer's key more in the row of each token: pages of an artifact hold both,
    and its own kernels choose."""
    made = create(server_args, *options, **named)
    asked = {name: getattr(server_args, name, None) for name in CHOOSING + COMPILING}
    if not compat.is_deepseek_dsa(made.hf_config) or located(wanted(asked), logger)[0] is None:
        return made
    made.hf_config.chooses_itself = made.hf_text_config.chooses_itself = True
    made.kv_lora_rank += made.index_head_dim
    made.index_head_dim = None
    return made


def has_indexers(judge, config) -> bool:
    """Whether SGLang's own kernels choose the positions that a model's layers attend to."""
    return judge(config) and not getattr(config, "chooses_itself", False)


def check_layers(view) -> None:
    """Refuses a configuration of which SGLang cannot tell which layers attend, before it fails without a word of what to do."""
    overrides = json.loads(view.json_model_override_args or "{}")
    facts = json.loads(Path(view.model_path, "config.json").read_text()) | overrides
    if fault := _atomc.interval_fault(json.dumps(facts)):
        raise Refused(fault)


def find(architecture: str) -> atomc.Artifact | None:
    """The artifact of this process's model, if it is not SGLang's own model that runs."""
    if disabled():
        return None
    compat.check_release()
    if architecture == compat.TRANSFORMERS:
        pass_by()
        return None
    return frameworks.find(wanted(compat.options(CHOOSING + COMPILING)), logger)


def check(facts: dict, artifact: atomc.Artifact, engine: atomc.Model) -> None:
    """Refuses a model that is not the artifact's, by the facts that SGLang has resolved, and options that do not fit."""
    asked = compat.options([*_atomc.judged_sglang_options(), *STATES, *BESIDE])
    dtype = str(torch.get_default_dtype()).removeprefix("torch.")
    asked |= dict(dtype=dtype, context_length=compat.context_length())
    if compat.OLDER and asked["speculative_algorithm"]:
        raise Refused("--speculative-algorithm: with SGLang 0.5.11 no draft of an artifact guesses")
    if compat.OLDER and facts.get("index_topk") is not None:
        raise Refused("config.json: index_topk: SGLang 0.5.11 has no pages for an indexer's keys")
    if refusals := engine.refusals(
        json.dumps(facts, default=str), json.dumps(asked, default=str), framework="sglang"
    ):
        raise Refused(f"{artifact.path}: {refusals[0]}")


def pass_by() -> None:
    """Says that an implementation runs that no artifact stands in for."""
    if setting("ATOMC_STRICT") == "1":
        raise Refused("--model-impl transformers: no artifact runs so, and ATOMC_STRICT is set")
    logger.warning("atomc: SGLang's model over transformers runs, and no artifact")
