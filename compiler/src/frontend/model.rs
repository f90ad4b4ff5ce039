//! The graph of a decoder's step: embeddings, layers, a norm and a head.
//!
//! If ranks share the model out, each has a share of every layer. Its output projections give a
//! part of a sum, which the caller adds up over the ranks before biases and residuals. Each also
//! has some of the logits, if the head has a weight of its own that can be shared out.
use atomc_artifact::manifest;
use atomc_config::{Draft, Fusion, Growth, Half, Layer, OwnRows, Stored, Vision, of_kind};
use atomc_ir::results::{DRAFTED, EMBEDDINGS, HIDDEN, LOGITS, PICKS, WHOLE_LOGITS};
use atomc_ir::trial::round;
use atomc_ir::{Builder, DType, Diagnostic, Dim, Elementwise, Graph, Number, Op, Shape, SlotsType, Turn, Type, Value};

use super::layer::{Carried, Given, Kind, LayerBuilder, Made, OfLayers, Tokens, Unit, norm};
use super::product::{ADAPTERS, Factor};
use super::tower::{ENDS, GIVEN, HEIGHTS, SOURCES, TIMES, WIDTHS};
use super::{Asked, Config, Part, draft, streams};

/// The module of the head, and its tensor.
const HEAD_MODULE: &str = "lm_head";
pub const HEAD: &str = "lm_head.weight";

/// The tensor of the embedding.
pub fn embedding(config: &Config) -> String {
    config.embedding()
}

/// The module of the norm after all layers.
fn last_norm(config: &Config) -> String {
    format!("{}.norm", config.path)
}

/// One step over T tokens, with logits for R of them.
///
/// Inputs: `ids`, `positions`, `lengths`, `rows`, `batch`, then the states of each layer, `kv0`, or
/// `conv1` and `delta1`, …, unless the caller attends. Results: `logits`, then the cache states,
/// called as the inputs are, then `whole_logits` where a rank has a part of the vocabulary, then
/// `picks`, then `hidden` ([`atomc_ir::results`]), then the input of each layer in `hidden`, then
/// the rows that a draft goes on from.
pub fn graph(config: &Config, part: Part, asked: Asked) -> Result<Graph, Diagnostic> {
    check_hidden(config, asked.hidden)?;
    check_streams(config, &asked)?;
    let own = part.of(config)?;
    let mut b = Builder::new(config.architecture);
    let [ids, positions, lengths] = ["ids", "positions", "lengths"].map(|name| index(&mut b, name, Dim::Tokens));
    let rows = index(&mut b, "rows", Dim::Rows);
    let batch = b.input("batch", Type::Batch);
    if config.adapters.is_some() {
        index(&mut b, ADAPTERS, Dim::Choices(1));
    }
    let caches = caches(&mut b, &own, part.attention, (0, asked.verified.unwrap_or(1)));

    let name = embedding(config);
    let embedding = b.at(name.trim_end_matches(".weight")).weight(&name, config.dtype, &[config.vocab, config.hidden]);
    let picked = b.gather(embedding, ids)?;
    let embedded = match config.scales.embedded {
        true => b.scale(picked, round(config.scales.embedding, config.dtype))?,
        false => b.at(config.path).scale(picked, config.scales.embedding)?,
    };
    let seen = asked.tower.map(|vision| Seen::new(&mut b, config, vision)).transpose()?;
    let embedded = placed(&mut b, seen.as_ref(), embedded, 0)?;
    let mut x = streams::spread(&mut b, config.streams, embedded)?;
    let tokens = Tokens { ids, positions, lengths };
    let mut ropes = ropes(&mut b, config, (positions, lengths), seen.as_ref())?;
    let mut growth = growth(&mut b, config, positions)?;
    let mut own_rows = own_rows(&mut b, config, ids, embedded)?;

    let (mut states, mut entered) = (Vec::with_capacity(caches.len()), vec![x]);
    let mut carried = Carried { ends: seen.as_ref().and_then(|seen| seen.ends), ..Carried::default() };
    for (index, layer) in config.layers.iter().enumerate() {
        if let Some(stage) = part.begun(index, config.layers.len()) {
            b.at(config.layer_path(index));
            let live = [Some(&mut x), growth.as_mut(), carried.positions.as_mut(), carried.kept.as_mut()];
            let own = own_rows.iter_mut().flat_map(|own| [&mut own.of_ids, &mut own.of_rows]);
            for value in live.into_iter().flatten().chain(own).chain(&mut ropes) {
                *value = b.push(Op::HandOn { stage }, &[*value])?;
            }
        }
        let mut builder =
            LayerBuilder { b: &mut b, config, part, index, path: config.layer_path(index), carried: &mut carried };
        let given = Around { states: &caches[index], ropes: &ropes, growth, own_rows, batch, tokens };
        let (out, made) = through(&mut builder, layer, (x, None), given)?;
        states.extend(made);
        x = placed(b.at(config.layer_path(index)), seen.as_ref(), out, index + 1)?;
        entered.push(x);
    }

    x = match config.kept_every {
        Some(_) => streams::last_of_rows(&mut b, config, carried.kept, x)?,
        None => streams::gathered(&mut b, config, x)?,
    };
    let last = last_norm(config);
    let picked = b.at(&last).gather(x, rows)?;
    let normed = norm(&mut b, config, picked, &last, config.hidden)?;
    let logits = match config.tied {
        true => tied_head(&mut b, config, (normed, embedding), HEAD_MODULE)?,
        false => head(&mut b, config, part, normed, HEAD_MODULE)?,
    };
    let mut logits = b.scale(logits, config.scales.logits)?;
    if let Some(cap) = config.scales.cap {
        logits = b.map(Elementwise::SoftCap { limit: Number(cap) }, &[logits])?;
    }
    let mut results = vec![(LOGITS.to_string(), logits)];
    results.extend(states);
    results.extend(picked_tokens(&mut b, logits, config.vocab)?);
    results.push((HIDDEN.to_string(), x));
    let wanted = entered.iter().enumerate().filter(|(layer, _)| asked.hidden.contains(layer));
    results.extend(wanted.map(|(layer, &rows)| (format!("{HIDDEN}.{layer}"), rows)));
    if let Some(draft) = asked.draft {
        results.push((DRAFTED.to_string(), drafted(&mut b, config, draft, &entered)?));
    }
    if config.scales.embedded {
        results.push((EMBEDDINGS.to_string(), embedded));
    }
    b.finish(results)
}

