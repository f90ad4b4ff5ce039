"""LLM.generate through artifacts, in this process."""

import json
import os
import re
from pathlib import Path
from unittest import mock

import pytest
import torch
from conftest import PROBLEMS, compile, golden_model, greedy, is_ours, own
from safetensors.torch import load_file, save_file
from vllm import SamplingParams
from vllm.sampling_params import StructuredOutputsParams

import atomc
import atomc.vllm.model

PROMPTS = [p["prompt"] for p in PROBLEMS]
SOLUTIONS = [p["solution"] for p in PROBLEMS]
short = pytest.mark.short


@short
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_answers(engine, model, name):
    llm = engine(model(name))
    assert is_ours(llm)
    assert greedy(llm, PROMPTS[:40]) == SOLUTIONS[:40]


@short
def test_profilers_see_steps(engine, model):
    """With as many steps as tokens, and nothing where no profiler is active."""
    llm = engine(model("qwen3"))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        greedy(llm, PROMPTS[:1], tokens=5)
    seen = {
        event.key: event.count
        for event in profile.key_averages()
        if event.key.startswith("atomc: ")
    }
    assert seen == {"atomc: step": 5, "atomc: head": 5}


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_tokens_and_logprobs_are_those_of_transformers(engine, model, reference, name):
    llm, folder = engine(model(name)), model(name)
    for prompt in PROMPTS[40:44]:
        [answer] = llm.generate(
            [prompt], SamplingParams(temperature=0, max_tokens=50, logprobs=3), use_tqdm=False
        )
        made = answer.outputs[0]
        tokens, scores = reference(folder, answer.prompt_token_ids, made.token_ids)
        assert list(made.token_ids) == tokens and (tokens[-1] == 1 or len(tokens) == 50)
        for place, token, score in zip(made.logprobs, tokens, scores):
            assert len(place) == 3 and place[token].rank == 1
            assert abs(place[token].logprob - score) < 0.05


def test_prompt_logprobs_take_more_rows_than_a_plan_has(engine, model):
    llm = engine(model("llama"))
    prompt = " ".join(PROMPTS[:6])
    [answer] = llm.generate(
        [prompt], SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1), use_tqdm=False
    )
    assert len(answer.prompt_logprobs) == len(answer.prompt_token_ids) > own(llm).engine.max_rows


def test_sampling_parameters(engine, model):
    llm = engine(model("llama"))

    def texts(prompt=PROMPTS[0], **options):
        options = {"max_tokens": 24, **options}
        [answer] = llm.generate([prompt], SamplingParams(**options), use_tqdm=False)
        return [output.text for output in answer.outputs]

    # What a problem is about is open; what its solution is, is not.
    hot = dict(prompt="Q:", temperature=1.0, n=4)
    assert texts(seed=7, **hot) == texts(seed=7, **hot) != texts(seed=8, **hot)
    assert len(set(texts(seed=7, **hot))) > 1
    assert (
        set(texts(top_k=1, **hot))
        == set(texts(top_p=1e-6, **hot))
        == set(texts("Q:", temperature=0))
    )
    assert texts(temperature=0, stop=["="])[0] == SOLUTIONS[0].split("=")[0]
    assert texts(temperature=0, max_tokens=100, min_tokens=60)[0] != SOLUTIONS[0]
    token = llm.get_tokenizer().encode("7")[0]
    assert texts(temperature=0, max_tokens=3, logit_bias={token: 100})[0] == "777"
    assert texts(temperature=0, max_tokens=3, allowed_token_ids=[token])[0] == "777"


def test_structured_output(engine, model):
    llm = engine(model("llama"))

    def text(**options):
        return greedy(llm, PROMPTS[:1], 20, structured_outputs=StructuredOutputsParams(**options))[
            0
        ]

    assert text(choice=["apples", "cakes"]) in ("apples", "cakes")
    assert re.fullmatch(r"[a-c]{3}-\d", text(regex=r"[a-c]{3}-\d"))
    assert json.loads(text(grammar='root ::= "{\\"n\\": " [1-9] [0-9] "}"'))["n"] in range(10, 100)


def test_preempted_and_shared_requests_equal_lone_ones(engine, model):
    """More than the cache holds at a time, with shared beginnings, prompts in chunks, and steps that mix both."""
    shared = "".join(p + s for p, s in zip(PROMPTS[:3], SOLUTIONS))
    prompts = [shared + prompt for prompt in PROMPTS[100:108]] + PROMPTS[120:136]
    alone = [greedy(engine(model("qwen3")), [prompt], 60)[0] for prompt in prompts]
    small = engine(
        model("qwen3"),
        kv_cache_memory_bytes=16 * 4 * own(engine(model("qwen3"))).engine.cache[0].block_bytes,
        max_num_seqs=24,
        max_num_batched_tokens=96,
        max_model_len=384,
        disable_log_stats=False,
    )
    assert is_ours(small)
    for _ in range(2):
        assert greedy(small, prompts, 60) == alone
    counted = {
        metric.name: metric.value for metric in small.get_metrics() if hasattr(metric, "value")
    }
    assert counted["vllm:num_preemptions"] > 0
    assert counted["vllm:prefix_cache_hits"] > 0


