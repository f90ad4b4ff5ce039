//! What a `config.json` means: one typed value, with every default as transformers has it.
use atomc_dtype::nth_name;
use serde_json::{Map, Value, json};

use crate::attention::{self, Attention};
use crate::conv;
use crate::delta;
use crate::draft::Mtp;
use crate::experts::{self, Experts, StoredExperts};
use crate::family::{self, Family};
use crate::fields::{self, Facts, Fields};
use crate::growth::{self, Growth};
use crate::halves::{self, Only};
use crate::kind::{Half, Kind};
use crate::latent;
use crate::mlp;
use crate::others::{self, OtherPart};
use crate::own_rows::{self, OwnRow, OwnRows};
use crate::pooled::{self, Pooled};
use crate::quantised::{Around, CacheScales, Quantisation, Scheme, Stored};
use crate::scales::{self, Scales};
use crate::ssm;
use crate::streams::{self, Streams};
use crate::vision::Seeing;
use crate::{DType, Diagnostic, Rope};

/// Largest weight that a configuration may ask for. Real ones are a few GiB; beyond this, a number
/// is wrong.
const MAX_WEIGHT_BYTES: usize = 64 << 30;
const MAX_LAYERS: usize = 4096;

/// Types by their names in a configuration.
pub const DTYPES: [(&str, DType); 3] = [("bfloat16", DType::BF16), ("float16", DType::F16), ("float32", DType::F32)];

/// What the field of the type is called, and was.
const DTYPE_FIELDS: [&str; 2] = ["dtype", "torch_dtype"];

/// The field that says whether the head is the embedding.
const TIED: &str = "tie_word_embeddings";

/// Room for LoRA adapters in an artifact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adapters {
    /// How many there may be at once.
    pub slots: usize,
    /// The largest rank of one.
    pub rank: usize,
}

/// A decoder, completely described: embeddings, layers, a norm and a head.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub architecture: &'static str,
    /// What names of all tensors but the head's begin with.
    pub path: &'static str,
    /// The number that the first layer has in names of tensors.
    pub first: usize,
    /// Parts of published checkpoints that do not run.
    pub others: Vec<OtherPart>,
    /// Beginnings of names in checkpoints of some writers, and those in their place.
    pub spellings: &'static [(&'static str, &'static str)],
    pub dtype: DType,
    /// The type of the KV cache's elements, if not that of everything else.
    pub cache: Option<DType>,
    /// Room for adapters that a user asked for.
    pub adapters: Option<Adapters>,
    /// How the checkpoint is quantised, if it is.
    pub quantised: Option<Quantisation>,
    /// The scheme that a user asked for, if weights are quantised while they are loaded.
    pub made: Option<Value>,
    /// Ends of the names of products whose weights stay floats unless a user names them.
    pub floats: &'static [&'static str],
    pub vocab: usize,
    pub hidden: usize,
    pub layers: Vec<Layer>,
    /// Rotary embeddings that layers name.
    pub ropes: Vec<Rope>,
    /// Longest sequence that the model was made for.
    pub positions: usize,
    /// Longest sequence that is wanted.
    pub context: usize,
    /// How queries grow with their position, if they do.
    pub growth: Option<Growth>,
    /// What longer sequences would need that is not computed.
    pub bound: Option<Bound>,
    pub scales: Scales,
    /// The embeddings that layers have of their own, if they have some.
    pub own_rows: Option<OwnRows>,
    /// The streams in place of one row that all halves add to, if there are some.
    pub streams: Option<Streams>,
    /// After how many layers the rows that go through are kept, and begin anew, if they do: then
    /// halves see mixtures of what was kept and of what goes through.
    pub kept_every: Option<usize>,
    /// What weights of norms are kept as differences from.
    pub norm_offset: f64,
    /// Whether norms subtract the mean of a row.
    pub centred: bool,
    pub eps: f64,
    pub tied: bool,
    pub stop: Vec<u32>,
    pub bos: Option<u32>,
    /// The layers of its checkpoint that draft, if there are some.
    pub mtp: Option<Mtp>,
    /// What its configuration says of a tower for images, if it has one.
    pub seeing: Option<Seeing>,
    /// What the fields were found to mean.
    pub facts: Facts,
}

