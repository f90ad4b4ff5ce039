//! The rotary embedding of a configuration, with the defaults of transformers'
//! `modeling_rope_utils`.
use serde_json::{Value, json};

use crate::Diagnostic;
use crate::attention::Stretch;
use crate::fields::{Fields, MAX_SIZE};
use crate::freqs::{Freqs, Scaling};

#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    pub freqs: Freqs,
    /// The factor of cosines and sines.
    pub scale: f64,
    /// The replacement for the frequencies' factors if all sequences are short.
    pub short: Option<Short>,
}

/// Factors for sequences up to a length.
#[derive(Clone, Debug, PartialEq)]
pub struct Short {
    pub factors: Vec<f64>,
    pub positions: usize,
}

impl Rope {
    /// The frequencies if no sequence is longer than `context`. Keys in a cache stay rotated by the
    /// frequencies of their step, so all tokens of all sequences have the same.
    pub fn freqs(&self, context: usize) -> Freqs {
        match &self.short {
            Some(Short { factors, positions }) if context <= *positions => {
                Freqs { scaling: Scaling::Long { factors: factors.clone() }, ..self.freqs.clone() }
            }
            _ => self.freqs.clone(),
        }
    }

    /// `growth` and `original` of the `rope_table` op.
    pub fn growth(&self) -> (f64, usize) {
        match self.freqs.scaling {
            Scaling::Dynamic { factor, original } => (factor, original),
            _ => (0.0, 0),
        }
    }

    /// Every fact, by its name in `rope_parameters`.
    pub fn echo(&self) -> Value {
        let mut echo = match &self.freqs.scaling {
            Scaling::Default => json!({ "rope_type": "default" }),
            Scaling::Linear { factor } => json!({ "rope_type": "linear", "factor": factor }),
            Scaling::Dynamic { factor, original } => {
                json!({ "rope_type": "dynamic", "factor": factor, "original_max_position_embeddings": original })
            }
            Scaling::Llama3 { factor, low, high, original } => json!({
                "rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high,
                "original_max_position_embeddings": original,
            }),
            Scaling::Yarn { factor, beta_fast, beta_slow, original, truncate } => json!({
                "rope_type": "yarn", "factor": factor, "beta_fast": beta_fast, "beta_slow": beta_slow,
                "original_max_position_embeddings": original, "truncate": truncate,
            }),
            Scaling::Long { factors } => json!({ "rope_type": "longrope", "long_factor": factors }),
            Scaling::Proportional { factor, turned } => {
                json!({ "rope_type": "proportional", "factor": factor, "turned": turned })
            }
        };
        if let Some(Short { factors, positions }) = &self.short {
            echo["short_factor"] = json!(factors);
            echo["original_max_position_embeddings"] = (*positions).into();
        }
        echo["rope_theta"] = self.freqs.theta.into();
        echo["rotary_dim"] = self.freqs.dim.into();
        echo["attention_factor"] = self.scale.into();
        echo
    }

    /// The longest sequence that the embedding supports. Dynamic scaling begins at the end of the
    /// others.
    pub fn reach(&self, positions: usize) -> usize {
        match self.freqs.scaling {
            Scaling::Dynamic { factor, .. } => ((positions as f64 * factor) as usize).clamp(positions, MAX_SIZE),
            _ => positions,
        }
    }

    /// The longest sequence if the user does not ask for another: the length of the short factors,
    /// if there are any, because the model is best at that length.
    pub fn usual(&self, positions: usize) -> usize {
        self.short.as_ref().map_or(self.reach(positions), |short| short.positions.min(positions))
    }

