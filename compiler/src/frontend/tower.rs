//! The graph of a tower's step: patches of images to rows of embeddings.
//!
//! An image is a sequence, and its patches are the tokens, in the order in which those that become
//! one row follow each other. A patch sees all of its image, whose keys and values lie in
//! a cache as those of tokens do. Each block has a state of its own in the graph. They may all be
//! the same memory: a block's keys are read before the next one's are made.
mod merge;

use atomc_config::{Merger, Module, Queries, Turned, Vision};
use atomc_ir::results::LOGITS;
use atomc_ir::rope::{Freqs, Scaling};
use atomc_ir::{Builder, CacheType, DType, Diagnostic, Dim, Elementwise, Graph, Op, Shape, Turn, Type, Value};

use super::Config;
use super::layer::Made;
use super::mlp::formula;
use super::model::index;

/// What the step of a tower and that of the language part are given beside what all steps are: rows
/// of numbers, the row of the table of positions that a patch takes, and its share.
pub const GIVEN: &str = "given";
pub const TAPS: &str = "taps";
pub const SHARES: &str = "shares";
pub const TIMES: &str = "times";
pub const HEIGHTS: &str = "heights";
pub const WIDTHS: &str = "widths";
/// How many positions of its sequence a token of the language part sees.
pub const ENDS: &str = "ends";
/// Which row of numbers a token of the language part takes, or -1.
pub const SOURCES: &str = "sources";

/// Rows of the table of positions that a patch has a share of.
const TAPS_OF_PATCH: usize = 4;

/// One step over T patches, with a row for each of R groups of them.
///
/// Inputs: `given`, the numbers of each patch, `taps` and `shares`, four rows of the table of
/// positions for each patch with their shares, if there is one, `heights` and `widths`, where the
/// patch is in its image, `lengths`, the patches of its image, `rows`, the first patch of each
/// group, `batch`, and the cache of each block, `kv0`, …. Results: `logits`, the rows of embeddings
/// in f32, with those that are added behind layers side by side, and the caches.
pub fn graph(config: &Config, vision: &Vision) -> Result<Graph, Diagnostic> {
    check_floats(config, vision)?;
    let dtype = config.dtype;
    let mut b = Builder::new("tower");
    let row = |width| Shape(vec![Dim::Tokens, Dim::Fixed(width)]);
    let given = b.input(GIVEN, Type::tensor(dtype, row(vision.numbers())));
    let taps = vision.side.map(|side| {
        let taps = index(&mut b, TAPS, Dim::Choices(TAPS_OF_PATCH));
        (side, taps, b.input(SHARES, Type::tensor(DType::F32, row(TAPS_OF_PATCH))))
    });
    let [heights, widths, lengths] = [HEIGHTS, WIDTHS, "lengths"].map(|name| index(&mut b, name, Dim::Tokens));
    let rows = index(&mut b, "rows", Dim::Rows);
    let batch = b.input("batch", Type::Batch);
    let cache = Type::Cache(CacheType::even(dtype, vision.heads, vision.head_dim()));
    let names: Vec<String> = (0..vision.depth).map(|block| format!("kv{block}")).collect();
    let caches: Vec<Value> = names.iter().map(|name| b.input(name, cache.clone())).collect();
    let mut builder = TowerBuilder { b: &mut b, vision, dtype, hidden: config.hidden, rows };

    let [before, after] = vision.style.around;
    let mut x = builder.patches(given)?;
    if let Some((side, taps, shares)) = taps {
        let positions = builder.positions(side, taps, shares)?;
        x = builder.b.add(x, positions)?;
    }
    if let Some(module) = before {
        x = builder.norm(&builder.path(module), x, vision.width)?;
    }
    let table = builder.table([heights, widths, lengths])?;
    let (mut states, mut made) = (vec![], vec![]);
    for (block, (name, &cache)) in names.into_iter().zip(&caches).enumerate() {
        let (out, state) = builder.block(block, (x, table), (cache, batch, lengths))?;
        states.push((name, state));
        x = out;
        if let Some(number) = vision.deepstack.iter().position(|&after| after == block) {
            made.push((number, builder.beside(&format!("deepstack_merger_list.{number}"), x, true)?));
        }
    }
    made.sort_by_key(|(number, _)| *number);
    if let Some(module) = after {
        x = builder.norm(&builder.path(module), x, vision.width)?;
    }
    let mut out = builder.merged(x)?;
    for (_, rows) in made {
        out = builder.b.at(vision.style.path).push(Op::Beside {}, &[out, rows])?;
    }
    b.finish([(LOGITS.to_string(), out)].into_iter().chain(states).collect())
}