/// Logits by the embedding: by its codes, if a file has them.
pub fn tied_head(b: &mut Builder, config: &Config, (rows, embedding): (Value, Value), module: &str) -> Made {
    let name = embedding_module(config);
    if !config.scheme(&name).is_some_and(|scheme| matches!(scheme.stored, Stored::Typed { .. })) {
        return b.at(module).linear(rows, embedding, DType::F32);
    }
    Factor::read(b, config, &name, [config.vocab, config.hidden])?.multiply(b, rows, DType::F32)
}

/// The module of the embedding.
fn embedding_module(config: &Config) -> String {
    embedding(config).trim_end_matches(".weight").to_owned()
}

/// The likeliest tokens: of logits over the whole vocabulary, which are gathered where a rank has a
/// part of it.
pub fn picked_tokens(b: &mut Builder, logits: Value, vocab: usize) -> Result<Vec<(String, Value)>, Diagnostic> {
    let width = b.ty(logits).as_tensor().and_then(|t| t.shape.last()).unwrap_or(vocab);
    if width == vocab {
        return Ok(vec![(PICKS.to_string(), b.argmax(logits)?)]);
    }
    let whole = b.push(Op::AllGather { ranks: vocab / width }, &[logits])?;
    Ok(vec![(WHOLE_LOGITS.to_string(), whole), (PICKS.to_string(), b.argmax(whole)?)])
}

/// An input of whole numbers.
pub fn index(b: &mut Builder, name: &str, dim: Dim) -> Value {
    b.input(name, Type::tensor(DType::I32, Shape(vec![dim])))
}

/// The rows of all tokens that a draft continues with, made of the inputs of each layer and the
/// output of the last one.
fn drafted(b: &mut Builder, config: &Config, draft: &Draft, entered: &[Value]) -> Made {
    match &draft.fusion {
        Fusion::Mtp(_) => norm(b, config, entered[config.layers.len()], &last_norm(config), config.hidden),
        Fusion::Eagle3(eagle) => {
            let row = |&layer: &usize| {
                let message = || format!("the draft takes what enters layer {layer} of {}", config.layers.len());
                entered.get(layer).copied().ok_or_else(|| Diagnostic::new("config::draft", message()).at("--draft"))
            };
            let rows: Vec<Value> = eagle.layers.iter().map(row).collect::<Result<_, _>>()?;
            draft::projected(b, &draft.model, eagle, &rows)
        }
    }
}

/// States of a half, by name.
pub type States = Vec<(String, Value)>;

/// What a layer is given beside rows: the states of each half, the tables of the rotary embeddings,
/// what queries are multiplied with, the batch.
#[derive(Clone, Copy)]
pub struct Around<'a> {
    pub states: &'a [States],
    pub ropes: &'a [Value],
    pub growth: Option<Value>,
    pub own_rows: Option<OfLayers>,
    pub batch: Value,
    pub tokens: Tokens,
}

