//! What each pass makes of one layer of each family.
use std::collections::BTreeSet;

use atomc::frontend::{self, Config, FAMILIES, QkNorm};
use atomc_config::{
    Attention, Delta, Experts, GatedBy, Latent, Layer, OwnRow, Pooled, Positions, ShortConv, Ssm, StoredDelta,
};
use atomc_ir::{Family, Graph, Op, parse};
use atomc_passes::{Bucket, Cx};

/// One layer, with every part that the family can have.
fn config(architecture: &str) -> Config {
    let mut config = serde_json::json!({
        "architectures": [architecture],
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 128,
        "tie_word_embeddings": architecture.starts_with("Qwen3"),
        "sliding_window": 32,
        "first_k_dense_replace": 0,
        "use_qk_norm": true,
        // Of families with both kinds of layers, one layer has a recurrent state.
        "full_attention_interval": 2,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
    });
    if architecture.starts_with("Lfm2") {
        config["layer_types"] = serde_json::json!(["conv"]);
        config["num_dense_layers"] = 0.into();
    }
    if architecture.starts_with("MiniMaxM3") {
        config["layer_types"] = serde_json::json!(["minimax_m3_sparse"]);
        config["index_n_heads"] = 2.into();
        config["index_head_dim"] = 16.into();
    }
    if architecture.starts_with("Step") {
        config["moe_layers_enum"] = "0".into();
    }
    if architecture.starts_with("MiMo") {
        config["partial_rotary_factor"] = 0.5.into();
        config["v_head_dim"] = 8.into();
    }
    if architecture.starts_with("Deepseek") {
        config["moe_intermediate_size"] = 96.into();
    }
    if architecture.starts_with("NemotronH") {
        config["layers_block_type"] = serde_json::json!(["mamba", "moe", "mlp"]);
        config["mamba_num_heads"] = 16.into();
        config["mamba_head_dim"] = 16.into();
    }
    if architecture.starts_with("KimiK3") {
        config["attn_res_block_size"] = 1.into();
        config["routed_expert_hidden_size"] = 32.into();
        config["latent_moe_use_norm"] = true.into();
        config["hidden_act"] = "situ".into();
        config["activation_situ_linear_beta"] = 25.into();
        config["linear_attn_config"] = serde_json::json!({
            "kda_layers": [1], "full_attn_layers": [], "num_heads": 4, "head_dim": 16, "gate_lower_bound": -5.0,
            "use_full_rank_gate": true,
        });
    }
    if architecture == "DeepseekV4ForCausalLM" {
        let own = serde_json::json!({
            "num_key_value_heads": 1, "qk_rope_head_dim": 8, "q_lora_rank": 32, "o_groups": 2, "o_lora_rank": 16,
            "index_n_heads": 2, "index_head_dim": 16, "index_topk": 4, "hc_mult": 2, "n_routed_experts": 8,
            "layer_types": ["compressed_sparse_attention"],
        });
        let all = config.as_object_mut().expect("an object");
        all.extend(own.as_object().expect("an object").clone());
    }
    let text = FAMILIES.iter().any(|family| family.architecture == architecture && family.text_config.is_some());
    let tied = config["tie_word_embeddings"].clone();
    let config = match text {
        true => {
            serde_json::json!({ "architectures": [architecture], "tie_word_embeddings": tied, "text_config": config })
        }
        false => config,
    };
    Config::parse(&config.to_string(), None).expect("a good configuration")
}

fn model(architecture: &str) -> Graph {
    frontend::graph(&config(architecture)).expect("a graph")
}

/// The graph before the passes and after each that changed it.
fn stages(architecture: &str, bucket: Bucket) -> String {
    let arch = &atomc_targets::variants("host").expect("a target")[0];
    let mut graph = model(architecture);
    let mut text = graph.print();
    let mut all = vec![format!("frontend\n{text}")];
    atomc_passes::run(&mut graph, &Cx { arch, bucket, invariant: false }, None, &mut |pass, graph| {
        let after = graph.print();
        assert_eq!(parse(&after).expect("what was printed can be read").print(), after);
        if after != text {
            all.push(format!("{}\n{after}", pass.name));
        }
        text = after;
    })
    .expect("passes that succeed");
    all.join("\n")
}

/// The ops of a graph in their order, without names, sizes and numbers.
fn ops_of(graph: &Graph) -> Vec<String> {
    graph.ids().map(|id| graph.op(id).name().to_string()).collect()
}

#[test]
fn families_with_other_ops_after_every_pass() {
    let (mut seen, mut ops) = (BTreeSet::new(), BTreeSet::new());
    for family in FAMILIES {
        let name = family
            .architecture
            .trim_end_matches("ForCausalLM")
            .trim_end_matches("ForConditionalGeneration")
            .to_lowercase();
        // A language part has the same layers alone and in a larger model, and many families have
        // the ops of another one.
        if !seen.insert(name.clone()) || !ops.insert(ops_of(&model(family.architecture))) {
            continue;
        }
        insta::assert_snapshot!(format!("{name}_decode"), stages(family.architecture, Bucket::Decode { tokens: 1 }));
        let any = Bucket::Any { tokens: 512, rows: 64 };
        insta::assert_snapshot!(format!("{name}_any"), stages(family.architecture, any));
    }
    let whole = Bucket::Whole { tokens: 512, rows: 64 };
    insta::assert_snapshot!("qwen3_whole", stages("Qwen3ForCausalLM", whole));
}