/// A length of sequences up to which the model is what its configuration means.
#[derive(Clone, Debug, PartialEq)]
pub struct Bound {
    pub tokens: usize,
    /// The field that says so.
    pub field: &'static str,
    /// What begins behind it.
    pub what: &'static str,
}

impl Bound {
    /// For layers that attend within chunks of a sequence: the first chunk is all that its tokens
    /// would see anyway.
    fn of_chunks(f: &Fields, chunked: Option<usize>) -> Result<Option<Bound>, Diagnostic> {
        let Some(default) = chunked else { return Ok(None) };
        let field = "attention_chunk_size";
        let tokens = if f.has(field) { f.size(field)? } else { Some(default) };
        f.note(field, tokens);
        Ok(tokens.map(|tokens| Bound { tokens, field, what: "layers attend within chunks" }))
    }
}

/// A layer: halves, each of which adds to the rows that go through.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    pub halves: Vec<Half>,
    /// The tensor of the number that what leaves the layer is multiplied with, if it has one.
    pub scalar: Option<&'static str>,
}

impl Layer {
    /// Its first half of a kind, if it has one.
    pub fn half<'a, T>(&'a self) -> Option<&'a T>
    where
        &'a T: TryFrom<&'a Kind>,
    {
        self.halves.iter().find_map(|half| <&T>::try_from(&half.kind).ok())
    }
}

impl Config {
    /// How a module's weight is quantised, if it is.
    pub fn scheme(&self, module: &str) -> Option<&Scheme> {
        self.quantised.as_ref()?.scheme(&self.spelled(module))
    }

    /// Whether a rule names this module, and not all products of layers.
    pub fn names(&self, module: &str) -> bool {
        self.quantised.as_ref().is_some_and(|rules| rules.names(&self.spelled(module)))
    }

    /// The tensor of the embedding.
    pub fn embedding(&self) -> String {
        format!("{}.embed_tokens.weight", self.path)
    }

    /// What names of tensors of a layer begin with.
    pub fn layer_path(&self, index: usize) -> String {
        format!("{}.layers.{}", self.path, self.first + index)
    }

    /// The names that a module may have in a `quantization_config` or a rule, its own first.
    pub fn spelled(&self, module: &str) -> Vec<String> {
        let others = self.spellings.iter().filter_map(|(from, to)| {
            let rest = format!("{module}.").strip_prefix(to)?.to_owned();
            Some(format!("{from}{rest}").trim_end_matches('.').to_owned())
        });
        std::iter::once(module.to_owned()).chain(others).collect()
    }

    /// Whether any layer has experts.
    pub fn has_experts(&self) -> bool {
        self.layers.iter().any(|layer| layer.half::<Experts>().is_some())
    }

    /// Whether any layer chooses the blocks of keys that tokens attend to.
    pub fn chooses_blocks(&self) -> bool {
        self.layers.iter().any(|layer| layer.half::<Attention>().is_some_and(|attention| attention.blocks.is_some()))
    }

    /// Whether any layer attends to rows that blocks of tokens are pooled to.
    pub fn pools_blocks(&self) -> bool {
        self.layers.iter().any(|layer| layer.half::<Pooled>().is_some_and(|pooled| pooled.blocks.is_some()))
    }

    /// Where the scales of the cache are, if it has some.
    pub fn cache_scales(&self) -> Option<CacheScales> {
        self.quantised.as_ref()?.cache.filter(|_| self.cache_dtype() == DType::F8E4M3)
    }

    pub fn cache_dtype(&self) -> DType {
        self.cache.unwrap_or(self.dtype)
    }

    /// Longest sequence that the rotary embeddings make something of.
    pub fn reach(&self) -> usize {
        self.ropes.iter().map(|rope| rope.reach(self.positions)).min().unwrap_or(self.positions)
    }

    /// Checks that no sequence is longer than what is computed.
    pub fn check_context(&self) -> Result<(), Diagnostic> {
        match &self.bound {
            Some(Bound { tokens, field, what }) if self.context > *tokens => {
                let message =
                    format!("sequences of {} tokens: after {tokens} {what}, which is not supported", self.context);
                Err(Diagnostic::new("config::context", message)
                    .at(format!("config.json: {field}"))
                    .help(format!("--context {tokens} has the model without them.")))
            }
            _ => Ok(()),
        }
    }

