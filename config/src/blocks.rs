//! The choice of blocks of keys, as a configuration describes it: each head of keys has queries of
//! its own that choose its blocks, by products with one short key of each token.
use crate::Diagnostic;
use crate::fields::{Fields, Read};

/// The field that has all others of the choice in releases.
const RELEASED: &str = "sparse_attention_config";
/// The type of layers that choose.
const TYPE: &str = "minimax_m3_sparse";

/// How a token's blocks are chosen. A block has the largest product of any key that the token sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockChoice {
    /// Elements of a query and of a key.
    pub dim: usize,
    /// Positions of a block.
    pub size: usize,
    /// Most blocks of a token.
    pub most: usize,
    /// How many of the last blocks are always among them.
    pub local: usize,
}

/// The choice of each layer, if it has one, for so many heads of keys, of which so many elements
/// are turned.
pub(crate) fn read<'a>(
    f: &Fields<'a>,
    layers: usize,
    (kv_heads, turned, most_dim): (usize, usize, usize),
) -> Result<Vec<Option<BlockChoice>>, Diagnostic> {
    let released = f.object(RELEASED)?;
    let chosen = layers_that_choose(f, released.as_ref(), layers)?;
    if !chosen.contains(&true) {
        return Ok(vec![None; layers]);
    }
    let of = |name: &'static str, other: &str, read: Read<'a, usize>, default: usize| {
        let value = match released.as_ref().filter(|released| released.has(other)) {
            Some(released) => released.given(other, read, default)?,
            None => f.given(name, read, default)?,
        };
        f.note(name, value);
        Ok::<_, Diagnostic>(value)
    };
    let heads = of("index_n_heads", "sparse_num_index_heads", Fields::size, 4)?;
    let dim = of("index_head_dim", "sparse_index_dim", Fields::size, 128)?;
    let size = of("index_block_size", "sparse_block_size", Fields::size, 128)?;
    let most = of("index_topk_blocks", "sparse_topk_blocks", Fields::size, 16)?;
    let local = of("index_local_blocks", "sparse_local_block", Fields::number, 1)?;
    f.at_most("index_head_dim", dim, most_dim)?;
    let fault = |name, message: String| Err(f.fault("config::value", name, message));
    if heads != kv_heads {
        let message = format!("{heads} heads choose blocks for {kv_heads} heads of keys: they must be as many");
        return fault("index_n_heads", message);
    }
    if dim < turned {
        return fault("index_head_dim", format!("{dim} is less than the {turned} elements that are turned"));
    }
    if local > most {
        return fault("index_local_blocks", format!("{local} are more than index_topk_blocks, {most}"));
    }
    let blocks = BlockChoice { dim, size, most, local };
    Ok(chosen.into_iter().map(|chooses| chooses.then_some(blocks)).collect())
}

/// Whether each layer chooses: by its type, or else by a list of marks. Without both none does.
fn layers_that_choose(f: &Fields, released: Option<&Fields>, layers: usize) -> Result<Vec<bool>, Diagnostic> {
    let name = "sparse_attention_freq";
    let marks = match released {
        Some(released) => released.marks(name)?.map(|marks| released.of_layers(name, marks, layers)).transpose()?,
        None => None,
    };
    let chosen = f.layers_of_type(TYPE, layers)?.or(marks).unwrap_or(vec![false; layers]);
    f.note("layer_types", &chosen[..]);
    if let Some(released) = released.filter(|_| chosen.contains(&true)) {
        check(released, &chosen)?;
    }
    Ok(chosen)
}

/// Checks that nothing is asked for that is not computed.
fn check(released: &Fields, chosen: &[bool]) -> Result<(), Diagnostic> {
    let fault = |name, message| Err(released.fault("config::unsupported", name, message));
    released.one_of("sparse_score_type", "max", &[("max", ())])?;
    if released.flag("use_sparse_attention")? == Some(false) {
        return fault("use_sparse_attention", "is false, and layers are listed that choose blocks");
    }
    if released.number("sparse_init_block")?.unwrap_or(0) > 0 {
        return fault("sparse_init_block", "is not supported: it must be 0");
    }
    let name = "sparse_disable_index_value";
    let without = released.marks(name)?.map(|marks| released.of_layers(name, marks, chosen.len())).transpose()?;
    match without.is_none_or(|without| chosen.iter().zip(without).all(|(&chooses, without)| !chooses || without)) {
        true => Ok(()),
        false => fault(name, "must be 1 for each layer that chooses: queries of a choice have no values"),
    }
}

#[cfg(test)]
mod tests {
    use super::BlockChoice;
    use crate::{Attention, Config, Diagnostic, Experts, Gate, Gated, Layer};
    use serde_json::{Value, json};

    fn read(fields: Value) -> Result<Config, Diagnostic> {
        let mut all = json!({
            "architectures": ["MiniMaxM3SparseForCausalLM"], "hidden_size": 64, "num_hidden_layers": 3, "head_dim": 32,
            "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 128, "dense_intermediate_size": 96,
        });
        all.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
        Config::parse(&all.to_string(), None)
    }