/// The rows that leave a layer, and its new states. `seen` is what its first half sees, if that is
/// not the norm of the rows that go through.
pub fn through(
    builder: &mut LayerBuilder,
    layer: &Layer,
    (mut x, mut seen): (Value, Option<Value>),
    Around { states, ropes, growth, own_rows, batch, tokens }: Around,
) -> Result<(Value, States), Diagnostic> {
    let mut left = States::new();
    for (number, (half, states)) in layer.halves.iter().zip(states).enumerate() {
        let (before, after) = half.norms;
        let (entering, weights) = builder.entering(x, number)?;
        let normed = match seen.take().filter(|_| number == 0 || half.beside) {
            Some(seen) => seen,
            None => builder.normed(entering, before)?,
        };
        seen = Some(normed);
        let [enters, leaves] = half.factors;
        let normed = builder.b.scale(normed, enters)?;
        let kept: Vec<Value> = states.iter().map(|(_, state)| *state).collect();
        let given = Given { states: &kept, ropes, growth, own_rows, batch, tokens };
        let (out, made) = of_kind!(&half.kind, of => of.build(builder, normed, given)?);
        let out = builder.b.scale(out, leaves)?;
        x = match weights {
            Some(weights) => builder.mixed(x, out, weights)?,
            None if builder.begins_anew(number) => out,
            None => builder.residual(x, out, after)?,
        };
        left.extend(states.iter().map(|(name, _)| name.clone()).zip(made));
    }
    if let Some(scalar) = layer.scalar {
        builder.b.at(builder.path.clone());
        let factor = builder.b.weight(format!("{}.{scalar}", builder.path), builder.config.dtype, &[1]);
        x = builder.b.map(Elementwise::Mul, &[x, factor])?;
    }
    Ok((x, left))
}

/// What makes the rows that layers have of their own.
fn own_rows(b: &mut Builder, config: &Config, ids: Value, embedded: Value) -> Result<Option<OfLayers>, Diagnostic> {
    let Some(OwnRows { vocab, layers, width }) = config.own_rows else { return Ok(None) };
    let (all, dtype) = (layers * width, config.dtype);
    let path = format!("{}.embed_tokens_per_layer", config.path);
    let table = b.at(&path).weight(format!("{path}.weight"), dtype, &[vocab, all]);
    let of_ids = b.gather(table, ids)?;
    let of_ids = b.scale(of_ids, round((width as f64).sqrt(), dtype))?;
    let path = format!("{}.per_layer_model_projection", config.path);
    b.at(&path);
    let of_rows = Factor::read(b, config, &path, [all, config.hidden])?.multiply(b, embedded, dtype)?;
    Ok(Some(OfLayers { of_ids, of_rows }))
}

/// Checks that the layers with a wanted input exist, and are named once.
fn check_hidden(config: &Config, hidden: &[usize]) -> Result<(), Diagnostic> {
    let fault = |message: String| Err(Diagnostic::new("config::hidden", message).at("--hidden"));
    for (number, layer) in hidden.iter().enumerate() {
        let last = config.layers.len() - 1;
        if *layer > last {
            return fault(format!("there is no layer {layer}: those of the model are 0 to {last}"));
        }
        if hidden[..number].contains(layer) {
            return fault(format!("layer {layer} is named twice"));
        }
    }
    Ok(())
}

/// Checks that nobody asks for rows inside a model of several streams, or of rows that are kept.
fn check_streams(config: &Config, asked: &Asked) -> Result<(), Diagnostic> {
    if config.streams.is_none() && config.kept_every.is_none() || asked.hidden.is_empty() && asked.draft.is_none() {
        return Ok(());
    }
    let (option, what) = if asked.draft.is_some() { ("--draft", "a draft") } else { ("--hidden", "layers' inputs") };
    let message = format!("{what} of a model with several streams or rows in place of one: this is not supported");
    Err(Diagnostic::new("config::streams", message).at(option))
}

/// The states of each half of each layer of the rank, with their names, whose numbers begin with
/// the first; slots keep the state behind each of up to `each` tokens. There are none if the caller
/// attends.
pub fn caches(
    b: &mut Builder,
    own: &Config,
    attention: manifest::Attention,
    (first, each): (usize, usize),
) -> Vec<Vec<States>> {
    let several = |ty: Type| match ty {
        Type::Slots(slots) => Type::Slots(SlotsType { each, ..slots }),
        other => other,
    };
    let mut of_half = |index: usize, half: &Half| -> States {
        if attention == manifest::Attention::Caller {
            return vec![];
        }
        let states = of_kind!(&half.kind, of => of.states(own, index));
        states.into_iter().map(|(name, ty)| (name.clone(), b.input(&name, several(ty)))).collect()
    };
    let layers = own.layers.iter().enumerate();
    layers.map(|(at, layer)| layer.halves.iter().map(|half| of_half(first + at, half)).collect()).collect()
}

