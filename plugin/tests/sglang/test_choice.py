"""Which model runs, and what is refused."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import (
    ATOMC,
    LARGE,
    TEXT_ALONE,
    compile,
    every_other,
    forked,
    golden_model,
    large_model,
    logits,
    runner,
)

import atomc
from atomc import frameworks
from atomc.frameworks import Refused
from atomc.sglang import compat, config

STOCK = dict(attention_backend="torch_native")
TOKENS = [[(7 * i + k) % 96 + 3 for i in range(40)] for k in (1, 2, 3)]


def runs(folder, **options):
    """The class that runs, and its logits after some prompts."""

    def made():
        loaded = runner(folder, **options)
        model = type(loaded.torch_runner.model)
        vocab = loaded.torch_runner.model_config.vocab_size
        tokens = [[token % vocab for token in prompt] for prompt in TOKENS]
        return f"{model.__module__}.{model.__qualname__}", logits(loaded, tokens)

    return forked(made)


@pytest.fixture
def lenient(monkeypatch):
    monkeypatch.setenv("ATOMC_STRICT", "0")


def test_sglangs_own_model_runs_without_an_artifact(bare, model, lenient):
    """On the platform for machines without a GPU, and it has the logits that ours has."""
    own, right = runs(bare("llama"), **STOCK)
    assert own == "sglang.srt.models.llama.LlamaForCausalLM"
    ours, found = runs(model("llama"))
    assert ours == "atomc.sglang.model.Model"
    assert (found.argmax(-1) == right.argmax(-1)).all()
    torch.testing.assert_close(found.softmax(-1), right.float().softmax(-1), atol=0.02, rtol=0)


def test_disabled(model, monkeypatch):
    """Neither the platform nor the models are ours, and SGLang alone has no device here."""
    monkeypatch.setenv("ATOMC_DISABLE", "1")
    from atomc.sglang import plugin

    assert plugin.platform() is None


def test_our_attention_backend_is_for_artifacts(bare, lenient):
    with pytest.raises(Refused, match="--attention-backend atomc: SGLang's own model runs"):
        runs(bare("llama"))


def test_strict(bare):
    with pytest.raises(Refused, match="there is no .*model.atomc, and ATOMC_STRICT is set"):
        runs(bare("llama"), **STOCK)
    with pytest.raises(Refused, match="--model-impl transformers: no artifact runs so"):
        runs(bare("llama"), model_impl="transformers", **STOCK)


def test_artifacts_beside_a_model_must_be_trusted(bare, monkeypatch, tmp_path):
    folder = bare("llama")
    compile(folder)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "another"))
    with pytest.raises(Refused, match=f"{folder}/model.atomc is code that nobody trusts"):
        runs(folder)
    assert runs(folder, trust_remote_code=True)[0] == "atomc.sglang.model.Model"
    subprocess.run([ATOMC, "trust", folder / "model.atomc"], check=True)
    assert runs(folder)[0] == "atomc.sglang.model.Model"


def test_named_artifacts(bare, tmp_path):
    folder = bare("llama")
    elsewhere = compile(folder, out=tmp_path / "elsewhere.atomc")
    named = lambda path: dict(
        json_model_override_args=json.dumps({"atomc": {"artifact": str(path)}})
    )
    assert runs(folder, **named(elsewhere))[0] == "atomc.sglang.model.Model"
    with pytest.raises(atomc.ArtifactError, match="nowhere.atomc"):
        runs(folder, **named("/nowhere.atomc"))
    with pytest.raises(
        ValueError,
        match="--json-model-override-args: artefact: there is no such key; known are artifact",
    ):
        runs(folder, json_model_override_args='{"atomc": {"artefact": 1}}')


@pytest.mark.parametrize(
    "options, refusal",
    [
        (dict(dtype="float32"), "--dtype: SGLang has float32, the artifact bfloat16"),
        (
            dict(kv_cache_dtype="fp8_e4m3"),
            "--kv-cache-dtype: SGLang has fp8_e4m3, the artifact bfloat16",
        ),
        (dict(context_length=400), None),
        (
            dict(json_model_override_args='{"rms_norm_eps": 0.5}'),
            "config.json: rms_norm_eps: SGLang has 0.5",
        ),
        (
            dict(enable_deterministic_inference=True),
            "--enable-deterministic-inference: SGLang has true, the artifact bits",
        ),
        (
            dict(quantization_param_path="none.json"),
            "--quantization-param-path: SGLang has none.json, the artifact none",
        ),
        (
            dict(cpu_offload_gb=1),
            "--cpu-offload-gb: SGLang has 1, the artifact none: weights stay on the device",
        ),
    ],
)
def test_refusals_name_the_option(model, options, refusal):
    if refusal is None:
        assert runs(model("llama"), **options)[0] == "atomc.sglang.model.Model"
    else:
        with pytest.raises(Refused, match=refusal):
            runs(model("llama"), **options)


@pytest.mark.parametrize(
    "asked, taken", [(None, 32), (1, 32), (16, 32), (64, 64), (100, 128), (1024, 1024)]
)
def test_pages_of_every_size(model, reference, asked, taken):
    """Greedy answers that end pages are those of transformers, whatever SGLang's page is. Smaller ones than the artifact's, as
    SGLang's own is, become the artifact's."""
    folder = model("llama", "--dtype", "float32")

    def made():
        loaded = runner(folder, dtype="float32", page_size=asked, max_total_tokens=8192)
        _, found, batch = loaded.extend(
            prepare_synthetic_inputs_for_latency_test(len(TOKENS), 0, TOKENS)
        )
        steps = [found.argmax(-1)]
        for _ in range(40):
            steps.append(loaded.decode(steps[-1], batch)[1].argmax(-1))
        model = type(loaded.torch_runner.model).__module__
        return model, loaded.torch_runner.token_to_kv_pool.page_size, torch.stack(steps, 1).tolist()

    from sglang.benchmark.one_batch import prepare_synthetic_inputs_for_latency_test

    ours, page, answers = forked(made)
    assert (ours, page) == ("atomc.sglang.model", taken)
    assert answers == [
        reference(folder, prompt, answer)[0] for prompt, answer in zip(TOKENS, answers)
    ]


def checks(arguments):
    """What the shim checks of a command line, without a model's runner."""
    from sglang.srt.plugins import load_plugins
    from sglang.srt.runtime_context import SpawnRanks, publish
    from sglang.srt.server_args import prepare_server_args

    from atomc.sglang import adapters

    load_plugins()
    given = prepare_server_args(arguments)
    given.resolve_once()
    publish(given, role="scheduler", ranks=SpawnRanks(world_rank=0, gpu_id=0))
    resolved = compat.model_config_of(given)
    torch.set_default_dtype(resolved.dtype)
    artifact = config.artifact()
    config.check(adapters.facts(resolved.hf_config), artifact, atomc.Model(artifact, rank=0))


