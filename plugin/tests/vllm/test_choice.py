"""Which model runs, and what is refused."""

import dataclasses
import json
import os
import subprocess
import sys
from functools import reduce
from importlib.metadata import version
from unittest import mock

import pytest
from conftest import (
    ATOMC,
    LARGE,
    PROBLEMS,
    compile,
    golden_model,
    greedy,
    is_ours,
    large_model,
    own,
)
from vllm import LLM, AsyncEngineArgs, EngineArgs, ModelRegistry
from vllm.config import MultiModalConfig
from vllm.utils.argparse_utils import FlexibleArgumentParser

import atomc
import atomc.vllm.model
from atomc import _atomc
from atomc.frameworks import untested
from atomc.vllm import compat, config, plugin

PROMPTS = [p["prompt"] for p in PROBLEMS[:8]]
SOLUTIONS = [p["solution"] for p in PROBLEMS[:8]]
SMALL = {"kv_cache_memory_bytes": 8 << 20, "max_num_seqs": 8}
short = pytest.mark.short


@short
def test_vllms_own_model_runs_without_an_artifact(engine, bare):
    with mock.patch.object(config.logger, "info") as said:
        llm = engine(bare("llama"))
    from vllm.model_executor.models.llama import LlamaForCausalLM

    assert isinstance(own(llm), LlamaForCausalLM)
    text, *words = said.call_args_list[-1].args
    assert "vLLM's own model runs" in text % tuple(words)
    assert greedy(llm, PROMPTS) == SOLUTIONS


@short
def test_strict(bare, monkeypatch):
    monkeypatch.setenv("ATOMC_STRICT", "1")
    with pytest.raises(config.Refused, match="ATOMC_STRICT is set"):
        LLM(str(bare("llama")), **SMALL)


@short
def test_artifacts_beside_a_model_must_be_trusted(bare, tmp_path, monkeypatch):
    """A folder as it comes from a hub: its artifact is code that the user has not asked for."""
    # Other tests may have compiled the same bytes.
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "mine"))
    folder = bare("llama")
    path = compile(folder, "--no-trust")
    with (
        mock.patch("atomc.Artifact", side_effect=AssertionError("it was opened")),
        mock.patch.object(config.logger, "warning"),
    ):
        assert config.find(EngineArgs(str(folder)).create_engine_config()) is None
    find = lambda **options: config.find(EngineArgs(str(folder), **options).create_engine_config())
    with mock.patch.object(config.logger, "warning") as said:
        assert find() is None
    assert said.call_count == 1
    assert (
        f"{path} is code that nobody trusts; `atomc trust {path}` says that you do"
        in said.call_args.args[1]
    )
    monkeypatch.setenv("ATOMC_STRICT", "1")
    with pytest.raises(
        config.Refused, match=f"`atomc trust {path}` says that you do, and ATOMC_STRICT is set"
    ):
        find()
    assert find(trust_remote_code=True).architecture == "LlamaForCausalLM"
    assert find(additional_config={"artifact": str(path)}).architecture == "LlamaForCausalLM"
    subprocess.run([ATOMC, "trust", path], check=True)
    assert find().architecture == "LlamaForCausalLM"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "theirs"))
    with pytest.raises(config.Refused, match="nobody trusts"):
        find()


