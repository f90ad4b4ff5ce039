"""Golden models of families, made from transformers alone: no code of a family is here, only what it is called and its sizes.

    pip install torch==2.14.0 transformers==5.24.0 safetensors==0.8.0
    python tests/golden/families.py [ARCHITECTURE ...]           the golden model of each; all of FAMILIES if none is named
    python tests/golden/families.py --differs ARCHITECTURE       how its configuration and tensors differ from those of what it is like
    python tests/golden/families.py --skeleton ARCHITECTURE      the begin of a file in tests/published, at the size of its class
    python tests/golden/families.py --new                        what transformers has and no row of atomc

The reference is transformers' own code, in which each float32 is a float64 while it runs (`Wide`): only inverse frequencies stay the
numbers of float32 that they are. Checkpoints have the names that transformers saves, which are those of releases.
"""
import itertools, json, re, shutil, sys, zlib
from dataclasses import dataclass, field
from pathlib import Path

import safetensors.torch, torch, transformers
from transformers import core_model_loading

import fp4
from transformers.models.auto import modeling_auto as auto

HERE = Path(__file__).resolve().parent
LENGTHS = (37, 5, 21)
CHUNK = 8
# Small values of fields that many classes have. Those of a family go first, and a field that a
# class does not have is left out.
SMALL = dict(
    vocab_size=96, hidden_size=48, intermediate_size=60, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    max_position_embeddings=512, rms_norm_eps=1e-5, tie_word_embeddings=False, bos_token_id=None, eos_token_id=None, pad_token_id=None,
    head_dim=16, moe_intermediate_size=20, num_experts_per_tok=3, first_k_dense_replace=1,
    sliding_window=8, num_nextn_predict_layers=0, num_mtp_layers=0,
)
# Numbers of layers and of experts in names of tensors.
NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


@dataclass
class Family:
    architecture: str
    # The architecture whose row it is nearest to.
    like: str
    # Fields of the tiny configuration, or of its language part where there are several.
    sizes: dict = field(default_factory=dict)
    # Fields of the other parts, by the part's name.
    parts: dict = field(default_factory=dict)
    # What a release is called where transformers has another name for it.
    published: str | None = None
    # Names in the checkpoint that are not transformers': a pattern and what is in its place.
    names: list = field(default_factory=list)
    # Fields of a release in place of transformers': their names here, or a value of their own; an
    # ellipsis leaves a field out.
    config: dict = field(default_factory=dict)
    # Tensors of other parts, which are left out where the language part is published alone, with
    # names below no part.
    without: str | None = None
    # Tensors that a release has as one, one after the other: ends of names, and the end of the
    # whole.
    joined: list = field(default_factory=list)
    # Tensors that releases have with their last two axes exchanged. transformers takes both forms.
    columns: str | None = None
    lengths: tuple = LENGTHS
    # What names begin with of a language part that is published alone.
    alone: str | None = None
    # What its folder is called where that is not the architecture.
    case: str | None = None
    # Whether weights are stored as the codes of `fp4.py`, which also makes codes of rows.
    codes: bool = False
    # What weights of queries' norms are multiplied by, where scores have no scale: else a token
    # sees one other, and models differ in last bits.
    queries: float = 1.0
    # Another draw, where a code hangs on the last bits of a number.
    draw: int = 0

    def stored(self, tensors):
        """Tensors as a release has them."""
        if self.alone: tensors = {n.removeprefix(self.alone): t for n, t in tensors.items() if n.startswith(self.alone)}
        for parts, whole in self.joined:
            for name in [n.removesuffix(parts[0]) for n in tensors if n.endswith(parts[0])]:
                tensors[name + whole] = torch.cat([tensors.pop(name + part) for part in parts])
        if self.without: tensors = {name: t for name, t in tensors.items() if not re.search(self.without, name)}
        for old, new in self.names: tensors = {re.sub(old, new, name): t for name, t in tensors.items()}
        is_column = lambda name: self.columns and re.search(self.columns, name)
        return {name: t.mT.contiguous() if is_column(name) else t for name, t in tensors.items()}


VISION = dict(depth=1, hidden_size=16, intermediate_size=16, num_heads=2, out_hidden_size=48, num_position_embeddings=4, deepstack_visual_indexes=[0])
KIMI_VISION = dict(patch_size=2, pos_emb_height=2, pos_emb_width=2, num_attention_heads=2, num_hidden_layers=1, hidden_size=16, intermediate_size=16)
BAILING = dict(num_experts="n_routed_experts", num_shared_experts="n_shared_experts", use_qkv_bias="attention_bias", use_bias=False, norm_head=False,
               score_function="sigmoid", moe_router_enable_expert_bias=True, use_rmsnorm=True, model_type="bailing_moe")
# Names of a release for fields of transformers, which has those of Step for the layers that draft
# too.
STEP_ROPE = dict(full_attention=dict(rope_type="llama3", rope_theta=5000.0, partial_rotary_factor=0.5, factor=2.0, low_freq_factor=1.0,
                 high_freq_factor=32.0, original_max_position_embeddings=16), sliding_attention=dict(rope_type="default", rope_theta=1000.0,
                 partial_rotary_factor=1.0))