@pytest.mark.parametrize(
    "experts, refusal",
    [
        (["--ep", "2"], None),
        ([], "--ep-size: SGLang has 2, the artifact a share of every expert on each rank"),
    ],
)
def test_command_lines_of_large_models(tmp_path, experts, refusal):
    folder = large_model(tmp_path)
    compile(folder, "--tp", "2", "--cache-dtype", "fp8", *experts)

    given = ["--model-path", str(folder), "--skip-tokenizer-init", *LARGE.split()]
    if refusal is None:
        forked(checks, given)
    else:
        with pytest.raises(Refused, match=refusal):
            forked(checks, given)


def test_models_with_other_parts_run_where_all_is_text(tmp_path):
    """An artifact is of the language part: SGLang's own model runs unless requests are text alone."""
    multimodal = golden_model(tmp_path, "hybrid-3.5")
    every_other(multimodal)
    compile(multimodal)
    given = dict.fromkeys(config.CHOOSING + config.COMPILING) | dict(
        model_path=str(multimodal), trust_remote_code=True
    )

    def found(**said):
        return frameworks.find(config.wanted(given | said), config.logger)

    for said in ({}, dict(enable_multimodal=True)):
        assert config.page_size(lambda _: {}, SimpleNamespace(**given | said, page_size=1)) == {}
        with pytest.raises(
            Refused,
            match="model.atomc is of a part of Qwen3_5ForConditionalGeneration, which runs with --json-model-",
        ):
            found(**said)
    for said in (TEXT_ALONE, dict(language_model_only=True), dict(enable_multimodal=False)):
        assert config.page_size(lambda _: {}, SimpleNamespace(**given | said, page_size=1)) == {
            "page_size": 32
        }
        assert found(**said).path == multimodal / "model.atomc"


