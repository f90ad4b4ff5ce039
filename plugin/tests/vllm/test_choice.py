"""Which model runs, and what is refused."""

import json
import os
import subprocess
import sys
from unittest import mock

import pytest
from vllm import LLM, EngineArgs

import atomc
from atomc.vllm import config

from conftest import ATOMC, PROBLEMS, compile, greedy, is_ours, own

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
    assert "vLLM's own model runs" in said.call_args_list[-1].args[0]
    assert greedy(llm, PROMPTS) == SOLUTIONS


@short
def test_strict(bare, monkeypatch):
    monkeypatch.setenv("ATOMC_STRICT", "1")
    with pytest.raises(config.Refused, match="ATOMC_STRICT is set"):
        LLM(str(bare("llama")), **SMALL)


@short
def test_artifacts_beside_a_model_must_be_trusted(bare, tmp_path, monkeypatch):
    """A folder as it comes from a hub: its artifact is code that nobody here has asked for."""
    folder = bare("llama")
    path = compile(folder, "--no-trust")
    find = lambda **options: config.find(EngineArgs(str(folder), **options).create_engine_config())
    with mock.patch.object(config.logger, "warning") as said:
        assert find() is None
    assert said.call_count == 1
    assert f"{path} is code that nobody trusts; `atomc trust {path}` says that you do" in said.call_args.args[1]
    monkeypatch.setenv("ATOMC_STRICT", "1")
    with pytest.raises(config.Refused, match=f"`atomc trust {path}` says that you do, and ATOMC_STRICT is set"):
        find()
    assert find(trust_remote_code=True).architecture == "LlamaForCausalLM"
    assert find(additional_config={"artifact": str(path)}).architecture == "LlamaForCausalLM"
    subprocess.run([ATOMC, "trust", path], check=True)
    assert find().architecture == "LlamaForCausalLM"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with pytest.raises(config.Refused, match="nobody trusts"):
        find()


@short
def test_own_model_beside_an_untrusted_artifact(bare):
    folder = bare("llama")
    compile(folder, "--no-trust")
    with mock.patch.object(config.logger, "warning") as said:
        llm = LLM(str(folder), **SMALL)
    assert not is_ours(llm) and said.call_count == 1
    assert greedy(llm, PROMPTS) == SOLUTIONS


def test_disabled():
    script = "import vllm.platforms as p; from vllm import ModelRegistry as r; from vllm.plugins import load_general_plugins as l\n"
    script += "l(); print(type(p.current_platform).__name__, r.models['LlamaForCausalLM'].module_name)"
    for disable, expected in [("0", "HostPlatform atomc.vllm.model"), ("1", "UnspecifiedPlatform vllm.model_executor.models.llama")]:
        environment = {**os.environ, "ATOMC_DISABLE": disable}
        done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
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
    config.find(asked)
    assert len(list((tmp_path / "atomc").iterdir())) == 2, "another configuration is another artifact"
    monkeypatch.setenv("ATOMC_COMPILER", str(tmp_path / "nowhere"))
    with pytest.raises(config.Refused, match="ATOMC_STRICT"):
        config.find(asked)


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
    assert str(config.find(EngineArgs(str(folder), additional_config=named).create_engine_config()).path) == str(elsewhere)
    missing = EngineArgs(str(folder), additional_config={"artifact": "/nowhere.atomc"}).create_engine_config()
    with pytest.raises(atomc.Error, match="/nowhere.atomc"):
        config.find(missing)


REFUSED = {
    "--dtype": dict(dtype="float32"),
    "--kv-cache-dtype": dict(kv_cache_dtype="fp8"),
    "--block-size": dict(block_size=16),
    "--tensor-parallel-size": dict(tensor_parallel_size=2),
    "--pipeline-parallel-size": dict(pipeline_parallel_size=2),
    "--enable-lora": dict(enable_lora=True),
    "--load-format": dict(load_format="dummy"),
    "--speculative-config": dict(speculative_config={"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3}),
}


@pytest.mark.parametrize("field", REFUSED)
def test_refusals_name_the_field(model, field):
    artifact = atomc.Artifact(model("llama") / "model.atomc")
    asked = EngineArgs(str(model("llama")), max_model_len=512, **REFUSED[field]).create_engine_config()
    with pytest.raises(config.Refused, match=f"model.atomc: {field}: vLLM has .*, the artifact "):
        config.check(asked, artifact, atomc.Model(artifact))


@pytest.mark.parametrize(
    "name, value",
    [("rms_norm_eps", 1e-5), ("num_hidden_layers", 3), ("intermediate_size", 256), ("vocab_size", 480), ("rope_parameters", None)],
)
def test_artifacts_of_other_models_are_refused(bare, name, value):
    folder = bare("llama")
    compile(folder)
    facts = json.loads((folder / "config.json").read_text())
    facts[name] = value or facts[name] | {"factor": 8.0}
    (folder / "config.json").write_text(json.dumps(facts))
    artifact = atomc.Artifact(folder / "model.atomc")
    with pytest.raises(config.Refused, match=f"config.json: {name}"):
        config.check(EngineArgs(str(folder)).create_engine_config(), artifact, atomc.Model(artifact))


@short
def test_engines_do_not_start_with_what_is_refused(model):
    with pytest.raises(config.Refused, match="--dtype"):
        LLM(str(model("llama")), dtype="float32", **SMALL)


def test_short_artifacts_are_refused(bare):
    folder = bare("llama")
    artifact = atomc.Artifact(compile(folder, "--context", "256"))
    with pytest.raises(config.Refused, match="--max-model-len: vLLM has 512, the artifact at most 256"):
        config.check(EngineArgs(str(folder)).create_engine_config(), artifact, atomc.Model(artifact))
    config.check(EngineArgs(str(folder), max_model_len=256).create_engine_config(), artifact, atomc.Model(artifact))


def test_artifacts_for_other_chips_are_refused(bare):
    folder = bare("llama")
    subprocess.run([ATOMC, "compile", folder, "--target", "gfx942", "-o", folder / "model.atomc"], check=True)
    with pytest.raises(atomc.Error, match="gfx942"):
        LLM(str(folder), **SMALL)


def test_damaged_and_older_artifacts_are_refused(bare):
    folder = bare("llama")
    path = compile(folder)
    whole = path.read_bytes()
    older = whole[:8] + (1).to_bytes(4, "little") + whole[12:]
    for content, message in [(whole[:-100], "cut short"), (older, "format version 1, but this atomc reads version")]:
        path.write_bytes(content)
        with pytest.raises(atomc.Error, match=message):
            LLM(str(folder), **SMALL)


@short
def test_rocm_without_hip(model, engine):
    """vLLM's platform for ROCm on a machine that has neither ROCm's libraries nor a GPU: the runtime says which is missing."""
    import torch

    with mock.patch.object(torch.cuda, "get_device_properties", lambda _: mock.Mock(gcnArchName="gfx942")):
        from vllm.platforms.rocm import RocmPlatform
    import atomc.vllm.model

    asked = engine(model("llama")).llm_engine.vllm_config
    with (
        mock.patch.object(config, "current_platform", RocmPlatform()),
        mock.patch.object(torch.cuda, "current_device", lambda: 0),
        mock.patch.object(torch.cuda, "current_stream", lambda: mock.Mock(cuda_stream=0)),
        pytest.raises(atomc.DeviceError, match="libamdhip64"),
    ):
        atomc.vllm.model.Model(asked, "", atomc.Artifact(model("llama") / "model.atomc"))
