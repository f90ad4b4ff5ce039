//! The graph of several streams in place of one row that halves of layers add to; and of rows that
//! are kept on the way, of which halves see mixtures.
use atomc_config::Streams;
use atomc_ir::{Builder, DType, Diagnostic, Op, Value};

use super::Config;
use super::layer::{LayerBuilder, Made};

/// Features of a part of a product.
const PIECE: usize = 512;
/// Logits that lanes of every chip have together in products of parts.
const TOGETHER: usize = 8;

/// The names of the weights of each half's mixtures.
const HALVES: [&str; 2] = ["hc_attn", "hc_ffn"];

/// What the modules of each half's mixture of rows begin with.
const MIXTURES: [&str; 2] = ["self_attention_res", "mlp_res"];

/// A row as so many streams, which are alike.
pub fn spread(b: &mut Builder, streams: Option<Streams>, row: Value) -> Made {
    let mut all = row;
    for _ in 1..streams.map_or(1, |streams| streams.count) {
        all = b.push(Op::Beside {}, &[all, row])?;
    }
    Ok(all)
}

/// The row that goes on of the streams behind the last layer.
pub fn gathered(b: &mut Builder, config: &Config, x: Value) -> Made {
    let Some(streams) = config.streams else { return Ok(x) };
    b.at(config.path);
    let weights = weights(b, config, x, (streams, &format!("{}.hc_head", config.path), streams.count))?;
    collapsed(b, config, (streams, x), weights)
}

/// The weights of mixtures of streams, of `logits` logits.
fn weights(b: &mut Builder, config: &Config, x: Value, (streams, path, logits): (Streams, &str, usize)) -> Made {
    let Streams { count, rounds, eps } = streams;
    let mut weight = |name: &str, shape: &[usize]| b.weight(format!("{path}_{name}"), DType::F32, shape);
    let all = weight("fn", &[logits, count * config.hidden]);
    let base = weight("base", &[logits]);
    let scale = weight("scale", &[if logits == count { 1 } else { 3 }]);
    let wide = b.push(Op::Cast { to: DType::F32 }, &[x])?;
    let made = in_parts(b, wide, (all, logits), count * pieces(config.hidden))?;
    b.push(Op::Sinkhorn { streams: count, rounds, norm: config.eps, eps }, &[made, x, base, scale])
}

/// The pieces that the features of a stream are cut into.
fn pieces(hidden: usize) -> usize {
    if hidden.is_multiple_of(PIECE) { hidden / PIECE } else { 1 }
}

/// Products of parts of a row, which are still to be added up: few logits of so many features give
/// a chip work in no other way. Where logits do not fill the lanes, they are made several times.
fn in_parts(b: &mut Builder, x: Value, (weight, logits): (Value, usize), parts: usize) -> Made {
    let width = b.ty(x).as_tensor().and_then(|t| t.shape.last()).unwrap_or(0) / parts;
    let whole = b.push(Op::View { shape: vec![1, logits, parts * width] }, &[weight])?;
    let part = |i: usize| b.push(Op::Slice { axis: 2, start: i * width, len: width }, &[whole]);
    let all = (0..parts).map(part).collect::<Result<Vec<_>, _>>()?;
    let all = b.push(Op::Concat { axis: 0 }, &all)?;
    let times = (1..=TOGETHER).find(|times| (times * logits).is_multiple_of(TOGETHER)).unwrap_or(TOGETHER);
    let all = if times == 1 { all } else { b.push(Op::Concat { axis: 1 }, &vec![all; times])? };
    let x = b.push(Op::Parts { count: parts, start: 0, len: width, step: width }, &[x])?;
    let made = b.push(Op::PerHead { out: DType::F32, block: None }, &[x, all])?;
    if times == 1 { Ok(made) } else { b.push(Op::Slice { axis: 2, start: 0, len: logits }, &[made]) }
}

fn collapsed(b: &mut Builder, config: &Config, (streams, x): (Streams, Value), weights: Value) -> Made {
    let apart = b.heads(x, streams.count, config.hidden)?;
    b.push(Op::Collapse {}, &[apart, weights])
}