def test_layers_that_sglang_cannot_tell_are_refused_with_what_to_do(tmp_path):
    """By the line that a newcomer gives, of a model as transformers 5 writes it."""
    folder = golden_model(tmp_path, "hybrid-next")
    compile(folder)
    told = (
        "config.json: full_attention_interval: .* leaves it out. Pass --json-model-override-args "
    )
    given = """'{"full_attention_interval":2}'"""
    with pytest.raises(Refused, match=re.escape(given)) as refused:
        runs(folder)
    assert re.match(told, str(refused.value))
    given = dict(json_model_override_args=given.strip("'"))
    assert runs(folder, **given)[0] == "atomc.sglang.model.Model"


def test_short_artifacts_are_refused(bare):
    folder = bare("llama")
    compile(folder, "--context", "256")
    with pytest.raises(Refused, match="--context-length: SGLang has 512, the artifact at most 256"):
        runs(folder)
    assert runs(folder, context_length=256)[0] == "atomc.sglang.model.Model"


def test_caches_of_fp8(bare):
    folder = bare("qwen3")
    compile(folder, "--cache-dtype", "fp8")
    assert runs(folder, kv_cache_dtype="fp8_e4m3")[0] == "atomc.sglang.model.Model"


@pytest.mark.parametrize(
    "compiled, refusal",
    [(["--invariant"], None), ([], "--enable-deterministic-inference: SGLang has true")],
)
def test_deterministic_inference(bare, compiled, refusal):
    """Up to where SGLang replaces operations of torch by others, for which it wants a GPU."""
    folder = bare("llama")
    compile(folder, *compiled)
    given = [
        "--model-path",
        str(folder),
        "--enable-deterministic-inference",
        "--attention-backend",
        "atomc",
    ]
    if refusal is None:
        forked(checks, given)
    else:
        with pytest.raises(Refused, match=refusal):
            forked(checks, given)


def test_checkpoints_that_name_a_cache(tmp_path):
    """Of `auto` SGLang makes pools of the model's type, whatever the checkpoint names."""
    folder = golden_model(tmp_path, "q-cache")
    compile(folder)
    with pytest.raises(
        Refused,
        match="--kv-cache-dtype: SGLang has auto, the artifact float8_e4m3fn, and of auto SGLang makes",
    ):
        runs(folder)
    made = lambda: type(runner(folder, kv_cache_dtype="fp8_e4m3").torch_runner.model).__module__
    assert forked(made) == "atomc.sglang.model"


def test_what_is_compiled_fits(bare, monkeypatch, tmp_path):
    """What asks for pages and what makes the model have one artifact, of the configuration with its overrides."""
    monkeypatch.setenv("ATOMC_AUTOCOMPILE", "1")
    monkeypatch.setenv("ATOMC_COMPILER", ATOMC)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    asked = dict(kv_cache_dtype="fp8_e4m3", json_model_override_args='{"rms_norm_eps": 0.5}')
    assert runs(bare("llama"), **asked)[0] == "atomc.sglang.model.Model"
    [made] = (tmp_path / "atomc").iterdir()
    assert atomc.Artifact(made).config["model"]["rms_norm_eps"] == 0.5


def test_packed_weights_need_no_checkpoint(model, tmp_path):
    folder = model("llama")
    right = runs(folder)[1]
    subprocess.run(
        [ATOMC, "pack", folder / "model.atomc", "--weights", folder, "-o", tmp_path / "packed"],
        check=True,
    )
    shutil.copy(folder / "config.json", tmp_path / "packed")
    assert not list((tmp_path / "packed").glob("model*.safetensors"))
    named = json.dumps({"atomc": {"artifact": str(folder / "model.atomc")}})
    ours, found = runs(tmp_path / "packed", json_model_override_args=named)
    assert ours == "atomc.sglang.model.Model" and (found == right).all()


