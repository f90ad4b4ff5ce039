//! Latent attention, as a configuration describes it: a layer's keys and values are made of one
//! short row for each token, and only that row is kept. An indexer may choose the positions that a
//! token attends to.
use crate::attention::{GatedBy, Modules, Stretch};
use crate::fields::Fields;
use crate::freqs::Scaling;
use crate::kind::Weights;
use crate::{Diagnostic, Rope};

/// Attention kernels are unrolled over the elements of a head.
const MAX_DIM: usize = 1024;
/// The eps of the norms of both short rows: the models' own code does not take it from the
/// configuration.
const EPS: f64 = 1e-6;

/// Attention of heads over keys and values that are made of one row of `rank` numbers for each
/// token, and of a key of `rope` numbers that all heads share.
#[derive(Clone, Debug, PartialEq)]
pub struct Latent {
    pub heads: usize,
    /// Numbers of the row that queries are made of, if they are not made of the hidden row.
    pub q_rank: Option<usize>,
    pub rank: usize,
    /// Elements of a head's query and key that are not turned, and those that are.
    pub nope: usize,
    pub rope: usize,
    /// Elements of a head's value.
    pub value: usize,
    /// What products of queries and keys are multiplied with.
    pub scale: f64,
    /// Which of the model's rotary embeddings turns the part that is turned, if any.
    pub embedding: Option<usize>,
    /// Whether neighbours are turned, and not halves.
    pub in_pairs: bool,
    /// The eps of the norms of both rows.
    pub eps: f64,
    pub modules: Modules,
    pub gated: GatedBy,
    pub positions: Positions,
}

/// The positions that a token attends to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Positions {
    /// All up to its own.
    All,
    /// Those that the layer's own indexer chooses.
    Chosen(Indexer),
    /// Those that the nearest layer below with an indexer has chosen.
    Shared,
}

/// What chooses positions: scores of short keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Indexer {
    /// Heads of its queries, which share one key.
    pub heads: usize,
    /// Elements of a query, and of a key.
    pub dim: usize,
    /// Most positions of a token.
    pub most: usize,
    /// Whether neighbours are turned, and not halves.
    pub in_pairs: bool,
}

impl Weights for Latent {
    fn rows(&self) -> (&'static str, usize) {
        let width = (self.nope + self.rope).max(self.value);
        ("num_attention_heads", self.heads.saturating_mul(width))
    }
}

/// What differs between families.
#[derive(Clone, Copy)]
pub(crate) struct Traits {
    /// Whether a part of queries and keys is turned by a rotary embedding.
    pub turned: bool,
    /// Whether `rope_interleave` says if neighbours are turned; they are without it.
    pub marked: bool,
    /// The embedding of a configuration that describes none.
    pub stretch: Option<Stretch>,
    /// What `partial_rotary_factor` is a part of.
    pub part: PartOf,
    pub theta: f64,
    pub sizes: Sizes,
    pub modules: Modules,
    pub gated: GateRule,
    /// Whether the norms of both short rows have the model's eps.
    pub model_eps: bool,
    /// For a family with indexers: heads by default, and whether neighbours are turned there.
    pub indexer: Option<(usize, bool)>,
}

/// What `partial_rotary_factor` is a part of.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum PartOf {
    /// The elements that are turned, so it must be all of them.
    Turned,
    /// The whole head.
    Head,
    /// Heads of layers of another kind.
    Others,
}

