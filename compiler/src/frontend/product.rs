//! Products with a module's weight, which may be quantised: then it is codes with scales, and
//! perhaps zero points, and rows may become codes before.
use atomc_artifact::manifest;
use atomc_config::{Adapters, Axes, Blocks, InputScales, Inputs, Levels, Named, Scheme, Stored, Told};
use atomc_ir::{
    Block, Builder, DType, Diagnostic, Elementwise, Encode, Encoded, Fact, Op, Order, Rule, Value, Whole, nth_name,
};

use atomc_ir::{BOOK_BLOCKS, TEXT};

use super::Config;
use super::experts::Held;
use super::fitting::{self, Taken};
use super::layer::{Made, Rows, shard};

/// Most pieces that scales are put together of, where a cut goes through blocks.
const MOST_PIECES: usize = 4096;

/// A weight, or a part of it; or the weights of all experts, stacked.
#[derive(Clone)]
pub struct Factor<'a> {
    path: String,
    weight: Value,
    encoding: Option<Encoding<'a>>,
    /// The column of the rows that are multiplied which each column of the weight is for, if these
    /// come in another order.
    order: Option<Value>,
    /// Axes before those of a matrix.
    lead: usize,
    adapted: Option<Adapted>,
}

/// The input that has the adapter of each token, below zero for none.
pub const ADAPTERS: &str = "adapters";

/// The matrices of all adapters, which rows are multiplied by one after the other: by that of their
/// adapter. A row without one gets zeros.
#[derive(Clone)]
struct Adapted {
    /// `[slots, rank, columns]`
    wide: Value,
    /// `[slots, rows, rank]`
    tall: Value,
    slots: usize,
}

/// The experts of a layer that have their weights in one value, and the tensor that may have them
/// all.
#[derive(Clone)]
pub struct Stack {
    pub count: usize,
    /// Whether each tensor has those of all experts.
    pub joined: bool,
    pub whole: Option<Whole>,
}

/// What codes mean.
#[derive(Clone)]
struct Encoding<'a> {
    scheme: &'a Scheme,
    /// Scales, and zero points if there are any.
    grids: Vec<Value>,
    block: Block,
    /// Rows and columns of the weight.
    sizes: [usize; 2],
    /// Axes before those.
    lead: usize,
}

impl<'a> Factor<'a> {
    /// The whole weight of a module.
    pub fn read(b: &mut Builder, config: &'a Config, path: &str, sizes: [usize; 2]) -> Result<Factor<'a>, Diagnostic> {
        let mut factor = Factor::stack(b, config, path, (None, sizes, Taken::Rows))?;
        factor.adapted = Adapted::read(b, config, path, sizes);
        Ok(factor)
    }

    /// The whole weight of a module that has a matrix for each head.
    pub fn of_heads(
        b: &mut Builder,
        config: &'a Config,
        path: &str,
        sizes: [usize; 2],
    ) -> Result<Factor<'a>, Diagnostic> {
        Factor::stack(b, config, path, (None, sizes, Taken::Heads))
    }