STEP = dict(num_hidden_layers=3, layer_types=["full_attention", "sliding_attention", "full_attention"], num_sliding_attention_heads=6,
            rope_parameters=STEP_ROPE, n_routed_experts=6, share_expert_dim=28, mlp_layer_types=["dense", "sparse", "sparse"],
            moe_router_scaling_factor=1.7, swiglu_limits=[0.0, 0.0, 0.2], swiglu_limits_shared=[0.3, 0.0, 0.4], pad_token_id=0)
STEP_VISION = dict(width=16, layers=1, heads=2, image_size=28, patch_size=14, mlp_ratio=1.0, max_position_embeddings=4)
STEP_RELEASE = dict(num_attention_groups="num_key_value_heads", moe_num_experts="n_routed_experts", moe_top_k="num_experts_per_tok",
                    layer_types=["full_attention", "sliding_attention", "full_attention", "sliding_attention"], num_nextn_predict_layers=1,
                    attention_other_setting=dict(attention_type="sliding_attention", num_attention_heads=6, num_attention_groups=2, head_dim=16),
                    rope_theta=[5000.0, 1000.0, 5000.0, 1000.0], partial_rotary_factors=[0.5, 1.0, 0.5, 1.0], yarn_only_types=["full_attention"],
                    rope_scaling={k: v for k, v in STEP_ROPE["full_attention"].items() if k not in ("rope_theta", "partial_rotary_factor")},
                    moe_layers_enum="1,2", swiglu_limits=[0.0, 0.0, 0.2, 0.0], swiglu_limits_shared=[0.3, 0.0, 0.4, 0.0],
                    use_head_wise_attn_gate=True, use_moe_router_bias=True, need_fp32_gate=True, norm_expert_weight=True, zero_centered=True,
                    **dict.fromkeys(("num_sliding_attention_heads", "per_layer_config", "rope_parameters", "mlp_layer_types", "query_pre_attn_scalar"), ...))
GROWING = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=8, beta_fast=32.0, beta_slow=1.0, mscale=1.0,
               mscale_all_dim=1.0)
MINIMAX_M3 = dict(num_hidden_layers=4, num_attention_heads=6, num_key_value_heads=2, head_dim=16, rotary_dim=8,
                  rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5),
                  num_local_experts=5, num_experts_per_tok=2, intermediate_size=20, dense_intermediate_size=60, shared_intermediate_size=28,
                  mlp_layer_types=["dense", "sparse", "sparse", "dense"], swiglu_limit=1.5, routed_scaling_factor=1.7,
                  layer_types=["full_attention", "minimax_m3_sparse", "full_attention", "minimax_m3_sparse"],
                  index_n_heads=2, index_head_dim=24, index_block_size=4, index_topk_blocks=4)
MINIMAX_PARTS = dict(projector_hidden_size=16, vision_config=dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
                     patch_size=2, image_size=4))
# Layers of each kind: a window alone, blocks of 4 and of 8 tokens as rows. With many heads no two
# scores of an indexer are zero, of which transformers takes any. The second has what
# releases say, and a block of 128 tokens.
DEEPSEEK_V4_LAYERS = ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention", "compressed_sparse_attention"]
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16, beta_fast=32.0, beta_slow=1.0)
DEEPSEEK_V4 = dict(num_hidden_layers=4, num_key_value_heads=1, head_dim=40, partial_rotary_factor=0.4, q_lora_rank=28, o_groups=2, o_lora_rank=24,
                   index_n_heads=16, index_head_dim=24, index_topk=3, hc_mult=3, hc_sinkhorn_iters=5, n_routed_experts=6, routed_scaling_factor=1.7,
                   swiglu_limit=0.5, rope_parameters=YARN,
                   compress_rates=dict(compressed_sparse_attention=4, heavily_compressed_attention=8),
                   layer_types=DEEPSEEK_V4_LAYERS,
                   mlp_layer_types=["hash_moe", "moe", "hash_moe", "moe"])
DEEPSEEK_V4_NAMES = [(r"^model\.embed_tokens\.", "embed."), (r"^model\.hc_head\.hc_", "hc_head_"), (r"^model\.", ""),
                     (r"\.attn\.norm\.", ".attn.kv_norm.")]
DEEPSEEK_V4_RELEASE = dict(DEEPSEEK_V4, num_hidden_layers=3, hc_mult=4, compress_rates=dict(compressed_sparse_attention=4, heavily_compressed_attention=128),
                           layer_types=DEEPSEEK_V4_LAYERS[:3], mlp_layer_types=["hash_moe", "moe", "moe"])
DEEPSEEK_V4_PUBLISHED = dict(num_nextn_predict_layers=1, num_hash_layers=1, qk_rope_head_dim=16, rope_theta=10000.0,
                             rope_scaling=dict({k: v for k, v in YARN.items() if k != "rope_type"}, type="yarn"),
                             **dict.fromkeys(("layer_types", "mlp_layer_types", "compress_rates", "rope_parameters", "partial_rotary_factor"), ...))
# Blocks of 128 by 128 end inside queries, inside rows of the hidden size, and between groups of
# heads.
DEEPSEEK_V4_CODES = dict(DEEPSEEK_V4_RELEASE, hidden_size=160, num_hidden_layers=2, hc_mult=2, q_lora_rank=32, o_lora_rank=128, moe_intermediate_size=32,
                         layer_types=DEEPSEEK_V4_LAYERS[:2], mlp_layer_types=["hash_moe", "moe"])
