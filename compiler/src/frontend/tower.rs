//! The graph of a tower's step: patches of images to rows of embeddings.
//!
//! An image is a sequence, and its patches are the tokens, in the order in which those that become
//! one row follow each other. A patch sees all of its image, whose keys and values lie in
//! a cache as those of tokens do. Each block has a state of its own in the graph. They may all be
//! the same memory: a block's keys are read before the next one's are made.
use atomc_config::Vision;
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
/// Which row of numbers a token of the language part takes, or -1.
pub const SOURCES: &str = "sources";

/// Rows of the table of positions that a patch has a share of.
const TAPS_OF_PATCH: usize = 4;

/// One step over T patches, with a row for each of R groups of them.
///
/// Inputs: `given`, the numbers of each patch, `taps` and `shares`, four rows of the table of
/// positions for each patch with their shares, `heights` and `widths`, where the patch is in its
/// image, `lengths`, the patches of its image, `rows`, the first patch of each group, `batch`, and
/// the cache of each block, `kv0`, …. Results: `logits`, the rows of embeddings in f32, with those
/// that are added behind layers side by side, and the caches.
pub fn graph(config: &Config, vision: &Vision) -> Result<Graph, Diagnostic> {
    check_floats(config, vision)?;
    let dtype = config.dtype;
    let mut b = Builder::new("tower");
    let row = |width| Shape(vec![Dim::Tokens, Dim::Fixed(width)]);
    let given = b.input(GIVEN, Type::tensor(dtype, row(vision.numbers())));
    let taps = index(&mut b, TAPS, Dim::Choices(TAPS_OF_PATCH));
    let shares = b.input(SHARES, Type::tensor(DType::F32, row(TAPS_OF_PATCH)));
    let [heights, widths, lengths] = [HEIGHTS, WIDTHS, "lengths"].map(|name| index(&mut b, name, Dim::Tokens));
    let rows = index(&mut b, "rows", Dim::Rows);
    let batch = b.input("batch", Type::Batch);
    let cache = Type::Cache(CacheType::even(dtype, vision.heads, vision.head_dim()));
    let names: Vec<String> = (0..vision.depth).map(|block| format!("kv{block}")).collect();
    let caches: Vec<Value> = names.iter().map(|name| b.input(name, cache.clone())).collect();
    let mut builder = TowerBuilder { b: &mut b, vision, dtype, hidden: config.hidden, rows };

    let mut x = builder.patches(given)?;
    let positions = builder.positions(taps, shares)?;
    x = builder.b.add(x, positions)?;
    let table = builder.table([heights, widths, lengths])?;
    let (mut states, mut made) = (vec![], vec![]);
    for (block, (name, &cache)) in names.into_iter().zip(&caches).enumerate() {
        let (out, state) = builder.block(block, (x, table), (cache, batch, lengths))?;
        states.push((name, state));
        x = out;
        if let Some(number) = vision.deepstack.iter().position(|&after| after == block) {
            made.push((number, builder.merged(&format!("deepstack_merger_list.{number}"), x, true)?));
        }
    }
    made.sort_by_key(|(number, _)| *number);
    let mut out = builder.merged("merger", x, false)?;
    for (_, rows) in made {
        out = builder.b.at(vision.path).push(Op::Beside {}, &[out, rows])?;
    }
    b.finish([(LOGITS.to_string(), out)].into_iter().chain(states).collect())
}