    /// Keeps only the first `layers` layers, to measure: layers share their kernels.
    pub fn shorten(&mut self, layers: usize) {
        self.layers.truncate(layers);
        self.facts.set("num_hidden_layers", self.layers.len());
    }

    /// Reads the text of a `config.json` and of the `generation_config.json` in the same folder.
    pub fn parse(text: &str, generation: Option<&str>) -> Result<Config, Diagnostic> {
        let map = fields::parse("config.json", text)?;
        Config::read(&Fields::new("config.json", &map), generation)
    }

    pub(crate) fn read(all: &Fields, generation: Option<&str>) -> Result<Config, Diagnostic> {
        let family = family::of(all)?;
        let own = family.text_config.map(|name| all.object(name)?.ok_or_else(|| all.missing(name))).transpose()?;
        let f = &own.as_ref().unwrap_or(all).named(family.fields);
        let dtype = dtype(if DTYPE_FIELDS.iter().any(|name| all.has(name)) { all } else { f })?;
        Config::of(&family.of_text(f)?, [all, f], dtype, generation)
    }

    /// A model of a family and a type, from all fields and those of its language part.
    pub(crate) fn of(
        family: &Family,
        [all, f]: [&Fields; 2],
        dtype: DType,
        generation: Option<&str>,
    ) -> Result<Config, Diagnostic> {
        for name in family.refused {
            if f.get(name).is_some_and(|value| *value != json!(false)) {
                return Err(f.fault("config::unsupported", name, "is not supported: it must be null or false"));
            }
        }
        for (name, known) in family.named {
            if let Some(other) = f.text(name)?.filter(|other| !known.contains(other)) {
                let message = format!("{other:?} is not supported: it must be null or {}", known.join(", "));
                return Err(f.fault("config::unsupported", name, message));
            }
        }
        for name in family.required {
            if f.get(name).is_some_and(|value| *value != json!(true)) {
                return Err(f.fault("config::unsupported", name, "is not supported: it must be null or true"));
            }
        }
        let only = family.only.then(|| halves::read(f)).transpose()?;
        let count = match &only {
            Some(only) => only.len(),
            None => f.needed("num_hidden_layers", Fields::size)?,
        };
        let count = f.at_most("num_hidden_layers", count, MAX_LAYERS)?;
        let vocab = f.or_needed("vocab_size", Fields::size, family.vocab)?;
        let hidden = f.needed("hidden_size", Fields::size)?;
        let positions = f.or("max_position_embeddings", Fields::size, family.positions)?;
        let (mixers, attending, ropes) = mixers(f, family, (hidden, count, positions), only.as_deref())?;
        let feed_forward = feed_forward(f, family, count, only.as_deref())?;
        let bound = Bound::of_chunks(f, family.chunked)?;
        let usual = ropes.iter().map(|rope| rope.usual(positions)).min().unwrap_or(positions);
        let factors = scales::of_halves(f, family.scales)?;
        let half = |kind: Kind, norms, beside| Half { factors: factors.of(&kind), kind, norms, beside };
        let own_rows = if family.own_rows { own_rows::read(f, count, vocab)? } else { None };
        let own = own_rows
            .map(|OwnRows { width, .. }| Ok((width, mlp::activation(f, family.mlp.activation)?)))
            .transpose()?;
        let layer = |(mixers, feed_forward): (Vec<Kind>, Kind)| {
            let [before, after] = family.norms;
            // Experts whose parts see rows of their own have norms of their own.
            let is_apart = matches!(&feed_forward, Kind::Experts(experts) if experts.apart.is_some());
            let after = if is_apart { (None, after.1) } else { after };
            let mixers = mixers.into_iter().enumerate().map(|(number, mixer)| half(mixer, before, number > 0));
            let own = own.map(|(width, activation)| OwnRow { width, activation }.into());
            let own = own.map(|kind| half(kind, (None, Some("post_per_layer_input_norm")), false));
            let halves = mixers.chain([half(feed_forward, after, family.parallel)]).chain(own);
            Layer { halves: halves.collect(), scalar: family.scalar }
        };
        let of_layer = |(index, (mut mixers, feed_forward)): (usize, (Vec<Kind>, Kind))| match &only {
            None => layer((mixers, feed_forward)),
            Some(only) => {
                let kind = if only[index].is_mixer() { mixers.remove(0) } else { feed_forward };
                Layer { halves: vec![half(kind, family.norms[0], false)], scalar: None }
            }
        };
        // One that drafts attends, and has experts where any other has.
        let mixed = feed_forward.iter().find(|half| matches!(half, Kind::Experts(_))).or(feed_forward.last());
        let drafting = mixed.map(|half| layer((vec![attending], half.clone())));
        let model = outer(all, f, "quantization_config");
        let quantised = Quantisation::read(&Around { model, dtype, release: family.fp8 })?;
        let config = Config {
            architecture: family.architecture,
            path: family.path,
            first: 0,
            others: others::read(f, family.others, family.path, count)?,
            spellings: family.spellings,
            dtype,
            cache: quantised.as_ref().and_then(|q| q.cache).map(|_| DType::F8E4M3),
            quantised,
            adapters: None,
            made: None,
            floats: family.fp8.floats,
            vocab,
            hidden,
            layers: mixers.into_iter().zip(feed_forward).enumerate().map(of_layer).collect(),
            positions,
            context: bound.as_ref().map_or(usual, |bound| usual.min(bound.tokens)),
            bound,
            growth: growth::read(f, family.growth, positions)?,
            ropes,
            norm_offset: family.norm_offset,
            centred: family.centred,
            scales: scales::read(f, family.scales, hidden)?,
            own_rows,
            streams: family.streams.then(|| streams::read(f)).transpose()?,
            kept_every: streams::kept_every(f, family.kept_every)?,
            eps: f.or(family.eps_field, Fields::not_negative, family.eps)?,
            tied: tied([outer(all, f, TIED), f], family)?,
            stop: stop(outer(f, all, "eos_token_id"), family, generation)?,
            bos: bos(outer(f, all, "bos_token_id"), family)?,
            mtp: drafting.map_or(Ok(None), |layer| Mtp::read(f, family.mtp, count, layer))?,
            seeing: Seeing::of(family.vision, [all, f])?,
            facts: f.facts(),
        };
        config.check_weights(f)?;
        config.check_experts(f)?;
        Ok(config)
    }

