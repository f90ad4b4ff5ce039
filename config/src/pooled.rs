//! Attention over a window of tokens and over rows that blocks of earlier tokens are pooled to, as
//! a configuration describes it. A row is key and value at once, and all heads share it.
use crate::fields::Fields;
use crate::kind::Weights;
use crate::{Diagnostic, Indexer, Rope};

/// Attention kernels are unrolled over the elements of a head.
const MAX_DIM: usize = 1024;
/// Most tokens of a block: a row of a cache stands for this many.
const MAX_BLOCK: usize = 1024;

/// Types of layers by their names, and the tokens of a block by the older spelling.
const TYPES: [(&str, usize); 3] =
    [("sliding_attention", 0), ("compressed_sparse_attention", 4), ("heavily_compressed_attention", 128)];

/// Attention of heads over one row for each token of a window, and over rows of blocks.
#[derive(Clone, Debug, PartialEq)]
pub struct Pooled {
    pub heads: usize,
    /// Elements of a head, and how many of them are turned: the last ones.
    pub dim: usize,
    pub turned: usize,
    /// Numbers of the row that queries are made of.
    pub q_rank: usize,
    /// Tokens that a token sees, itself among them.
    pub window: usize,
    /// Groups of heads that are projected each to `o_rank` numbers.
    pub groups: usize,
    pub o_rank: usize,
    /// Which of the model's rotary embeddings turns queries, keys and rows.
    pub embedding: usize,
    /// The blocks, if tokens see rows of them.
    pub blocks: Option<PooledBlocks>,
}

/// Blocks of tokens that are pooled to a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PooledBlocks {
    /// Tokens of a block.
    pub every: usize,
    /// What chooses the rows that a token sees, if it does not see all. A row is of two blocks
    /// then: its own, and the one before.
    pub chosen: Option<Indexer>,
}

impl Weights for Pooled {
    fn rows(&self) -> (&'static str, usize) {
        ("num_attention_heads", self.heads.saturating_mul(self.dim))
    }
}

/// The attention of all layers, and its rotary embeddings: that of layers with a window alone, then
/// that of the others.
pub(crate) fn read(f: &Fields, (layers, positions): (usize, usize)) -> Result<(Vec<Pooled>, Vec<Rope>), Diagnostic> {
    let size = |name: &'static str, default: usize| {
        let size = f.or(name, Fields::size, default)?;
        f.at_most(name, size, MAX_DIM)
    };
    let heads = f.needed("num_attention_heads", Fields::size)?;
    one_key(f)?;
    let dim = size("head_dim", 512)?;
    let turned = turned(f, dim)?;
    let groups = f.or("o_groups", Fields::size, 8)?;
    if !heads.is_multiple_of(groups) {
        let message = format!("{heads} attention heads are not {groups} groups of as many");
        return Err(f.fault("config::value", "o_groups", message));
    }
    let (q_rank, o_rank) = (f.or("q_lora_rank", Fields::size, 1024)?, f.or("o_lora_rank", Fields::size, 1024)?);
    let window = f.or("sliding_window", Fields::size, 128)?;
    let thetas = [("rope_theta", 10_000.0), ("compress_rope_theta", 160_000.0)];
    let ropes = Rope::read_pooled(f, (dim, turned, positions), thetas)?;
    let layer = |blocks: Option<PooledBlocks>| {
        let embedding = usize::from(blocks.is_some());
        Pooled { heads, dim, turned, q_rank, window, groups, o_rank, embedding, blocks }
    };
    let blocks = blocks(f, layers, turned)?;
    Ok((blocks.into_iter().map(layer).collect(), ropes.into()))
}

/// Checks that all heads share one key.
fn one_key(f: &Fields) -> Result<(), Diagnostic> {
    let name = "num_key_value_heads";
    match f.or(name, Fields::size, 1)? {
        1 => Ok(()),
        other => Err(f.fault("config::unsupported", name, format!("{other}: all heads share 1 row as key and value"))),
    }
}