/// What multiplies the result of heads.
#[derive(Clone, Copy)]
pub(crate) enum GateRule {
    None,
    /// The logistic function of numbers of a module: one for each element, or one for each head, as
    /// `gated_attention_proj_granularity_type` says; without it one for each head.
    Named(&'static str),
    /// That of one for each element, if this field says so.
    If(&'static str, &'static str),
}

impl GateRule {
    fn read(self, f: &Fields) -> Result<GatedBy, Diagnostic> {
        let module = match self {
            GateRule::None => return Ok(GatedBy::No),
            GateRule::If(name, module) => {
                return Ok(if f.or(name, Fields::flag, false)? { GatedBy::ElementsOf(module) } else { GatedBy::No });
            }
            GateRule::Named(module) => module,
        };
        let name = "gated_attention_proj_granularity_type";
        let known = [("head_wise", GatedBy::Heads(module)), ("element_wise", GatedBy::ElementsOf(module))];
        let gated = f.one_of(name, known[0].0, &known)?;
        f.note(name, if gated == known[0].1 { known[0].0 } else { known[1].0 });
        Ok(gated)
    }
}

/// Sizes of a configuration that leaves them out.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    pub q_rank: Option<usize>,
    pub rank: usize,
    pub nope: usize,
}

impl Latent {
    /// Numbers of a token that are kept.
    pub fn kept(&self) -> usize {
        self.rank + self.rope
    }
}

/// The attention of all layers, and its rotary embedding.
pub(crate) fn read(
    f: &Fields,
    traits: &Traits,
    (layers, positions, eps): (usize, usize, f64),
) -> Result<(Vec<Latent>, Vec<Rope>), Diagnostic> {
    let size = |name: &'static str, default: usize| {
        let size = f.or(name, Fields::size, default)?;
        f.at_most(name, size, MAX_DIM)
    };
    let heads = f.needed("num_attention_heads", Fields::size)?;
    let name = "q_lora_rank";
    let q_rank = if f.has(name) { f.size(name)? } else { traits.sizes.q_rank };
    f.note(name, q_rank);
    let (rank, nope) = (size("kv_lora_rank", traits.sizes.rank)?, size("qk_nope_head_dim", traits.sizes.nope)?);
    let (rope, value) = (size("qk_rope_head_dim", 64)?, size("v_head_dim", 128)?);
    if !rope.is_multiple_of(4) {
        let message = format!("{rope} must be a multiple of 4: pairs of both halves are turned together");
        return Err(f.fault("config::value", "qk_rope_head_dim", message));
    }
    let (gated, modules) = (traits.gated.read(f)?, traits.modules);
    let scale = ((nope + rope) as f64).powf(-0.5);
    let plain = Latent {
        heads,
        q_rank,
        rank,
        nope,
        rope,
        value,
        scale,
        embedding: None,
        in_pairs: false,
        eps: if traits.model_eps { eps } else { EPS },
        modules,
        gated,
        positions: Positions::All,
    };
    if !traits.turned {
        return Ok((vec![plain; layers], vec![]));
    }
    let in_pairs = if traits.marked { f.or("rope_interleave", Fields::flag, true)? } else { true };
    let (embedding, stretch) = turns(f, traits, (nope, rope), positions)?;
    let positions = positions_of_layers(f, traits, (layers, q_rank, rope))?;
    let scale = scale * stretch * stretch;
    let layer = |positions| Latent { embedding: Some(0), in_pairs, scale, positions, ..plain.clone() };
    Ok((positions.into_iter().map(layer).collect(), vec![embedding]))
}

/// The rotary embedding, and what it multiplies the root of the scale of products with.
fn turns(
    f: &Fields,
    traits: &Traits,
    (nope, rope): (usize, usize),
    positions: usize,
) -> Result<(Rope, f64), Diagnostic> {
    let (width, partial) = match traits.part {
        PartOf::Head => (nope + rope, rope as f64 / (nope + rope) as f64),
        PartOf::Turned | PartOf::Others => (rope, 1.0),
    };
    let mut embedding = match traits.stretch {
        Some(stretch) => Rope::stretched(f, (width, positions), (traits.theta, partial), stretch)?,
        None => Rope::read(f, (width, positions), (traits.theta, partial))?,
    };
    if traits.part == PartOf::Others {
        embedding.freqs.dim = rope;
    }
    if embedding.freqs.dim != rope {
        let message = format!("turns {} elements of a head, qk_rope_head_dim is {rope}", embedding.freqs.dim);
        return Err(f.fault("config::rotary-dim", "partial_rotary_factor", message));
    }
    f.note("rope_parameters", embedding.echo());
    let factor = match embedding.freqs.scaling {
        Scaling::Yarn { factor, .. } | Scaling::Llama3 { factor, .. } => factor,
        Scaling::Linear { factor } | Scaling::Dynamic { factor, .. } => factor,
        Scaling::Default | Scaling::Long { .. } | Scaling::Proportional { .. } => 1.0,
    };
    let all_dim = if factor > 1.0 { all_dim(f, traits.stretch.is_some())? } else { 0.0 };
    f.note("mscale_all_dim", all_dim);
    Ok((embedding, if all_dim > 0.0 { 0.1 * all_dim * factor.ln() + 1.0 } else { 1.0 }))
}