    /// Whether a module's weight is stored as blocks of all experts.
    fn is_blocks(&self, module: &str) -> bool {
        self.scheme(module).is_some_and(|scheme| scheme.stored == Stored::Blocks)
    }

    /// The layers with experts, and what a module below each is called.
    fn experts(&self) -> impl Iterator<Item = (&Experts, impl Fn(&str) -> String)> {
        self.layers.iter().enumerate().filter_map(move |(index, layer)| {
            let experts = layer.half::<Experts>()?;
            Some((experts, move |module: &str| format!("{}.{module}", self.layer_path(index))))
        })
    }

    /// Two experts of a layer that are quantised in different forms, if there are some.
    pub(crate) fn uneven_experts(&self) -> Option<[String; 2]> {
        self.experts().find_map(|(experts, path)| {
            let StoredExperts::Each { gate, up, down, .. } = experts.stored else { return None };
            [gate, up, down].map(path).iter().find_map(|module| {
                let of = |number: usize| self.scheme(&nth_name(module, number));
                let other = (1..experts.count).find(|&number| of(number) != of(0))?;
                Some([0, other].map(|number| nth_name(module, number)))
            })
        })
    }

    /// Checks that the experts of a layer are quantised alike, and in a form that suits their
    /// tensors.
    fn check_experts(&self, f: &Fields) -> Result<(), Diagnostic> {
        let fault = |message: String| Err(f.fault("config::quantised", "quantization_config", message));
        if let Some([one, other]) = self.uneven_experts() {
            return fault(format!("{one} and {other} are quantised in different forms"));
        }
        for (experts, path) in self.experts() {
            match experts.stored {
                StoredExperts::Together { path: module, .. } => {
                    let module = path(module);
                    if self.scheme(&module).is_some() && !self.is_blocks(&module) {
                        return fault(format!("{module} in this form are not supported"));
                    }
                    if self.is_blocks(&module) && [self.hidden, experts.width].iter().any(|n| !n.is_multiple_of(32)) {
                        let message = "has rows that are no multiple of 32, which share a scale";
                        return Err(f.fault("config::quantised", "hidden_size", message));
                    }
                }
                StoredExperts::Each { gate, up, down, .. } | StoredExperts::Apart { gate, up, down } => {
                    if [gate, up, down].iter().any(|module| self.is_blocks(&nth_name(&path(module), 0))) {
                        return fault("mxfp4 is a form of GptOssForCausalLM alone".into());
                    }
                }
            }
        }
        Ok(())
    }