    /// The whole weights of the modules of experts. The path has a star in place of the expert's
    /// number, if they have tensors of their own.
    pub fn experts(
        b: &mut Builder,
        config: &'a Config,
        path: &str,
        (stack, sizes): (Stack, [usize; 2]),
    ) -> Result<Factor<'a>, Diagnostic> {
        Factor::stack(b, config, path, (Some(stack), sizes, Taken::Rows))
    }

    fn stack(
        b: &mut Builder,
        config: &'a Config,
        path: &str,
        (stack, sizes, taken): (Option<Stack>, [usize; 2], Taken),
    ) -> Result<Factor<'a>, Diagnostic> {
        b.at(path);
        let lead = usize::from(stack.is_some());
        let mut stored = InFile { b, path, dtype: config.dtype, stack };
        // All experts are alike.
        let Some(scheme) = fitting::scheme(config, &nth_name(path, 0), taken, sizes[1])? else {
            let weight = stored.tensor("weight", config.dtype, &sizes);
            return Ok(Factor { path: path.into(), weight, encoding: None, order: None, lead, adapted: None });
        };
        if let Stored::Book { text, nested } = scheme.stored {
            stored.stack.as_mut().into_iter().for_each(|stack| stack.whole = None);
            let weight = stored.book((text, nested), sizes)?;
            return Ok(Factor { path: path.into(), weight, encoding: None, order: None, lead, adapted: None });
        }
        let [rows, cols] = sizes;
        let block = match scheme.blocks {
            Blocks::Tensor => Block { rows, cols },
            Blocks::Row => Block { rows: 1, cols },
            Blocks::Group(columns) => Block { rows: 1, cols: columns.min(cols) },
            Blocks::Square(height, columns) => Block { rows: height.min(rows), cols: columns.min(cols) },
        };
        // A form of codes has none for all experts in one tensor, and squares may not begin there.
        let is_rows = scheme.stored == Stored::Floats && block.rows == 1;
        if let Some(stack) = stored.stack.as_mut().filter(|_| !is_rows) {
            stack.whole = None;
        }
        let order = stored.order(scheme, cols)?;
        let (weight, grids) = stored.read(scheme, sizes, block.grid(rows, cols))?;
        let encoding = Some(Encoding { scheme, grids, block, sizes, lead });
        Ok(Factor { path: path.into(), weight, encoding, order, lead, adapted: None })
    }

    /// The projection of experts that GPT-OSS has in one tensor: of codes, or as columns; of
    /// `2 * rows` all that take turns with others from `start` on, or else all there are.
    pub fn together(
        b: &mut Builder,
        config: &'a Config,
        (path, name): (&str, &str),
        (count, [rows, cols], half): (usize, [usize; 2], Option<Op>),
    ) -> Result<Factor<'a>, Diagnostic> {
        b.at(path);
        let all = if half.is_some() { 2 * rows } else { rows };
        let own = |b: &mut Builder, v: Value| match &half {
            Some(half) => b.push(half.clone(), &[v]),
            None => Ok(v),
        };
        let Some(scheme) = fitting::scheme(config, path, Taken::Columns, cols)? else {
            let weight = b.weight(format!("{path}.{name}"), config.dtype, &[count, cols, all]);
            let weight = b.push(Op::Transpose {}, &[weight])?;
            let weight = own(b, weight)?;
            return Ok(Factor { path: path.into(), weight, encoding: None, order: None, lead: 1, adapted: None });
        };
        let Blocks::Group(group) = scheme.blocks else {
            return Err(Diagnostic::new("config::quantised", "experts in one tensor have groups").at(path));
        };
        let groups = cols / group;
        let bytes = b.weight(format!("{path}.{name}_blocks"), DType::U8, &[count, all, groups, group / 2]);
        let bytes = b.push(Op::View { shape: vec![count, all, cols / 2] }, &[bytes])?;
        let unpack = Op::Unpack { from: DType::U8, to: scheme.codes, axis: 2, len: cols, order: Order::Plain };
        let codes = b.push(unpack, &[bytes])?;
        let weight = own(b, codes)?;
        let scales = b.weight(format!("{path}.{name}_scales"), scheme.scales, &[count, all, groups]);
        let grids = vec![own(b, scales)?];
        let block = Block { rows: 1, cols: group };
        let encoding = Encoding { scheme, grids, block, sizes: [rows, cols], lead: 1 };
        Ok(Factor { path: path.into(), weight, encoding: Some(encoding), order: None, lead: 1, adapted: None })
    }

    /// Columns that share a scale and must stay together, where there are several such groups.
    pub fn unit(&self) -> usize {
        self.encoding.as_ref().map_or(1, |encoding| match encoding.block.cols {
            cols if cols < encoding.sizes[1] => cols,
            _ => 1,
        })
    }

    /// The weights of the experts that the rank holds.
    pub fn held(mut self, b: &mut Builder, held: Held) -> Result<Factor<'a>, Diagnostic> {
        self.weight = held.take(b, self.weight)?;
        if let Some(encoding) = &mut self.encoding {
            encoding.each(|v| held.take(b, v))?;
        }
        Ok(self)
    }

    /// The weight, followed by rows or columns of zeros.
    pub fn pad(mut self, b: &mut Builder, axis: usize, len: usize) -> Result<Factor<'a>, Diagnostic> {
        self.keeps_columns(axis == 0, "are padded")?;
        self.weight = b.push(Op::Pad { axis: self.lead + axis, len }, &[self.weight])?;
        if let Some(encoding) = &mut self.encoding {
            encoding.pad(b, axis, len)?;
        }
        self.adapt(axis, |v, axis| b.push(Op::Pad { axis, len }, &[v]))?;
        Ok(self)
    }

    /// The rows of one of the projections that share a weight, and of these the rank's part.
    pub fn rows(mut self, b: &mut Builder, rows: Rows, parts: usize) -> Result<Factor<'a>, Diagnostic> {
        if rows.of != rows.out {
            self.weight = slice(b, self.weight, 0, (rows.start, rows.out))?;
            if let Some(encoding) = &mut self.encoding {
                encoding.slice(b, rows.start, rows.out)?;
            }
            self.adapt(0, |v, axis| slice(b, v, axis, (rows.start, rows.out)))?;
        }
        self.shard(b, 0, parts)
    }

    /// Some of the rows, in another order, as pairs of start and length.
    pub fn pieces(mut self, b: &mut Builder, pieces: &[(usize, usize)]) -> Result<Factor<'a>, Diagnostic> {
        let all = self.weight;
        self.weight = joined(b, all, self.lead, pieces)?;
        if let Some(encoding) = self.encoding.as_mut().filter(|_| self.weight != all) {
            encoding.pieces(b, &runs(pieces))?;
        }
        self.adapt(0, |v, axis| joined(b, v, axis, pieces))?;
        Ok(self)
    }

    /// Checks that columns that come in another order stay together.
    fn keeps_columns(&self, keeps: bool, what: &str) -> Result<(), Diagnostic> {
        if keeps || self.order.is_none() {
            return Ok(());
        }
        let message =
            format!("columns in another order (act-order: `desc_act`, `actorder`) that {what} are not supported");
        Err(Diagnostic::new("config::quantised", message).at(&self.path))
    }

    /// The rank's part of the rows, or of the columns.
    pub fn shard(mut self, b: &mut Builder, axis: usize, parts: usize) -> Result<Factor<'a>, Diagnostic> {
        self.keeps_columns(axis == 0 || parts == 1, "are shared out among ranks")?;
        self.weight = shard(b, self.weight, self.lead + axis, parts)?;
        if let Some(encoding) = self.encoding.as_mut().filter(|_| parts > 1) {
            encoding.shard(b, axis, parts)?;
        }
        self.adapt(axis, |v, axis| shard(b, v, axis, parts))?;
        Ok(self)
    }

    /// Does what is done along an axis of the weight to the matrix of adapters that has it.
    fn adapt(&mut self, axis: usize, mut f: impl FnMut(Value, usize) -> Made) -> Result<(), Diagnostic> {
        let Some(adapted) = &mut self.adapted else { return Ok(()) };
        let (matrix, axis) = if axis == 0 { (&mut adapted.tall, 1) } else { (&mut adapted.wide, 2) };
        *matrix = f(*matrix, axis)?;
        Ok(())
    }

    /// A matrix for each of `heads` consecutive heads of `each` rows: `len` of its rows, from
    /// `start` on.
    pub fn heads(
        mut self,
        b: &mut Builder,
        (heads, each): (usize, usize),
        (start, len): (usize, usize),
    ) -> Result<Factor<'a>, Diagnostic> {
        self.weight = self.viewed(b, (heads, each))?;
        self.weight = slice(b, self.weight, 1, (start, len))?;
        self.lead = 1;
        self.adapted = None;
        if let Some(encoding) = &mut self.encoding {
            encoding.heads(b, (heads, each), (start, len)).map_err(|fault| fault.at(&self.path))?;
        }
        Ok(self)
    }

    /// The weight with a matrix for each head. Words are viewed before they are unpacked.
    fn viewed(&self, b: &mut Builder, (heads, each): (usize, usize)) -> Made {
        let cols = |b: &Builder, v: Value| b.ty(v).as_tensor().and_then(|t| t.shape.last()).unwrap_or(0);
        let view = |b: &mut Builder, v: Value| {
            let shape = vec![heads, each, cols(b, v)];
            b.push(Op::View { shape }, &[v])
        };
        match *b.op(self.weight) {
            Op::Weight { .. } => view(b, self.weight),
            Op::Unpack { from, to, axis: 1, len, order }
                if matches!(b.op(b.operands(self.weight)[0]), Op::Weight { .. }) =>
            {
                let words = b.operands(self.weight)[0];
                let words = view(b, words)?;
                b.push(Op::Unpack { from, to, axis: 2, len, order }, &[words])
            }
            _ => {
                let message = "heads of a weight that is stored in this form are not supported";
                Err(Diagnostic::new("config::quantised", message).at(&self.path))
            }
        }
    }

    /// The weight as floats instead of codes, if kernels cannot take its scales: one for some rows
    /// of each column. `dtype` has all products of a code and a power of two.
    fn dequantised(mut self, b: &mut Builder, dtype: DType) -> Result<Factor<'a>, Diagnostic> {
        let Some(Encoding { scheme, grids, block, .. }) = &self.encoding else { return Ok(self) };
        if block.cols > 1 || scheme.scales != DType::E8M0 {
            return Ok(self);
        }
        if dtype == DType::F16 {
            let message = "keys of latent rows by codes with powers of two have no room in float16";
            return Err(Diagnostic::new("config::quantised", message).at(&self.path).help("--dtype bf16 or f32"));
        }
        self.weight =
            b.push(Op::Dequantise { block: [block.rows, block.cols], to: dtype }, &[self.weight, grids[0]])?;
        self.encoding = None;
        Ok(self)
    }

    /// The rank's part of the heads.
    pub fn shard_heads(mut self, b: &mut Builder, parts: usize) -> Result<Factor<'a>, Diagnostic> {
        self.weight = shard(b, self.weight, 0, parts)?;
        if let Some(encoding) = &mut self.encoding {
            encoding.each(|v| shard(b, v, 0, parts))?;
        }
        Ok(self)
    }

    /// Columns of each matrix as rows; floats of this type where kernels could not take the scales.
    pub fn transposed(mut self, b: &mut Builder, dtype: DType) -> Result<Factor<'a>, Diagnostic> {
        self.weight = b.push(Op::Transpose {}, &[self.weight])?;
        if let Some(encoding) = &mut self.encoding {
            encoding.each(|v| b.push(Op::Transpose {}, &[v]))?;
            let Block { rows, cols } = encoding.block;
            encoding.block = Block { rows: cols, cols: rows };
            encoding.sizes.reverse();
        }
        self.dequantised(b, dtype)
    }

    /// Heads times their own matrices. Rows stay what they are: a weight of codes keeps its type,
    /// and no row becomes codes.
    pub fn multiply_heads(&self, b: &mut Builder, x: Value, out: DType) -> Made {
        b.at(&self.path);
        let grids = self.encoding.iter().flat_map(|encoding| &encoding.grids);
        let operands: Vec<Value> = [x, self.weight].into_iter().chain(grids.copied()).collect();
        b.push(Op::PerHead { out, block: self.encoding.as_ref().map(|encoding| encoding.block) }, &operands)
    }

    /// Rows that have a scale times the weight. Sums are scaled, unless rows become codes: then
    /// rows are.
    pub fn multiply_scaled(&self, b: &mut Builder, (x, scale): (Value, Option<Value>), out: DType) -> Made {
        let Some(scale) = scale else { return self.multiply(b, x, out) };
        b.at(&self.path);
        if self.encoding.as_ref().is_some_and(|encoding| encoding.scheme.inputs.is_some()) {
            let x = b.map(Elementwise::Mul, &[x, scale])?;
            return self.multiply(b, x, out);
        }
        let sums = self.multiply(b, x, out)?;
        b.map(Elementwise::Mul, &[sums, scale])
    }

    /// Rows times the weights of their experts.
    pub fn multiply_grouped(&self, b: &mut Builder, x: Value, experts: Value, out: DType) -> Made {
        b.at(&self.path);
        let Some(Encoding { scheme, grids, block, .. }) = &self.encoding else {
            return b.push(Op::Grouped { out, block: None }, &[x, self.weight, experts]);
        };
        if scheme.inputs.is_some_and(|inputs| inputs.scales == InputScales::Static) {
            let message = "rows of experts with given scales (static activations) are not supported";
            return Err(Diagnostic::new("config::quantised", message).at(&self.path));
        }
        let x = scheme.inputs.map_or(Ok(x), |inputs| coded(b, &self.path, x, inputs))?;
        let mut operands = vec![x, self.weight, experts];
        operands.extend(grids);
        b.push(Op::Grouped { out, block: Some(*block) }, &operands)
    }

    /// Rows times the weight.
    pub fn multiply(&self, b: &mut Builder, x: Value, out: DType) -> Made {
        b.at(&self.path);
        let made = self.product(b, x, out)?;
        match &self.adapted {
            Some(adapted) => adapted.add(b, x, made),
            None => Ok(made),
        }
    }

    /// The product without adapters.
    fn product(&self, b: &mut Builder, x: Value, out: DType) -> Made {
        let x = self.order.map_or(Ok(x), |order| b.push(Op::Reorder {}, &[x, order]))?;
        let Some(Encoding { scheme, grids, block, .. }) = &self.encoding else { return b.linear(x, self.weight, out) };
        let x = scheme.inputs.map_or(Ok(x), |inputs| coded(b, &self.path, x, inputs))?;
        let mut operands = vec![x, self.weight];
        operands.extend(grids);
        b.push(Op::Linear { out, block: Some(*block) }, &operands)
    }
}