OLMO3_ROPE = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16, beta_fast=32.0, beta_slow=1.0, attention_factor=1.2)
GRANITE_HYBRID = dict(num_hidden_layers=3, layer_types=["linear_attention", "full_attention", "linear_attention"], mamba_n_heads=6, mamba_d_head=16,
                      mamba_d_state=24, mamba_n_groups=1, embedding_multiplier=3.0, attention_multiplier=0.125, residual_multiplier=0.22,
                      logits_scaling=2.5, num_local_experts=0, shared_intermediate_size=60)
FALCON_H1 = dict(mamba_d_ssm=72, mamba_n_heads=6, mamba_d_state=24, mamba_n_groups=1, embedding_multiplier=3.0, lm_head_multiplier=0.4,
                 mlp_multipliers=[0.7, 1.3], key_multiplier=0.6, attention_in_multiplier=1.2, attention_out_multiplier=0.8, ssm_in_multiplier=1.1,
                 ssm_out_multiplier=0.9, ssm_multipliers=[0.8, 1.3, 0.6, 0.9, 1.2])
NEMOTRON_H = dict(layers_block_type=["linear_attention", "moe", "full_attention", "mlp", "linear_attention"], mamba_num_heads=6, mamba_head_dim=16,
                  ssm_state_size=24, n_groups=2, n_routed_experts=6, moe_shared_expert_intermediate_size=28, routed_scaling_factor=1.7,
                  layer_norm_epsilon=1e-5)
BAILING_HYBRID = dict(num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=3, head_dim=20, layer_group_size=3, kv_lora_rank=40, qk_nope_head_dim=24,
                      qk_rope_head_dim=16, v_head_dim=32, num_local_experts=6, n_group=3, topk_group=2, num_experts_per_tok=3, n_shared_experts=2)
BAILING_RELEASE = dict(no_kda_lora=True, use_bias=False, use_rmsnorm=True, moe_router_enable_expert_bias=True, score_function="sigmoid", head_dim=20,
                       partial_rotary_factor=0.5, gated_attention_proj_granularity_type="head_wise", moe_shared_expert_intermediate_size=20,
                       **dict.fromkeys(("layer_types", "mlp_layer_types", "linear_head_dim", "linear_num_heads", "linear_conv_kernel_dim"), ...))
# Layers of both kinds, the last one full. Where two layers see the keys of others, these are layers
# 1 and 2. The roots of widths are the same in every type.
GEMMA4_LAYERS = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention"]
GEMMA4 = dict(hidden_size=64, num_hidden_layers=5, layer_types=GEMMA4_LAYERS, head_dim=16, global_head_dim=32, final_logit_softcapping=3.0,
              hidden_size_per_layer_input=0, tie_word_embeddings=True,
              rope_parameters=dict(sliding_attention=dict(rope_type="default", rope_theta=1000.0),
              full_attention=dict(rope_type="proportional", partial_rotary_factor=0.25, rope_theta=5000.0)))
# As releases have it.
GEMMA4_RELEASE = dict(per_layer_config=..., global_head_dim=32)
GEMMA4_VISION = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, head_dim=8, patch_size=2,
                     position_embedding_size=16)