    fn choices(config: &Config) -> Vec<Option<BlockChoice>> {
        config.layers.iter().map(|layer| layer.half::<Attention>().expect("it attends").blocks).collect()
    }

    const USUAL: BlockChoice = BlockChoice { dim: 128, size: 128, most: 16, local: 1 };

    #[test]
    fn layers_choose_by_type_or_mark() {
        let of = |fields| choices(&read(fields).expect("a good configuration"));
        assert_eq!(of(json!({})), [None; 3]);
        let types = json!(["full_attention", "minimax_m3_sparse", "full_attention"]);
        assert_eq!(of(json!({ "layer_types": types })), [None, Some(USUAL), None]);
        let marks = json!({ "sparse_attention_freq": [0, 0, 1] });
        assert_eq!(of(json!({ "sparse_attention_config": marks })), [None, None, Some(USUAL)]);
        assert_eq!(of(json!({ "layer_types": types, "sparse_attention_config": marks })), [None, Some(USUAL), None]);
    }

    #[test]
    fn both_spellings_say_how() {
        let own = BlockChoice { dim: 64, size: 32, most: 5, local: 0 };
        let types = json!(["minimax_m3_sparse", "full_attention", "full_attention"]);
        let flat = json!({
            "layer_types": types, "index_n_heads": 4, "index_head_dim": 64, "index_block_size": 32,
            "index_topk_blocks": 5, "index_local_blocks": 0,
        });
        let released = json!({ "layer_types": types, "index_topk_blocks": 9, "sparse_attention_config": {
            "sparse_num_index_heads": 4, "sparse_index_dim": 64, "sparse_block_size": 32, "sparse_topk_blocks": 5,
            "sparse_local_block": 0, "sparse_score_type": "max", "sparse_init_block": 0, "use_sparse_attention": true,
            "sparse_disable_index_value": [1, 0, 0],
        }});
        let [flat, released] = [flat, released].map(|fields| read(fields).expect("a good configuration"));
        assert_eq!(choices(&flat), [Some(own), None, None]);
        assert_eq!(choices(&flat), choices(&released));
        assert!(flat.chooses_blocks());
    }

    #[test]
    fn what_is_not_computed_is_refused() {
        let fault = |own: Value, released: Value| {
            let mut fields = json!({ "layer_types": ["minimax_m3_sparse", "full_attention", "full_attention"] });
            fields.as_object_mut().expect("an object").extend(own.as_object().expect("an object").clone());
            fields["sparse_attention_config"] = released;
            read(fields).expect_err("a fault").to_string()
        };
        let faults = [
            fault(json!({ "index_n_heads": 2 }), json!({})),
            fault(json!({ "index_head_dim": 8 }), json!({})),
            fault(json!({ "index_local_blocks": 17 }), json!({})),
            fault(json!({}), json!({ "sparse_init_block": 1 })),
            fault(json!({}), json!({ "sparse_score_type": "mean" })),
            fault(json!({}), json!({ "use_sparse_attention": false })),
            fault(json!({}), json!({ "sparse_disable_index_value": [0, 0, 0] })),
            fault(json!({ "attention_output_gate": true }), json!({})),
            fault(json!({ "use_gemma_norm": false }), json!({})),
        ];
        insta::assert_snapshot!(faults.join("\n"), @r#"
        config.json: index_n_heads: 2 heads choose blocks for 4 heads of keys: they must be as many
        config.json: index_head_dim: 8 is less than the 16 elements that are turned
        config.json: index_local_blocks: 17 are more than index_topk_blocks, 16
        config.json: sparse_attention_config.sparse_init_block: is not supported: it must be 0
        config.json: sparse_attention_config.sparse_score_type: unknown value "mean"
        config.json: sparse_attention_config.use_sparse_attention: is false, and layers are listed that choose blocks
        config.json: sparse_attention_config.sparse_disable_index_value: must be 1 for each layer that chooses: queries of a choice have no values
        config.json: attention_output_gate: is not supported: it must be null or false
        config.json: use_gemma_norm: is not supported: it must be null or true
        "#);
    }

    #[test]
    fn gates_of_all_mlps_are_clamped() {
        let config = read(json!({ "moe_layer_freq": [0, 1, 1], "swiglu_limit": 5.0 })).expect("a good configuration");
        let gate = Gate::Clamped { alpha: 1.702, limit: 5.0 };
        let dense: Vec<_> = config.layers.iter().map(|layer| layer.half::<Gated>().map(|mlp| mlp.gate)).collect();
        assert_eq!(dense, [Some(gate), None, None]);
        let experts: &Experts = Layer::half(&config.layers[1]).expect("experts");
        let shared = experts.shared.as_ref().expect("a shared expert");
        assert_eq!((experts.gate, shared.gate, shared.intermediate), (gate, gate, 3072));
        assert_eq!((experts.router.scale, experts.width), (2.0, 3072));
    }
}
