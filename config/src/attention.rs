//! The attention of each layer, as a configuration describes it.
use serde_json::json;

use crate::blocks::{self, BlockChoice};
use crate::family::Switch;
use crate::fields::Fields;
use crate::freqs::Freqs;
use crate::kind::Weights;
use crate::{Diagnostic, Rope};

/// Attention kernels are unrolled over the elements of a head.
const MAX_HEAD_DIM: usize = 1024;

/// Attention of heads over keys and values, which some of them share.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    pub heads: usize,
    pub kv_heads: usize,
    /// Elements of a head's query and key, and of its value.
    pub head_dim: usize,
    pub value_dim: usize,
    /// What values are multiplied with.
    pub value_scale: f64,
    /// What products of queries and keys are multiplied with.
    pub scale: f64,
    pub qkv_bias: bool,
    pub o_bias: bool,
    /// Whether the checkpoint has one weight for queries, keys and values.
    pub fused: bool,
    pub qk_norm: QkNorm,
    /// The names of the norms of queries and keys.
    pub norm_names: [&'static str; 2],
    /// Whether each head of values is normed, without a weight.
    pub value_norm: bool,
    /// Whether values are heads of the product of keys.
    pub keys_as_values: bool,
    /// The layer whose keys and values are seen, if the layer has none of its own.
    pub shared: Option<usize>,
    pub modules: Modules,
    pub gated: GatedBy,
    /// The tensor of scores, one for each head, that take part in its softmax and have no value.
    pub sinks: Option<&'static str>,
    /// Keys that a token sees; 0 for all.
    pub window: usize,
    /// How the blocks of keys are chosen that a token sees, if it does not see all.
    pub blocks: Option<BlockChoice>,
    /// Which of the model's rotary embeddings turns queries and keys, if any.
    pub rope: Option<usize>,
    /// Whether neighbours are turned, and not halves.
    pub in_pairs: bool,
}

/// The numbers whose logistic function the result is multiplied by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum GatedBy {
    No,
    /// One for each element. The product of queries has those of a head after its query.
    Elements,
    /// One for each head, of this module.
    Heads(&'static str),
    /// One for each element, of this module.
    ElementsOf(&'static str),
}

/// Modules of the checkpoint: that of attention relative to the path of the layer, the one weight
/// for queries, keys and values where there is one, and the outer projection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Modules {
    pub path: &'static str,
    pub qkv: &'static str,
    pub outer: &'static str,
}

impl Weights for Attention {
    // A gate for each element of a query is of the same weight.
    fn rows(&self) -> (&'static str, usize) {
        let parts = if self.gated == GatedBy::Elements { 2 } else { 1 };
        ("num_attention_heads", self.heads.saturating_mul(self.head_dim).saturating_mul(parts))
    }
}

/// What of queries and keys is normed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum QkNorm {
    None,
    /// Each head.
    Heads,
    /// Each head, after its rotary embedding.
    Turned,
    /// Each head that has a rotary embedding, after it and without a weight.
    Unweighted,
    /// All heads of a token together.
    Row,
}