FAMILIES = [
    Family("SeedOssForCausalLM", "Qwen2ForCausalLM", dict(attention_out_bias=False, attention_dropout=0.0, residual_dropout=0.0)),
    Family("Dots1ForCausalLM", "Glm4MoeForCausalLM", dict(n_routed_experts=6, n_shared_experts=2, n_group=3, topk_group=2, norm_topk_prob=True,
           routed_scaling_factor=1.7, max_window_layers=1)),
    Family("SolarOpenForCausalLM", "Glm4MoeForCausalLM", dict(n_routed_experts=6, attention_bias=True)),
    Family("HYV3ForCausalLM", "Glm4MoeForCausalLM", dict(num_experts=7)),
    Family("Glm4MoeLiteForCausalLM", "DeepseekV3ForCausalLM", dict(num_attention_heads=3, num_key_value_heads=3, q_lora_rank=28, kv_lora_rank=40,
           qk_nope_head_dim=24, qk_rope_head_dim=16, v_head_dim=32, n_routed_experts=6)),
    Family("GraniteSWAForCausalLM", "GraniteForCausalLM", dict(num_hidden_layers=3, layer_rope_theta=[5000.0, 10000.0, 0.0], embedding_multiplier=3.0,
           attention_multiplier=0.125, residual_multiplier=0.22, logits_scaling=2.5)),
    Family("Olmo3ForCausalLM", "Olmo2ForCausalLM", dict(layer_types=["sliding_attention", "full_attention"], rope_parameters=dict(
           sliding_attention=dict(rope_type="default", rope_theta=500000.0), full_attention=dict(OLMO3_ROPE, rope_theta=500000.0))),
           # SGLang reads the form of releases alone.
           published="Olmo3ForCausalLM", config=dict(rope_parameters=..., rope_theta=500000.0, rope_scaling=OLMO3_ROPE)),
    Family("Exaone4ForCausalLM", "Olmo2ForCausalLM", dict(layer_types=["sliding_attention", "full_attention"])),
    Family("Glm4ForCausalLM", "GlmForCausalLM", dict(attention_bias=True)),
    Family("GlmForCausalLM", "Phi3ForCausalLM", dict(attention_bias=True)),
    Family("Ernie4_5ForCausalLM", "LlamaForCausalLM", dict(use_bias=True, tie_word_embeddings=True)),
    Family("Ernie4_5_MoeForCausalLM", "Ernie4_5ForCausalLM", dict(moe_k=2, moe_num_experts=5, head_dim=16)),
    Family("HunYuanDenseV1ForCausalLM", "LlamaForCausalLM", dict(tie_word_embeddings=True, rope_parameters=dict(rope_type="dynamic", rope_theta=10000.0,
           alpha=50.0, factor=1.0))),
    Family("HunYuanMoEV1ForCausalLM", "HunYuanDenseV1ForCausalLM", dict(num_experts=5, moe_topk=2, intermediate_size=20)),
    # Keys as values and fewer heads in layers without a window.
    Family("Gemma4ForCausalLM", "Gemma3ForCausalLM", dict(GEMMA4, attention_k_eq_v=True, num_global_key_value_heads=1), published="Gemma4ForCausalLM",
           config=dict(GEMMA4_RELEASE, num_global_key_value_heads=1), case="gemma4", queries=0.25),
    # Keys of other layers, and rows of layers' own.
    Family("Gemma4ForCausalLM", "Gemma3ForCausalLM", dict(GEMMA4, num_kv_shared_layers=2, use_double_wide_mlp=True, hidden_size_per_layer_input=16,
           vocab_size_per_layer_input=96), case="gemma4rows", queries=0.15),
    # Experts beside an MLP, in the language part of a larger model.
    Family("Gemma4ForConditionalGeneration", "Gemma3ForConditionalGeneration", dict(GEMMA4, num_hidden_layers=3, layer_types=GEMMA4_LAYERS[:3],
           attention_k_eq_v=True, num_global_key_value_heads=1, enable_moe_block=True, num_experts=6, top_k_experts=3, pad_token_id=0), dict(vision_config=GEMMA4_VISION,
           audio_config=None), case="gemma4moe", queries=0.25),
    Family("MiniMaxM2ForCausalLM", "MixtralForCausalLM", dict(num_local_experts=6, intermediate_size=20, rotary_dim=8)),
    Family("Ministral3ForCausalLM", "MistralForCausalLM", dict(sliding_window=None, rope_parameters=dict(GROWING, llama_4_scaling_beta=0.4))),
    Family("Qwen3VLForConditionalGeneration", "Qwen3ForCausalLM", dict(rope_parameters=dict(rope_type="default", rope_theta=10000.0, mrope_section=[3, 3, 2],
           mrope_interleaved=True)), dict(vision_config=VISION)),
    Family("Qwen3VLMoeForConditionalGeneration", "Qwen3MoeForCausalLM", dict(num_experts=5, num_experts_per_tok=2, sliding_window=None, rope_parameters=dict(
           rope_type="default", rope_theta=10000.0, mrope_section=[3, 3, 2], mrope_interleaved=True)), dict(vision_config=VISION),
           columns=r"mlp\.experts\.(gate_up|down)_proj$"),
    Family("ExaoneMoeForCausalLM", "Exaone4ForCausalLM", dict(num_experts=6, n_group=1, topk_group=1, layer_types=["sliding_attention", "full_attention"])),
    Family("Kimi_K25ForConditionalGeneration", "DeepseekV3ForCausalLM", dict(model_type="deepseek_v3", num_attention_heads=3, num_key_value_heads=3,
           q_lora_rank=28, kv_lora_rank=40, qk_nope_head_dim=24, qk_rope_head_dim=16, v_head_dim=32, n_routed_experts=6, n_group=1, topk_group=1),
           dict(vision_config=KIMI_VISION, projection_hidden_size=16), published="KimiK25ForConditionalGeneration",
           # What transformers 5.24 renames of the tower, it renames of the language part too.
           names=[(r"^language_model\.model\.blocks\.", "language_model.model.layers."), (r"^model\.mm_projector\.", "mm_projector.")]),
    Family("Cohere2ForCausalLM", "LlamaForCausalLM", dict(num_attention_heads=3, num_key_value_heads=1, layer_types=["sliding_attention", "full_attention"],
           logit_scale=0.3, attention_bias=True, tie_word_embeddings=True)),
    Family("Mistral4ForCausalLM", "DeepseekV3ForCausalLM", dict(num_attention_heads=3, num_key_value_heads=3, q_lora_rank=28, kv_lora_rank=40,
           qk_nope_head_dim=24, qk_rope_head_dim=16, head_dim=40, v_head_dim=32, n_routed_experts=6, n_group=3, topk_group=2, routed_scaling_factor=1.7,
           rope_parameters=dict(GROWING, llama_4_scaling_beta=0.4))),
    Family("Mistral3ForConditionalGeneration", "Mistral4ForCausalLM", dict(model_type="mistral4", num_attention_heads=2, num_key_value_heads=2,
           q_lora_rank=None, kv_lora_rank=40, qk_nope_head_dim=16, qk_rope_head_dim=16, head_dim=32, v_head_dim=32, n_routed_experts=6, first_k_dense_replace=1),
           dict(vision_config=dict(model_type="pixtral", hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, head_dim=8))),
    Family("Lfm2ForCausalLM", "Qwen3ForCausalLM", dict(num_hidden_layers=3, layer_types=["conv", "full_attention", "conv"], norm_eps=1e-5,
           block_multiple_of=4, block_ffn_dim_multiplier=1.2),
           # Releases say so, and vLLM asks it.
           published="Lfm2ForCausalLM", config=dict(conv_dim=48)),
    Family("Lfm2MoeForCausalLM", "Lfm2ForCausalLM", dict(num_hidden_layers=3, layer_types=["conv", "full_attention", "conv"], norm_eps=1e-5,
           num_experts=6, num_dense_layers=1, routed_scaling_factor=1.7)),
    Family("MiMoV2FlashForCausalLM", "Glm4MoeForCausalLM", dict(num_hidden_layers=3, num_key_value_heads=1, head_dim=24, v_head_dim=16, sliding_window=9,
           n_routed_experts=6, layer_types=["full_attention", "sliding_attention", "full_attention"]),
           # SGLang asks what releases say, and transformers does not.
           published="MiMoV2FlashForCausalLM", config=dict(hybrid_layer_pattern=[0, 1, 0], swa_num_attention_heads=4,
           swa_num_key_value_heads=2, swa_head_dim=24, swa_v_head_dim=16)),
    # As sarvam_moe of transformers, which is the same: GLM-4-MoE with other names.
    Family("Glm4MoeForCausalLM", "Glm4MoeForCausalLM", dict(n_routed_experts=6, n_group=3, topk_group=2, use_qk_norm=True, routed_scaling_factor=1.7,
           num_nextn_predict_layers=0), published="BailingMoeV2ForCausalLM", config=BAILING,
           names=[(r"^model\.embed_tokens\.", "model.word_embeddings."), (r"\.self_attn\.o_proj\.", ".attention.dense."),
                  (r"\.self_attn\.q_norm\.", ".attention.query_layernorm."), (r"\.self_attn\.k_norm\.", ".attention.key_layernorm."),
                  (r"\.mlp\.gate\.e_score_correction_bias$", ".mlp.gate.expert_bias")],
           joined=[([f".self_attn.{n}_proj.weight" for n in "qkv"], ".attention.query_key_value.weight")]),
    Family("GraniteMoeHybridForCausalLM", "GraniteForCausalLM", GRANITE_HYBRID, case="granitehybrid"),
    # With experts, groups that ranks share out, a bias of projections, and rotary embeddings.
    Family("GraniteMoeHybridForCausalLM", "GraniteForCausalLM", dict(GRANITE_HYBRID, num_local_experts=5, intermediate_size=20, mamba_n_groups=2,
           mamba_proj_bias=True, position_embedding_type="rope"), case="granitehybridmoe"),
    # Without a norm of the state space's rows, which are cut into groups otherwise than heads are.
    Family("FalconH1ForCausalLM", "GraniteMoeHybridForCausalLM", FALCON_H1, case="falconh1"),
    # With norms of groups behind gates, and with biases.
    Family("FalconH1ForCausalLM", "GraniteMoeHybridForCausalLM", dict(FALCON_H1, mamba_rms_norm=True, mamba_norm_before_gate=False, mamba_n_groups=2,
           attention_bias=True, mlp_bias=True, tie_word_embeddings=True), case="falconh1norm"),
    # With norms before gates.
    Family("FalconH1ForCausalLM", "GraniteMoeHybridForCausalLM", dict(FALCON_H1, num_hidden_layers=1, mamba_rms_norm=True, mamba_d_ssm=None,
           ssm_multipliers=None, mlp_multipliers=None), case="falconh1before"),
    # SGLang reads the form of releases alone.
    Family("NemotronHForCausalLM", "GraniteMoeHybridForCausalLM", NEMOTRON_H, published="NemotronHForCausalLM",
           config=dict(layers_block_type=..., hybrid_override_pattern="ME*-M", num_hidden_layers=5)),
    # As Nemotron 3 Super: experts work on a short row.
    Family("NemotronHForCausalLM", "GraniteMoeHybridForCausalLM", dict(NEMOTRON_H, moe_latent_size=32), published="NemotronHForCausalLM", case="nemotronhshort",
           config=dict(layers_block_type=..., hybrid_override_pattern="ME*-M", num_hidden_layers=5)),
    # A decay for each element of a key, and latent attention without rotary embeddings.
    Family("KimiLinearForCausalLM", "DeepseekV3ForCausalLM", dict(num_hidden_layers=3, layer_types=["linear_attention", "full_attention",
           "linear_attention"], linear_num_heads=3, linear_head_dim=20, linear_conv_kernel_dim=4, num_key_value_heads=4, kv_lora_rank=40,
           qk_nope_head_dim=24, qk_rope_head_dim=16, v_head_dim=32, num_local_experts=7, n_shared_experts=1, num_experts_per_tok=3), case="kimilinear",
           names=[(r"(layers\.\d+)\.block_sparse_moe\.(gate|up|down)_proj", r"\1.mlp.\2_proj")], published="KimiLinearForCausalLM",
           config=dict(layer_types=..., linear_num_heads=..., linear_head_dim=..., linear_conv_kernel_dim=..., mlp_layer_types=..., first_k_dense_replace=1,
           mla_use_nope=True, linear_attn_config=dict(kda_layers=[1, 3], full_attn_layers=[2], num_heads=3, head_dim=20, short_conv_kernel_size=4))),
    # Decays that stay above a number, full-rank projections, and latent attention with a gate of
    # each head. As transformers saves it.
    Family("BailingHybridForCausalLM", "KimiLinearForCausalLM", BAILING_HYBRID, case="bailinghybrid"),
    # Releases have a name of their own for the outer projection of recurrent layers, and
    # `partial_rotary_factor` is of none of these.
    Family("BailingHybridForCausalLM", "KimiLinearForCausalLM", dict(BAILING_HYBRID, q_lora_rank=28, kda_safe_gate=False),
           published="BailingMoeV3ForCausalLM", case="bailingmoev3",
           names=[(r"(layers\.[01]\.attention)\.dense\.", r"\1.o_proj.")], config=dict(BAILING_RELEASE, num_expert_group=..., n_group=3,
           model_max_length=..., max_position_embeddings=512, num_experts_per_token=..., num_experts_per_tok=3, moe_renormalize=..., norm_topk_prob=True)),
    # All positions are in the first chunk.
    Family("Llama4ForCausalLM", "MixtralForCausalLM", dict(num_hidden_layers=3, no_rope_layers=[1, 0, 1], num_local_experts=5, num_experts_per_tok=1,
           intermediate_size=20, intermediate_size_mlp=60, moe_layers=[1, 2], attention_chunk_size=64, floor_scale=8, attn_scale=0.4)),
    # Two layers attend to 4 of 12 blocks of keys.
    Family("MiniMaxM3SparseForConditionalGeneration", "MiniMaxM2ForCausalLM", MINIMAX_M3, MINIMAX_PARTS, lengths=(47, 5, 21), case="minimaxm3"),
    # The language part alone. No block is always among a token's.
    Family("MiniMaxM3SparseForConditionalGeneration", "MiniMaxM2ForCausalLM", dict(MINIMAX_M3, index_local_blocks=0, index_topk_blocks=3), MINIMAX_PARTS,
           published="MiniMaxM3SparseForCausalLM", alone="language_model.", lengths=(47, 5, 21), case="minimaxm3text"),
    Family("Step3p7ForConditionalGeneration", "MiniMaxM2ForCausalLM", STEP, dict(vision_config=STEP_VISION)),
    # transformers has it as a part of the other.
    Family("Step3p7ForConditionalGeneration", "MiniMaxM2ForCausalLM", STEP, dict(vision_config=STEP_VISION), published="Step3p5ForCausalLM",
           config=STEP_RELEASE, without=r"^(vision_model|vit_large_projector)\."),
    Family("DeepseekV4ForCausalLM", "DeepseekV3ForCausalLM", DEEPSEEK_V4, names=DEEPSEEK_V4_NAMES, lengths=(47, 5, 21)),
    Family("DeepseekV4ForCausalLM", "DeepseekV3ForCausalLM", DEEPSEEK_V4_RELEASE, published="DeepseekV4ForCausalLM", case="deepseekv4release",
           config=dict(compress_ratios=[0, 4, 128, 0], **DEEPSEEK_V4_PUBLISHED),
           names=DEEPSEEK_V4_NAMES, lengths=(140, 5, 21)),
    Family("DeepseekV4ForCausalLM", "DeepseekV3ForCausalLM", DEEPSEEK_V4_CODES, published="DeepseekV4ForCausalLM", case="deepseekv4fp4", codes=True,
           config=dict(compress_ratios=[0, 4, 0], **DEEPSEEK_V4_PUBLISHED, **fp4.CONFIG), names=DEEPSEEK_V4_NAMES, lengths=(47, 5, 21), draw=17),
]