/// The elements of a head that are turned, in either spelling.
fn turned(f: &Fields, dim: usize) -> Result<usize, Diagnostic> {
    let (part, name) = ("partial_rotary_factor", "qk_rope_head_dim");
    let turned = match f.positive_or_none(part)? {
        Some(factor) => (dim as f64 * factor) as usize,
        None => f.given(name, Fields::size, 64)?,
    };
    f.note(name, turned);
    match turned > 0 && turned <= dim && turned.is_multiple_of(4) {
        true => Ok(turned),
        false => {
            let name = if f.has(part) { part } else { name };
            let message =
                format!("{turned} of {dim} elements of a head are turned: must be a multiple of 4, and no more");
            Err(f.fault("config::rotary-dim", name, message))
        }
    }
}

/// The blocks of each layer that has some. Fields of what no layer has say nothing.
fn blocks(f: &Fields, layers: usize, turned: usize) -> Result<Vec<Option<PooledBlocks>>, Diagnostic> {
    let kinds = kinds(f, layers)?;
    let chosen = if kinds.contains(&1) { Some(indexer(f, turned)?) } else { None };
    let mut of_kind = [None; TYPES.len()];
    for kind in [1, 2].into_iter().filter(|kind| kinds.contains(kind)) {
        of_kind[kind] = Some(PooledBlocks { every: every(f, kind)?, chosen: chosen.filter(|_| kind == 1) });
    }
    f.note("compress_rates", of_kind.iter().flatten().map(|blocks| blocks.every).collect::<Vec<_>>());
    Ok(kinds.into_iter().map(|kind| of_kind[kind]).collect())
}

/// What chooses rows.
fn indexer(f: &Fields, turned: usize) -> Result<Indexer, Diagnostic> {
    let most = f.or("index_topk", Fields::size, 512)?;
    let heads = f.or("index_n_heads", Fields::size, 64)?;
    let dim = f.at_most("index_head_dim", f.or("index_head_dim", Fields::size, 128)?, MAX_DIM)?;
    match dim < turned {
        true => {
            let message = format!("{dim} is less than the {turned} elements that are turned");
            Err(f.fault("config::value", "index_head_dim", message))
        }
        false => Ok(Indexer { heads, dim, most, in_pairs: true }),
    }
}

/// The type of each layer, by its place in [`TYPES`]: by name, by the tokens of its blocks, or, as
/// transformers has it, two of the last type and then both in turn.
fn kinds(f: &Fields, layers: usize) -> Result<Vec<usize>, Diagnostic> {
    let (named, counted) = ("layer_types", "compress_ratios");
    let place = |name: &'static str, found: Option<usize>, shown: String, known: String| {
        let fault = || f.fault("config::value", name, format!("unknown type of a layer {shown}")).help(known);
        found.ok_or_else(fault)
    };
    let kinds: Vec<usize> = if let Some(names) = f.texts(named)? {
        let known = || format!("Known types: {}.", TYPES.map(|(name, _)| name).join(", "));
        let of = |name: &str| place(named, TYPES.iter().position(|ty| ty.0 == name), format!("{name:?}"), known());
        f.of_layers(named, names, layers)?.into_iter().map(of).collect::<Result<_, _>>()?
    } else if let Some(counts) = f.numbers(counted)? {
        let known = || format!("Known numbers of tokens: {}.", TYPES.map(|(_, count)| count.to_string()).join(", "));
        let of = |count: usize| place(counted, TYPES.iter().position(|ty| ty.1 == count), count.to_string(), known());
        f.of_layers(counted, counts, layers)?.into_iter().map(of).collect::<Result<_, _>>()?
    } else {
        (0..layers).map(|layer| if layer > 2 && layer % 2 == 1 { 1 } else { 2 }).collect()
    };
    f.note(named, kinds.iter().map(|&kind| TYPES[kind].0).collect::<Vec<_>>());
    Ok(kinds)
}