    /// The field that describes the embedding in either spelling, and what it has.
    pub(crate) fn described<'a>(config: &Fields<'a>) -> Result<(&'static str, Option<Fields<'a>>), Diagnostic> {
        let old = config.object("rope_scaling")?.filter(|o| o.entries().next().is_some());
        Ok(match old {
            Some(rope) => ("rope_scaling", Some(rope)),
            None => ("rope_parameters", config.object("rope_parameters")?),
        })
    }

    /// Reads both spellings: all in `rope_parameters` (transformers 5), or `rope_theta`,
    /// `partial_rotary_factor` and `rope_scaling` as fields of their own (transformers 4), with the
    /// type perhaps named `type`.
    pub(crate) fn read(
        config: &Fields,
        sizes: (usize, usize),
        (default_theta, partial): (f64, f64),
    ) -> Result<Rope, Diagnostic> {
        let (at, rope) = Rope::described(config)?;
        if let Some((rope, name)) = rope.iter().find_map(|r| Some((r, r.entries().find(|(_, v)| v.is_object())?.0))) {
            return Err(rope.fault("config::nested-rope", name, "one rotary embedding for all layers is supported"));
        }
        let theta = config.given("rope_theta", Fields::positive, default_theta)?;
        Rope::of(config, (at, rope), sizes, (theta, partial))
    }

    /// Reads an embedding that is stretched by yarn if the configuration does not describe one.
    pub(crate) fn stretched(
        config: &Fields,
        sizes: (usize, usize),
        default: (f64, f64),
        stretch: Stretch,
    ) -> Result<Rope, Diagnostic> {
        if config.get("rope_parameters").is_some() || config.get("rope_scaling").is_some() {
            return Rope::read(config, sizes, default);
        }
        let plain = Rope::read(config, sizes, default)?;
        let Stretch { factor, original, truncate, scaled } = stretch;
        let scaling = Scaling::Yarn { factor, beta_fast: 32.0, beta_slow: 1.0, original, truncate };
        let scale = if scaled { 0.1 * factor.ln() + 1.0 } else { 1.0 };
        Ok(Rope { freqs: Freqs { scaling, ..plain.freqs }, scale, short: None })
    }

    /// Reads an embedding whose base a dynamic scaling with `alpha` makes larger for every
    /// sequence.
    pub(crate) fn grown(config: &Fields, sizes: (usize, usize), theta: f64) -> Result<Rope, Diagnostic> {
        let (_, rope) = Rope::described(config)?;
        let named = |name| rope.as_ref().map_or(Ok(None), |rope| rope.text(name));
        let is_dynamic = named("rope_type")?.or(named("type")?) == Some("dynamic");
        let alpha = rope.as_ref().map_or(Ok(None), |rope| rope.positive_or_none("alpha"))?;
        let (Some(rope), Some(alpha), true) = (&rope, alpha, is_dynamic) else {
            return Rope::read(config, sizes, (theta, 1.0));
        };
        let theta = config.given("rope_theta", Fields::positive, theta)?;
        let theta = rope.given("rope_theta", Fields::positive, theta)?;
        let dim = rotary_dim(config, rope, (sizes.0, 1.0))?;
        let theta = theta * alpha.powf(dim as f64 / (dim as f64 - 2.0));
        let made = Rope { freqs: Freqs { theta, dim, scaling: Scaling::Default }, scale: 1.0, short: None };
        made.check(config, rope)?;
        Ok(made)
    }

    /// The embeddings of layers without a window, and of layers with one: an object for each in
    /// `rope_parameters` (transformers 5), or `rope_theta` and `rope_scaling` for the former and
    /// `rope_local_base_freq` for the latter (transformers 4).
    pub(crate) fn read_two(
        config: &Fields,
        (dims, positions): ([usize; 2], usize),
        (theta, local_theta): (f64, f64),
        partial: f64,
    ) -> Result<[Rope; 2], Diagnostic> {
        let both = config.object("rope_parameters")?;
        if let Some((rope, name)) = both.iter().find_map(|r| Some((r, r.entries().find(|(_, v)| !v.is_object())?.0))) {
            let message = "must be an object: each type of layer has a rotary embedding of its own";
            return Err(rope.fault("config::nested-rope", name, message));
        }
        let of = |name| both.as_ref().map_or(Ok(None), |both| both.object(name));
        let old = config.object("rope_scaling")?.filter(|o| o.entries().next().is_some());
        let full = if old.is_some() { ("rope_scaling", old) } else { ("full_attention", of("full_attention")?) };
        let theta = config.given("rope_theta", Fields::positive, theta)?;
        let local = config.given("rope_local_base_freq", Fields::positive, local_theta)?;
        let sliding = ("sliding_attention", of("sliding_attention")?);
        let [full_sizes, sliding_sizes] = dims.map(|dim| (dim, positions));
        let full = Rope::of(config, full, full_sizes, (theta, partial))?;
        Ok([full, Rope::of(config, sliding, sliding_sizes, (local, partial))?])
    }

    /// An embedding over all elements of a head of which a part turns, without a description.
    pub(crate) fn proportional(dim: usize, theta: f64, part: f64) -> Rope {
        let scaling = Scaling::Proportional { factor: 1.0, turned: (part * dim as f64 / 2.0) as usize };
        Rope { freqs: Freqs { theta, dim, scaling }, scale: 1.0, short: None }
    }

    /// Reads the embedding of layers without a window and of those with one, with these bases and
    /// parts where `rope_parameters` does not describe them by type. `rope_scaling` is of the
    /// first.
    pub(crate) fn read_by_type(
        config: &Fields,
        sizes: (usize, usize),
        thetas: [f64; 2],
        parts: [f64; 2],
    ) -> Result<[Rope; 2], Diagnostic> {
        let both = config.object("rope_parameters")?;
        let of = |name| both.as_ref().map_or(Ok(None), |both| both.object(name));
        let (full, sliding) = (of("full_attention")?, of("sliding_attention")?);
        let full = match full {
            None => ("rope_scaling", config.object("rope_scaling")?),
            full => ("full_attention", full),
        };
        let of = |rope, at: usize| Rope::of(config, rope, sizes, (thetas[at], parts[at]));
        Ok([of(full, 0)?, of(("sliding_attention", sliding), 1)?])
    }

    /// Reads the embedding of layers with a window alone and of those that pool blocks, with these
    /// fields of their bases. `rope_scaling`, or `compress` of `rope_parameters`, describes the
    /// second. Its cosines and sines have no factor unless it is given.
    pub(crate) fn read_pooled(
        config: &Fields,
        (head_dim, turned, positions): (usize, usize, usize),
        thetas: [(&'static str, f64); 2],
    ) -> Result<[Rope; 2], Diagnostic> {
        let both = config.object("rope_parameters")?;
        let of = |name| both.as_ref().map_or(Ok(None), |both| both.object(name));
        let described = match of("compress")? {
            None => Rope::described(config)?,
            found => ("compress", found),
        };
        let described = [("main", of("main")?), described];
        let mut ropes = Vec::with_capacity(2);
        for ((at, own), (name, usual)) in described.into_iter().zip(thetas) {
            let is_nested = matches!(at, "main" | "compress") && own.is_some();
            let theta = config.given(name, Fields::positive, usual)?;
            let has_part = own.as_ref().unwrap_or(config).has("partial_rotary_factor");
            let width = if has_part || config.has("partial_rotary_factor") { head_dim } else { turned };
            let is_scaled =
                own.as_ref().is_some_and(|own| own.positive_or_none("attention_factor").is_ok_and(|f| f.is_some()));
            let mut rope = Rope::of(config, (at, own), (width, positions), (theta, 1.0))?;
            if !is_nested {
                rope.freqs.theta = theta;
            }
            if !is_scaled {
                rope.scale = 1.0;
            }
            if rope.freqs.dim != turned {
                let message = format!("turns {} elements of a head, qk_rope_head_dim is {turned}", rope.freqs.dim);
                return Err(config.fault("config::rotary-dim", "partial_rotary_factor", message));
            }
            ropes.push(rope);
        }
        config.note("rope_parameters", ropes.iter().map(Rope::echo).collect::<Vec<_>>());
        let [main, pooled] = ropes.try_into().expect("two were read");
        Ok([main, pooled])
    }

    fn of(
        config: &Fields,
        (at, rope): (&str, Option<Fields>),
        (head_dim, positions): (usize, usize),
        (theta, partial): (f64, f64),
    ) -> Result<Rope, Diagnostic> {
        let own = rope.as_ref().unwrap_or(config);
        let theta = rope.as_ref().map_or(Ok(theta), |rope| rope.given("rope_theta", Fields::positive, theta))?;
        let dim = rotary_dim(config, own, (head_dim, partial))?;
        let plain = Rope { freqs: Freqs { theta, dim, scaling: Scaling::Default }, scale: 1.0, short: None };
        let rope = match rope {
            Some(_) => plain.scaled(config, own, at, (head_dim, positions))?,
            None => plain,
        };
        rope.check(config, own)?;
        Ok(rope)
    }

    /// Kernels compute with f32: that numbers which are finite alone are so together.
    fn check(&self, config: &Fields, own: &Fields) -> Result<(), Diagnostic> {
        let finite = |n: f64| (n as f32).is_finite();
        let theta = if own.get("rope_theta").is_some() { own } else { config };
        let (name, holder) = match self.freqs.scaling {
            Scaling::Default => ("rope_theta", theta),
            Scaling::Long { .. } => ("long_factor", own),
            _ => ("factor", own),
        };
        let all = [self.freqs(0), self.freqs.clone()];
        if !all.iter().flat_map(Freqs::inverse).all(finite) || !finite(self.growth().0) {
            return Err(holder.fault("config::value", name, "makes rotary frequencies that are not finite in f32"));
        }
        if finite(self.scale) {
            return Ok(());
        }
        let name = match self.freqs.scaling {
            _ if own.get("attention_factor").is_some() => "attention_factor",
            Scaling::Long { .. } => "original_max_position_embeddings",
            _ => "mscale",
        };
        let message = format!("multiplies cosines and sines with {:e}, which is not finite in f32", self.scale);
        Err(own.fault("config::value", name, message))
    }
}

fn rotary_dim(config: &Fields, own: &Fields, (head_dim, partial): (usize, f64)) -> Result<usize, Diagnostic> {
    let name = "partial_rotary_factor";
    let holder = if own.get(name).is_some() { own } else { config };
    let factor = holder.given(name, Fields::positive, partial)?;
    let dim = (head_dim as f64 * factor) as usize;
    if factor > 1.0 || dim == 0 || !dim.is_multiple_of(2) {
        let (name, holder) = if factor == 1.0 { ("head_dim", config) } else { (name, holder) };
        let message = format!("{dim} of the {head_dim} elements of a head rotate: must be even, above 0 and no more");
        return Err(holder.fault("config::rotary-dim", name, message));
    }
    Ok(dim)
}

impl Rope {
    /// The frequencies with the scaling of their type.
    fn scaled(
        self,
        config: &Fields,
        rope: &Fields,
        at: &str,
        (head_dim, positions): (usize, usize),
    ) -> Result<Rope, Diagnostic> {
        let needed = |name: &'static str| rope.positive(name)?.ok_or_else(|| rope.missing(name));
        // A value at the top level, as Phi-3 has it, goes first.
        let original = || {
            let name = "original_max_position_embeddings";
            Ok(config.size(name)?.or(rope.size(name)?).unwrap_or(positions))
        };
        let name = if rope.get("rope_type").is_some() { "rope_type" } else { "type" };
        let (scaling, scale) = match rope.text(name)?.unwrap_or("default") {
            "default" => return Ok(self),
            // Phi-3's first name of it.
            "yarn" if rope.has("short_factor") => return self.long(rope, original()?, positions),
            "longrope" | "su" => return self.long(rope, original()?, positions),
            "linear" => (Scaling::Linear { factor: needed("factor")? }, 1.0),
            "dynamic" => (Scaling::Dynamic { factor: needed("factor")?, original: positions }, 1.0),
            "llama3" => {
                let (low, high) = (needed("low_freq_factor")?, needed("high_freq_factor")?);
                if high <= low {
                    let message = format!("{high} must be above low_freq_factor, {low}");
                    return Err(rope.fault("config::value", "high_freq_factor", message));
                }
                (Scaling::Llama3 { factor: needed("factor")?, low, high, original: original()? }, 1.0)
            }
            // The part that turns is of all elements, which keep their pairs.
            "proportional" => {
                let turned = self.freqs.dim / 2;
                let scaling = Scaling::Proportional { factor: rope.positive("factor")?.unwrap_or(1.0), turned };
                return Ok(Rope { freqs: Freqs { dim: head_dim, scaling, ..self.freqs }, ..self });
            }
            "yarn" => yarn(rope, self.freqs.theta, original()?, positions)?,
            other => {
                return Err(rope
                    .fault("config::unknown-rope-type", name, format!("unknown rope type {other:?} in `{at}`"))
                    .help(format!("Known rope types: {}.", Scaling::NAMES.join(", "))));
            }
        };
        Ok(Rope { freqs: Freqs { scaling, ..self.freqs }, scale, ..self })
    }

    /// Factors for long sequences, and for short ones of `original` tokens at most.
    fn long(self, rope: &Fields, original: usize, positions: usize) -> Result<Rope, Diagnostic> {
        let half = self.freqs.dim / 2;
        let factors = |name: &'static str| {
            let factors = rope.positives(name)?.ok_or_else(|| rope.missing(name))?;
            let message = || format!("lists {} factors of {half} frequencies", factors.len());
            if factors.len() == half { Ok(factors) } else { Err(rope.fault("config::value", name, message())) }
        };
        let grown = rope.positive("factor")?.unwrap_or(positions as f64 / original as f64);
        let scale = match rope.positive("attention_factor")? {
            Some(given) => given,
            None if grown <= 1.0 => 1.0,
            None => (1.0 + grown.ln() / (original as f64).ln()).sqrt(),
        };
        let short = Some(Short { factors: factors("short_factor")?, positions: original });
        let scaling = Scaling::Long { factors: factors("long_factor")? };
        Ok(Rope { freqs: Freqs { scaling, ..self.freqs }, scale, short })
    }
}

fn yarn(rope: &Fields, theta: f64, original: usize, positions: usize) -> Result<(Scaling, f64), Diagnostic> {
    if theta <= 1.0 {
        return Err(rope.fault("config::value", "rope_theta", format!("must be above 1 for yarn, not {theta}")));
    }
    let factor = rope.positive("factor")?.unwrap_or(positions as f64 / original as f64);
    let mscale = |m: f64| if factor <= 1.0 { 1.0 } else { 0.1 * m * factor.ln() + 1.0 };
    let scale = match rope.positive("attention_factor")? {
        Some(given) => given,
        None => match (rope.positive_or_none("mscale")?, rope.positive_or_none("mscale_all_dim")?) {
            (Some(above), Some(below)) => mscale(above) / mscale(below),
            _ => mscale(1.0),
        },
    };
    let beta_fast = rope.positive_or_none("beta_fast")?.unwrap_or(32.0);
    let beta_slow = rope.positive_or_none("beta_slow")?.unwrap_or(1.0);
    let truncate = rope.flag("truncate")?.unwrap_or(true);
    Ok((Scaling::Yarn { factor, beta_fast, beta_slow, original, truncate }, scale))
}