/// The positions that tokens of each layer attend to.
fn positions_of_layers(
    f: &Fields,
    traits: &Traits,
    (layers, q_rank, rope): (usize, Option<usize>, usize),
) -> Result<Vec<Positions>, Diagnostic> {
    let Some((heads, in_pairs)) = traits.indexer else { return Ok(vec![Positions::All; layers]) };
    if q_rank.is_none() {
        let message = "null: an indexer takes its queries from the short row of queries";
        return Err(f.fault("config::value", "q_lora_rank", message));
    }
    let heads = f.or("index_n_heads", Fields::size, heads)?;
    let dim = f.at_most("index_head_dim", f.or("index_head_dim", Fields::size, 128)?, MAX_DIM)?;
    if dim < rope {
        let message = format!("{dim} is less than the {rope} elements that are turned");
        return Err(f.fault("config::value", "index_head_dim", message));
    }
    let most = f.or("index_topk", Fields::size, 2048)?;
    let in_pairs = f.or("indexer_rope_interleave", Fields::flag, in_pairs)?;
    let chosen = Positions::Chosen(Indexer { heads, dim, most, in_pairs });
    let full = full(f, layers)?;
    f.note("indexer_types", &full[..]);
    Ok(full.into_iter().map(|full| if full { chosen } else { Positions::Shared }).collect())
}

/// Whether each layer has an indexer: by a list of words, by a pattern of letters, or by a period.
fn full(f: &Fields, layers: usize) -> Result<Vec<bool>, Diagnostic> {
    let (listed, pattern) = ("indexer_types", "index_topk_pattern");
    let name = if f.get(listed).is_some() { listed } else { pattern };
    let words = match f.get(name).and_then(|value| value.as_str()) {
        Some(letters) => Some(letters.split("").filter(|letter| !letter.is_empty()).collect()),
        None => f.texts(name)?,
    };
    let Some(words) = words else {
        let period = f.given("index_topk_freq", Fields::size, 1)?;
        let offset = f.given("index_skip_topk_offset", Fields::number, 2)?;
        return Ok((0..layers).map(|layer| (layer + 1).saturating_sub(offset).is_multiple_of(period)).collect());
    };
    let words = f.of_layers(name, words, layers)?;
    let fault = |message: String| f.fault("config::value", name, message);
    let is_full = |word: &&str| match *word {
        "full" | "F" => Ok(true),
        "shared" | "S" => Ok(false),
        other => Err(fault(format!("{other:?} is neither full nor shared"))),
    };
    let full: Vec<bool> = words.iter().map(is_full).collect::<Result<_, _>>()?;
    match full.first() {
        Some(true) => Ok(full),
        _ => Err(fault("the first layer has no layer below that it could share positions with".into())),
    }
}

/// `mscale_all_dim` of the rotary embedding, in either spelling; 0 without it. Without a
/// description it is 1 if the family's own embedding is stretched.
fn all_dim(f: &Fields, stretched: bool) -> Result<f64, Diagnostic> {
    match Rope::described(f)?.1 {
        Some(rope) => Ok(rope.positive_or_none("mscale_all_dim")?.unwrap_or(0.0)),
        None => Ok(if stretched { 1.0 } else { 0.0 }),
    }
}