/// The tokens of a block in layers of a type, in either spelling.
fn every(f: &Fields, kind: usize) -> Result<usize, Diagnostic> {
    let ((name, usual), both) = (TYPES[kind], "compress_rates");
    let older = ["", "compress_rate_csa", "compress_rate_hca"][kind];
    let given = match f.object(both)? {
        Some(both) => both.given(name, Fields::size, usual)?,
        None => usual,
    };
    let every = f.given(older, Fields::size, given)?;
    if every > MAX_BLOCK || !every.is_power_of_two() {
        let name = if f.has(older) { older } else { both };
        let message = format!("blocks of {every} tokens: a power of two up to {MAX_BLOCK} is supported");
        return Err(f.fault("config::unsupported", name, message));
    }
    Ok(every)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::experts::Experts;
    use crate::freqs::Scaling;
    use crate::{Config, Streams};

    fn config(patch: Value) -> Result<Config, String> {
        let mut all = json!({
            "architectures": ["DeepseekV4ForCausalLM"], "hidden_size": 64, "num_hidden_layers": 4, "vocab_size": 128,
            "num_attention_heads": 8, "head_dim": 32, "qk_rope_head_dim": 16, "n_routed_experts": 8,
        });
        let all = all.as_object_mut().expect("an object");
        all.extend(patch.as_object().expect("an object").clone());
        all.retain(|_, value| !value.is_null());
        Config::parse(&json!(all).to_string(), None).map_err(|fault| fault.to_string())
    }

    fn layers(config: &Config) -> Vec<&Pooled> {
        config.layers.iter().map(|layer| layer.half().expect("a layer of pooled attention")).collect()
    }

    /// What the releases say, and what transformers saves of them.
    #[test]
    fn both_spellings_are_one_model() {
        let yarn = json!({
            "factor": 16, "original_max_position_embeddings": 65536, "beta_fast": 32, "beta_slow": 1, "type": "yarn",
        });
        let released = config(json!({
            "compress_ratios": [0, 4, 128, 4, 0], "num_nextn_predict_layers": 1, "num_hash_layers": 2,
            "rope_theta": 10000, "compress_rope_theta": 160000, "rope_scaling": yarn,
        }));
        let mut nested = yarn.clone();
        let more =
            json!({ "rope_type": "yarn", "attention_factor": 1.0, "rope_theta": 160000, "partial_rotary_factor": 0.5 });
        nested.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        let kinds = ["sliding_attention", TYPES[1].0, TYPES[2].0, TYPES[1].0];
        let saved = config(json!({
            "qk_rope_head_dim": null, "partial_rotary_factor": 0.5, "layer_types": kinds,
            "compress_rates": { "compressed_sparse_attention": 4, "heavily_compressed_attention": 128 },
            "mlp_layer_types": ["hash_moe", "hash_moe", "moe", "moe"],
            "rope_parameters": {
                "main": { "rope_type": "default", "rope_theta": 10000, "partial_rotary_factor": 0.5 }, "compress": nested,
            },
        }));
        let (released, saved) = (released.expect("a good configuration"), saved.expect("a good configuration"));
        assert_eq!(released.layers, saved.layers);
        assert_eq!(released.ropes, saved.ropes);
        assert_eq!(released.echo(), saved.echo());
        let every = |layer: &Pooled| layer.blocks.map(|blocks| (blocks.every, blocks.chosen.is_some()));
        let found: Vec<_> = layers(&released).into_iter().map(every).collect();
        assert_eq!(found, [None, Some((4, true)), Some((128, false)), Some((4, true))]);
        let table = |layer: &crate::Layer| layer.half::<Experts>().expect("experts").router.table.is_some();
        assert_eq!(released.layers.iter().map(table).collect::<Vec<_>>(), [true, true, false, false]);
        let [main, pooled] = &released.ropes[..] else { panic!("two embeddings") };
        assert_eq!((main.freqs.theta, main.freqs.dim, main.scale), (10_000.0, 16, 1.0));
        assert_eq!(main.freqs.scaling, Scaling::Default);
        assert_eq!((pooled.freqs.theta, pooled.freqs.dim, pooled.scale), (160_000.0, 16, 1.0));
        assert!(matches!(pooled.freqs.scaling, Scaling::Yarn { factor: 16.0, original: 65_536, .. }));
    }

    #[test]
    fn defaults_are_those_of_the_class() {
        let config = config(json!({ "head_dim": null, "qk_rope_head_dim": null })).expect("a good configuration");
        let of = layers(&config);
        let first = of[0];
        assert_eq!((first.dim, first.turned, first.q_rank, first.window), (512, 64, 1024, 128));
        assert_eq!((first.groups, first.o_rank, first.embedding), (8, 1024, 1));
        let every: Vec<usize> = of.iter().map(|layer| layer.blocks.expect("blocks").every).collect();
        assert_eq!(every, [128, 128, 128, 4]);
        let chosen = Indexer { heads: 64, dim: 128, most: 512, in_pairs: true };
        assert_eq!(of[3].blocks.and_then(|blocks| blocks.chosen), Some(chosen));
        assert_eq!(config.streams, Some(Streams { count: 4, rounds: 20, eps: 1e-6 }));
    }

    #[test]
    fn faults_name_their_field() {
        let fault = |patch: Value| config(patch).expect_err("a fault");
        let kind = "config.json: compress_ratios: unknown type of a layer 7";
        assert_eq!(fault(json!({ "compress_ratios": [0, 4, 7, 4] })), kind);
        let kind = "config.json: layer_types: unknown type of a layer \"full_attention\"";
        assert_eq!(fault(json!({ "layer_types": ["full_attention", "", "", ""] })), kind);
        let kind = "config.json: mlp_layer_types: unknown type of a layer \"dense\"";
        assert_eq!(fault(json!({ "mlp_layer_types": ["dense", "moe", "moe", "moe"] })), kind);
        let keys = "config.json: num_key_value_heads: 2: all heads share 1 row as key and value";
        assert_eq!(fault(json!({ "num_key_value_heads": 2 })), keys);
        let groups = "config.json: o_groups: 8 attention heads are not 3 groups of as many";
        assert_eq!(fault(json!({ "o_groups": 3 })), groups);
        let blocks = "config.json: compress_rate_csa: blocks of 6 tokens: a power of two up to 1024 is supported";
        assert_eq!(fault(json!({ "compress_rate_csa": 6 })), blocks);
        let score = "config.json: scoring_func: \"softmax\" is not what the architecture has, \"sqrtsoftplus\"";
        assert_eq!(fault(json!({ "scoring_func": "softmax" })), score);
    }

    /// Codes as releases have them, with other fields of the method and of the model.
    fn coded(method: Value, model: Value) -> Result<Config, String> {
        let mut fields = json!({
            "quant_method": "fp8", "fmt": "e4m3", "scale_fmt": "ue8m0", "weight_block_size": [128, 128],
            "activation_scheme": "dynamic",
        });
        fields.as_object_mut().expect("an object").extend(method.as_object().expect("an object").clone());
        let mut patch = model;
        patch.as_object_mut().expect("an object").insert("quantization_config".into(), fields);
        config(patch)
    }

    /// The schemes of products of a layer, by the names that releases have.
    fn schemes(config: &Config) -> String {
        let of = |module: &str| {
            let scheme = config.scheme(&format!("model.layers.3.{module}"));
            format!("{module}: {}", scheme.map_or("floats".into(), ToString::to_string))
        };
        let modules = ["attn.wo_a", "attn.indexer.wq_b", "ffn.shared_experts.w1", "ffn.experts.7.w2"];
        let floats = ["attn.compressor.wkv", "attn.indexer.compressor.wgate", "attn.indexer.weights_proj"];
        modules.into_iter().chain(floats).map(of).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn codes_of_experts_are_told_in_either_place() {
        let fours = json!({ "expert_dtype": "fp4" });
        let outer = coded(json!({}), fours.clone()).expect("a good configuration");
        let inner = coded(fours.clone(), json!({})).expect("a good configuration");
        let both = coded(fours.clone(), fours).expect("a good configuration");
        insta::assert_snapshot!(schemes(&outer), @"
        attn.wo_a: f8e4m3 with scales of f32 for blocks of 128 by 128, stored as codes with scale, a number for each block, rows as f8e4m3 with scales rounded up to powers of two for groups of 128 columns
        attn.indexer.wq_b: f8e4m3 with scales of f32 for blocks of 128 by 128, stored as codes with scale, a number for each block, rows as f8e4m3 with scales rounded up to powers of two for groups of 128 columns
        ffn.shared_experts.w1: f8e4m3 with scales of f32 for blocks of 128 by 128, stored as codes with scale, a number for each block, rows as f8e4m3 with scales rounded up to powers of two for groups of 128 columns
        ffn.experts.7.w2: f4e2m1 with scales of e8m0 for groups of 32 columns, stored as pairs of codes in weight with scale
        attn.compressor.wkv: floats
        attn.indexer.compressor.wgate: floats
        attn.indexer.weights_proj: floats
        ");
        assert_eq!(outer.quantised, inner.quantised);
        assert_eq!([outer.echo(), both.echo()], [inner.echo(), inner.echo()]);
        assert_eq!(outer.scheme("lm_head"), None);
        // Those that others have repacked, and base models.
        let eights = coded(json!({}), json!({})).expect("a good configuration");
        insta::assert_snapshot!(schemes(&eights), @"
        attn.wo_a: f8e4m3 with scales of f32 for blocks of 128 by 128, stored as codes with scale, a number for each block, rows as f8e4m3 with scales rounded up to powers of two for groups of 128 columns
        attn.indexer.wq_b: f8e4m3 with scales of f32 for blocks of 128 by 128, stored as codes with scale, a number for each block, rows as f8e4m3 with scales rounded up to powers of two for groups of 128 columns
        ffn.shared_experts.w1: f8e4m3 with scales of f32 for blocks of 128 by 128, stored as codes with scale, a number for each block, rows as f8e4m3 with scales rounded up to powers of two for groups of 128 columns
        ffn.experts.7.w2: f8e4m3 with scales of f32 for blocks of 128 by 128, stored as codes with scale, a number for each block, rows as f8e4m3 with scales rounded up to powers of two for groups of 128 columns
        attn.compressor.wkv: floats
        attn.indexer.compressor.wgate: floats
        attn.indexer.weights_proj: floats
        ");
        let named =
            coded(json!({ "modules_to_not_convert": ["layers.3.attn.wo_a"] }), json!({ "expert_dtype": "fp8" }));
        let named = named.expect("a good configuration");
        assert_eq!(named.scheme("model.layers.3.attn.wo_a"), None);
        assert_eq!(named.scheme("model.layers.2.attn.wo_a"), eights.scheme("model.layers.2.attn.wo_a"));
    }

    #[test]
    fn faults_of_codes_name_their_field() {
        let fault = |method: Value, model: Value| coded(method, model).expect_err("a fault");
        let fours = || json!({ "expert_dtype": "fp4" });
        let kind = "config.json: quantization_config.expert_dtype: unknown value \"nvfp4\"";
        assert_eq!(fault(json!({ "expert_dtype": "nvfp4" }), json!({})), kind);
        let kind = "config.json: expert_dtype: unknown value \"int4\"";
        assert_eq!(fault(json!({}), json!({ "expert_dtype": "int4" })), kind);
        let other = "config.json: quantization_config.expert_dtype: is another than that of the model, \"fp4\"";
        assert_eq!(fault(json!({ "expert_dtype": "fp8" }), fours()), other);
        let blocks = "config.json: quantization_config.expert_dtype: \"fp4\" goes with weight_block_size";
        assert_eq!(fault(json!({ "weight_block_size": null, "scale_fmt": null }), fours()), blocks);
        let method = "config.json: expert_dtype: is not supported";
        assert_eq!(fault(json!({ "quant_method": "mxfp8", "weight_block_size": [1, 32] }), fours()), method);
        let alone = "config.json: expert_dtype: is not supported without a quantization_config";
        assert_eq!(config(fours()).expect_err("a fault"), alone);
        let format = "config.json: quantization_config.fmt: unknown value \"e5m2\"";
        assert_eq!(fault(json!({ "fmt": "e5m2" }), fours()), format);
    }

    /// What a user asks for leaves what releases have as floats, unless it is named.
    #[test]
    fn rules_of_users_leave_floats() {
        let made = |rules: &[&str]| {
            let mut config = config(json!({})).expect("a good configuration");
            config.quantise(&rules.iter().map(|rule| (*rule).to_owned()).collect::<Vec<_>>()).expect("rules");
            config
        };
        let codes = |config: &Config, module: &str| config.scheme(&format!("model.layers.3.{module}")).is_some();
        let all = made(&["fp8"]);
        assert!(codes(&all, "attn.wq_b") && codes(&all, "ffn.experts.0.w1") && codes(&all, "attn.indexer.wq_b"));
        let floats = ["attn.compressor.wkv", "attn.indexer.compressor.wgate", "attn.indexer.weights_proj"];
        assert!(floats.iter().all(|module| !codes(&all, module)));
        let named = made(&["*.attn.compressor.wkv=fp8", "fp8"]);
        assert!(codes(&named, floats[0]) && !codes(&named, floats[1]));
    }
}
