"""Adapters as peft writes them, for golden models, and what transformers computes with them in float64.

    pip install torch==2.14.0 transformers==5.24.0 safetensors==0.8.0 peft==0.21.2
    python tests/golden/adapters.py [NAME ...]

No name given means all. `adapters/NAME` has the adapter's files and `logits.safetensors`: of the tokens of the base case's first
sequence, the logits of all of them at once.
"""
import shutil, sys, zlib

import peft, safetensors.torch, torch
from families import HERE, Wide, load

OUT = HERE / "adapters"
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
# By name: the golden case, and what LoraConfig is given.
CASES = dict(
    plain=("llama3", dict(r=8, lora_alpha=12, target_modules=LINEAR, rank_pattern={"q_proj": 4, "layers.1.mlp.up_proj": 5},
           alpha_pattern={r"layers\.[01]\.mlp\.down_proj": 30, "down_proj": 1})),
    rslora=("llama3", dict(r=3, lora_alpha=5, use_rslora=True, target_modules=["q_proj", "v_proj", "down_proj"])),
    dora=("llama3", dict(r=4, lora_alpha=8, use_dora=True, target_modules=LINEAR)),
    embedding=("llama3", dict(r=4, lora_alpha=8, target_modules=["embed_tokens", "lm_head", "k_proj"])),
    replaced=("llama3", dict(r=4, lora_alpha=8, target_modules=["o_proj"], modules_to_save=["lm_head"])),
    tied=("llama-gqa-tied", dict(r=4, lora_alpha=8, target_modules=LINEAR)),
    experts=("moe-qwen3", dict(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], target_parameters=EXPERTS)),
    down=("moe-qwen3", dict(r=2, lora_alpha=8, target_modules=[], target_parameters=EXPERTS[1:])),
    columns=("moe-gpt-oss", dict(r=4, lora_alpha=8, target_modules=["q_proj", "o_proj"], target_parameters=EXPERTS)),
    latent=("mla-v3", dict(r=4, lora_alpha=8, target_modules=["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj", "down_proj"])),
    recurrent=("hybrid-next", dict(r=4, lora_alpha=8, target_modules=["in_proj_qkvz", "in_proj_ba", "out_proj", "q_proj", "o_proj"])),
)


def make(name):
    base, options = CASES[name]
    torch.manual_seed(zlib.crc32(name.encode()))
    golden = safetensors.torch.load_file(HERE / base / "golden.safetensors")
    model = peft.get_peft_model(load(HERE / base, torch.float32), peft.LoraConfig(init_lora_weights=False, **options)).eval()
    for one, parameter in model.named_parameters():
        # Lengths of rows stay near those that rows have.
        if "magnitude" in one: parameter.data *= 1 + 0.2 * torch.rand_like(parameter)
        elif "modules_to_save" in one: parameter.data += 0.02 * torch.randn_like(parameter)
        elif "lora_" in one: parameter.data = 0.1 * torch.randn_like(parameter)
    out = OUT / name
    shutil.rmtree(out, ignore_errors=True)
    model.peft_config["default"].base_model_name_or_path = base
    model.save_pretrained(out)
    (out / "README.md").unlink(missing_ok=True)
    # A configuration is saved with its patterns sorted, of which the first that matches counts.
    model = peft.PeftModel.from_pretrained(load(HERE / base, torch.float32), out).eval()
    tokens = golden["tokens.0"]
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    with Wide(), torch.no_grad():
        model = model.double()
        logits = model(input_ids=tokens[None].long()).logits[0]
        with model.disable_adapter(): plain = model(input_ids=tokens[None].long()).logits[0]
    torch.set_default_dtype(default)
    difference = (logits - plain).square().mean().sqrt() / plain.square().mean().sqrt()
    assert 0.05 < difference, difference
    print(f"{name}: logits differ by {difference:.2f} of their size")
    safetensors.torch.save_file({"logits": logits.float().contiguous()}, out / "logits.safetensors")


for name in sys.argv[1:] or CASES: make(name)