def test_steps_larger_than_a_plan(engine, model):
    """vLLM schedules 4096 tokens at once; the artifact takes 512."""
    llm = engine(
        model("llama"), max_num_batched_tokens=4096, max_num_seqs=64, enable_prefix_caching=False
    )
    assert own(llm).engine.max_tokens < 4096
    assert greedy(llm, PROMPTS[200:264]) == SOLUTIONS[200:264]


@pytest.mark.parametrize("size", [64, 1024])
def test_blocks_of_several_pages(engine, model, size):
    llm = engine(model("llama"), block_size=size)
    assert (
        size % (2 * own(llm).engine.cache[0].block_tokens) == 0
        and size == llm.llm_engine.vllm_config.cache_config.block_size
    )
    assert greedy(llm, PROMPTS[:8]) == SOLUTIONS[:8]


def test_prompts_as_embeddings(engine, model):
    """Together with prompts of tokens, in steps larger than a plan among others."""
    folder = model("qwen3")
    llm = engine(folder, enable_prompt_embeds=True, max_num_batched_tokens=1024)
    table = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
    tokens = [llm.get_tokenizer().encode(prompt, return_tensors="pt")[0] for prompt in PROMPTS[:24]]
    assert (own(llm).embed_input_ids(torch.cat(tokens)) == table[torch.cat(tokens)]).all()
    prompts = [
        {"prompt_embeds": table[ids]} if i % 3 else PROMPTS[i] for i, ids in enumerate(tokens)
    ]
    assert greedy(llm, prompts) == SOLUTIONS[:24]


def test_caches_of_fp8(engine, model):
    folder = model("qwen3", "--cache-dtype", "fp8")
    llm = engine(folder, kv_cache_dtype="fp8")
    assert own(llm).engine.cache[0].dtype == "float8_e4m3fn"
    assert greedy(llm, PROMPTS[:20]) == SOLUTIONS[:20]


def test_two_engines_in_one_process(engine, model):
    first, second = engine(model("llama")), engine(model("qwen3"))
    assert own(first) is not own(second)
    for prompt, solution in zip(PROMPTS[10:13], SOLUTIONS[10:13]):
        assert greedy(first, [prompt]) == greedy(second, [prompt]) == [solution]


@pytest.fixture(scope="module")
def other(bare):
    """Other weights of the same configuration: the model with its tokens renamed, and what each is called now."""
    folder = bare("llama")
    weights = load_file(folder / "model.safetensors")
    names = torch.cat(
        (torch.arange(2), 2 + torch.randperm(510, generator=torch.Generator().manual_seed(0)))
    )
    for tensor in ("model.embed_tokens.weight", "lm_head.weight"):
        weights[tensor] = torch.empty_like(weights[tensor]).index_copy_(0, names, weights[tensor])
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder, names


def reload(llm, folder):
    llm.collective_rpc("reload_weights", kwargs={"weights_path": str(folder)})


def update(llm, folder):
    """As trainers give new weights: a tensor a call."""
    for item in load_file(folder / "model.safetensors").items():
        own(llm).load_weights([item])


@short
@pytest.mark.parametrize("change", [reload, update])
def test_weights_are_updated_in_place(engine, model, other, change):
    llm, (folder, names) = engine(model("llama")), other
    tokenizer, before = llm.get_tokenizer(), own(llm).engine
    change(llm, folder)
    llm.reset_prefix_cache()
    for prompt, solution in zip(PROMPTS[:8], SOLUTIONS):
        renamed = {"prompt_token_ids": names[tokenizer.encode(prompt)].tolist()}
        [answer] = llm.generate(
            [renamed], SamplingParams(temperature=0, max_tokens=80), use_tqdm=False
        )
        tokens = [names.tolist().index(token) for token in answer.outputs[0].token_ids]
        assert tokenizer.decode(tokens, skip_special_tokens=True) == solution
    change(llm, model("llama"))
    llm.reset_prefix_cache()
    assert own(llm).engine is before
    assert greedy(llm, PROMPTS[:8]) == SOLUTIONS[:8]