impl Adapted {
    /// The matrices for a module of a layer, if there is room for adapters.
    fn read(b: &mut Builder, config: &Config, path: &str, [rows, cols]: [usize; 2]) -> Option<Adapted> {
        let Adapters { slots, rank } = config.adapters?;
        if !path.starts_with(config.layer_path(config.first).trim_end_matches(char::is_numeric)) {
            return None;
        }
        let wide = b.weight(format!("{path}{}", manifest::Adapters::WIDE), config.dtype, &[slots, rank, cols]);
        let tall = b.weight(format!("{path}{}", manifest::Adapters::TALL), config.dtype, &[slots, rows, rank]);
        Some(Adapted { wide, tall, slots })
    }

    /// The sum of a product and of what adapters add to it.
    fn add(&self, b: &mut Builder, x: Value, made: Value) -> Made {
        let rows = b.given(ADAPTERS).expect("a graph with room for adapters is given those of tokens");
        let dtype = |b: &Builder, v: Value| b.ty(v).as_tensor().map_or(DType::F32, |t| t.dtype);
        let (narrow, out) = (dtype(b, x), dtype(b, made));
        let short = b.push(Op::Grouped { out: narrow, block: None }, &[x, self.wide, rows])?;
        let long = b.push(Op::Grouped { out, block: None }, &[short, self.tall, rows])?;
        let weights = b.weight(manifest::Adapters::WEIGHTS, DType::F32, &[self.slots, 1]);
        let weights = b.gather(weights, rows)?;
        let added = b.push(Op::Combine {}, &[long, weights])?;
        b.add(made, added)
    }
}