/// Refuses towers whose products have codes in the checkpoint.
fn check_floats(config: &Config, vision: &Vision) -> Result<(), Diagnostic> {
    if config.made.is_some() {
        return Ok(());
    }
    let module = format!("{}.{}.0.{}", vision.style.path, vision.style.blocks, vision.style.out);
    match config.scheme(&module) {
        None => Ok(()),
        Some(_) => {
            let message = format!("{module} is quantised: the products of a tower must be of floats");
            Err(Diagnostic::new("config::vision", message).at("--tower"))
        }
    }
}

struct TowerBuilder<'a> {
    b: &'a mut Builder,
    vision: &'a Vision,
    dtype: DType,
    /// Numbers of a row of the language part.
    hidden: usize,
    /// The first patch of each group.
    rows: Value,
}

impl TowerBuilder<'_> {
    fn path(&self, module: &str) -> String {
        format!("{}.{module}", self.vision.style.path)
    }

    /// A product with a module's weight, plus its bias if it has one.
    fn linear(&mut self, path: &str, bias: bool, x: Value, [out, width]: [usize; 2], dtype: DType) -> Made {
        let weight = self.b.at(path).weight(format!("{path}.weight"), self.dtype, &[out, width]);
        self.with_bias(path, bias, (x, weight), out, dtype)
    }

    fn with_bias(&mut self, path: &str, bias: bool, (x, weight): (Value, Value), out: usize, dtype: DType) -> Made {
        let x = self.b.linear(x, weight, dtype)?;
        if !bias {
            return Ok(x);
        }
        let bias = self.b.weight(format!("{path}.bias"), dtype, &[out]);
        self.b.add(x, bias)
    }

    fn norm(&mut self, path: &str, x: Value, width: usize) -> Made {
        let eps = self.vision.eps;
        let weight = self.b.at(path).weight(format!("{path}.weight"), self.dtype, &[width]);
        if !self.vision.style.centred {
            return self.b.push(Op::RmsNorm { eps }, &[x, weight]);
        }
        let bias = self.b.weight(format!("{path}.bias"), self.dtype, &[width]);
        self.b.push(Op::LayerNorm { eps }, &[x, weight, bias])
    }

    /// The rows of patches: a product with the weight of a convolution without overlap.
    fn patches(&mut self, given: Value) -> Made {
        let &Vision { width, channels, frames, patch, .. } = self.vision;
        let Module { name, bias } = self.vision.style.patch;
        let path = self.path(name);
        // Images of one frame have no axis for it.
        let of_frames = if frames > 1 { vec![frames] } else { vec![] };
        let shape = [&[width, channels][..], &of_frames, &[patch, patch]].concat();
        let weight = self.b.at(&path).weight(format!("{path}.weight"), self.dtype, &shape);
        let weight = self.b.push(Op::View { shape: vec![width, self.vision.numbers()] }, &[weight])?;
        self.with_bias(&path, bias, (given, weight), width, self.dtype)
    }

    /// What patches have of the table of positions.
    fn positions(&mut self, side: usize, taps: Value, shares: Value) -> Made {
        let path = self.path(self.vision.style.table.unwrap_or_default());
        let table = self.b.at(&path).weight(format!("{path}.weight"), self.dtype, &[side * side, self.vision.width]);
        let picked = self.b.gather(table, taps)?;
        self.b.push(Op::Combine {}, &[picked, shares])
    }

    /// The rotary embedding, if there is one: the first half of frequencies takes rows, the second
    /// one columns.
    fn table(&mut self, [heights, widths, lengths]: [Value; 3]) -> Result<Option<Value>, Diagnostic> {
        let (half, theta) = (self.vision.head_dim() / 2, self.vision.theta);
        let path = self.path("rotary_pos_emb");
        self.b.at(path);
        // Every other one of twice as many: their bases are one frequency apart.
        let of_columns = match self.vision.style.turned {
            Turned::Never => return Ok(None),
            Turned::Same => Scaling::Default,
            Turned::Alternating => Scaling::Linear { factor: theta.powf(1.0 / half as f64) },
        };
        let mut freqs = |scaling| self.b.rope_freqs(Freqs { theta, dim: half, scaling });
        let [rows, columns] = [freqs(Scaling::Default)?, freqs(of_columns)?];
        let freqs = self.b.push(Op::Concat { axis: 0 }, &[rows, columns])?;
        let axes = (0..half).map(|i| if i < half / 2 { 1 } else { 2 }).collect();
        let axes = self.b.push(Op::Numbers { values: axes }, &[])?;
        let op = Op::RopeTable { scale: 1.0, growth: 0.0, original: 0, turn: Turn::Token };
        self.b.push(op, &[heights, lengths, freqs, heights, widths, axes]).map(Some)
    }

    /// A block, and the state of the cache behind it.
    fn block(
        &mut self,
        number: usize,
        (x, table): (Value, Option<Value>),
        (cache, batch, lengths): (Value, Value, Value),
    ) -> Result<(Value, Value), Diagnostic> {
        let &Vision { width, heads, style, .. } = self.vision;
        let dtype = self.dtype;
        let of = |tower: &Self, module: &str| tower.path(&format!("{}.{number}.{module}", style.blocks));
        let path = of(self, style.norms[0]);
        let normed = self.norm(&path, x, width)?;
        let [mut q, mut k, v] = self.queries(|tower, module| of(tower, module), normed)?;
        if let Some(table) = table {
            [q, k] = [self.b.rope(q, table)?, self.b.rope(k, table)?];
        }
        let state = self.b.push(Op::KvWrite {}, &[cache, k, v, batch])?;
        let op = Op::AttendUpTo { scale: (self.vision.head_dim() as f64).powf(-0.5), window: 0 };
        let seen = self.b.push(op, &[q, state, batch, lengths])?;
        let seen = self.b.flat(seen, width)?;
        let path = of(self, style.out);
        let seen = self.linear(&path, style.bias, seen, [width, heads * self.vision.head_dim()], dtype)?;
        let x = self.b.add(x, seen)?;
        let path = of(self, style.norms[1]);
        let normed = self.norm(&path, x, width)?;
        let out = self.mlp(|tower, module| of(tower, module), normed)?;
        Ok((self.b.add(x, out)?, state))
    }

    /// The heads of queries, keys and values.
    fn queries(&mut self, of: impl Fn(&Self, &str) -> String, x: Value) -> Result<[Value; 3], Diagnostic> {
        let &Vision { width, heads, style, .. } = self.vision;
        let (dim, dtype) = (self.vision.head_dim(), self.dtype);
        let rows = match style.queries {
            Queries::Together(module) => {
                let path = of(self, module);
                let all = self.linear(&path, style.bias, x, [3 * width, width], dtype)?;
                let mut part = |part| self.b.push(Op::Slice { axis: 1, start: part * width, len: width }, &[all]);
                [part(0)?, part(1)?, part(2)?]
            }
            Queries::Each(modules) => {
                let mut each = |module| {
                    let path = of(self, module);
                    self.linear(&path, style.bias, x, [width, width], dtype)
                };
                [each(modules[0])?, each(modules[1])?, each(modules[2])?]
            }
        };
        let mut heads_of = |rows| self.b.heads(rows, heads, dim);
        Ok([heads_of(rows[0])?, heads_of(rows[1])?, heads_of(rows[2])?])
    }

    fn mlp(&mut self, of: impl Fn(&Self, &str) -> String, x: Value) -> Made {
        let &Vision { width, intermediate, activation, style, .. } = self.vision;
        let mut into = |module| {
            let path = of(self, module);
            self.linear(&path, style.bias, x, [intermediate, width], self.dtype)
        };
        let gate = style.gate.map(&mut into).transpose()?;
        let inner = into(style.mlp[0])?;
        let inner = match gate {
            Some(gate) => {
                let gate = self.b.map(formula(activation), &[gate])?;
                self.b.map(Elementwise::Mul, &[gate, inner])?
            }
            None => self.b.map(formula(activation), &[inner])?,
        };
        let path = of(self, style.mlp[1]);
        self.linear(&path, style.bias, inner, [width, intermediate], self.dtype)
    }
}
