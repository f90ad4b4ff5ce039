"""Golden drafts: tiny random targets, each with a model that drafts for it, and what both compute in float64.

    pip install torch==2.14.0 transformers==5.23.0 safetensors==0.8.0
    python tests/golden/draft.py [CASE ...]

MTP layers lie in the target's own checkpoint, named as published ones; EAGLE-3 heads in a folder `head`, each with another
spelling of its names and fields. `heads.py` says what computes them.
"""
import copy, shutil, sys, zlib
from dataclasses import dataclass, field

import safetensors.torch, torch, transformers

import experts, heads, hybrid, make
from make import HERE

LENGTHS, STEPS = (19, 4), 3


@dataclass
class Case:
    config: transformers.PreTrainedConfig
    # For an EAGLE-3 head: its own fields, the target's layers that it takes the input of, and their
    # form in the configuration.
    head: dict | None = None
    layers: list | None = None
    said: dict = field(default_factory=dict)
    # What stands in the place of the names of its modules.
    spelled: dict = field(default_factory=dict)
    # Whether the layer is said in a field of its own, as `speculators` has it.
    inside: bool = False


def llama(**kw):
    shape = dict(vocab_size=96, hidden_size=48, intermediate_size=60, num_hidden_layers=1, num_attention_heads=3,
                 num_key_value_heads=1, head_dim=20, max_position_embeddings=512, rms_norm_eps=1e-5, tie_word_embeddings=False,
                 bos_token_id=None, eos_token_id=None, pad_token_id=None, draft_vocab_size=None)
    return {**shape, **kw}


FULL, LINEAR = hybrid.FULL, hybrid.LINEAR
CASES = {
    "draft-v3": Case(experts.deepseek3(num_hidden_layers=2, num_mtp_layers=1, hidden_size=80)),
    "draft-glm": Case(experts.glm(num_hidden_layers=2, num_mtp_layers=1)),
    "draft-glm-lite": Case(experts.glm_lite(num_hidden_layers=2, num_mtp_layers=1)),
    "draft-next": Case(hybrid.next_(num_hidden_layers=2, layer_types=[LINEAR, FULL])),
    # All layers have a recurrent state, but the one that drafts.
    "draft-3.5": Case(hybrid.of_images(transformers.Qwen3_5Config, num_hidden_layers=1, layer_types=[LINEAR])),
    "draft-3.5-moe": Case(hybrid.of_images(transformers.Qwen3_5MoeConfig, num_hidden_layers=2, layer_types=[LINEAR, FULL],
                                           num_experts=5, num_experts_per_tok=2, moe_intermediate_size=20,
                                           shared_expert_intermediate_size=28, tie_word_embeddings=True)),
    # As SGLang's and SafeAILab's: layers that leave what is taken, and fewer tokens.
    "draft-eagle3": Case(make.qwen3(num_hidden_layers=4), llama(draft_vocab_size=40), [1, 2, 3],
                         {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2], "use_aux_hidden_state": True}}),
    # As `speculators` writes it, with all its options; two layers of a target with experts.
    "draft-eagle3-options": Case(experts.qwen3(num_hidden_layers=3), llama(draft_vocab_size=96, attention_bias=True), [0, 2],
                                 dict(eagle_aux_hidden_state_layer_ids=[0, 2], fc_norm=True, norm_output=True, norm_before_residual=True,
                                      speculators_model_type="eagle3"), {"midlayer.": "layers.0."}, inside=True),
    # The usual layers of a target of seven, its tied head, one norm before the projection.
    "draft-eagle3-shared": Case(make.llama(num_hidden_layers=7, num_key_value_heads=1, tie_word_embeddings=True), llama(), [2, 3, 4],
                                dict(norm_before_fc=True), {"": "model."}),
}


def draw_head(head, seed, around):
    """Weights as make.randomize draws them."""
    draw = torch.Generator().manual_seed(seed + 7)
    for name, p in sorted(head.named_parameters()):
        noise = torch.randn(p.shape, generator=draw)
        p.data = (noise * 0.3 + around if "norm" in name and p.dim() == 1 else noise * 0.2).to(torch.bfloat16)
    for name, b in sorted(head.named_buffers()):
        if name.endswith("e_score_correction_bias"): b.data = torch.randn(b.shape, generator=draw) * 0.3