def floats(folder):
    """The matrices of a checkpoint in blocks of fp8 as a trainer has them, and the rest as it is."""
    weights = load_file(folder / "model.safetensors")
    scales = {
        n.removesuffix("_scale_inv"): t for n, t in weights.items() if n.endswith("_scale_inv")
    }
    for name, tensor in weights.items():
        if name in scales:
            by = scales[name].repeat_interleave(128, 0).repeat_interleave(128, 1)
            by = by[: tensor.shape[0], : tensor.shape[1]]
            yield name, (tensor.float() * by).bfloat16()
        elif not name.endswith("_scale_inv"):
            yield name, tensor


@pytest.fixture(scope="module")
def blocks(tmp_path_factory):
    """A model in blocks of fp8, with an artifact."""
    folder = golden_model(tmp_path_factory.mktemp("blocks"), "q-fp8-block")
    compile(folder)
    return folder


def scores(llm):
    """Probabilities of the tokens of a prompt, which tell all weights."""
    prompt = {"prompt_token_ids": [(7 * i) % 90 + 3 for i in range(40)]}
    llm.reset_prefix_cache()
    [answer] = llm.generate(
        [prompt], SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0), use_tqdm=False
    )
    return torch.tensor([next(iter(one.values())).logprob for one in answer.prompt_logprobs[1:]])


@short
def test_trainers_give_weights_of_an_fp8_model(engine, blocks):
    """As verl does, in buckets: in the form of the checkpoint, and as bf16, of which codes and scales are made. Each twice."""
    llm = engine(blocks, skip_tokenizer_init=True)
    mine, before = own(llm), scores(llm)
    stored = list(load_file(blocks / "model.safetensors").items())
    trained = list(floats(blocks))
    assert any(a.dtype != b.dtype for (_, a), (_, b) in zip(stored, trained))
    assert mine.packed_modules_mapping == {} and not list(mine.named_parameters())
    changed = [(n, t * 2 if n.endswith("v_proj.weight") else t) for n, t in trained]
    for weights in (stored, trained, changed, stored, trained):
        names: set[str] = set()
        for start in range(0, len(weights), 7):
            names |= mine.load_weights(iter(weights[start : start + 7]))
        assert names == {name for name, _ in stored}
        found = scores(llm)
        close = torch.allclose(found, before, atol=0.02, rtol=0)
        assert close == (weights is not changed)


@short
def test_a_failed_update_leaves_no_half_of_a_model(engine, blocks):
    """Where nothing has changed the old weights stay, else nothing is computed until all have come."""
    llm = engine(blocks, skip_tokenizer_init=True)
    mine, stored = own(llm), list(load_file(blocks / "model.safetensors").items())
    mine.load_weights(stored)
    before = scores(llm)
    wrong = ("model.norm.weight", torch.ones(3))
    with pytest.raises(atomc.WeightsError, match="model.norm.weight"):
        mine.load_weights([wrong])
    assert torch.equal(scores(llm), before)
    mine.load_weights(stored[:9])
    with pytest.raises(atomc.WeightsError, match="model.norm.weight"):
        mine.load_weights([*stored[9:15], wrong])
    failed = "an update of the weights failed when some were new: all have to come again; "
    with pytest.raises(atomc.StepError, match=f"{failed}{len(stored)} tensors to come: "):
        mine.embed(torch.zeros(1, dtype=torch.int32))
    mine.load_weights(stored[:-1])
    with pytest.raises(atomc.StepError, match=f"{failed}a tensor to come: {stored[-1][0]}"):
        mine.embed(torch.zeros(1, dtype=torch.int32))
    mine.load_weights(stored[-1:])
    assert torch.equal(scores(llm), before)


def test_weights_must_be_those_of_the_model(engine, model):
    llm = engine(model("llama"))
    weights = load_file(model("llama") / "model.safetensors")
    fresh = mock.Mock(engine=atomc.Model(atomc.Artifact(model("llama") / "model.atomc")))
    fresh.stream.return_value = 0
    with pytest.raises(atomc.WeightsError, match="model.norm.weight"):
        atomc.vllm.model.Model.load_weights(
            fresh, [item for item in weights.items() if item[0] != "model.norm.weight"]
        )
    own(llm).engine.unload()
    with pytest.raises(Exception, match="model.surplus.weight"):
        own(llm).load_weights(
            [*weights.items(), ("model.surplus.weight", weights["model.norm.weight"])]
        )
    own(llm).load_weights(weights.items())
    llm.reset_prefix_cache()
    assert greedy(llm, PROMPTS[:2]) == SOLUTIONS[:2]