/// Floats of the checkpoint that have to be such as `is` says.
pub fn expected(b: &mut Builder, name: String, shape: &[usize], is: Fact) -> Made {
    let floats = b.weight(name, DType::F32, shape);
    b.push(Op::Expect { is }, &[floats, floats])
}

/// Rows as codes.
fn coded(b: &mut Builder, path: &str, x: Value, inputs: Inputs) -> Made {
    let (rule, given) = match inputs.scales {
        InputScales::Static => (Rule::Static, Some(expected(b, format!("{path}.input_scale"), &[1], Fact::Scales)?)),
        InputScales::Row => (Rule::Row, None),
        InputScales::Group(columns) => (Rule::Group(columns), None),
        InputScales::Power(columns) => (Rule::Power(columns), None),
        InputScales::Mx(columns) => (Rule::Mx(columns), None),
    };
    let operands: Vec<Value> = [x].into_iter().chain(given).collect();
    b.push(Op::Quantise { to: inputs.codes, rule }, &operands)
}

impl Encoding<'_> {
    fn slice(&mut self, b: &mut Builder, start: usize, len: usize) -> Result<(), Diagnostic> {
        self.set_borders(b, 0, gcd(start, len))?;
        let (height, axis) = (self.block.rows, self.lead);
        self.each(|v| slice(b, v, axis, (start / height, len.div_ceil(height))))?;
        self.sizes[0] = len;
        Ok(())
    }

    /// A grid for each head, of `len` of its rows from `start` on.
    fn heads(
        &mut self,
        b: &mut Builder,
        (heads, each): (usize, usize),
        (start, len): (usize, usize),
    ) -> Result<(), Diagnostic> {
        let (height, [down, along]) = (self.block.rows, self.block.grid(self.sizes[0], self.sizes[1]));
        let plain = |v: &Value| matches!(b.op(*v), Op::Weight { .. } | Op::View { .. });
        if !self.grids.iter().all(plain) {
            let message = "heads of a weight whose scales are stored in this form are not supported";
            return Err(Diagnostic::new("config::quantised", message));
        }
        let is_aligned = [each, start, len].iter().all(|n| n.is_multiple_of(height));
        // Rows of a head's grid, and the scales' row of each.
        let side = if down == 1 { len } else { [each, start, len].into_iter().fold(height, gcd) };
        if !is_aligned && heads * (len / side) > MOST_PIECES {
            let message = format!("parts of heads cut blocks of {height} rows, which would make too many of {side}");
            return Err(Diagnostic::new("config::quantised", message));
        }
        self.each(|v| {
            if is_aligned {
                let shape = vec![heads, each / height, along];
                let v = b.push(Op::View { shape }, &[v])?;
                return slice(b, v, 1, (start / height, len / height));
            }
            let rows = b.push(Op::View { shape: vec![down, 1, along] }, &[v])?;
            let mut grids = Vec::with_capacity(heads);
            for head in 0..heads {
                let first = head * each + start;
                let row = |i: usize| slice(b, rows, 0, ((first + i * side) / height, 1));
                let own: Vec<Value> = (0..len / side).map(row).collect::<Result<_, _>>()?;
                grids.push(b.push(Op::Concat { axis: 1 }, &own)?);
            }
            b.push(Op::Concat { axis: 0 }, &grids)
        })?;
        (self.lead, self.sizes[0]) = (1, len);
        self.block.rows = if is_aligned { height } else { side };
        Ok(())
    }

    fn pieces(&mut self, b: &mut Builder, pieces: &[(usize, usize)]) -> Result<(), Diagnostic> {
        let border = pieces.iter().fold(0, |border, &(start, len)| gcd(gcd(border, start), len));
        self.set_borders(b, 0, border)?;
        let (height, axis) = (self.block.rows, self.lead);
        let blocks: Vec<_> = pieces.iter().map(|&(start, len)| (start / height, len / height)).collect();
        self.each(|v| joined(b, v, axis, &blocks))?;
        self.sizes[0] = pieces.iter().map(|(_, len)| len).sum();
        Ok(())
    }

    fn shard(&mut self, b: &mut Builder, axis: usize, parts: usize) -> Result<(), Diagnostic> {
        let len = self.sizes[axis] / parts;
        if self.side(axis) < self.sizes[axis] {
            self.set_borders(b, axis, len)?;
            let lead = self.lead;
            self.each(|v| shard(b, v, lead + axis, parts))?;
        } else {
            // One block is all there is along this axis.
            self.set_side(axis, len);
        }
        self.sizes[axis] = len;
        Ok(())
    }

    fn pad(&mut self, b: &mut Builder, axis: usize, len: usize) -> Result<(), Diagnostic> {
        let (side, lead) = (self.side(axis), self.lead);
        if side < self.sizes[axis] {
            self.each(|v| b.push(Op::Pad { axis: lead + axis, len: len.div_ceil(side) }, &[v]))?;
        } else {
            // One block is all there is along this axis.
            self.set_side(axis, len);
        }
        self.sizes[axis] = len;
        Ok(())
    }

    /// Makes blocks smaller where none would end at each multiple of a number: their scales are
    /// repeated.
    fn set_borders(&mut self, b: &mut Builder, axis: usize, border: usize) -> Result<(), Diagnostic> {
        let (old, size) = (self.side(axis), self.sizes[axis]);
        let side = gcd(old, border);
        if side == old {
            return Ok(());
        }
        let count = size.div_ceil(side);
        if count > MOST_PIECES {
            let message =
                format!("a cut at multiples of {border} parts blocks of {old}, which would make {count} of {side}");
            return Err(Diagnostic::new("config::ranks", message));
        }
        let along = self.lead + axis;
        self.each(|v| {
            let one = |i| slice(b, v, along, (i * side / old, 1));
            let pieces: Vec<Value> = (0..count).map(one).collect::<Result<_, _>>()?;
            b.push(Op::Concat { axis: along }, &pieces)
        })?;
        self.set_side(axis, side);
        Ok(())
    }

    fn each(&mut self, mut f: impl FnMut(Value) -> Made) -> Result<(), Diagnostic> {
        self.grids.iter_mut().try_for_each(|v| {
            *v = f(*v)?;
            Ok(())
        })
    }

    fn side(&self, axis: usize) -> usize {
        if axis == 0 { self.block.rows } else { self.block.cols }
    }

    fn set_side(&mut self, axis: usize, side: usize) {
        let of_axis = if axis == 0 { &mut self.block.rows } else { &mut self.block.cols };
        *of_axis = side;
    }
}