def test_own_model_beside_an_untrusted_artifact(bare, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = bare("llama")
    compile(folder, "--no-trust")
    with mock.patch.object(config.logger, "warning") as said:
        llm = LLM(str(folder), **SMALL)
    assert not is_ours(llm) and said.call_count == 1
    assert greedy(llm, PROMPTS) == SOLUTIONS


def test_disabled():
    script = "import vllm.platforms as p; from vllm import ModelRegistry as r; from vllm.plugins import load_general_plugins as l\n"
    script += (
        "l(); print(type(p.current_platform).__name__, r.models['LlamaForCausalLM'].module_name)"
    )
    for disable, expected in [
        ("0", "HostPlatform atomc.vllm.model"),
        ("1", "UnspecifiedPlatform vllm.model_executor.models.llama"),
    ]:
        environment = {**os.environ, "ATOMC_DISABLE": disable}
        done = subprocess.run(
            [sys.executable, "-c", script],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.splitlines()[-1] == expected


def test_compiles_once(bare, tmp_path, monkeypatch):
    monkeypatch.setenv("ATOMC_AUTOCOMPILE", "1")
    monkeypatch.setenv("ATOMC_STRICT", "1")
    monkeypatch.setenv("ATOMC_COMPILER", ATOMC)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = bare("qwen3")
    llm = LLM(str(folder), **SMALL)
    assert is_ours(llm) and greedy(llm, PROMPTS) == SOLUTIONS
    [made] = (tmp_path / "atomc").iterdir()
    first = made.stat()
    asked = EngineArgs(str(folder)).create_engine_config()
    assert config.find(asked).architecture == "Qwen3ForCausalLM"
    assert made.stat().st_mtime_ns == first.st_mtime_ns, "what was compiled is kept"
    changed = json.loads((folder / "config.json").read_text()) | {"rms_norm_eps": 1e-5}
    (folder / "config.json").write_text(json.dumps(changed))
    asked = EngineArgs(str(folder)).create_engine_config()
    config.find(asked)
    assert len(list((tmp_path / "atomc").iterdir())) == 2, (
        "another configuration is another artifact"
    )
    monkeypatch.setenv("ATOMC_COMPILER", str(tmp_path / "nowhere"))
    with pytest.raises(config.Refused, match="ATOMC_STRICT"):
        config.find(asked)


def test_what_is_compiled_fits(bare, tmp_path, monkeypatch):
    """The same options that ask for an artifact say how it is compiled: ranks, whole experts, pages, overrides, and what vLLM's
    layer needs where it attends."""
    monkeypatch.setenv("ATOMC_AUTOCOMPILE", "1")
    monkeypatch.setenv("ATOMC_STRICT", "1")
    monkeypatch.setenv("ATOMC_COMPILER", ATOMC)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def fits(arguments, attention="own"):
        parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())
        given = parser.parse_args(["--model", *map(str, arguments)])
        asked = AsyncEngineArgs.from_cli_args(given).create_engine_config()
        artifact = config.find(asked)
        config.check(asked, artifact, atomc.Model(artifact, rank=0, attention=attention))
        return artifact

    large = [
        large_model(tmp_path),
        "--skip-tokenizer-init",
        *LARGE.split(),
        "--hf-overrides",
        '{"rms_norm_eps": 0.5}',
    ]
    artifact = fits(large)
    assert (artifact.expert_parallel, artifact.config["model"]["rms_norm_eps"]) == (2, 0.5)
    monkeypatch.setenv("ATOMC_ATTENTION", "vllm")
    fits([bare("llama"), "--max-num-batched-tokens", "1024"], "caller")
    assert len(list((tmp_path / "atomc").iterdir())) == 2


@short
def test_packed_weights_need_no_checkpoint(engine, bare):
    folder = bare("qwen3")
    artifact = compile(folder)
    subprocess.run([ATOMC, "pack", artifact, "--weights", folder, "-o", folder], check=True)
    (folder / "model.safetensors").unlink()
    llm = engine(folder, load_format="atomc")
    assert is_ours(llm) and greedy(llm, PROMPTS) == SOLUTIONS


def test_artifacts_may_be_named(engine, bare, tmp_path):
    folder, elsewhere = bare("llama"), tmp_path / "elsewhere.atomc"
    compile(folder, out=elsewhere)
    named = {"artifact": str(elsewhere)}
    llm = engine(folder, load_format="atomc", model_loader_extra_config=named)
    assert is_ours(llm) and greedy(llm, PROMPTS) == SOLUTIONS
    assert str(
        config.find(EngineArgs(str(folder), additional_config=named).create_engine_config()).path
    ) == str(elsewhere)
    missing = EngineArgs(
        str(folder), additional_config={"artifact": "/nowhere.atomc"}
    ).create_engine_config()
    with pytest.raises(atomc.Error, match="/nowhere.atomc"):
        config.find(missing)


REFUSED = {
    "--cpu-offload-gb": dict(cpu_offload_gb=1),
    "--attention-backend": dict(attention_config={"backend": "FLASH_ATTN"}),
    "--kv-sharing-fast-prefill": dict(kv_sharing_fast_prefill=True),
    "--dtype": dict(dtype="float32"),
    "--kv-cache-dtype": dict(kv_cache_dtype="fp8"),
    "--mamba-ssm-cache-dtype": dict(mamba_ssm_cache_dtype="float16"),
    "--block-size": dict(block_size=16),
    "--tensor-parallel-size": dict(tensor_parallel_size=2),
    "--pipeline-parallel-size": dict(pipeline_parallel_size=2),
    "--enable-lora": dict(enable_lora=True),
    "--load-format": dict(load_format="sharded_state"),
    "--speculative-config": dict(
        speculative_config={"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3}
    ),
}


@pytest.mark.parametrize("field", REFUSED)
def test_refusals_name_the_field(model, field):
    artifact = atomc.Artifact(model("llama") / "model.atomc")
    asked = EngineArgs(
        str(model("llama")), max_model_len=512, **REFUSED[field]
    ).create_engine_config()
    with pytest.raises(config.Refused, match=f"model.atomc: {field}: vLLM has .*, the artifact "):
        config.check(asked, artifact, atomc.Model(artifact))


def test_models_with_other_parts_run_where_all_is_text(model, tmp_path, monkeypatch):
    """An artifact is of the language part: vLLM's own model runs unless requests are text alone, and embeddings of images are none."""
    from atomc.vllm.metrics import Info

    folder = golden_model(tmp_path, "hybrid-3.5")
    compile(folder)
    asked = EngineArgs(str(model("llama"))).create_engine_config()
    asked.model_config.model = str(folder)
    part = f"{folder}/model.atomc is of a part of Qwen3_5ForConditionalGeneration, which runs with --language-model-only"
    with mock.patch.object(config.logger, "warning") as said:
        assert config.find(asked) is None
        Info(asked)
    text, *words = said.call_args.args
    assert text % tuple(words) == f"atomc: {part}; vLLM's own model runs"
    monkeypatch.setenv("ATOMC_STRICT", "1")
    with pytest.raises(config.Refused, match=f"{part}, and ATOMC_STRICT is set"):
        config.find(asked)
    asked.model_config.multimodal_config = mock.Mock(
        language_model_only=True, enable_mm_embeds=True
    )
    artifact = config.find(asked)
    facts = (folder / "config.json").read_text()
    told = json.dumps(
        {
            "enable_mm_embeds": reduce(
                getattr, dict(_atomc.judged_options())["enable_mm_embeds"].split("."), asked
            )
        }
    )
    [refusal] = atomc.Model(artifact).refusals(facts, told)
    assert refusal.startswith(
        "--enable-mm-embeds: vLLM has true, the artifact one position for each token"
    )


LINEAR = {"rope_type": "linear", "factor": 8.0, "rope_theta": 10000.0}
OTHERS = [
    ("rms_norm_eps", 1e-5),
    ("num_hidden_layers", 2),
    ("intermediate_size", 256),
    ("vocab_size", 480),
    ("max_position_embeddings", 1024),
    ("rope_parameters", LINEAR),
    ("rope_parameters", {"rope_type": "default", "rope_theta": 500.0}),
]


def patched(folder, change):
    """The folder with a `config.json` that is changed."""
    file = folder / "config.json"
    file.write_text(json.dumps(change(json.loads(file.read_text()))))
    return folder


@pytest.mark.parametrize("name, value", OTHERS)
@pytest.mark.parametrize("way", ["config.json", "--hf-overrides", "--hf-config-path"])
def test_artifacts_of_other_models_are_refused(model, bare, way, name, value):
    """What is compared is the configuration as vLLM has resolved it."""
    folder, other = model("llama"), {}
    if way == "--hf-overrides":
        other = dict(hf_overrides={name: value})
    elif way == "--hf-config-path":
        other = dict(
            hf_config_path=str(patched(bare("llama"), lambda facts: {**facts, name: value}))
        )
    else:
        folder = patched(bare("llama"), lambda facts: {**facts, name: value})
    artifact = atomc.Artifact(model("llama") / "model.atomc")
    with pytest.raises(config.Refused, match=f"config.json: {name}"):
        config.check(
            EngineArgs(str(folder), **other).create_engine_config(), artifact, atomc.Model(artifact)
        )


def test_another_architecture_is_named_first(model):
    artifact = atomc.Artifact(model("qwen3") / "model.atomc")
    with pytest.raises(
        config.Refused,
        match="config.json: architectures: vLLM has LlamaForCausalLM, the artifact Qwen3ForCausalLM",
    ):
        config.check(
            EngineArgs(str(model("llama"))).create_engine_config(), artifact, atomc.Model(artifact)
        )


def test_spellings_of_the_same_model_are_the_same(bare):
    folder = bare("llama")
    artifact = atomc.Artifact(compile(folder))

    def respelled(facts):
        rope = facts.pop("rope_parameters")
        assert facts.pop("head_dim") == facts["hidden_size"] // facts["num_attention_heads"]
        return {**facts, "rope_theta": rope.pop("rope_theta"), "rope_scaling": rope}

    config.check(
        EngineArgs(str(patched(folder, respelled))).create_engine_config(),
        artifact,
        atomc.Model(artifact),
    )


@short
def test_every_option_has_a_place_in_the_table(model):
    """No option of this release's is unknown, and what is judged is where the table says."""
    fields = {field.name for field in dataclasses.fields(AsyncEngineArgs)} - {
        "_api_process_count",
        "_api_process_rank",
    }
    assert fields <= set(_atomc.known_options())
    asked = EngineArgs(str(model("llama"))).create_engine_config()
    asked.model_config.multimodal_config = MultiModalConfig()

    def there(path):
        try:
            reduce(getattr, path.split("."), asked)
        except AttributeError:
            return False
        return True

    judged = [
        (name, path)
        for name, path in _atomc.judged_options()
        if name in fields or name == "user_specified_block_size"
    ]
    assert {name for name, path in judged if there(path)} == {name for name, _ in judged}


def test_other_implementations_pass_by_with_a_word(model, monkeypatch):
    asked = EngineArgs(
        str(model("llama")), model_impl="transformers", max_model_len=512
    ).create_engine_config()
    with mock.patch.object(config.logger, "warning") as said:
        config.pass_by(asked)
    assert "no artifact" in said.call_args.args[0]
    cls, name = ModelRegistry.resolve_model_cls(
        asked.model_config.architectures, asked.model_config
    )
    assert name == "TransformersForCausalLM" and atomc.vllm.model.PassedBy in cls.__mro__
    monkeypatch.setenv("ATOMC_STRICT", "1")
    with pytest.raises(config.Refused, match="--model-impl transformers: .*ATOMC_STRICT"):
        config.pass_by(asked)


def test_facts_of_classes_are_kept_by_release():
    """vLLM keeps what it has read of a class; another release of vLLM or of ours reads anew."""
    name = ModelRegistry.models["LlamaForCausalLM"].class_name
    assert name == f"LlamaForCausalLM-{version('vllm')}-{version('atomc')}"


def test_vllms_own_model_keeps_its_module():
    cls = atomc.vllm.model.LlamaForCausalLM
    assert cls.__module__ == "vllm.model_executor.models.llama"


@short
@pytest.mark.parametrize(
    "name, value", [("STRIKT", "1"), ("STRICT", "true"), ("DISABLE", "yes"), ("ATTENTION", "vlm")]
)
def test_misspelt_variables_are_errors(monkeypatch, name, value):
    monkeypatch.setenv(f"ATOMC_{name}", value)
    with pytest.raises(ValueError, match=f"ATOMC_{name}: .*(known are ATOMC_STRICT|is none of)"):
        plugin.register()


def test_misspelt_keys_are_errors(model):
    for value, fault in [
        ({"artefact": "m"}, "artefact: .*known are artifact"),
        ({"artifact": 7}, "artifact: must be a path, not 7"),
    ]:
        asked = EngineArgs(str(model("llama")), additional_config=value).create_engine_config()
        with pytest.raises(ValueError, match=f"--additional-config: {fault}"):
            config.find(asked)


def test_links_that_lead_nowhere_are_errors(bare):
    folder = bare("llama")
    (folder / "model.atomc").symlink_to("/nowhere/model.atomc")
    with pytest.raises(atomc.ArtifactError, match=f"{folder}/model.atomc"):
        config.find(EngineArgs(str(folder)).create_engine_config())


def test_untested_releases_are_named():
    assert untested("vLLM", "vllm", compat.TESTED) is None
    said = f"vLLM {version('vllm')} is not among the releases that are tested: 0.1.0"
    assert untested("vLLM", "vllm", ("0.1.0",)) == said


@pytest.mark.parametrize(
    "options, asked",
    [
        ([], {}),
        (["-O3", "--for", "vllm"], dict(optimization_level=3)),
        (["--max-model-len", "256", "--no-enable-lora"], dict(max_model_len=256)),
        (["--dtype", "float32"], dict(dtype="float32")),
        (["--kv-cache-dtype", "fp8"], dict(kv_cache_dtype="fp8")),
        (["--block-size", "16"], dict(block_size=16)),
        (["-tp", "2"], dict(tensor_parallel_size=2)),
        (["--cpu-offload-gb", "1"], dict(cpu_offload_gb=1)),
        (
            ["--attention-config.backend", "FLASH_ATTN"],
            dict(attention_config={"backend": "FLASH_ATTN"}),
        ),
        (["--hf-overrides", '{"rms_norm_eps": 0.5}'], dict(hf_overrides={"rms_norm_eps": 0.5})),
        (["--hf-overrides.vocab_size", "300"], dict(hf_overrides={"vocab_size": 300})),
    ],
)
def test_atomc_check_says_what_the_plugin_says(model, options, asked):
    folder = model("llama")
    artifact = atomc.Artifact(folder / "model.atomc")
    try:
        config.check(
            EngineArgs(str(folder), **asked).create_engine_config(), artifact, atomc.Model(artifact)
        )
        expected = ""
    except config.Refused as refused:
        expected = f"error[check]: {refused}\n"
    done = subprocess.run([ATOMC, "check", folder, *options], capture_output=True, text=True)
    assert (done.returncode, done.stderr.replace("vLLM has 1,", "vLLM has 1.0,")) == (
        int(bool(expected)),
        expected,
    )


@pytest.mark.parametrize(
    "experts, refusal",
    [
        (["--ep", "2"], None),
        (
            [],
            "--enable-expert-parallel: vLLM has true, the artifact a share of every expert on each rank",
        ),
    ],
)
def test_command_lines_of_large_models(tmp_path, experts, refusal):
    folder = large_model(tmp_path)
    artifact = atomc.Artifact(compile(folder, "--tp", "2", "--cache-dtype", "fp8", *experts))
    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())
    given = parser.parse_args(["--model", str(folder), "--skip-tokenizer-init", *LARGE.split()])
    asked = AsyncEngineArgs.from_cli_args(given).create_engine_config()
    checked = subprocess.run(
        [ATOMC, "check", folder, *LARGE.split()], capture_output=True, text=True
    )
    if refusal is None:
        config.check(asked, artifact, atomc.Model(artifact, rank=0))
        assert checked.returncode == 0, checked.stderr
    else:
        with pytest.raises(config.Refused, match=refusal):
            config.check(asked, artifact, atomc.Model(artifact, rank=0))
        assert refusal in checked.stderr


@short
def test_engines_do_not_start_with_what_is_refused(model):
    with pytest.raises(config.Refused, match="--dtype"):
        LLM(str(model("llama")), dtype="float32", **SMALL)


def test_short_artifacts_are_refused(bare):
    folder = bare("llama")
    artifact = atomc.Artifact(compile(folder, "--context", "256"))
    with pytest.raises(
        config.Refused, match="--max-model-len: vLLM has 512, the artifact at most 256"
    ):
        config.check(
            EngineArgs(str(folder)).create_engine_config(), artifact, atomc.Model(artifact)
        )
    config.check(
        EngineArgs(str(folder), max_model_len=256).create_engine_config(),
        artifact,
        atomc.Model(artifact),
    )


def test_artifacts_for_other_chips_are_refused(bare):
    folder = bare("llama")
    subprocess.run(
        [ATOMC, "compile", folder, "--target", "gfx942", "-o", folder / "model.atomc"], check=True
    )
    with pytest.raises(atomc.Error, match="gfx942"):
        LLM(str(folder), **SMALL)


def test_damaged_and_older_artifacts_are_refused(bare):
    folder = bare("llama")
    path = compile(folder)
    whole = path.read_bytes()
    older = whole[:8] + (1).to_bytes(4, "little") + whole[12:]
    for content, message in [
        (whole[:-100], "cut short"),
        (older, "format version 1, but this atomc reads version"),
    ]:
        path.write_bytes(content)
        with pytest.raises(atomc.Error, match=f"{path}: .*{message}"):
            LLM(str(folder), **SMALL)


@short
def test_rocm_without_hip(model, engine):
    """vLLM's platform for ROCm on a machine that has neither ROCm's libraries nor a GPU: the runtime says which is missing."""
    import torch

    with mock.patch.object(
        torch.cuda, "get_device_properties", lambda _: mock.Mock(gcnArchName="gfx942")
    ):
        from vllm.platforms.rocm import RocmPlatform
    asked = engine(model("llama")).llm_engine.vllm_config
    with (
        mock.patch.object(config, "current_platform", RocmPlatform()),
        mock.patch.object(torch.cuda, "current_device", lambda: 0),
        mock.patch.object(torch.cuda, "current_stream", lambda: mock.Mock(cuda_stream=0)),
        pytest.raises(atomc.DeviceError, match="libamdhip64"),
    ):
        atomc.vllm.model.Model(asked, "", atomc.Artifact(model("llama") / "model.atomc"))


@short
def test_dummy_weights_need_no_checkpoint(bare):
    folder = bare("llama")
    compile(folder)
    (folder / "model.safetensors").unlink()
    llm = LLM(str(folder), load_format="dummy", **SMALL)
    assert is_ours(llm) and len(greedy(llm, PROMPTS, 4)) == len(PROMPTS)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_asynchronous_scheduling(model, asynchronous):
    """The next step is planned before this one's tokens are known, on the host as well: it is vLLM's to choose, and on by default."""
    llm = LLM(str(model("llama")), async_scheduling=asynchronous, **SMALL)
    assert (
        is_ours(llm)
        and llm.llm_engine.vllm_config.scheduler_config.async_scheduling is asynchronous
    )
    assert greedy(llm, PROMPTS) == SOLUTIONS


# vLLM's mode on a GPU for each mode, with the promises of our layers, for a model that it does not
# compile.
MODES = {
    "NONE": "NONE",
    "PIECEWISE": "NONE",
    "FULL": "FULL_DECODE_ONLY",
    "FULL_DECODE_ONLY": "FULL_DECODE_ONLY",
    "FULL_AND_PIECEWISE": "FULL_DECODE_ONLY",
}


@pytest.mark.parametrize("mode", MODES)
def test_modes_of_graphs(model, mode):
    """Steps of one token for each sequence are captured whole wherever graphs are asked for. The host has no graphs."""
    from vllm.config import CompilationConfig

    from atomc.vllm.attention import Builder

    own = dict(use_v2_model_runner=True, piecewise_capture_available=False)
    found = CompilationConfig(cudagraph_mode=mode).resolve_cudagraph_mode_and_sizes(
        Builder._cudagraph_support, "atomc", **own
    )
    assert found.name == MODES[mode]
    asked = EngineArgs(
        str(model("llama")), compilation_config={"cudagraph_mode": mode}
    ).create_engine_config()
    assert asked.compilation_config.cudagraph_mode.name == "NONE"