    /// Has weights quantised while they are loaded, by rules as the command line has them.
    pub fn quantise(&mut self, rules: &[String]) -> Result<(), Diagnostic> {
        if self.quantised.as_ref().is_some_and(|quantised| !quantised.is_of_file()) {
            let message = "--quant: the checkpoint is quantised already (quantization_config)";
            return Err(Diagnostic::new("config::quant", message));
        }
        let made = Quantisation::made(rules, self.dtype, self.floats)?;
        self.made = Some(made.echo());
        self.quantised = Some(made);
        if let Some([one, other]) = self.uneven_experts() {
            let message = format!("--quant: {one} and {other} would be quantised in different forms");
            return Err(Diagnostic::new("config::quant", message));
        }
        Ok(())
    }

    fn check_weights(&self, f: &Fields) -> Result<(), Diagnostic> {
        let mut all = vec![("vocab_size", self.vocab)];
        for half in self.layers.iter().flat_map(|layer| &layer.halves) {
            let rows = half.kind.rows();
            if !all.contains(&rows) {
                all.push(rows);
            }
        }
        for (name, rows) in all {
            let bytes = rows.saturating_mul(self.hidden).saturating_mul(self.dtype.size());
            if bytes > MAX_WEIGHT_BYTES {
                let message = format!("makes a weight of {rows} by {} elements, {} GiB", self.hidden, bytes >> 30);
                let help = format!("A weight may have {} GiB at most.", MAX_WEIGHT_BYTES >> 30);
                return Err(f.fault("config::too-large", name, message).help(help));
            }
        }
        Ok(())
    }

    /// Every fact, for the artifact's record of the facts that shaped it;
    /// [`differences`](crate::differences) compares them.
    pub fn echo(&self) -> Value {
        let mut echo: Map<_, _> = self.facts.iter().map(|(name, fact)| (name.to_owned(), fact.clone())).collect();
        // Users may choose these in place of the fields' values.
        echo.insert("dtype".into(), json!(self.dtype.name()));
        echo.insert("cache_dtype".into(), json!(self.cache_dtype().name()));
        echo.insert("context".into(), json!(self.context));
        if let Some(made) = &self.made {
            echo.insert("quant".into(), made.clone());
        }
        Value::Object(echo)
    }
}

/// The mixers of each layer, that of a layer after the last one, which always attends, and the
/// rotary embeddings.
type Mixers = (Vec<Vec<Kind>>, Kind, Vec<Rope>);