def build_target(case, path, seed):
    """The target in bf16, in its folder, and in float64."""
    seen = hasattr(case.config, "vision_config")
    kind = transformers.AutoModelForImageTextToText if seen else transformers.AutoModelForCausalLM
    model = kind.from_config(case.config, experts_implementation="eager").eval()
    model.set_attn_implementation("eager")
    is_hybrid = "Qwen3_5" in type(model).__name__ or "Qwen3Next" in type(model).__name__
    (hybrid if is_hybrid else make).randomize(model, seed)
    draw = torch.Generator().manual_seed(seed + 1)
    for name, b in sorted(model.named_buffers()):
        if name.endswith("e_score_correction_bias"): b.data.copy_(torch.randn(b.shape, generator=draw) * 0.3)
    for p in model.parameters(): p.data = p.data.to(torch.bfloat16)
    if is_hybrid: hybrid.save(model, path, {}, None)
    elif experts.experts_of(model): experts.save(model, experts.Case(case.config), path)
    else: model.save_pretrained(path)
    return model, hybrid.float64(copy.deepcopy(model)), is_hybrid


def add_mtp(model, path, seed, is_hybrid):
    """An MTP layer in the target's checkpoint."""
    head = heads.Mtp(model)
    draw_head(head, seed, 0.0 if is_hybrid else 1.0)
    tensors = safetensors.torch.load_file(path / "model.safetensors")
    tensors |= heads.mtp_tensors(head, model, "Qwen3_5" in type(model).__name__)
    n = heads.text(model.config).num_hidden_layers
    if not is_hybrid:
        # As released: once more what the target has.
        tensors[f"model.layers.{n}.embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
        tensors[f"model.layers.{n}.shared_head.head.weight"] = tensors["lm_head.weight"].clone()
    safetensors.torch.save_file(tensors, path / "model.safetensors", {"format": "pt"})
    return head, lambda exact: heads.Mtp(exact)


def add_eagle3(model, case, path, seed):
    """An EAGLE-3 head in a folder of its own."""
    config = transformers.LlamaConfig(**case.head)
    for name, value in case.said.items(): setattr(config, name, value)
    head = heads.Eagle3(model, config, case.layers)
    draw_head(head, seed, 1.0)
    small = config.draft_vocab_size
    if small:
        draw = torch.Generator().manual_seed(seed + 8)
        ids = torch.randperm(config.vocab_size, generator=draw)[:small].sort().values
        head.d2t.copy_(ids - torch.arange(small))
    (path / "head").mkdir()
    tensors = {}
    for name, t in head.state_dict().items():
        old = next((old for old in case.spelled if name.startswith(old)), None)
        at_top = name.startswith(("lm_head.", "d2t"))
        tensors[name if old is None or at_top else case.spelled[old] + name.removeprefix(old)] = t.contiguous()
    if small: tensors["t2d"] = torch.zeros(config.vocab_size, dtype=torch.bool).index_fill(0, ids, True)
    safetensors.torch.save_file(tensors, path / "head/model.safetensors", {"format": "pt"})
    said = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "dtype": "bfloat16"}
    if case.inside: said = {"architectures": ["Eagle3DraftModel"], "dtype": "bfloat16", "draft_vocab_size": small,
                            "transformer_layer_config": {"model_type": "llama", **case.head}, **case.said}
    else: said |= {**case.head, **case.said}
    make.write_json(path / "head/config.json", said)

    def exact_of(exact):
        llama64 = hybrid.module64(transformers.LlamaForCausalLM(config))
        made = heads.Eagle3(exact, config, case.layers, llama64)
        made.rotary.inv_freq = head.rotary.inv_freq.float().double()
        return made

    return head, exact_of


def build(name):
    case, path, seed = CASES[name], HERE / name, zlib.crc32(name.encode())
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    model, exact, is_hybrid = build_target(case, path, seed)
    head, exact_of = add_eagle3(model, case, path, seed) if case.head else add_mtp(model, path, seed, is_hybrid)
    exact_head = exact_of(exact).double().eval()
    exact_head.load_state_dict({n: t.double() if t.is_floating_point() else t for n, t in head.state_dict().items()})
    draw, tensors = torch.Generator().manual_seed(seed + 1000), {}
    for i, length in enumerate(LENGTHS):
        ids = torch.randint(heads.text(case.config).vocab_size, (1, length), generator=draw)
        _, entered, last = heads.target(exact, ids)
        rows = exact_head.fuse(entered, last)
        made = heads.chains(exact_head, ids, rows, STEPS)
        assert all(t.dtype == torch.float64 for pair in made for t in pair)
        tensors |= {f"tokens.{i}": ids[0].int(), f"drafted.{i}": rows[0].float(), f"picks.{i}": heads.picks(exact_head, made)[0].int()}
        for step, (drafted, left) in enumerate(made):
            tensors |= {f"logits.{i}.{step}": drafted[0].float().contiguous(), f"left.{i}.{step}": left[0].float().contiguous()}
    safetensors.torch.save_file(tensors, path / "draft.safetensors")
    print(f"{name}: logits std {tensors['logits.0.0'].std().item():.2f}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    for name in sys.argv[1:] or CASES: build(name)