fn slice(b: &mut Builder, v: Value, axis: usize, (start, len): (usize, usize)) -> Made {
    b.push(Op::Slice { axis, start, len }, &[v])
}

/// Merges consecutive pieces.
fn runs(pieces: &[(usize, usize)]) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &(start, len) in pieces {
        match runs.last_mut() {
            Some((first, count)) if *first + *count == start => *count += len,
            _ => runs.push((start, len)),
        }
    }
    runs
}

/// Pieces along an axis, concatenated; the value itself if they are all of it.
pub fn joined(b: &mut Builder, v: Value, axis: usize, pieces: &[(usize, usize)]) -> Made {
    let runs = runs(pieces);
    let sizes = b.ty(v).as_tensor().and_then(|t| t.shape.sizes());
    if let [(0, len)] = runs[..]
        && sizes.is_some_and(|sizes| sizes.get(axis) == Some(&len))
    {
        return Ok(v);
    }
    let parts = runs.into_iter().map(|run| slice(b, v, axis, run)).collect::<Result<Vec<_>, _>>()?;
    if let [one] = parts[..] { Ok(one) } else { b.push(Op::Concat { axis }, &parts) }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The tensors of a module in the file.
struct InFile<'a> {
    b: &'a mut Builder,
    path: &'a str,
    /// The type of floats.
    dtype: DType,
    /// The stack of experts.
    stack: Option<Stack>,
}

