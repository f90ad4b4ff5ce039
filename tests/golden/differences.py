"""What docs/parity.md says of transformers, asked of transformers: python tests/golden/differences.py

Each function is a row of the table there, and ends without an assertion if the row is true.
"""
import tempfile
import warnings

import torch
import transformers
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen3Config

SMALL = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
             vocab_size=64, max_position_embeddings=64)
IDS = torch.arange(12)[None]


def model(config):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).eval()


def logits(config):
    with torch.no_grad():
        return model(config)(IDS).logits


def partial_rotary_factor_is_ignored_by_default_rope():
    for kind in (LlamaConfig, Qwen3Config):
        rope = {"rope_type": "default", "rope_theta": 10000.0}
        whole = logits(kind(**SMALL, rope_parameters=rope))
        part = logits(kind(**SMALL, rope_parameters=rope | {"partial_rotary_factor": 0.5}))
        assert torch.equal(whole, part), kind


def another_head_is_used_though_the_configuration_ties_it():
    tied = model(LlamaConfig(**SMALL, tie_word_embeddings=False))
    tied.config.tie_word_embeddings = True
    with tempfile.TemporaryDirectory() as folder:
        state = {name: tensor.clone() for name, tensor in tied.state_dict().items()}
        tied.config.save_pretrained(folder)
        from safetensors.torch import save_file
        save_file(state, f"{folder}/model.safetensors", metadata={"format": "pt"})
        again = AutoModelForCausalLM.from_pretrained(folder).eval()
    head, embedding = again.get_output_embeddings().weight, again.get_input_embeddings().weight
    assert torch.equal(head, state["lm_head.weight"]) and not torch.equal(head, embedding)


def sliding_layers_without_a_window_are_an_error():
    config = Qwen3Config(**SMALL, use_sliding_window=False, layer_types=["sliding_attention"])
    try:
        logits(config)
    except Exception:
        return
    raise AssertionError("transformers runs it")


def a_zero_epsilon_is_taken():
    assert logits(MistralConfig(**SMALL, rms_norm_eps=0.0)).isfinite().all()


def quick_gelu_is_taken_and_null_is_not():
    assert logits(LlamaConfig(**SMALL, hidden_act="quick_gelu")).isfinite().all()
    try:
        logits(LlamaConfig(**SMALL, hidden_act=None))
    except Exception:
        return
    raise AssertionError("transformers takes no activation")


def more_positions_than_the_model_was_made_for_are_taken():
    assert logits(LlamaConfig(**SMALL | {"max_position_embeddings": 4})).shape[1] == 12


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print("transformers", transformers.__version__)
    for name, check in list(globals().items()):
        if callable(check) and getattr(check, "__module__", "") == "__main__" and name not in ("model", "logits"):
            check()
            print("as documented:", name)
