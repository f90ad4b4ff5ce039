//! The experts of a layer, as a configuration describes them. A router chooses some of them for
//! each token.
use crate::Diagnostic;
use crate::family::Switch;
use crate::fields::Fields;
use crate::kind::Weights;
use crate::mlp::{self, Gate, Gated};

/// Most experts of a layer: some sixteen times what today's largest models have.
const MAX_EXPERTS: usize = 1 << 13;

/// Gated projections by the experts that a token's router chooses, added up by their weights, and
/// perhaps those of an expert that all tokens have.
#[derive(Clone, Debug, PartialEq)]
pub struct Experts {
    pub router: Router,
    /// The number of experts.
    pub count: usize,
    /// Rows of each of an expert's two inner projections.
    pub width: usize,
    pub gate: Gate,
    /// Whether the weight of a token's only expert multiplies what goes into it, and not what comes
    /// out.
    pub on_input: bool,
    pub bias: bool,
    pub stored: StoredExperts,
    /// The expert that all tokens have.
    pub shared: Option<Gated>,
    /// Whether that one is multiplied with the logistic function of a score of the token.
    pub shared_gate: bool,
    /// The row that experts work on, if that is not the hidden row: neither the router nor the
    /// expert that all tokens have sees it.
    pub short: Option<ShortRow>,
    /// The parts of each that see and make rows of their own, if they do not share the half's norm.
    pub apart: Option<Apart>,
}

/// A row of its own width that goes into experts, and comes out of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShortRow {
    pub width: usize,
    /// The modules that make it of the hidden row, and the hidden row of it.
    pub before: &'static str,
    pub after: &'static str,
    /// The norm of the sum of experts.
    pub norm: Option<&'static str>,
}

/// Parts of experts and of the one that all tokens have, where all of them, and the router, see the
/// rows that go through layers. Modules and tensors are relative to the path of the layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Apart {
    /// The norms before and after the expert that all tokens have.
    pub shared: [&'static str; 2],
    /// The norms before and after the others.
    pub others: [&'static str; 2],
    /// The tensor that rows of the router are multiplied with, after a norm without a weight and
    /// one over the root of their width.
    pub scale: &'static str,
    /// The tensor of a factor of each expert's weight.
    pub factors: &'static str,
}

impl Weights for Experts {
    // Both inner projections of all experts are one weight.
    fn rows(&self) -> (&'static str, usize) {
        ("num_experts", self.count.saturating_mul(self.width).saturating_mul(2))
    }
}

/// How a token's experts are chosen and weighed.
#[derive(Clone, Debug, PartialEq)]
pub struct Router {
    /// Its module in the checkpoint, relative to the path of the layer.
    pub module: &'static str,
    pub bias: bool,
    /// The tensor that is added to scores where experts are chosen, and only there, relative to the
    /// path of the layer, and its shape.
    pub correction: Option<(&'static str, Correction)>,
    pub score: Score,
    /// The tensor with the experts of each token id, relative to the path of the layer, if they do
    /// not follow from scores: then scores weigh them alone.
    pub table: Option<&'static str>,
    /// Experts of a token.
    pub chosen: usize,
    /// Groups of as many experts each, and of how many of them a token chooses.
    pub groups: usize,
    pub kept: usize,
    /// Whether the best groups are told by their two best experts, and not by the best one.
    pub by_two: bool,
    /// Whether the weights of a token are divided by their sum.
    pub renormalise: bool,
    /// What weights are multiplied with.
    pub scale: f64,
}

/// The shape of what is added to scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Correction {
    /// A number for each expert.
    Row,
    /// A matrix of one such row.
    Matrix,
}

/// How scores are made of a router's logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Score {
    /// Their softmax.
    Softmax,
    /// The logistic function of each; groups go by the sum of their two best.
    Sigmoid,
    /// The softmax of those that were chosen.
    Chosen,
    /// The square root of `ln(1 + exp(logit))`.
    RootSoftplus,
}