def known(architecture):
    # A class that stands for another architecture is not it.
    is_it = lambda f: architecture in (f.case, f.published) or architecture == f.architecture and not f.config
    return next(filter(is_it, FAMILIES), Family(architecture, "LlamaForCausalLM"))


def config_class(architecture):
    """The configuration class of an architecture."""
    if not hasattr(transformers, architecture): sys.exit(f"transformers {transformers.__version__} has no {architecture}")
    return getattr(transformers, architecture).config_class


def text(config): return getattr(config, "text_config", config)


def tiny(family):
    """The tiny configuration."""
    cls = config_class(family.architecture)
    language = cls.sub_configs.get("text_config", cls)
    if language is transformers.AutoConfig: language = transformers.CONFIG_MAPPING[family.sizes["model_type"]]
    has = language().to_dict()
    sizes = {k: v for k, v in SMALL.items() if k in has} | {k: v for k, v in family.sizes.items() if k != "model_type"}
    if language is cls: return cls(**sizes)
    return cls(text_config=language(**sizes).to_dict(), tie_word_embeddings=sizes.get("tie_word_embeddings", False), **family.parts)


def kind_of(config):
    # Of some language parts transformers has tables for the whole model alone.
    is_text = not hasattr(config, "text_config") and type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    return transformers.AutoModelForCausalLM if is_text else transformers.AutoModelForImageTextToText