/// A dense layer is at most six kernels of a decode step, attention included, and one for each norm
/// that no product takes. A layer with experts is at most seven, and eight on the host, where
/// products do not add up choices; and two more for a shared expert. Latent attention has three
/// more: two products per head, and another one of queries. An indexer has five more: the choice,
/// rows before it, and the rows that attention then reads from memory; so has a choice of blocks.
/// Rows of blocks have 25 more: two sets of rows, each with four, two parts of attention and what
/// joins them, an indexer, and the streams before and behind each half.
#[test]
fn kernels_of_a_decode_layer() {
    for (target, more) in [("host", 2), ("gfx942", 1)] {
        count_kernels(target, more);
    }
}

fn count_kernels(target: &str, of_experts: usize) {
    let arch = &atomc_targets::variants(target).expect("a target")[0];
    let cx = Cx { arch, bucket: Bucket::Decode { tokens: 1 }, invariant: false };
    for family in FAMILIES {
        let graph = atomc::driver::lower(&model(family.architecture), &cx, None).expect("passes that succeed");
        let config = config(family.architecture);
        let first = format!("{}.layers.0", config.path);
        let kernels = atomc_passes::Order::new(&graph, None, None).steps;
        let of_layer = kernels.iter().filter(|&&id| graph.location(id).starts_with(&first));
        let layer = &config.layers[0];
        let behind = layer.halves.iter().filter(|half| half.norms.1.is_some()).count();
        let whole = layer.half::<Attention>().is_some_and(|attention| attention.qk_norm == QkNorm::Row);
        let experts =
            layer.half::<Experts>().map_or(0, |experts| of_experts + 2 * usize::from(experts.shared.is_some()));
        let latent = layer.half::<Latent>().map_or(0, |latent| 3 + 5 * usize::from(latent.positions != Positions::All));
        let blocks = if layer.half::<Attention>().is_some_and(|all| all.blocks.is_some()) { 5 } else { 0 };
        let pooled = if layer.half::<Pooled>().is_some() { 25 } else { 0 };
        // Convolution, delta rule and gated norm are three kernels between two products.
        // Decays of channels, and the gate, are made by way of short rows; three rows become one.
        let delta = layer.half::<Delta>().map_or(0, |delta| if is_by_channel(delta) { 9 } else { 3 });
        // Convolution, its bias and activation, scan, its rows as groups, and their norm.
        let ssm = if layer.half::<Ssm>().is_some() { 5 } else { 0 };
        // Both gates of a convolution are kernels of their own.
        let conv = if layer.half::<ShortConv>().is_some() { 2 } else { 0 };
        // Queries that grow are made apart from attention over heads.
        let grown = usize::from(config.growth.is_some());
        // The gate of each head is a product of its own, and so is what it weighs.
        let gated = layer.half::<Attention>().is_some_and(|attention| matches!(attention.gated, GatedBy::Heads(_)));
        // A weight on what goes into an expert wants that row in memory, and makes another.
        let entering = if layer.half::<Experts>().is_some_and(|experts| experts.on_input) { 2 } else { 0 };
        // Products into a short row and out of it, and a norm between.
        let short = if layer.half::<Experts>().is_some_and(|experts| experts.short.is_some()) { 3 } else { 0 };
        // Rows side by side, their norms and logits, and the mixture, before each half but the
        // first.
        let kept = if config.kept_every.is_some() { 4 * (layer.halves.len() - 1) } else { 0 };
        // Attention beside another mixer has products of its own.
        let beside = if layer.halves.iter().any(|half| half.beside) { 2 } else { 0 };
        // A row of the layer's own is made by two products, with a kernel where they lie apart.
        let own = if layer.half::<OwnRow>().is_some() { 3 } else { 0 };
        let most = 6
            + own
            + behind
            + short
            + kept
            + beside
            + usize::from(whole)
            + experts
            + latent
            + blocks
            + pooled
            + delta
            + conv
            + ssm
            + grown
            + entering
            + 2 * usize::from(gated);
        let count = of_layer.count();
        assert!(count <= most, "{} for {target}: {count}", family.architecture);
        let between = |graph: &Graph| {
            let names: Vec<_> = kernels.iter().filter(|&&id| graph.location(id).contains(".linear_attn")).collect();
            let is = |op: &Op, family: Family| matches!(op, Op::Kernel { family: own, .. } if *own == family);
            names.into_iter().filter(|&&id| !is(graph.op(id), Family::Matvec)).count()
        };
        let is = |layer: &&Layer| layer.half::<Delta>().is_some_and(|delta| !is_by_channel(delta));
        let linear = config.layers.iter().filter(is).count();
        assert_eq!(between(&graph), 3 * linear, "{} for {target}", family.architecture);
    }
}

fn is_by_channel(delta: &Delta) -> bool {
    matches!(delta.stored, StoredDelta::ByChannel(_))
}