/// How a checkpoint has the weights of experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StoredExperts {
    /// A module for each expert, with the expert's number in place of the star; perhaps one tensor
    /// for all.
    Each { gate: &'static str, up: &'static str, down: &'static str, whole: Option<WholeExperts> },
    /// One tensor for both inner projections and one for the outer projection. Both are stored as
    /// columns, unless they are quantised. Rows of the inner projections alternate, or those of the
    /// gate come first.
    Together { path: &'static str, alternating: bool },
    /// One tensor for each projection.
    Apart { gate: &'static str, up: &'static str, down: &'static str },
}

/// The tensors of all experts: gate rows, then up rows; and the outer projections.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WholeExperts {
    pub gate_up: &'static str,
    pub down: &'static str,
}

/// What differs between families.
#[derive(Clone, Copy)]
pub(crate) struct Traits {
    /// Fields that say how many experts there are, the first one by default, and the default.
    pub count: (&'static [&'static str], usize),
    /// Without the field that says how many experts a token has.
    pub chosen: usize,
    pub chosen_field: &'static str,
    /// The field of the width, and its default.
    pub width: (&'static str, usize),
    pub layers: LayerRule,
    pub router: &'static str,
    pub router_bias: bool,
    pub score: Score,
    pub renormalise: NormRule,
    pub groups: GroupRule,
    /// Whether a factor of null is 1.
    pub null_factor: bool,
    pub correction: (&'static str, Correction),
    /// Whether scores are corrected, where [`Traits::groups`] says that they may be.
    pub corrected: Switch,
    /// The field that lists a limit for each layer.
    pub limits: Option<&'static str>,
    /// For a family whose first layers have a table of the experts of each token id: its tensor,
    /// and how many layers by default.
    pub table: Option<(&'static str, usize)>,
    pub on_input: bool,
    pub bias: bool,
    pub stored: StoredExperts,
    pub shared: Option<SharedWidth>,
    pub shared_module: &'static str,
    pub shared_gate: bool,
    /// For a family whose experts may work on a short row: the field of its width, and the row.
    pub short: Option<(&'static str, ShortRow)>,
    /// The field that says whether such a row is normed, if it need not be.
    pub short_norm_if: Option<&'static str>,
    pub apart: Option<Apart>,
}

/// The field that says how wide the shared expert is, with its default.
#[derive(Clone, Copy)]
pub(crate) enum SharedWidth {
    /// As so many of the others.
    Times(&'static str, usize),
    /// This wide.
    Field(&'static str, usize),
}

impl SharedWidth {
    /// The width, where others have this one.
    fn read(self, f: &Fields, width: usize) -> Result<usize, Diagnostic> {
        let (SharedWidth::Times(name, default) | SharedWidth::Field(name, default)) = self;
        let size = f.or(name, Fields::size_of_all, default)?;
        let size = if matches!(self, SharedWidth::Times(..)) { size.saturating_mul(width) } else { size };
        f.at_most(name, size, crate::fields::MAX_SIZE)
    }
}

/// Which layers have experts.
#[derive(Clone, Copy)]
pub(crate) enum LayerRule {
    All,
    /// All, or none where the number of experts is 0.
    AnyOf,
    /// All, if this field says so.
    If(&'static str),
    /// Each `decoder_sparse_step`-th, but for those that `mlp_only_layers` names.
    Sparse,
    /// All from `first_k_dense_replace` on, which is this many by default.
    From(usize),
    /// All from this one on, as the field says, with its default.
    Behind(&'static str, usize),
    /// Those that `moe_layers` names, or else each `interleave_moe_layer_step`-th.
    Named,
    /// Those that `mlp_layer_types` calls sparse, or else as `From`.
    Typed(usize),
    /// Those that `mlp_layer_types` calls sparse, or else those with a 1 in `moe_layer_freq`, or
    /// else all.
    Marked,
    /// Those that `mlp_layer_types` calls sparse, or else those that `moe_layers_enum` names, or
    /// else all from this one on.
    Enumerated(usize),
    /// Each `moe_layer_interval`-th from `moe_layer_start_index` to `moe_layer_end_index`, by
    /// default from this one on.
    Between(usize),
}

/// Whether experts are in groups and have weights with a factor.
#[derive(Clone, Copy)]
pub(crate) enum GroupRule {
    None,
    /// Experts are in groups, and are chosen by corrected scores: `n_group` groups, `topk_group` of
    /// them kept, and the factor, with these defaults.
    Corrected(usize, usize, f64),
    /// The same, but experts are chosen by scores alone.
    Plain(usize, usize, f64),
    /// No groups, but experts are chosen by corrected scores. This field has the factor, and this
    /// is its default.
    Whole(Option<(&'static str, f64)>),
    /// If `topk_method` is `group_limited_greedy`; by default all are chosen from.
    Method,
}

/// Whether weights are divided by their sum.
#[derive(Clone, Copy)]
pub(crate) enum NormRule {
    Always,
    Never,
    /// As `norm_topk_prob` says, which is this by default.
    Field(bool),
}

/// The experts of each layer that has some; the other layers have none.
pub(crate) fn read(
    f: &Fields,
    traits: &Traits,
    dense: &mlp::Traits,
    layers: usize,
) -> Result<Vec<Option<Experts>>, Diagnostic> {
    let name = traits.count.0[0];
    if matches!(traits.layers, LayerRule::AnyOf) && f.number(name)? == Some(0) {
        f.note(name, 0);
        return Ok(vec![None; layers]);
    }
    if let LayerRule::If(name) = traits.layers
        && !f.or(name, Fields::flag, false)?
    {
        return Ok(vec![None; layers]);
    }
    let sparse = sparse(f, traits.layers, layers)?;
    let count = count(f, traits)?;
    let width = f.or(traits.width.0, Fields::size_of_all, traits.width.1)?;
    let gate = mlp::gate(f, dense)?;
    let shared = match traits.shared {
        Some(shared) => {
            let intermediate = shared.read(f, width)?;
            let modules = mlp::Modules { path: traits.shared_module, ..dense.modules };
            Some(Gated { intermediate, gate, gate_scale: 1.0, bias: false, fused: dense.fused, modules })
        }
        None => None,
    };
    let short = short_row(f, traits)?;
    let (router, stored, bias) = (router(f, traits, count)?, traits.stored, traits.bias);
    let on_input = traits.on_input;
    if on_input && router.chosen != 1 {
        let message =
            format!("{} experts of a token, whose weights multiply their input: 1 is supported", router.chosen);
        return Err(f.fault("config::unsupported", traits.chosen_field, message));
    }
    let (shared_gate, apart) = (traits.shared_gate, traits.apart);
    let experts = Experts { router, count, width, gate, on_input, bias, stored, shared, shared_gate, short, apart };
    let limits = match traits.limits {
        Some(name) => f.limits(name, layers)?.into_iter().zip(dense.limits(f, layers)?).collect(),
        None => vec![(None, None); layers],
    };
    let of_layer = |(has, (limit, of_shared)): (bool, _)| {
        let shared = experts.shared.as_ref().map(|shared| shared.limited(of_shared));
        has.then(|| Experts { gate: experts.gate.limited(limit), shared, ..experts.clone() })
    };
    let mut all: Vec<Option<Experts>> = sparse.into_iter().zip(limits).map(of_layer).collect();
    if let Some((tensor, usual)) = traits.table {
        for (layer, _) in all.iter_mut().zip(by_table(f, usual, layers)?).filter(|(_, has)| *has) {
            let Some(experts) = layer else { continue };
            experts.router = Router { table: Some(tensor), correction: None, ..experts.router.clone() };
        }
    }
    Ok(all)
}

/// The row that experts work on, if a field gives it a width.
fn short_row(f: &Fields, traits: &Traits) -> Result<Option<ShortRow>, Diagnostic> {
    let Some((name, row)) = traits.short else { return Ok(None) };
    let width = f.size_or_none(name)?;
    f.note(name, width);
    let Some(width) = width else { return Ok(None) };
    let normed = traits.short_norm_if.map_or(Ok(true), |name| f.or(name, Fields::flag, false))?;
    let norm = row.norm.filter(|_| normed);
    Ok(Some(ShortRow { width, norm, ..row }))
}

/// Whether the experts of each layer follow from token ids: by types of layers, or by a number of
/// first layers.
fn by_table(f: &Fields, usual: usize, layers: usize) -> Result<Vec<bool>, Diagnostic> {
    let name = "mlp_layer_types";
    let types = match f.texts(name)? {
        None => {
            let first = f.given("num_hash_layers", Fields::number, usual)?;
            (0..layers).map(|layer| layer < first).collect::<Vec<bool>>()
        }
        Some(types) => {
            let of = |ty: &str| match ty {
                "hash_moe" => Ok(true),
                "moe" => Ok(false),
                other => Err(f
                    .fault("config::value", name, format!("unknown type of a layer {other:?}"))
                    .help("Known types: hash_moe, moe.")),
            };
            f.of_layers(name, types, layers)?.into_iter().map(of).collect::<Result<_, _>>()?
        }
    };
    f.note(name, &types[..]);
    Ok(types)
}

/// The number of experts, by any of the names that the field goes by.
fn count(f: &Fields, traits: &Traits) -> Result<usize, Diagnostic> {
    let (names, default) = traits.count;
    let mut count = None;
    for name in names {
        count = count.or(f.size(name)?);
    }
    let count = match (count, names.iter().find(|name| f.has(name))) {
        (None, Some(null)) => f.given(null, Fields::size, default)?,
        (count, _) => count.unwrap_or(default),
    };
    f.note(names[0], count);
    f.at_most(names[0], count, MAX_EXPERTS)
}

fn router(f: &Fields, traits: &Traits, count: usize) -> Result<Router, Diagnostic> {
    let factor = "routed_scaling_factor";
    let ((groups, kept), factor) = match traits.groups {
        GroupRule::Corrected(groups, kept, default) | GroupRule::Plain(groups, kept, default) => {
            ((f.or("n_group", Fields::size, groups)?, f.or("topk_group", Fields::size, kept)?), Some((factor, default)))
        }
        GroupRule::Method => (method(f)?, Some((factor, 1.0))),
        GroupRule::Whole(factor) => ((1, 1), factor),
        GroupRule::None => ((1, 1), None),
    };
    scoring(f, traits)?;
    // The best of a group is told by two of its experts.
    if !count.is_multiple_of(groups) || groups > 1 && count / groups < 2 {
        let message = format!("{count} experts are not {groups} groups of as many, two or more each");
        return Err(f.fault("config::value", "n_group", message));
    }
    if kept > groups {
        return Err(f.fault("config::value", "topk_group", format!("{kept} of n_group, {groups}, cannot be kept")));
    }
    let name = traits.chosen_field;
    let (chosen, open) = (f.or(name, Fields::size_of_all, traits.chosen)?, kept * (count / groups));
    if chosen > open {
        let of = if groups > 1 { format!("{kept} groups") } else { traits.count.0[0].to_owned() };
        return Err(f.fault("config::value", name, format!("{chosen} cannot be chosen of {open} experts ({of})")));
    }
    let corrected =
        matches!(traits.groups, GroupRule::Corrected(..) | GroupRule::Whole(_)) && traits.corrected.read(f)?;
    Ok(Router {
        module: traits.router,
        bias: traits.router_bias,
        correction: corrected.then_some(traits.correction),
        score: traits.score,
        table: None,
        chosen,
        groups,
        kept,
        by_two: !matches!(traits.groups, GroupRule::Method) || groups == 1,
        renormalise: match traits.renormalise {
            NormRule::Always => true,
            NormRule::Never => false,
            NormRule::Field(default) => f.or("norm_topk_prob", Fields::flag, default)?,
        },
        scale: match factor {
            Some((name, _)) if traits.null_factor && f.has(name) && f.get(name).is_none() => {
                f.note(name, 1.0);
                1.0
            }
            Some((name, default)) => f.or(name, Fields::positive, default)?,
            None => 1.0,
        },
    })
}

/// The groups, and how many are kept, as `topk_method` says.
fn method(f: &Fields) -> Result<(usize, usize), Diagnostic> {
    let name = "topk_method";
    let known = [("greedy", false), ("group_limited_greedy", true)];
    let limited = f.one_of(name, "greedy", &known)?;
    f.note(name, if limited { known[1].0 } else { known[0].0 });
    match limited {
        true => Ok((f.needed("n_group", Fields::size)?, f.needed("topk_group", Fields::size)?)),
        false => Ok((1, 1)),
    }
}

/// Checks that scores are the family's, if the configuration names them, by any name. dots.llm1
/// names them as the choice that is made by sigmoids with a correction.
fn scoring(f: &Fields, traits: &Traits) -> Result<(), Diagnostic> {
    let own = match traits.score {
        Score::Sigmoid => "sigmoid",
        Score::RootSoftplus => "sqrtsoftplus",
        Score::Softmax | Score::Chosen => "softmax",
    };
    for name in ["scoring_func", "score_function", "moe_router_activation"] {
        let is_own = |&other: &&str| other == own || (other == "noaux_tc" && own == "sigmoid");
        if let Some(other) = f.text(name)?.filter(|other| !is_own(other)) {
            let message = format!("{other:?} is not what the architecture has, {own:?}");
            return Err(f.fault("config::unsupported", name, message));
        }
    }
    Ok(())
}

/// Whether each layer has experts.
fn sparse(f: &Fields, rule: LayerRule, layers: usize) -> Result<Vec<bool>, Diagnostic> {
    let sparse: Vec<bool> = match rule {
        LayerRule::All | LayerRule::AnyOf | LayerRule::If(_) => return Ok(vec![true; layers]),
        LayerRule::Sparse => {
            let step = f.given("decoder_sparse_step", Fields::size, 1)?;
            let dense = f.numbers("mlp_only_layers")?.unwrap_or_default();
            (0..layers).map(|layer| (layer + 1).is_multiple_of(step) && !dense.contains(&layer)).collect()
        }
        LayerRule::From(default) => from(f, "first_k_dense_replace", default, layers)?,
        LayerRule::Behind(name, default) => from(f, name, default, layers)?,
        LayerRule::Named => match f.numbers("moe_layers")? {
            Some(named) => (0..layers).map(|layer| named.contains(&layer)).collect(),
            None => {
                let step = f.given("interleave_moe_layer_step", Fields::size, 1)?;
                (1..=layers).map(|layer| layer.is_multiple_of(step)).collect()
            }
        },
        LayerRule::Typed(default) => match f.texts("mlp_layer_types")? {
            None => from(f, "first_k_dense_replace", default, layers)?,
            Some(types) => types_of(f, f.of_layers("mlp_layer_types", types, layers)?)?,
        },
        LayerRule::Marked => match (f.texts("mlp_layer_types")?, f.marks("moe_layer_freq")?) {
            (Some(types), _) => types_of(f, f.of_layers("mlp_layer_types", types, layers)?)?,
            (None, Some(marks)) => f.of_layers("moe_layer_freq", marks, layers)?,
            (None, None) => vec![true; layers],
        },
        LayerRule::Enumerated(default) => match (f.texts("mlp_layer_types")?, f.enumerated("moe_layers_enum")?) {
            (Some(types), _) => types_of(f, f.of_layers("mlp_layer_types", types, layers)?)?,
            (None, Some(named)) => (0..layers).map(|layer| named.contains(&layer)).collect(),
            (None, None) => (0..layers).map(|layer| layer >= default).collect(),
        },
        LayerRule::Between(default) => {
            let start = f.given("moe_layer_start_index", Fields::number, default)?;
            let step = f.given("moe_layer_interval", Fields::size, 1)?;
            let end = f.number_or_none("moe_layer_end_index")?.unwrap_or(layers);
            (0..layers).map(|layer| (start..=end).contains(&layer) && (layer + 1).is_multiple_of(step)).collect()
        }
    };
    let name = match rule {
        LayerRule::Sparse => "mlp_only_layers",
        LayerRule::Typed(_) | LayerRule::Marked | LayerRule::Enumerated(_) => "mlp_layer_types",
        LayerRule::Between(_) => "moe_layer_interval",
        LayerRule::Behind(name, _) => name,
        LayerRule::Named => "moe_layers",
        LayerRule::From(_) | LayerRule::All | LayerRule::AnyOf | LayerRule::If(_) => "first_k_dense_replace",
    };
    f.note(name, &sparse[..]);
    Ok(sparse)
}

/// All layers but the first ones, as many as a field says.
fn from(f: &Fields, name: &str, default: usize, layers: usize) -> Result<Vec<bool>, Diagnostic> {
    let first = f.given(name, Fields::number, default)?;
    Ok((0..layers).map(|layer| layer >= first).collect())
}

/// Layers by their types.
fn types_of(f: &Fields, types: Vec<&str>) -> Result<Vec<bool>, Diagnostic> {
    let name = "mlp_layer_types";
    let of = |ty: &&str| match *ty {
        "sparse" => Ok(true),
        "dense" => Ok(false),
        other => Err(f
            .fault("config::value", name, format!("unknown type of a layer {other:?}"))
            .help("Known types: dense, sparse.")),
    };
    types.iter().map(of).collect()
}