def make(config, device="cpu"):
    with torch.device(device): return kind_of(config).from_config(config, dtype=torch.float32, attn_implementation="eager").eval()


def is_wide(name): return name.endswith(("correction_bias", "expert_bias"))


def is_scalar(name): return name.endswith("layer_scalar")


def is_table(name): return name.endswith("tid2eid")


def randomize(model, seed, queries=1.0):
    """Draws every weight far from what an initializer gives, so that a skipped bias or norm shows in the logits."""
    draw = torch.Generator().manual_seed(seed)
    buffers = [(n, b) for n, b in model.named_buffers() if is_wide(n) or is_scalar(n)]
    for name, p in sorted([*model.named_parameters(), *buffers]):
        mean = float(p.flatten()[0]) if "norm" in name and name.endswith("weight") else 0.0
        if is_scalar(name): mean = 1.0
        scale = 0.3 if p.dim() < 2 or is_wide(name) else 0.2
        p.data.copy_((torch.randn(p.shape, generator=draw) * scale + mean) * (queries if "q_norm" in name else 1.0))
    # Tables of the experts that tokens have: different ones in each row.
    for name, table in model.named_buffers():
        if is_table(name): table.copy_(torch.rand(len(table), text(model.config).n_routed_experts, generator=draw).argsort()[:, :table.shape[1]])