def test_unknown_releases_are_refused(model, monkeypatch):
    monkeypatch.setattr(compat, "TESTED", ("0.1.0",))
    with pytest.raises(
        Refused,
        match="SGLang .* is not among the releases that are tested: 0.1.0; ATOMC_UNSUPPORTED_VERSION=1",
    ):
        runs(model("llama"))
    monkeypatch.setenv("ATOMC_UNSUPPORTED_VERSION", "1")
    assert runs(model("llama"))[0] == "atomc.sglang.model.Model"


def test_models_are_prepared_for_others(model):
    """The public door: a caller with a configuration gets the class that SGLang's registry would
    give, and models do not see each other."""

    def made():
        from atomc.sglang import prepare_model

        loader = runner(model("llama"))
        torch.set_default_dtype(torch.bfloat16)  # as SGLang's loader does for whoever it makes
        hf_config = loader.torch_runner.model_config.hf_config
        right = logits(loader, TOKENS)
        ours = prepare_model(hf_config, quant_config=None)
        ours.engine.load_random()
        try:
            prepare_model(hf_config, architecture="LlamaForCausalLMNextN")
        except Refused as fault:
            loader.clear()
            return type(ours).__module__, (logits(loader, TOKENS) == right).all(), str(fault)

    module, same, fault = forked(made)
    assert module == "atomc.sglang.model" and same
    assert re.search(
        r"model.atomc: --speculative-algorithm: it has no draft, as LlamaForCausalLMNextN is one",
        fault,
    )


def test_rows_go_through_sglangs_code_where_it_is_asked(model):
    """Its processor of logits has a part in log-probabilities of prompts and hidden rows alone."""

    def calls(hidden):
        from sglang.benchmark.one_batch import prepare_synthetic_inputs_for_latency_test

        loaded, asked = runner(model("llama"), enable_return_hidden_states=hidden), []
        loaded.torch_runner.model.processor.register_forward_hook(lambda *_: asked.append(1))
        _, first, batch = loaded.extend(
            prepare_synthetic_inputs_for_latency_test(len(TOKENS), 0, TOKENS)
        )
        _, second = loaded.decode(first.argmax(-1), batch)
        return len(asked), torch.stack([first, second])

    (plain, found), (asked, right) = forked(calls, False), forked(calls, True)
    assert (plain, asked) == (0, 2)
    assert (found == right).all()


@pytest.mark.parametrize("kept", [False, True])
def test_memory_is_given_back_by_tags(model, kept):
    """Pages of the cache, which have no memory then, and weights, without which a step is refused,
    but not with a backup."""

    def resident(pool):
        """KiB of the memory of its first layer."""
        start = pool.get_key_buffer(0).data_ptr()
        lines = iter(Path("/proc/self/smaps").read_text().splitlines())
        # The kernel joins neighbours into one mapping, which begins no later.
        for line in lines:
            span = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
            if span and int(span[1], 16) <= start < int(span[2], 16):
                return next(int(line.split()[1]) for line in lines if line.startswith("Rss:"))

    def found():
        from atomc.sglang import memory

        loaded = runner(model("llama"), enable_memory_saver=True, enable_weights_cpu_backup=kept)
        manager = SimpleNamespace(
            tp_worker=SimpleNamespace(model_runner=loaded.torch_runner),
            offload_tags=set(),
            flush_cache=lambda: True,
        )
        release = lambda *tags: memory.released(None, manager, SimpleNamespace(tags=tags))
        pool = loaded.torch_runner.token_to_kv_pool
        right, before = logits(loaded, TOKENS), resident(pool)
        release("kv_cache")
        after = resident(pool)
        loaded.clear()
        same = (logits(loaded, TOKENS) == right).all()
        loaded.clear()
        release("weights")
        try:
            same &= (logits(loaded, TOKENS) == right).all()
            fault = None
        except atomc.StepError as missing:
            fault = str(missing)
        return before, after, bool(same), fault

    before, after, same, fault = forked(found)
    assert before > 0 and after == 0 and same
    assert fault == (None if kept else "the weights are not loaded")


def test_dummy_weights_need_no_checkpoint(bare):
    folder = bare("llama")
    compile(folder)
    (folder / "model.safetensors").unlink()
    ours, found = runs(folder, load_format="dummy")
    assert ours == "atomc.sglang.model.Model" and found.isfinite().all() and found.std() > 0