/// The sizes of a model of which kernels of GPUs take multiples.
pub fn units(config: &Config) -> impl Iterator<Item = Unit> {
    config.layers.iter().flat_map(|layer| &layer.halves).flat_map(|half| of_kind!(&half.kind, of => of.units()))
}

/// Rows of images that tokens take, and the positions that tokens have where there are some.
pub struct Seen<'a> {
    vision: &'a Vision,
    hidden: usize,
    given: Value,
    sources: Value,
    /// Three positions of each token, if it has them: of time, row and column.
    positions: Option<[Value; 3]>,
    /// How many positions each token sees, if those may come after its own.
    ends: Option<Value>,
}

impl<'a> Seen<'a> {
    /// With their inputs: `given`, rows of embeddings with those that are added behind layers side
    /// by side, `sources`, which of them each token takes, or -1, and where tokens have three
    /// positions these: `times`, `heights` and `widths`. Where tokens of an image see each other,
    /// `ends` says how many positions each sees.
    fn new(b: &mut Builder, config: &Config, vision: &'a Vision) -> Result<Seen<'a>, Diagnostic> {
        if config.streams.is_some() || config.kept_every.is_some() {
            let message = "images for a model with several streams or rows in place of one: this is not supported";
            return Err(Diagnostic::new("config::streams", message).at("--tower"));
        }
        let shape = Shape(vec![Dim::Tokens, Dim::Fixed(vision.rows() * config.hidden)]);
        let given = b.input(GIVEN, Type::tensor(config.dtype, shape));
        let sources = index(b, SOURCES, Dim::Tokens);
        let several = !vision.axes.is_empty();
        let positions = several.then(|| [TIMES, HEIGHTS, WIDTHS].map(|name| index(b, name, Dim::Tokens)));
        let ends = vision.prompt.together.then(|| index(b, ENDS, Dim::Tokens));
        Ok(Seen { vision, hidden: config.hidden, given, sources, positions, ends })
    }
}

/// Rows of tokens with a part of what they take: in the place of embeddings, or added behind a
/// layer. There are as many parts as the tower makes.
fn placed(b: &mut Builder, seen: Option<&Seen>, x: Value, part: usize) -> Made {
    let Some(seen) = seen.filter(|seen| part < seen.vision.rows()) else { return Ok(x) };
    let op = Op::Placed { start: part * seen.hidden, adds: part > 0 };
    b.push(op, &[x, seen.given, seen.sources])
}

/// The table of each rotary embedding.
pub fn ropes(
    b: &mut Builder,
    config: &Config,
    (positions, lengths): (Value, Value),
    seen: Option<&Seen>,
) -> Result<Vec<Value>, Diagnostic> {
    b.at(format!("{}.rotary_emb", config.path));
    let mut tables = Vec::with_capacity(config.ropes.len());
    for rope in &config.ropes {
        let freqs = b.rope_freqs(rope.freqs(config.context))?;
        let (growth, original) = rope.growth();
        let op = Op::RopeTable { scale: rope.scale, growth, original, turn: Turn::Token };
        let mut operands = vec![positions, lengths, freqs];
        if let Some((seen, [times, heights, widths])) = seen.and_then(|seen| Some((seen, seen.positions?))) {
            operands[0] = times;
            let axes = b.push(Op::Numbers { values: seen.vision.axes.clone() }, &[])?;
            operands.extend([heights, widths, axes]);
        }
        tables.push(b.push(op, &operands)?);
    }
    Ok(tables)
}

/// What queries are multiplied with, if they grow.
pub fn growth(b: &mut Builder, config: &Config, positions: Value) -> Result<Option<Value>, Diagnostic> {
    let Some(Growth { beta, length, shift, .. }) = config.growth else { return Ok(None) };
    b.at(format!("{}.rotary_emb", config.path));
    Ok(Some(b.push(Op::Growth { beta, length, shift }, &[positions])?))
}

/// The products of normed rows and a head of its own: the rank's part of the vocabulary.
pub fn head(b: &mut Builder, config: &Config, part: Part, rows: Value, module: &str) -> Made {
    b.at(module);
    let all = Factor::read(b, config, module, [config.vocab, config.hidden])?;
    all.shard(b, 0, part.parts_of_vocab(config))?.multiply(b, rows, DType::F32)
}