class Wide(torch.overrides.TorchFunctionMode):
    """Every float32 that code asks for is a float64."""

    def __torch_function__(self, func, kinds, args=(), kwargs=None):
        wide = lambda v: torch.float64 if v is torch.float32 else v
        func = {torch.Tensor.float: torch.Tensor.double}.get(func, func)
        return func(*map(wide, args), **{k: wide(v) for k, v in (kwargs or {}).items()})


def load(path, dtype):
    return kind_of(transformers.AutoConfig.from_pretrained(path)).from_pretrained(path, dtype=dtype, attn_implementation="eager", experts_implementation="eager").eval()


def whole(n): return [n]
def decode(n): return [-(-n // 3)] + [1] * (n - -(-n // 3))
def chunked(n): return [min(CHUNK, n - i) for i in range(0, n, CHUNK)]


MODES = {"prefill": whole, "decode": decode, "chunked": chunked}


def logits(model, tokens, pieces):
    cache, out, at = None, [], 0
    for piece in tokens.split(pieces):
        # Models that see images remember where those of their last prompt were, unless told.
        positions = torch.arange(at, at + len(piece))[None]
        o = model(input_ids=piece[None], position_ids=positions, cache=cache, use_cache=True)
        cache, at = o.cache, at + len(piece)
        out.append(o.logits[0])
    return torch.cat(out)


def exactly(path, tokens, codes):
    """The logits of a checkpoint in float64, by mode."""
    model = load(path, torch.float32).double()
    if codes: fp4.hook(model)
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    with Wide(): made = [{mode: logits(model, t, pieces(len(t))) for mode, pieces in MODES.items()} for t in tokens]
    torch.set_default_dtype(default)
    for r in made:
        assert all(x.dtype == torch.float64 for x in r.values())
        apart = max((r[mode] - r["prefill"]).abs().max().item() for mode in MODES)
        assert apart < 1e-9, (path.name, apart)
    return made


def errors(model, reference, tokens, mode):
    diff = [logits(model, t, MODES[mode](len(t))).double() - r[mode] for t, r in zip(tokens, reference)]
    return {"rms": [d.pow(2).mean().sqrt().item() for d in diff], "max": [d.abs().max().item() for d in diff]}


def write_json(path, value): path.write_text(json.dumps(value, indent=2) + "\n")


def folder(family): return HERE / f"family-{family.case or (family.published or family.architecture).removesuffix('ForCausalLM').removesuffix('ForConditionalGeneration').lower()}"


def published(path, family):
    """Writes the checkpoint as a release has it, where transformers' own names are others."""
    if family.published:
        config = json.loads((path / "config.json").read_text())
        if family.alone or family.without: config = config["text_config"]
        for name, of in family.config.items(): config[name] = config.pop(of) if isinstance(of, str) and of in config else of
        config = {name: value for name, value in config.items() if value is not ...}
        write_json(path / "config.json", config | {"architectures": [family.published]})
    tensors = family.stored(safetensors.torch.load_file(path / "model.safetensors"))
    if family.codes: tensors = fp4.stored(tensors)
    safetensors.torch.save_file(tensors, path / "model.safetensors", {"format": "pt"})


def golden(family):
    path, config = folder(family), tiny(family)
    seed = zlib.crc32(path.name.encode()) + family.draw
    shutil.rmtree(path, ignore_errors=True)
    model = make(config)
    randomize(model, seed, family.queries)
    stays = lambda name: is_wide(name) or family.codes and fp4.is_wide(name)
    for p in [p for n, p in model.named_parameters() if not stays(n)]: p.data = p.data.to(torch.bfloat16)
    for b in [b for n, b in model.named_buffers() if is_scalar(n)]: b.data = b.data.to(torch.bfloat16)
    if family.codes: fp4.round_weights(model)
    model.config.dtype = text(model.config).dtype = torch.bfloat16
    model.save_pretrained(path)
    (path / "generation_config.json").unlink(missing_ok=True)
    draw = torch.Generator().manual_seed(seed + 1000)
    tokens = [torch.randint(text(config).vocab_size, (n,), generator=draw) for n in family.lengths]
    reference = exactly(path, tokens, family.codes)
    tensors = {f"tokens.{i}": t.int() for i, t in enumerate(tokens)}
    tensors |= {f"{mode}.{i}": x.float().contiguous() for i, r in enumerate(reference) for mode, x in r.items()}
    safetensors.torch.save_file(tensors, path / "golden.safetensors")
    narrow = load(path, torch.bfloat16)
    if family.codes: fp4.hook(narrow)
    facts = {"torch_error": errors(narrow, reference, tokens, "prefill")}
    write_json(path / "golden.json", facts)
    published(path, family)
    spread, size = reference[0]["prefill"].std().item(), sum(f.stat().st_size for f in path.iterdir())
    print(f"{path.name}: {size} bytes, logits std {spread:.2f}, torch rms error {facts['torch_error']['rms'][0]:.2e}", flush=True)


# ---- what a family has ---------------------------------------------------------------------------

def tensors_of(config, family):
    """The tensors that a release of this configuration has, by name: type and shape. None is made."""
    model = make(config, "meta")
    state = core_model_loading.revert_weight_conversion(model, dict(model.state_dict()))
    tied = set(model._tied_weights_keys or ()) if text(config).tie_word_embeddings else set()
    return {n: ("F32" if is_wide(n) else "BF16", list(t.shape)) for n, t in family.stored(state).items() if n not in tied}


def fields(architecture):
    cls = config_class(architecture)
    language = cls.sub_configs.get("text_config", cls)
    config = language().to_dict() if language is not transformers.AutoConfig else {}
    return {k: v for k, v in config.items() if not k.startswith("_") and k not in ("transformers_version", "architectures", "model_type")}


def differs(family):
    """What a row `..LIKE` has to say."""
    own, other = fields(family.architecture), fields(family.like)
    print(f"{family.architecture} beside {family.like}, transformers {transformers.__version__}\n\nfields of the class, and their defaults:")
    for name in sorted(own.keys() | other.keys()):
        if own.get(name) != other.get(name) or (name in own) != (name in other):
            show = lambda of: json.dumps(of[name], default=str) if name in of else "is none"
            print(f"  {name}: {show(own)}; there {show(other)}")
    print("\ntensors, by their names and numbers of axes:")
    names = lambda f: {(NUMBER.sub("N", n), len(shape)) for n, (_, shape) in tensors_of(tiny(f), f).items()}
    mine, theirs = names(family), names(known(family.like))
    for mark, of in (("+", mine - theirs), ("-", theirs - mine)):
        for name, axes in sorted(of): print(f"  {mark} {name} [{axes}]")


def ranges(numbers):
    """`0..3,5`"""
    runs = [[n for _, n in run] for _, run in itertools.groupby(enumerate(sorted(numbers)), lambda p: p[1] - p[0])]
    return ",".join(str(r[0]) if len(r) == 1 else f"{r[0]}..{r[-1]}" for r in runs)


def patterns(tensors):
    """Lines of tensors, with names that differ in numbers alone as one."""
    groups = {}
    for name, of in tensors.items():
        numbers = tuple(int(n) for n in NUMBER.findall(name))
        groups.setdefault((NUMBER.sub("{}", name), of[0], tuple(of[1])), set()).add(numbers)
    lines = []
    for (pattern, dtype, shape), found in groups.items():
        axes = [sorted({n[i] for n in found}) for i in range(pattern.count("{}"))]
        # Not every combination may be there: then the first number goes alone.
        whole = len(found) == len(list(itertools.product(*axes)))
        parts = [axes] if whole else [[[first], *[sorted({n[i] for n in found if n[0] == first}) for i in range(1, len(axes))]] for first in axes[0]]
        for part in parts:
            filled = pattern.format(*(f"{{{ranges(of)}}}" if len(of) > 1 else str(of[0]) for of in part))
            lines.append((filled, dtype, list(shape)))
    width = max(len(name) for name, _, _ in lines)
    return [f"{name:<{width}} {dtype:<4} {shape}" for name, dtype, shape in lines]


def skeleton(family):
    """A file of tests/published whose sizes are the defaults of transformers' class, which a release may not have."""
    config = config_class(family.architecture)()
    config.architectures, config.dtype = [family.published or family.architecture], torch.bfloat16
    tensors = tensors_of(config, family)
    lines = ["# MAKER/NAME", f"source: config and tensors: class defaults of transformers {transformers.__version__}",
             "unconfirmed: everything: put the release's config.json here, and its types from the header of a shard",
             "vllm: --tensor-parallel-size 1", "sglang: --tp 1", "", "config.json", json.dumps(config.to_diff_dict(), indent=2, default=str), "", "tensors"]
    print("\n".join([*lines, *patterns(tensors)]))


def news():
    """Architectures of transformers that no row has."""
    table = (HERE / "../../docs/models.md").read_text()
    rows = set(re.findall(r"^\| `(\w+)`", table, re.M))
    for names in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        for name in (names,) if isinstance(names, str) else names:
            if name not in rows: print(name)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    options = {"--differs": differs, "--skeleton": skeleton, "--new": lambda _: news()}
    given = sys.argv[1:]
    act = options.get(given[0], golden) if given else golden
    if act is not golden: given = given[1:] or [""]
    for name in given or [f.published or f.architecture for f in FAMILIES]: act(known(name))