/// What mixes the tokens of a sequence, layer by layer.
pub(crate) fn mixers(
    f: &Fields,
    family: &Family,
    (hidden, layers, positions): (usize, usize, usize),
    only: Option<&[Only]>,
) -> Result<Mixers, Diagnostic> {
    let (attending, ropes): (Vec<Kind>, _) = match &family.latent {
        _ if family.pooled => {
            let (pooled, ropes) = pooled::read(f, (layers, positions))?;
            (pooled.into_iter().map(Kind::Pooled).collect(), ropes)
        }
        Some(traits) => {
            let eps = f.or(family.eps_field, Fields::not_negative, family.eps)?;
            let (latent, ropes) = latent::read(f, traits, (layers, positions, eps))?;
            (latent.into_iter().map(Kind::Latent).collect(), ropes)
        }
        None => {
            let (attention, ropes) = attention::read(f, &family.attention, (hidden, layers, positions))?;
            (attention.into_iter().map(Kind::Attention).collect(), ropes)
        }
    };
    let delta = match family.delta {
        Some(stored) => delta::read(f, stored, layers)?,
        None => vec![None; layers],
    };
    // There is a layer at least.
    let behind = attending[layers - 1].clone();
    let conv = match family.conv {
        true => conv::read(f, hidden, layers)?,
        false => vec![None; layers],
    };
    let ssm = match family.ssm {
        Some(traits) => {
            let is = match only {
                Some(only) => only.iter().map(|only| *only == Only::StateSpace).collect(),
                None if traits.beside.is_some() => vec![true; layers],
                None => ssm::listed(f, layers)?,
            };
            ssm::read(f, &traits, hidden, is)?
        }
        None => vec![None; layers],
    };
    let recurrent = delta
        .into_iter()
        .zip(conv)
        .zip(ssm)
        .map(|((delta, conv), ssm)| delta.map(Kind::Delta).or(conv.map(Kind::ShortConv)).or(ssm.map(Kind::Ssm)));
    let both = family.ssm.is_some_and(|traits| traits.beside.is_some());
    let mixers = recurrent.zip(attending).map(|(recurrent, attending)| match recurrent {
        Some(recurrent) if both => vec![recurrent, attending],
        recurrent => vec![recurrent.unwrap_or(attending)],
    });
    Ok((mixers.collect(), behind, ropes))
}

/// What each layer does with each token alone.
fn feed_forward(f: &Fields, family: &Family, layers: usize, only: Option<&[Only]>) -> Result<Vec<Kind>, Diagnostic> {
    let mut experts = match &family.experts {
        Some(traits) if only.is_none_or(|only| only.contains(&Only::Experts)) => {
            experts::read(f, traits, &family.mlp, layers)?
        }
        _ => vec![None; layers],
    };
    if let Some(only) = only {
        experts.iter_mut().zip(only).filter(|(_, only)| **only != Only::Experts).for_each(|(of, _)| *of = None);
    }
    if experts.iter().all(Option::is_some) {
        return Ok(experts.into_iter().flatten().map(Kind::Experts).collect());
    }
    let dense = mlp::read(f, &family.mlp, layers)?;
    let of = |(experts, dense): (Option<Experts>, _)| experts.map_or(Kind::Gated(dense), Kind::Experts);
    Ok(experts.into_iter().zip(dense).map(of).collect())
}

/// The first, unless only the other has the field.
fn outer<'f, 'a>(first: &'f Fields<'a>, other: &'f Fields<'a>, name: &str) -> &'f Fields<'a> {
    if !first.has(name) && other.has(name) { other } else { first }
}

fn dtype(f: &Fields) -> Result<DType, Diagnostic> {
    let [new, old] = DTYPE_FIELDS;
    f.one_of(if f.get(new).is_some() { new } else { old }, "bfloat16", &DTYPES)
}

/// Whether the head is the embedding.
fn tied([f, language]: [&Fields; 2], family: &Family) -> Result<bool, Diagnostic> {
    match family.tied_also.filter(|name| language.has(name)) {
        Some(name) => {
            let tied = language.given(name, Fields::flag, family.tied)?;
            language.note(TIED, tied);
            Ok(tied)
        }
        None => f.or(TIED, Fields::flag, family.tied),
    }
}

/// Tokens that end an answer, from both files.
fn stop(f: &Fields, family: &Family, generation: Option<&str>) -> Result<Vec<u32>, Diagnostic> {
    let name = "eos_token_id";
    let mut stop = if f.has(name) { f.tokens(name)? } else { family.eos.into_iter().collect() };
    if let Some(text) = generation {
        let map = fields::parse("generation_config.json", text)?;
        stop.extend(Fields::new("generation_config.json", &map).tokens(name)?);
    }
    stop.sort_unstable();
    stop.dedup();
    f.note(name, &stop[..]);
    Ok(stop)
}

/// The token that begins a prompt.
fn bos(f: &Fields, family: &Family) -> Result<Option<u32>, Diagnostic> {
    let name = "bos_token_id";
    let bos = if f.has(name) { f.tokens(name)?.first().copied() } else { family.bos };
    f.note(name, bos);
    Ok(bos)
}