def test_sleep_gives_memory_back(engine, model):
    llm = engine(model("llama"), enable_sleep_mode=True)
    assert greedy(llm, PROMPTS[:4]) == SOLUTIONS[:4]
    llm.sleep(level=1)
    llm.wake_up()
    assert greedy(llm, PROMPTS[:4]) == SOLUTIONS[:4]

    def resident():
        return int(re.search(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text())[1]) << 10

    awake = resident()
    llm.sleep(level=2)
    assert awake - resident() > 2 << 20, "the weights are 3.5 MB"
    llm.wake_up()
    llm.collective_rpc("reload_weights")
    assert greedy(llm, PROMPTS[:4]) == SOLUTIONS[:4]


@short
def test_weights_come_back_one_by_one(engine, model):
    """trl's use of an engine next to its trainer: sleep, wake the weights, and give them tensor by
    tensor."""
    folder = model("qwen3")
    llm = engine(folder)
    llm.sleep(level=2)
    llm.wake_up(tags=["weights"])
    tensors = sorted(load_file(folder / "model.safetensors").items())
    for name, tensor in tensors[:-1]:
        own(llm).load_weights([(name, tensor)])
    with pytest.raises(
        atomc.StepError, match=f"the weights are not loaded yet: a tensor to come: {tensors[-1][0]}"
    ):
        own(llm).embed(torch.zeros(1, dtype=torch.int32))
    own(llm).load_weights(tensors[-1:])
    llm.wake_up(tags=["kv_cache"])
    assert greedy(llm, PROMPTS[:4]) == SOLUTIONS[:4]


def test_trainers_find_no_module_to_patch(engine, model):
    """verl looks for the inner model of the model that it trains, and in its layers for experts
    with weights that it would give loaders."""
    llm = engine(model("llama"))
    inner = getattr(own(llm), "model", None) or getattr(own(llm), "language_model", None)
    assert inner is not None and list(inner.layers) == []


@short
def test_seeds_of_prompts_that_are_cut(engine, model):
    """vLLM takes back what a step has drawn for a prompt that it has not come to the end of: an answer with a seed is the same however
    the prompt is cut."""
    folder = model("llama", "--invariant")
    prompt = "".join(p + s for p, s in zip(PROMPTS[:4], SOLUTIONS))[:400]
    sampled = lambda seed: SamplingParams(temperature=2, max_tokens=20, seed=seed, min_tokens=20)

    def asked(**options):
        llm = engine(folder, enable_prefix_caching=False, **options)
        found = llm.generate([prompt] * 8, [sampled(seed) for seed in range(8)], use_tqdm=False)
        return [answer.outputs[0].text for answer in found]

    whole, cut = asked(), asked(max_num_batched_tokens=64)
    assert len(set(whole)) > 4 and cut == whole


@short
def test_the_cause_of_a_failed_step_is_told():
    """With asynchronous scheduling a step begins before it is known that the one before it has failed, and has no tokens."""
    from atomc.vllm.worker import Steps

    steps = Steps()

    def failing(fault):
        with steps:
            raise fault

    with pytest.raises(ArithmeticError):
        failing(ArithmeticError("first"))
    with pytest.raises(ArithmeticError, match="first"):
        failing(atomc.StepError("ids: -1"))
    with steps:
        pass
    with pytest.raises(atomc.StepError, match="ids: -1"):
        failing(atomc.StepError("ids: -1"))


def test_the_cache_is_what_sequences_can_use(engine, model):
    """Without a size of its own the cache of a machine without a GPU is no quarter of its memory."""
    llm = engine(model("qwen3"), kv_cache_memory_bytes=None, max_num_seqs=4, max_model_len=256)
    worker = llm.llm_engine.model_executor.driver_worker.worker
    layer = next(iter(own(llm).layers.values()))
    pages = -(-4 * 256 // layer.backend.block_tokens)
    assert (
        pages <= layer.pages()[0][2] <= pages + 4 and worker.determine_available_memory() < 8 << 20
    )
    assert greedy(llm, PROMPTS[:4]) == SOLUTIONS[:4]


@short
def test_vllms_layer_attends(engine, bare, monkeypatch):
    folder = bare("qwen3")
    compile(folder, "--attention", "own,caller")
    monkeypatch.setenv("ATOMC_ATTENTION", "vllm")
    llm = engine(folder, max_num_batched_tokens=512)
    from vllm.model_executor.layers.attention import Attention

    assert is_ours(llm) and all(isinstance(layer, Attention) for layer in own(llm).layers.values())
    assert greedy(llm, PROMPTS[:20]) == SOLUTIONS[:20]


@short
def test_nothing_compiles(engine, model):
    """Artifacts hold machine code: neither LLVM nor a compiler is in this process or below it."""
    assert is_ours(engine(model("llama")))
    assert "libLLVM" not in Path("/proc/self/maps").read_text()
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    names = [Path(f"/proc/{child}/comm").read_text().strip() for child in children]
    assert not {"atomc", "clang", "ptxas", "ld.lld", "cc1plus"} & set(names)