/// The row behind the last layer: a mixture of what was kept and of what goes through.
pub fn last_of_rows(b: &mut Builder, config: &Config, kept: Option<Value>, x: Value) -> Made {
    let Some(kept) = kept else { return Ok(x) };
    let all = b.at(config.path).push(Op::Beside {}, &[kept, x])?;
    mixture(b, config, all, &format!("{}.output_attn_res", config.path))
}

/// The mixture of rows that lie side by side: a row's logit is its norm times a weight.
fn mixture(b: &mut Builder, config: &Config, rows: Value, path: &str) -> Made {
    let width = b.ty(rows).as_tensor().and_then(|t| t.shape.last()).unwrap_or(0);
    let (hidden, count) = (config.hidden, width / config.hidden);
    b.at(format!("{path}_norm"));
    let apart = b.heads(rows, count, hidden)?;
    let wide = b.push(Op::Cast { to: DType::F32 }, &[apart])?;
    let weight = b.weight(format!("{path}_norm.weight"), DType::F32, &[hidden]);
    let normed = b.rms_norm(wide, weight, config.eps)?;
    b.at(format!("{path}_proj"));
    let weight = b.weight(format!("{path}_proj.weight"), DType::F32, &[1, hidden]);
    let weight = b.push(Op::View { shape: vec![1, 1, hidden] }, &[weight])?;
    // As many times as fill the lanes of every chip, and for each row.
    let weight = b.push(Op::Concat { axis: 1 }, &[weight; TOGETHER])?;
    let weight = b.push(Op::Concat { axis: 0 }, &vec![weight; count])?;
    let logits = b.push(Op::PerHead { out: DType::F32, block: None }, &[normed, weight])?;
    b.push(Op::MixRows {}, &[apart, logits])
}

impl LayerBuilder<'_> {
    /// Whether the rows that go through are what a half makes alone, as those before it were kept.
    pub fn begins_anew(&self, half: usize) -> bool {
        half == 0 && self.config.kept_every.is_some_and(|every| self.index.is_multiple_of(every))
    }

    /// The mixture of rows that a half sees; the first half of some layers keeps what goes through.
    fn mixture(&mut self, x: Value, half: usize) -> Made {
        let all = match self.carried.kept {
            Some(kept) => self.b.at(self.path.clone()).push(Op::Beside {}, &[kept, x])?,
            None => x,
        };
        let is_alone = self.carried.kept.is_none();
        if self.begins_anew(half) {
            self.carried.kept = Some(all);
        }
        if is_alone { Ok(x) } else { mixture(self.b, self.config, all, &format!("{}.{}", self.path, MIXTURES[half])) }
    }

    /// The row that a half sees, by its number, and the weights of the streams behind it; the row
    /// itself if there are no streams.
    pub fn entering(&mut self, x: Value, half: usize) -> Result<(Value, Option<Value>), Diagnostic> {
        if self.config.kept_every.is_some() {
            return Ok((self.mixture(x, half)?, None));
        }
        let Some(streams) = self.config.streams else { return Ok((x, None)) };
        let path = format!("{}.{}", self.path, HALVES[half]);
        self.b.at(&path);
        let logits = streams.count * (streams.count + 2);
        let weights = weights(self.b, self.config, x, (streams, &path, logits))?;
        let row = collapsed(self.b, self.config, (streams, x), weights)?;
        Ok((row, Some(Value { out: 1, ..weights })))
    }

    /// The streams behind a half that has made a row.
    pub fn mixed(&mut self, x: Value, made: Value, weights: Value) -> Made {
        let (count, hidden) = (self.config.streams.map_or(1, |streams| streams.count), self.config.hidden);
        self.b.at(self.path.clone());
        let apart = self.b.heads(x, count, hidden)?;
        let mixed = self.b.push(Op::Mix {}, &[apart, made, weights])?;
        self.b.flat(mixed, count * hidden)
    }
}