impl InFile<'_> {
    /// Codes of a weight of these sizes, and scales and zero points with the rows and columns of
    /// the grid.
    fn read(mut self, scheme: &Scheme, sizes: [usize; 2], grid: [usize; 2]) -> Result<(Value, Vec<Value>), Diagnostic> {
        match scheme.stored {
            Stored::Codes { scale, axes } => {
                let weight = self.tensor("weight", scheme.codes, &sizes);
                Ok((weight, vec![self.scales(scheme, (scale, axes), grid)?]))
            }
            Stored::Named(named) => self.named(scheme, named, (sizes, grid)),
            Stored::Book { .. } => unreachable!("codes of a book become floats"),
            Stored::Pairs { weight, scale } => {
                let words = self.tensor(weight, DType::U8, &[sizes[0], sizes[1].div_ceil(2)]);
                let weight = self.unpacked(words, DType::F4E2M1, (1, sizes[1]), Order::Plain)?;
                Ok((weight, vec![self.scales(scheme, (scale, Axes::Matrix), grid)?]))
            }
            Stored::Levels(levels) => self.levels(scheme, levels, (sizes, grid)),
            Stored::Floats => self.made(scheme, sizes),
            Stored::Words { sorted } => self.words(scheme, sizes, (grid, sorted)),
            Stored::Typed { kind, least } => self.typed(scheme, (kind, least), (sizes, grid)),
            Stored::Awq => self.columns(scheme, (sizes, grid), (1, Order::Awq), 0),
            Stored::Gptq { taken, order, .. } => self.columns(scheme, (sizes, grid), (0, order), taken),
            Stored::Blocks => {
                let message = "only experts of GPT-OSS are stored in blocks";
                Err(Diagnostic::new("config::quantised", message).at(self.path))
            }
        }
    }

    /// Codes with scales, if what has to be zero is.
    fn named(
        &mut self,
        scheme: &Scheme,
        Named { weight, scale, axes, by, zeros }: Named,
        (sizes, grid): ([usize; 2], [usize; 2]),
    ) -> Result<(Value, Vec<Value>), Diagnostic> {
        let mut codes = self.tensor(weight, scheme.codes, &sizes);
        if let Some((name, axes)) = zeros {
            let shape = if axes == Axes::One { vec![1] } else { grid.to_vec() };
            let told = self.tensor(name, if axes == Axes::One { DType::U8 } else { DType::I8 }, &shape);
            codes = self.b.push(Op::Expect { is: Fact::All(0) }, &[codes, told])?;
        }
        let scales = self.scales(scheme, (scale, axes), grid)?;
        let scales = by.map_or(Ok(scales), |by| self.b.push(Op::Factor { by }, &[scales]))?;
        Ok((codes, vec![scales]))
    }

    /// Floats of codes of a book.
    fn book(&mut self, (text, nested): (&str, bool), [rows, cols]: [usize; 2]) -> Made {
        let (all, to, shape) = (rows * cols, self.dtype, vec![rows, cols]);
        let [blocks, of_blocks] = BOOK_BLOCKS;
        let count = all.div_ceil(blocks);
        let codes = self.tensor("weight", DType::U8, &[all.div_ceil(2), 1]);
        let scales = self.tensor("weight.absmax", if nested { DType::U8 } else { DType::F32 }, &[count]);
        let book = self.tensor("weight.quant_map", DType::F32, &[16]);
        let text = self.tensor(text, DType::U8, &[TEXT]);
        if !nested {
            return self.b.push(Op::Codebook { shape, to }, &[codes, scales, book, text]);
        }
        let outer = self.tensor("weight.nested_absmax", DType::F32, &[count.div_ceil(of_blocks)]);
        let outer_book = self.tensor("weight.nested_quant_map", DType::F32, &[256]);
        self.b.push(Op::NestedCodebook { shape, to }, &[codes, scales, book, text, outer, outer_book])
    }

    /// Pairs of codes, and scales that are those of groups with the number of all.
    fn levels(
        &mut self,
        scheme: &Scheme,
        Levels { weight, scale, number, over, given }: Levels,
        ([rows, cols], grid): ([usize; 2], [usize; 2]),
    ) -> Result<(Value, Vec<Value>), Diagnostic> {
        if self.stack.as_ref().is_some_and(|stack| stack.joined) {
            let message = "experts in one tensor with scales of two levels (NVFP4) are not supported";
            return Err(Diagnostic::new("config::quantised", message).at(self.path));
        }
        let words = self.tensor(weight, DType::U8, &[rows, cols.div_ceil(2)]);
        let mut codes = self.unpacked(words, scheme.codes, (1, cols), Order::Plain)?;
        if let Some(given) = given {
            let told = self.tensor(given, DType::F32, &[1]);
            codes = self.b.push(Op::Expect { is: Fact::Scales }, &[codes, told])?;
        }
        let scales = self.tensor(scale, DType::F8E4M3, &grid);
        let number = self.tensor(number, DType::F32, &[1]);
        Ok((codes, vec![self.b.push(Op::Times { over }, &[scales, number])?]))
    }

    /// Codes and scales that are made of floats.
    fn made(&mut self, scheme: &Scheme, sizes: [usize; 2]) -> Result<(Value, Vec<Value>), Diagnostic> {
        let floats = self.tensor("weight", self.dtype, &sizes);
        let [rows, cols] = sizes;
        let block = match scheme.blocks {
            Blocks::Tensor => [rows, cols],
            Blocks::Row => [1, cols],
            Blocks::Group(columns) => [1, columns],
            Blocks::Square(height, width) => [height.min(rows), width.min(cols)],
        };
        let by = Encode { codes: scheme.codes, scales: scheme.scales, block };
        let mut made = |made| self.b.push(Op::Encode { by, made }, &[floats]);
        let (codes, scales) = (made(Encoded::Codes)?, made(Encoded::Scales)?);
        let codes = match scheme.codes.bits() {
            4 => self.unpacked(codes, scheme.codes, (1, cols), Order::Plain)?,
            _ => codes,
        };
        Ok((codes, vec![scales]))
    }

    /// As GGUF files have them, by the type of the tensor.
    fn typed(
        &mut self,
        scheme: &Scheme,
        (kind, least): (&str, Option<DType>),
        ([rows, cols], grid): ([usize; 2], [usize; 2]),
    ) -> Result<(Value, Vec<Value>), Diagnostic> {
        let name = |piece: &str| format!("weight.{kind}.{piece}");
        let codes = match scheme.codes.bits() {
            4 => {
                let pairs = self.tensor(&name("codes"), DType::U8, &[rows, cols.div_ceil(2)]);
                self.unpacked(pairs, scheme.codes, (1, cols), Order::Plain)?
            }
            _ => self.tensor(&name("codes"), scheme.codes, &[rows, cols]),
        };
        let mut grids = vec![self.tensor(&name("scales"), scheme.scales, &grid)];
        grids.extend(least.map(|least| self.tensor(&name("least"), least, &grid)));
        Ok((codes, grids))
    }

    fn tensor(&mut self, name: &str, dtype: DType, shape: &[usize]) -> Value {
        let name = format!("{}.{name}", self.path);
        match &self.stack {
            None => self.b.weight(name, dtype, shape),
            Some(Stack { count, joined: true, .. }) => self.b.weight(name, dtype, &[&[*count], shape].concat()),
            Some(Stack { count, whole, .. }) => self.b.weights(name, dtype, (*count, shape), whole.clone()),
        }
    }

    /// The axis of a matrix, where there are others before it.
    fn axis(&self, axis: usize) -> usize {
        axis + usize::from(self.stack.is_some())
    }

    fn scales(&mut self, scheme: &Scheme, (name, axes): (&str, Axes), grid: [usize; 2]) -> Made {
        let scales = scheme.scales;
        let flat = match axes {
            Axes::One => self.tensor(name, scales, &[1]),
            Axes::Vector => self.tensor(name, scales, &grid[..1]),
            Axes::Matrix => return Ok(self.tensor(name, scales, &grid)),
        };
        let count = self.stack.iter().map(|stack| stack.count);
        let shape = count.chain(grid).collect();
        self.b.push(Op::View { shape }, &[flat])
    }

    /// The codes of packed words, `len` of them along an axis.
    fn unpacked(&mut self, words: Value, to: DType, (axis, len): (usize, usize), order: Order) -> Made {
        let from = self.b.ty(words).as_tensor().map_or(DType::I32, |t| t.dtype);
        let axis = self.axis(axis);
        self.b.push(Op::Unpack { from, to, axis, len, order }, &[words])
    }

    /// As compressed-tensors has them: half of their range is added to codes and to zero points.
    fn words(
        &mut self,
        scheme: &Scheme,
        [rows, cols]: [usize; 2],
        ([height, width], sorted): ([usize; 2], bool),
    ) -> Result<(Value, Vec<Value>), Diagnostic> {
        let (raw, in_word) = (unsigned(scheme.codes), 32 / scheme.codes.bits());
        let mut words = self.tensor("weight_packed", DType::I32, &[rows, cols.div_ceil(in_word)]);
        if sorted {
            words = self.sorted(words, "weight_g_idx", (1, cols), scheme.codes.bits())?;
        }
        let codes = self.unpacked(words, raw, (1, cols), Order::Plain)?;
        let codes = self.signed(scheme, codes)?;
        let told = self.tensor("weight_shape", DType::I32, &[2]);
        let codes = self.b.push(Op::Expect { is: Fact::Are(vec![rows as i32, cols as i32]) }, &[codes, told])?;
        let codes = if sorted { self.grouped(scheme, codes, "weight_g_idx", cols)? } else { codes };
        let mut grids = vec![self.scales(scheme, ("weight_scale", Axes::Matrix), [height, width])?];
        if scheme.zeros {
            let words = self.tensor("weight_zero_point", DType::I32, &[height.div_ceil(in_word), width]);
            let zeros = self.unpacked(words, raw, (0, height), Order::Plain)?;
            grids.push(self.shifted(zeros, 0, DType::U8)?);
        }
        Ok((codes, grids))
    }

    /// As AWQ and GPTQ have them: of the transposed weight, packed along an axis of that; of zero
    /// points something was taken.
    fn columns(
        &mut self,
        scheme: &Scheme,
        ([rows, cols], [height, width]): ([usize; 2], [usize; 2]),
        (axis, order): (usize, Order),
        taken: usize,
    ) -> Result<(Value, Vec<Value>), Diagnostic> {
        let (raw, in_word) = (unsigned(scheme.codes), 32 / scheme.codes.bits());
        let mut stored = [cols, rows];
        stored[axis] = order.words(stored[axis], in_word);
        let mut words = self.tensor("qweight", DType::I32, &stored);
        let told = match scheme.stored {
            Stored::Gptq { told, .. } => told,
            _ => Told::Nothing,
        };
        if told == Told::Order {
            let bits = order.bits().unwrap_or(scheme.codes.bits());
            words = self.sorted(words, "g_idx", (0, cols), bits)?;
        }
        let codes = self.unpacked(words, raw, (axis, [cols, rows][axis]), order)?;
        let codes = self.b.push(Op::Transpose {}, &[codes])?;
        let mut codes = self.signed(scheme, codes)?;
        let scales = self.tensor("scales", scheme.scales, &[width, height]);
        let mut grids = vec![self.b.push(Op::Transpose {}, &[scales])?];
        let words = self.tensor("qzeros", DType::I32, &[width, order.words(height, in_word)]);
        let zeros = self.unpacked(words, raw, (1, height), order)?;
        if scheme.zeros {
            let zeros = self.b.push(Op::Transpose {}, &[zeros])?;
            grids.push(self.shifted(zeros, taken as i32, DType::U8)?);
        } else {
            // The middle, which is zero for codes with a sign.
            let middle = (1 << (scheme.codes.bits() - 1)) - taken;
            codes = self.b.push(Op::Expect { is: Fact::All(middle as i32) }, &[codes, zeros])?;
        }
        if told != Told::Nothing {
            codes = self.grouped(scheme, codes, "g_idx", cols)?;
        }
        Ok((codes, grids))
    }

    /// Whether a tensor says that columns come in another order.
    fn told(scheme: &Scheme) -> Option<&'static str> {
        match scheme.stored {
            Stored::Gptq { told: Told::Order, .. } => Some("g_idx"),
            Stored::Words { sorted: true } => Some("weight_g_idx"),
            _ => None,
        }
    }

    /// The column of a row that each column of the weight is for.
    fn order(&mut self, scheme: &Scheme, cols: usize) -> Result<Option<Value>, Diagnostic> {
        let Some(name) = Self::told(scheme) else { return Ok(None) };
        if self.stack.is_some() {
            let message = "experts with columns in another order (act-order: `desc_act`, `actorder`) are not supported";
            return Err(Diagnostic::new("config::quantised", message).at(self.path));
        }
        let groups = self.tensor(name, DType::I32, &[cols]);
        self.b.push(Op::Places {}, &[groups]).map(Some)
    }

    /// Words whose codes come group by group.
    fn sorted(&mut self, words: Value, by: &str, (axis, cols): (usize, usize), bits: usize) -> Made {
        let groups = self.tensor(by, DType::I32, &[cols]);
        self.b.push(Op::Sort { bits, axis }, &[words, groups])
    }

    /// Codes, if columns have the groups that they are taken to have.
    fn grouped(&mut self, scheme: &Scheme, codes: Value, name: &str, cols: usize) -> Made {
        let group = if let Blocks::Group(columns) = scheme.blocks { columns } else { cols };
        let told = self.tensor(name, DType::I32, &[cols]);
        let is = if Self::told(scheme).is_some() { Fact::Members(group) } else { Fact::Groups(group) };
        self.b.push(Op::Expect { is }, &[codes, told])
    }

    /// Codes that are stored with half of their range added, if they have a sign.
    fn signed(&mut self, scheme: &Scheme, codes: Value) -> Made {
        match scheme.codes {
            to @ (DType::I4 | DType::I8) => self.shifted(codes, -(1 << (to.bits() - 1)), to),
            _ => Ok(codes),
        }
    }

    fn shifted(&mut self, codes: Value, by: i32, to: DType) -> Made {
        let same = by == 0 && self.b.ty(codes).as_tensor().is_some_and(|t| t.dtype == to);
        if same { Ok(codes) } else { self.b.push(Op::Shift { by, to }, &[codes]) }
    }
}

/// Codes of as many bits without a sign.
fn unsigned(codes: DType) -> DType {
    if codes.bits() == 4 { DType::U4 } else { DType::U8 }
}