/// Refuses towers whose products have codes in the checkpoint.
fn check_floats(config: &Config, vision: &Vision) -> Result<(), Diagnostic> {
    if config.made.is_some() {
        return Ok(());
    }
    let module = format!("{}.blocks.0.attn.qkv", vision.path);
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
        format!("{}.{module}", self.vision.path)
    }

    /// A product with a module's weight, plus its bias.
    fn linear(&mut self, module: &str, x: Value, [out, width]: [usize; 2], dtype: DType) -> Made {
        let path = self.path(module);
        let weight = self.b.at(&path).weight(format!("{path}.weight"), self.dtype, &[out, width]);
        self.with_bias(&path, (x, weight), out, dtype)
    }

    fn with_bias(&mut self, path: &str, (x, weight): (Value, Value), out: usize, dtype: DType) -> Made {
        let x = self.b.linear(x, weight, dtype)?;
        let bias = self.b.weight(format!("{path}.bias"), dtype, &[out]);
        self.b.add(x, bias)
    }

    fn norm(&mut self, module: &str, x: Value, width: usize) -> Made {
        let path = self.path(module);
        self.b.at(&path);
        let [weight, bias] =
            ["weight", "bias"].map(|name| self.b.weight(format!("{path}.{name}"), self.dtype, &[width]));
        self.b.push(Op::LayerNorm { eps: self.vision.eps }, &[x, weight, bias])
    }

    /// The rows of patches: a product with the weight of a convolution without overlap.
    fn patches(&mut self, given: Value) -> Made {
        let &Vision { width, channels, frames, patch, .. } = self.vision;
        let path = self.path("patch_embed.proj");
        let shape = [width, channels, frames, patch, patch];
        let weight = self.b.at(&path).weight(format!("{path}.weight"), self.dtype, &shape);
        let weight = self.b.push(Op::View { shape: vec![width, self.vision.numbers()] }, &[weight])?;
        self.with_bias(&path, (given, weight), width, self.dtype)
    }

    /// What patches have of the table of positions.
    fn positions(&mut self, taps: Value, shares: Value) -> Made {
        let &Vision { width, side, .. } = self.vision;
        let path = self.path("pos_embed");
        let table = self.b.at(&path).weight(format!("{path}.weight"), self.dtype, &[side * side, width]);
        let picked = self.b.gather(table, taps)?;
        self.b.push(Op::Combine {}, &[picked, shares])
    }

    /// The rotary embedding: the first half of frequencies takes rows, the second one columns.
    fn table(&mut self, [heights, widths, lengths]: [Value; 3]) -> Made {
        let half = self.vision.head_dim() / 2;
        let path = self.path("rotary_pos_emb");
        self.b.at(path);
        let freqs = self.b.rope_freqs(Freqs { theta: self.vision.theta, dim: half, scaling: Scaling::Default })?;
        let freqs = self.b.push(Op::Concat { axis: 0 }, &[freqs, freqs])?;
        let axes = (0..half).map(|i| if i < half / 2 { 1 } else { 2 }).collect();
        let axes = self.b.push(Op::Numbers { values: axes }, &[])?;
        let op = Op::RopeTable { scale: 1.0, growth: 0.0, original: 0, turn: Turn::Token };
        self.b.push(op, &[heights, lengths, freqs, heights, widths, axes])
    }

    /// A block, and the state of the cache behind it.
    fn block(
        &mut self,
        number: usize,
        (x, table): (Value, Value),
        (cache, batch, lengths): (Value, Value, Value),
    ) -> Result<(Value, Value), Diagnostic> {
        let &Vision { width, heads, intermediate, activation, .. } = self.vision;
        let (dim, dtype) = (self.vision.head_dim(), self.dtype);
        let of = |module: &str| format!("blocks.{number}.{module}");
        let normed = self.norm(&of("norm1"), x, width)?;
        let qkv = self.linear(&of("attn.qkv"), normed, [3 * width, width], dtype)?;
        let path = self.path(&of("attn"));
        self.b.at(&path);
        let mut heads_of = |part: usize| {
            let rows = self.b.push(Op::Slice { axis: 1, start: part * width, len: width }, &[qkv])?;
            self.b.heads(rows, heads, dim)
        };
        let [q, k, v] = [heads_of(0)?, heads_of(1)?, heads_of(2)?];
        let [q, k] = [self.b.rope(q, table)?, self.b.rope(k, table)?];
        let state = self.b.push(Op::KvWrite {}, &[cache, k, v, batch])?;
        let op = Op::AttendWhole { scale: (dim as f64).powf(-0.5) };
        let seen = self.b.push(op, &[q, state, batch, lengths])?;
        let seen = self.b.flat(seen, width)?;
        let seen = self.linear(&of("attn.proj"), seen, [width, width], dtype)?;
        let x = self.b.add(x, seen)?;
        let normed = self.norm(&of("norm2"), x, width)?;
        let inner = self.linear(&of("mlp.linear_fc1"), normed, [intermediate, width], dtype)?;
        let inner = self.b.map(formula(activation), &[inner])?;
        let out = self.linear(&of("mlp.linear_fc2"), inner, [width, intermediate], dtype)?;
        Ok((self.b.add(x, out)?, state))
    }

    /// The rows of groups of patches, by a merger. Its norm is of the group as a whole, or of each
    /// patch.
    fn merged(&mut self, module: &str, x: Value, norms_group: bool) -> Made {
        let (width, count) = (self.vision.width, self.vision.merged());
        let (wide, hidden) = (width * count, self.hidden);
        let norm = format!("{module}.norm");
        let run = |tower: &mut Self, x| {
            let path = tower.path(module);
            tower.b.at(path).push(Op::GatherRun { count }, &[x, tower.rows])
        };
        let x = match norms_group {
            true => {
                let x = run(self, x)?;
                self.norm(&norm, x, wide)?
            }
            false => {
                let x = self.norm(&norm, x, width)?;
                run(self, x)?
            }
        };
        let x = self.linear(&format!("{module}.linear_fc1"), x, [wide, wide], self.dtype)?;
        let x = self.b.map(Elementwise::Gelu, &[x])?;
        self.linear(&format!("{module}.linear_fc2"), x, [hidden, wide], DType::F32)
    }
}