/// What differs between families.
#[derive(Clone, Copy)]
pub(crate) struct Traits {
    pub qkv_bias: Switch,
    pub o_bias: Switch,
    pub fused: bool,
    pub qk_norm: QkNorm,
    /// Whether there are such norms.
    pub qk_norm_if: Switch,
    pub norm_names: [&'static str; 2],
    /// Whether values have norms without weights.
    pub value_norm: bool,
    /// Whether layers may see keys and values of earlier ones: the last `num_kv_shared_layers`.
    pub shares: bool,
    pub modules: Modules,
    pub gated: GatedBy,
    pub sinks: Sinks,
    pub window: WindowRule,
    /// Whether layers may choose blocks of keys.
    pub blocks: bool,
    pub rope: RopeRule,
    pub in_pairs: bool,
    /// Without `partial_rotary_factor`.
    pub partial: f64,
    /// Whether `rotary_dim` may say how many elements are turned.
    pub rotary_dim: bool,
    pub scale: ScaleRule,
    /// Without `rope_theta`.
    pub theta: f64,
    /// Without `num_attention_heads`, which there must be otherwise.
    pub heads: Option<usize>,
    /// Without `num_key_value_heads`; `None`: as many as heads, which `null` means for all.
    pub kv_heads: Option<usize>,
    /// Without `head_dim`; `None`: the hidden size over the heads, which `null` means for all.
    pub head_dim: Option<usize>,
    /// How many times as many heads of keys layers with a window have.
    pub window_kv: usize,
    /// Whether layers with a window may have another number of heads: as
    /// `num_sliding_attention_heads`, `attention_other_setting` or `per_layer_config` says.
    pub window_heads: bool,
    /// Without `global_head_dim`, where layers without a window have heads of a width of their own.
    /// With `attention_k_eq_v` these have `num_global_key_value_heads` heads of keys, which are
    /// values too. `per_layer_config` may say both of single layers.
    pub global_dim: Option<usize>,
    /// Without `v_head_dim`, where values have a width of their own.
    pub value_dim: Option<usize>,
    /// The field of what values are multiplied with, and its default; null is 1.
    pub value_scale: Option<(&'static str, f64)>,
}

/// Which layers have sinks, by the name of their tensor.
#[derive(Clone, Copy)]
pub(crate) enum Sinks {
    None,
    All(&'static str),
    Windows(&'static str),
}

/// Which layers attend through a sliding window.
#[derive(Clone, Copy)]
pub(crate) enum WindowRule {
    None,
    /// All, through `sliding_window`, which is this much by default.
    All(usize),
    /// With `use_sliding_window`: all, through `sliding_window`, which is this much by default.
    Switched(usize),
    /// With `use_sliding_window`: those that `layer_types` lists, or else all from
    /// `max_window_layers` on.
    Listed,
    /// With `use_sliding_window`: those that `layer_types` lists, or else all without a rotary
    /// embedding.
    WithoutRope,
    /// Those that `layer_types` lists, or else all from `max_window_layers` on (by default this
    /// one), with windows of `sliding_window` (by default this much).
    From(usize, usize),
    /// Those that `layer_types` lists, with windows of `sliding_window`.
    Typed,
    /// Those that `layer_types` lists, or else all but each `sliding_window_pattern`-th (by default
    /// this many), with windows of `sliding_window` (by default this much).
    Pattern(usize, usize),
    /// As `Pattern`, with a number that no field has, and no window of the last layer.
    Through(usize, usize),
    /// Those that `layer_types` lists, or else all but the first one and each one of this number. A
    /// window is one more than `sliding_window_size`, or else `sliding_window` (by default this
    /// much).
    Inner(usize, usize),
    /// Those that `layer_types` lists, or else all but the first of each so many, with windows of
    /// `sliding_window` (by default this much).
    AllButFirst(usize, usize),
}

/// Which layers have a rotary embedding.
#[derive(Clone, Copy)]
pub(crate) enum RopeRule {
    All,
    /// Those with a 1 in `no_rope_layers`, or else all but each `no_rope_layer_interval`-th (by
    /// default this many).
    Marked(usize),
    /// All; without any field of an embedding it is stretched as this says.
    Stretched(Stretch),
    /// All, of two: layers with a window have one with this `rope_theta` by default.
    ByWindow(f64),
    /// As `ByWindow`, with this part of heads that turns where no embedding is described.
    Proportional(f64, f64),
    /// All, of two by window. `rope_theta` and `partial_rotary_factors` may list those of every
    /// layer.
    ByLayer,
    /// Those with a window; all if `sliding_window` is null.
    OfWindows,
    /// Those with a window, and no others.
    OnlyOfWindows,
    /// Those for which `layer_rope_theta` has a number above zero, which is their `rope_theta`;
    /// without that field all.
    Listed,
    /// All, if `position_embedding_type` is `rope`; else none.
    Named,
    /// All; a dynamic one with `alpha` has a base that is larger by `alpha` for every sequence.
    Alpha,
}

/// A yarn.
#[derive(Clone, Copy)]
pub(crate) struct Stretch {
    pub factor: f64,
    pub original: usize,
    pub truncate: bool,
    /// Whether cosines and sines are stretched too.
    pub scaled: bool,
}

/// What products of queries and keys are multiplied with.
#[derive(Clone, Copy)]
pub(crate) enum ScaleRule {
    /// Nothing.
    One,
    /// One over the root of the elements of a head.
    HeadDim,
    /// This field; 1 by default.
    Field(&'static str),
    /// One over the square root of this field, or else of the elements of a head.
    RootOrHeadDim(&'static str),
    /// One over the square root of this field, with its default.
    Root(&'static str, f64),
    /// One over the root of the elements of a head, times this factor of keys.
    OfKeys(&'static str),
}

impl ScaleRule {
    fn read(self, f: &Fields, head_dim: usize) -> Result<f64, Diagnostic> {
        match self {
            ScaleRule::One => Ok(1.0),
            ScaleRule::HeadDim => Ok((head_dim as f64).powf(-0.5)),
            ScaleRule::OfKeys(name) => Ok((head_dim as f64).powf(-0.5) * f.or(name, Fields::positive, 1.0)?),
            ScaleRule::Field(name) => f.or(name, Fields::positive, 1.0),
            ScaleRule::RootOrHeadDim(name) => {
                let of = f.positive(name)?.unwrap_or(head_dim as f64);
                f.note(name, of);
                Ok(of.powf(-0.5))
            }
            ScaleRule::Root(name, default) => Ok(f.or(name, Fields::positive, default)?.powf(-0.5)),
        }
    }
}

/// The attention of all layers, and the rotary embeddings that they name.
pub(crate) fn read(
    f: &Fields,
    traits: &Traits,
    (hidden, layers, positions): (usize, usize, usize),
) -> Result<(Vec<Attention>, Vec<Rope>), Diagnostic> {
    let heads = f.or_needed("num_attention_heads", Fields::size, traits.heads)?;
    let kv_heads = kv_heads(f, traits, heads)?;
    let head_dim = head_dim(f, traits, hidden, heads)?;
    let scale = traits.scale.read(f, head_dim)?;
    let (qkv_bias, o_bias) = (traits.qkv_bias.read(f)?, traits.o_bias.read(f)?);
    let has_norm = traits.qk_norm_if.read(f)?;
    let qk_norm = if has_norm { traits.qk_norm } else { QkNorm::None };
    let ropes = ropes(f, traits.rope, layers)?;
    let windows = windows(f, traits.window, &ropes)?;
    let rule = match traits.rope {
        RopeRule::OfWindows if f.has("sliding_window") && f.size_or_none("sliding_window")?.is_none() => RopeRule::All,
        rule => rule,
    };
    let of_window = |(&window, rope): (&usize, Option<usize>)| match rule {
        RopeRule::ByWindow(_) | RopeRule::Proportional(..) | RopeRule::ByLayer => Some(usize::from(window > 0)),
        RopeRule::OfWindows | RopeRule::OnlyOfWindows => rope.filter(|_| window > 0),
        _ => rope,
    };
    let ropes: Vec<_> = windows.iter().zip(ropes).map(of_window).collect();
    if matches!(traits.rope, RopeRule::OfWindows | RopeRule::OnlyOfWindows) {
        f.note("no_rope_layers", ropes.iter().map(Option::is_some).collect::<Vec<_>>());
    }
    let sizes = (head_dim, positions);
    let of_keys = keys_of_layers(f, traits, (heads, kv_heads, head_dim), &windows)?;
    let (embeddings, ropes) = match traits.rope {
        RopeRule::ByWindow(_) | RopeRule::Proportional(..) => {
            (embeddings_by_window(f, traits, (&windows, &of_keys), positions)?, ropes)
        }
        RopeRule::Listed => listed_ropes(f, traits, layers, sizes)?,
        RopeRule::ByLayer => (embeddings_by_layer(f, traits, &windows, sizes)?, ropes),
        _ => (embeddings(f, traits, sizes)?, ropes),
    };
    let heads_of_layers = heads_of_layers(f, traits, (heads, kv_heads, head_dim), &windows)?;
    let (value_dim, value_scale) = values(f, traits, head_dim)?;
    let blocks = choices(f, traits, layers, (kv_heads, &embeddings))?;
    let shared = shared(f, traits, &windows)?;
    let each = windows.into_iter().zip(ropes).zip(heads_of_layers).zip(blocks).zip(of_keys).zip(shared);
    let each = each.map(|(((((window, rope), heads), blocks), keys), shared)| Attention {
        heads,
        kv_heads: keys.heads,
        head_dim: keys.dim,
        value_dim: if traits.global_dim.is_some() { keys.dim } else { value_dim },
        value_norm: traits.value_norm,
        keys_as_values: keys.as_values,
        shared,
        value_scale,
        scale,
        qkv_bias,
        o_bias,
        fused: traits.fused,
        qk_norm: if qk_norm == QkNorm::Unweighted && rope.is_none() { QkNorm::None } else { qk_norm },
        norm_names: traits.norm_names,
        modules: traits.modules,
        gated: traits.gated,
        sinks: match traits.sinks {
            Sinks::All(name) => Some(name),
            Sinks::Windows(name) => Some(name).filter(|_| window > 0),
            Sinks::None => None,
        },
        window,
        blocks,
        rope,
        in_pairs: traits.in_pairs,
    });
    Ok((each.collect(), embeddings))
}

/// Heads of keys of a layer.
#[derive(Clone, Copy, PartialEq)]
struct Keys {
    heads: usize,
    /// Elements of each.
    dim: usize,
    /// Whether they are those of values too.
    as_values: bool,
}

/// The heads of keys of each layer. See [`Traits::global_dim`].
fn keys_of_layers(
    f: &Fields,
    traits: &Traits,
    (heads, kv_heads, head_dim): (usize, usize, usize),
    windows: &[usize],
) -> Result<Vec<Keys>, Diagnostic> {
    let usual = Keys { heads: kv_heads, dim: head_dim, as_values: false };
    let Some(default) = traits.global_dim else {
        let of =
            |&window: &usize| Keys { heads: if window > 0 { kv_heads * traits.window_kv } else { kv_heads }, ..usual };
        return Ok(windows.iter().map(of).collect());
    };
    let (of_dim, of_heads, single) = ("global_head_dim", "num_global_key_value_heads", "per_layer_config");
    let as_values = f.or("attention_k_eq_v", Fields::flag, false)?;
    let full = Keys {
        dim: f.given(of_dim, Fields::size, default)?,
        heads: if as_values { f.size(of_heads)?.unwrap_or(kv_heads) } else { kv_heads },
        as_values,
    };
    let singles = f.object(single)?;
    let of = |(layer, &window): (usize, &usize)| {
        let own = Keys { as_values: as_values && window == 0, ..usual };
        let Some(singles) = &singles else { return Ok(if window > 0 { own } else { full }) };
        let Some(single) = singles.object(&layer.to_string())? else { return Ok(own) };
        let (dim, heads) = (single.size("head_dim")?, single.size("num_key_value_heads")?);
        Ok(Keys { dim: dim.unwrap_or(own.dim), heads: heads.unwrap_or(own.heads), ..own })
    };
    let all = windows.iter().enumerate().map(of).collect::<Result<Vec<_>, _>>()?;
    f.note(of_dim, all.iter().map(|keys| keys.dim).collect::<Vec<_>>());
    f.note(of_heads, all.iter().map(|keys| keys.heads).collect::<Vec<_>>());
    if let Some(keys) = all.iter().find(|keys| !heads.is_multiple_of(keys.heads)) {
        let message = format!("num_attention_heads, {heads}, is no multiple of {}", keys.heads);
        return Err(f.fault("config::value", of_heads, message));
    }
    all.iter().try_for_each(|keys| f.at_most(of_dim, keys.dim, MAX_HEAD_DIM).map(drop))?;
    Ok(all)
}

/// The layer whose keys and values each layer sees, if it has none of its own: the last one of its
/// window among those that have some.
fn shared(f: &Fields, traits: &Traits, windows: &[usize]) -> Result<Vec<Option<usize>>, Diagnostic> {
    let (name, layers) = ("num_kv_shared_layers", windows.len());
    let count = if traits.shares { f.or(name, Fields::number, 0)? } else { 0 };
    let first = layers.saturating_sub(f.at_most(name, count, layers)?);
    let of = |layer: usize| match layer < first {
        true => Ok(None),
        false => match windows[..first].iter().rposition(|window| *window == windows[layer]) {
            Some(of) => Ok(Some(of)),
            None => {
                let message = format!("{count} layers share keys, but none of the others has layer {layer}'s window");
                Err(f.fault("config::value", name, message))
            }
        },
    };
    (0..layers).map(of).collect()
}

/// The heads of each layer: those of layers with a window, and of single layers, may differ.
fn heads_of_layers(
    f: &Fields,
    traits: &Traits,
    (heads, kv_heads, head_dim): (usize, usize, usize),
    windows: &[usize],
) -> Result<Vec<usize>, Diagnostic> {
    if !traits.window_heads {
        return Ok(vec![heads; windows.len()]);
    }
    let (name, single) = ("num_sliding_attention_heads", "per_layer_config");
    let of_windows = match (f.size(name)?, f.object("attention_other_setting")?) {
        (Some(given), _) => given,
        (None, Some(other)) => heads_of_windows(&other, heads, (kv_heads, head_dim))?,
        (None, None) => heads,
    };
    let singles = f.object(single)?;
    let of = |(layer, &window): (usize, &usize)| {
        let own = singles.as_ref().map_or(Ok(None), |all| all.object(&layer.to_string()))?;
        let own = own.map_or(Ok(None), |own| own.size("num_attention_heads"))?;
        Ok(own.unwrap_or(if window > 0 { of_windows } else { heads }))
    };
    let all = windows.iter().enumerate().map(of).collect::<Result<Vec<_>, _>>()?;
    f.note(name, &all[..]);
    match all.iter().find(|heads| !heads.is_multiple_of(kv_heads)) {
        Some(heads) => {
            let message = format!("{heads} heads of a layer are no multiple of num_key_value_heads, {kv_heads}");
            Err(f.fault("config::value", name, message))
        }
        None => Ok(all),
    }
}

/// The heads of layers with a window, which differ from the others in nothing else.
fn heads_of_windows(other: &Fields, heads: usize, (kv_heads, head_dim): (usize, usize)) -> Result<usize, Diagnostic> {
    other.one_of("attention_type", "sliding_attention", &[("sliding_attention", ())])?;
    for (name, own) in [("num_attention_groups", kv_heads), ("head_dim", head_dim)] {
        if let Some(given) = other.size(name)?.filter(|given| *given != own) {
            let message = format!("{given} in layers with a window, {own} in others, is not supported");
            return Err(other.fault("config::unsupported", name, message));
        }
    }
    Ok(other.size("num_attention_heads")?.unwrap_or(heads))
}

/// How each layer chooses blocks of keys, if it does.
fn choices(
    f: &Fields,
    traits: &Traits,
    layers: usize,
    (kv_heads, embeddings): (usize, &[Rope]),
) -> Result<Vec<Option<BlockChoice>>, Diagnostic> {
    let turned = embeddings.first().map_or(0, |rope| rope.freqs.dim);
    match traits.blocks {
        true => blocks::read(f, layers, (kv_heads, turned, MAX_HEAD_DIM)),
        false => Ok(vec![None; layers]),
    }
}

fn head_dim(f: &Fields, traits: &Traits, hidden: usize, heads: usize) -> Result<usize, Diagnostic> {
    let name = "head_dim";
    let default = traits.head_dim.filter(|_| !f.has(name));
    let head_dim = match f.size(name)?.or(default) {
        Some(given) => given,
        None if hidden.is_multiple_of(heads) => hidden / heads,
        None => {
            let message = format!("{hidden} is no multiple of num_attention_heads, {heads}, and there is no head_dim");
            return Err(f.fault("config::value", "hidden_size", message));
        }
    };
    f.note(name, head_dim);
    f.at_most(name, head_dim, MAX_HEAD_DIM)
}

/// Elements of a value, and what values are multiplied with.
fn values(f: &Fields, traits: &Traits, head_dim: usize) -> Result<(usize, f64), Diagnostic> {
    let dim = match traits.value_dim {
        Some(default) => f.at_most("v_head_dim", f.or("v_head_dim", Fields::size, default)?, MAX_HEAD_DIM)?,
        None => head_dim,
    };
    let Some((name, default)) = traits.value_scale else { return Ok((dim, 1.0)) };
    let scale = if f.has(name) { f.positive_or_none(name)?.unwrap_or(1.0) } else { default };
    f.note(name, scale);
    Ok((dim, scale))
}

fn kv_heads(f: &Fields, traits: &Traits, heads: usize) -> Result<usize, Diagnostic> {
    let name = "num_key_value_heads";
    let default = traits.kv_heads.filter(|_| !f.has(name)).unwrap_or(heads);
    // Without groups of heads transformers has null.
    let kv_heads = f.size(name)?.unwrap_or(default);
    f.note(name, kv_heads);
    if heads.is_multiple_of(kv_heads * traits.window_kv) {
        return Ok(kv_heads);
    }
    let message = format!("num_attention_heads, {heads}, is no multiple of {kv_heads}");
    Err(f.fault("config::value", name, message))
}

/// The rotary embeddings.
fn embeddings(f: &Fields, traits: &Traits, sizes: (usize, usize)) -> Result<Vec<Rope>, Diagnostic> {
    let name = "rope_parameters";
    let rope = match traits.rope {
        RopeRule::Stretched(stretch) => Rope::stretched(f, sizes, (traits.theta, 1.0), stretch)?,
        RopeRule::Alpha => Rope::grown(f, sizes, traits.theta)?,
        _ => Rope::read(f, sizes, (traits.theta, partial(f, traits, sizes.0)?))?,
    };
    f.note(name, rope.echo());
    Ok(vec![rope])
}

/// See [`RopeRule::ByWindow`] and [`RopeRule::Proportional`].
fn embeddings_by_window(
    f: &Fields,
    traits: &Traits,
    (windows, keys): (&[usize], &[Keys]),
    positions: usize,
) -> Result<Vec<Rope>, Diagnostic> {
    let name = "rope_parameters";
    let dim = |has: bool| {
        let mut own = windows.iter().zip(keys).filter(|(window, _)| (**window > 0) == has).map(|(_, keys)| keys.dim);
        let first = own.next().unwrap_or(keys[0].dim);
        let message = "must be one for layers with a window, and one for the others";
        if own.all(|dim| dim == first) { Ok(first) } else { Err(f.fault("config::unsupported", "head_dim", message)) }
    };
    let dims = [dim(false)?, dim(true)?];
    let (local, part) = match traits.rope {
        RopeRule::Proportional(local, part) => (local, Some(part)),
        RopeRule::ByWindow(local) => (local, None),
        _ => (traits.theta, None),
    };
    let [mut full, sliding] = Rope::read_two(f, (dims, positions), (traits.theta, local), traits.partial)?;
    if let Some(part) = part.filter(|_| f.get(name).is_none()) {
        full = Rope::proportional(dims[0], traits.theta, part);
    }
    f.note(name, json!({ "full_attention": full.echo(), "sliding_attention": sliding.echo() }));
    Ok(vec![full, sliding])
}

/// See [`RopeRule::ByLayer`].
fn embeddings_by_layer(
    f: &Fields,
    traits: &Traits,
    windows: &[usize],
    sizes: (usize, usize),
) -> Result<Vec<Rope>, Diagnostic> {
    let only = "yarn_only_types";
    if f.texts(only)?.is_some_and(|types| !types.is_empty() && types != ["full_attention"]) {
        return Err(f.fault("config::unsupported", only, "must be full_attention alone"));
    }
    if f.marks("use_rope_layers")?.is_some_and(|marks| marks.contains(&false)) {
        return Err(f.fault("config::unsupported", "use_rope_layers", "must have no layer without an embedding"));
    }
    let (thetas, parts) = ("rope_theta", "partial_rotary_factors");
    let thetas = by_window(f, (thetas, traits.theta), windows)?;
    let parts = by_window(f, (parts, traits.partial), windows)?;
    let ropes = Rope::read_by_type(f, sizes, thetas, parts)?;
    f.note("rope_parameters", json!({ "full_attention": ropes[0].echo(), "sliding_attention": ropes[1].echo() }));
    Ok(ropes.into())
}

/// A number of layers without a window, and one of those with one: a field lists it for every
/// layer, or has one number for all, or the default.
fn by_window(f: &Fields, (name, default): (&str, f64), windows: &[usize]) -> Result<[f64; 2], Diagnostic> {
    if !f.get(name).is_some_and(serde_json::Value::is_array) {
        return Ok([f.positive(name)?.unwrap_or(default); 2]);
    }
    let list = f.of_layers(name, f.positives(name)?.unwrap_or_default(), windows.len())?;
    let of = |has: bool| {
        let mut own = list.iter().zip(windows).filter(|(_, window)| (**window > 0) == has).map(|(n, _)| *n);
        let first = own.next().unwrap_or(default);
        let message = "must have one number for layers with a window, and one for the others";
        if own.all(|n| n == first) { Ok(first) } else { Err(f.fault("config::unsupported", name, message)) }
    };
    Ok([of(false)?, of(true)?])
}

/// The part of a head that is turned, without `partial_rotary_factor`.
fn partial(f: &Fields, traits: &Traits, head_dim: usize) -> Result<f64, Diagnostic> {
    let name = "rotary_dim";
    match if traits.rotary_dim { f.size(name)? } else { None } {
        Some(dim) => Ok(f.at_most(name, dim, head_dim)? as f64 / head_dim as f64),
        None => Ok(traits.partial),
    }
}

/// An embedding for each base that `layer_rope_theta` lists, and which one each layer has.
fn listed_ropes(
    f: &Fields,
    traits: &Traits,
    layers: usize,
    sizes: (usize, usize),
) -> Result<(Vec<Rope>, Vec<Option<usize>>), Diagnostic> {
    let name = "layer_rope_theta";
    let Some(thetas) = f.positives_or_none(name)? else {
        return Ok((embeddings(f, traits, sizes)?, vec![Some(0); layers]));
    };
    let thetas = f.of_layers(name, thetas, layers)?;
    let (mut bases, mut ropes) = (Vec::new(), Vec::with_capacity(layers));
    for theta in &thetas {
        ropes.push(theta.map(|theta| {
            bases.iter().position(|base| *base == theta).unwrap_or_else(|| {
                bases.push(theta);
                bases.len() - 1
            })
        }));
    }
    let rope = Rope::read(f, sizes, (traits.theta, traits.partial))?;
    f.note("rope_parameters", rope.echo());
    f.note(name, json!(thetas));
    let of = |theta| Rope { freqs: Freqs { theta, ..rope.freqs.clone() }, ..rope.clone() };
    Ok((bases.into_iter().map(of).collect(), ropes))
}

/// The rotary embedding of each layer.
fn ropes(f: &Fields, rule: RopeRule, layers: usize) -> Result<Vec<Option<usize>>, Diagnostic> {
    if let RopeRule::Named = rule {
        let is = f.text("position_embedding_type")? == Some("rope");
        f.note("no_rope_layers", vec![is; layers]);
        return Ok(vec![is.then_some(0); layers]);
    }
    let RopeRule::Marked(default) = rule else { return Ok(vec![Some(0); layers]) };
    let (name, interval) = ("no_rope_layers", f.given("no_rope_layer_interval", Fields::size, default)?);
    let marks = match f.marks(name)?.filter(|marks| !marks.is_empty()) {
        Some(marks) if marks.len() >= layers => marks[..layers].to_vec(),
        Some(marks) => f.of_layers(name, marks, layers)?,
        None => (1..=layers).map(|i| !i.is_multiple_of(interval)).collect(),
    };
    f.note(name, &marks[..]);
    Ok(marks.into_iter().map(|mark| mark.then_some(0)).collect())
}

/// The window of each layer.
fn windows(f: &Fields, rule: WindowRule, ropes: &[Option<usize>]) -> Result<Vec<usize>, Diagnostic> {
    let name = "sliding_window";
    let seen_before = match rule {
        WindowRule::Inner(..) => f.size("sliding_window_size")?,
        _ => None,
    };
    let window = match rule {
        WindowRule::None => 0,
        WindowRule::Inner(..) if seen_before.is_some() => seen_before.unwrap_or(0).saturating_add(1),
        WindowRule::All(default)
        | WindowRule::Pattern(_, default)
        | WindowRule::Through(_, default)
        | WindowRule::AllButFirst(_, default)
        | WindowRule::Inner(_, default)
        | WindowRule::From(default, _)
            if !f.has(name) =>
        {
            default
        }
        WindowRule::Typed
        | WindowRule::All(_)
        | WindowRule::Pattern(..)
        | WindowRule::Through(..)
        | WindowRule::AllButFirst(..)
        | WindowRule::Inner(..)
        | WindowRule::From(..) => f.size_or_none(name)?.unwrap_or(0),
        WindowRule::Listed | WindowRule::WithoutRope | WindowRule::Switched(_)
            if !f.flag("use_sliding_window")?.unwrap_or(false) =>
        {
            0
        }
        WindowRule::Listed if !f.has(name) => 4096,
        WindowRule::Switched(default) if !f.has(name) => default,
        WindowRule::Listed | WindowRule::WithoutRope | WindowRule::Switched(_) => f.size_or_none(name)?.unwrap_or(0),
    };
    let windows = match rule {
        WindowRule::None | WindowRule::All(_) | WindowRule::Switched(_) => vec![window; ropes.len()],
        WindowRule::Listed => {
            let first = f.size_or_none("max_window_layers")?.unwrap_or(if f.has("max_window_layers") { 0 } else { 28 });
            listed(f, window, (0..ropes.len()).map(|i| i >= first).collect())?
        }
        WindowRule::From(_, default) => {
            let first = f.given("max_window_layers", Fields::number, default)?;
            listed(f, window, (0..ropes.len()).map(|i| i >= first).collect())?
        }
        WindowRule::Pattern(default, _) => {
            // Makers write other things here where they list the layers.
            let pattern = match f.has("layer_types") {
                true => default,
                false => f.given("sliding_window_pattern", Fields::size, default)?,
            };
            listed(f, window, (1..=ropes.len()).map(|i| !i.is_multiple_of(pattern)).collect())?
        }
        WindowRule::Through(pattern, _) => {
            let mut windows = listed(f, window, (1..=ropes.len()).map(|i| !i.is_multiple_of(pattern)).collect())?;
            windows.last_mut().into_iter().for_each(|last| *last = 0);
            windows
        }
        WindowRule::AllButFirst(each, _) => {
            listed(f, window, (0..ropes.len()).map(|i| !i.is_multiple_of(each)).collect())?
        }
        WindowRule::Inner(each, _) => {
            listed(f, window, (1..=ropes.len()).map(|i| i > 1 && !i.is_multiple_of(each)).collect())?
        }
        WindowRule::WithoutRope => listed(f, window, ropes.iter().map(Option::is_none).collect())?,
        WindowRule::Typed => listed(f, window, vec![false; ropes.len()])?,
    };
    f.note(name, &windows[..]);
    Ok(windows)
}

/// The window of each layer by its type, or for those that have one by default.
fn listed(f: &Fields, window: usize, default: Vec<bool>) -> Result<Vec<usize>, Diagnostic> {
    let layers = default.len();
    let Some(types) = f.texts("layer_types")? else {
        return Ok(default.into_iter().map(|has| if has { window } else { 0 }).collect());
    };
    let types = f.of_layers("layer_types", types, layers)?;
    let of = |ty: &&str| match *ty {
        "full_attention" => Ok(0),
        "sliding_attention" if window == 0 => Err(f
            .fault("config::value", "layer_types", "lists sliding_attention, but the model has no window")
            .help("A window is a sliding_window, and use_sliding_window true.")),
        "sliding_attention" => Ok(window),
        other => Err(f
            .fault("config::value", "layer_types", format!("unknown layer type {other:?}"))
            .help("Known layer types: full_attention, sliding_attention.")),
    };
    types.iter().map(of).collect()
}
