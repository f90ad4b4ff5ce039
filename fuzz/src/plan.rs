//! Plans of weights, generated: sound by construction, so that all of them are loaded.
use std::collections::BTreeMap;

use atomc_runtime::Pool;
use atomc_runtime::checkpoint::{CheckpointError, Float, Source, Tensor};
use atomc_runtime::device::DeviceBuffer;
use atomc_runtime::manifest::{DType, Fact, Layout, Order, TensorNames, Weight, WeightExpr};
use atomc_runtime::memory::Buffer;
use atomc_runtime::weights::{self, Given, Loading, Rank, Sink};

/// Largest number of rows or columns of a weight.
const MOST: usize = 70;
/// Deepest expression.
const DEPTH: usize = 4;
/// Types that a tensor of a checkpoint may have.
const FLOATS: [Float; 4] = [Float::BF16, Float::F16, Float::F32, Float::F64];
/// Types of codes that a weight may have; half of all weights have floats.
const CODES: [DType; 7] = [DType::U4, DType::I4, DType::F4E2M1, DType::U8, DType::I8, DType::F8E4M3, DType::E8M0];

/// The plan that the bytes spell, loaded at once and tensor by tensor, which must come out alike.
pub fn weights(data: &[u8]) {
    let mut spell = Spell { data, codes: None, tensors: BTreeMap::new() };
    spell.codes = CODES.get(spell.below(2 * CODES.len())).copied();
    let ranks = 1 + spell.below(3);
    let rank = Rank { number: spell.below(ranks), of: ranks };
    let shape = [1 + spell.below(MOST), 1 + spell.below(MOST)];
    let expr = spell.expr(shape, ranks, DEPTH);
    let weight = spell.weight(shape, expr);
    let source = Made(spell.tensors);
    let mut pool = Pool::new(1).expect("one thread");
    let all = std::slice::from_ref(&weight);
    let mut at_once = [DeviceBuffer::Host(Buffer::new(weight.bytes).expect("memory"))];
    weights::load(
        Sink { weights: all, rank, buffers: &mut at_once, pool: &mut pool },
        &TensorNames::default(),
        &source,
        &|_, _| (),
    )
    .expect("a sound plan");
    let mut one_by_one = [DeviceBuffer::Host(Buffer::new(weight.bytes).expect("memory"))];
    let mut loading = Loading::new(all, &TensorNames::default(), rank);
    for (name, (float, shape, bytes)) in &source.0 {
        let given = Given { float: *float, shape, numbers: bytes.into() };
        let sink = Sink { weights: all, rank, buffers: &mut one_by_one, pool: &mut pool };
        loading.feed(name, given, sink).expect("a sound tensor");
    }
    loading.finish(Sink { weights: all, rank, buffers: &mut one_by_one, pool: &mut pool }).expect("all tensors");
    assert_eq!(at_once[0].host_view(), one_by_one[0].host_view());
}

/// Tensors by name: type, shape, bytes.
struct Made(BTreeMap<String, (Float, Vec<usize>, Vec<u8>)>);

impl Source for Made {
    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor<'_>, CheckpointError> {
        let (float, found, bytes) = &self.0[name];
        assert_eq!(found, shape);
        Ok(Tensor::Bytes { float: *float, bytes })
    }

    fn names(&self) -> Vec<&str> {
        self.0.keys().map(String::as_str).collect()
    }
}

/// The values that bytes spell; zeros follow their end.
struct Spell<'a> {
    data: &'a [u8],
    /// What all tensors hold, if they hold codes.
    codes: Option<DType>,
    tensors: BTreeMap<String, (Float, Vec<usize>, Vec<u8>)>,
}

impl Spell<'_> {
    fn below(&mut self, most: usize) -> usize {
        let Some((first, rest)) = self.data.split_first() else { return 0 };
        self.data = rest;
        usize::from(*first) % most
    }

    fn weight(&mut self, [rows, cols]: [usize; 2], expr: WeightExpr) -> Weight {
        let dtype = self.codes.unwrap_or([DType::F32, DType::BF16, DType::F16][self.below(3)]);
        let (layout, elements) = match self.below(2) {
            0 => {
                let stride = (cols + self.below(9)).next_multiple_of(2);
                (Layout::Rows { stride }, (rows - 1) * stride + cols)
            }
            _ => {
                let (width, group) = (1 << self.below(6), 2 << self.below(4));
                let (rows, cols) = (rows.next_multiple_of(width), cols.next_multiple_of(group));
                (Layout::Panels { width, group, rows, cols }, rows * cols)
            }
        };
        let bytes = dtype.bytes(elements);
        Weight { name: "w".into(), dtype, shape: vec![rows, cols], layout, bytes, expr, unsigned_zeros: false }
    }

    /// An expression of this shape.
    fn expr(&mut self, shape: [usize; 2], ranks: usize, depth: usize) -> WeightExpr {
        let axis = self.below(2);
        match if depth == 0 { 0 } else { self.below(8) } {
            1 if shape[axis] > 1 => {
                let first = 1 + self.below(shape[axis] - 1);
                let parts =
                    [first, shape[axis] - first].map(|len| self.expr(along(shape, axis, len), ranks, depth - 1));
                WeightExpr::Concat { axis, parts: parts.into() }
            }
            2 => {
                let (start, behind, len) = (self.below(5), self.below(5), shape[axis]);
                let of = self.expr(along(shape, axis, start + len + behind), ranks, depth - 1).into();
                WeightExpr::Slice { axis, start, len, of }
            }
            // A rank has its part once, and inside a part there is no other.
            3 if ranks > 1 => {
                let of = self.expr(along(shape, axis, shape[axis] * ranks), 1, depth - 1).into();
                WeightExpr::Shard { axis, parts: ranks, of }
            }
            4 => {
                let of = self.expr([shape[1], shape[0]], ranks, depth - 1).into();
                WeightExpr::Transpose { of }
            }
            5 => {
                let len = 1 + self.below(5);
                let told = self.tensor([1, len], Float::Code(DType::I32), Some(1)).into();
                let of = self.expr(shape, ranks, depth - 1).into();
                WeightExpr::Expect { is: Fact::All(0x0101_0101), told, of }
            }
            // Of codes of 4 bits two are in a byte, and none is left out.
            6 if self.codes.is_none() => {
                let (step, spare) = (1 + self.below(3), self.below(3));
                let start = self.below(step);
                // Fewer places than a step remain after the last one that is taken.
                let all = start + (shape[axis] - 1) * step + 1 + spare % step;
                let of = self.expr(along(shape, axis, all), ranks, depth - 1).into();
                WeightExpr::Every { axis, step, start, of }
            }
            7 if shape[axis] > 1 => {
                let len = 1 + self.below(shape[axis]);
                let of = self.expr(along(shape, axis, len), ranks, depth - 1).into();
                WeightExpr::Pad { axis, len: shape[axis], of }
            }
            _ => self.leaf(shape),
        }
    }

    /// Numbers as a checkpoint may have them.
    fn leaf(&mut self, shape: [usize; 2]) -> WeightExpr {
        use DType::{F4E2M1, I4, I8, I32, U4, U8};
        let Some(codes) = self.codes else {
            let float = FLOATS[self.below(FLOATS.len())];
            return self.tensor(shape, float, None);
        };
        let shift = |by, of: WeightExpr| WeightExpr::Shift { by, to: codes, of: of.into() };
        match (codes, self.below(3)) {
            (U4 | I4 | F4E2M1, 0) => self.unpack(shape, U8, codes),
            (I4, 1) => shift(-8, self.unpack(shape, I32, U4)),
            (U4 | I4 | F4E2M1, _) => self.unpack(shape, I32, codes),
            (U8, 1) => shift(1, self.unpack(shape, I32, U4)),
            (I8, 1) => shift(-128, self.unpack(shape, I32, U8)),
            (U8 | I8, 2) => self.unpack(shape, I32, codes),
            _ => self.tensor(shape, Float::Code(codes), None),
        }
    }

    fn unpack(&mut self, mut shape: [usize; 2], from: DType, to: DType) -> WeightExpr {
        let (axis, places) = (self.below(2), from.bits() / to.bits());
        let order = if places == 8 && self.below(2) == 1 { Order::Awq } else { Order::Plain };
        let len = shape[axis];
        shape[axis] = len.div_ceil(places);
        let of = self.tensor(shape, Float::Code(from), None).into();
        WeightExpr::Unpack { from, to, axis, len, order, of }
    }

    /// A tensor of a checkpoint, perhaps under another shape there; of any bytes, or all of one.
    fn tensor(&mut self, shape: [usize; 2], float: Float, byte: Option<u8>) -> WeightExpr {
        let name = format!("t{}", self.tensors.len());
        let first = self.below(256);
        // No NaN, which codes may not be.
        let mask = if float == Float::Code(DType::F8E4M3) { 0xbf } else { 0xff };
        let any = |i: usize| byte.unwrap_or((first + i * 7) as u8 & mask);
        let bytes = (0..shape[0] * shape[1] * float.size()).map(any).collect();
        let other = [vec![shape[0], 1, shape[1]], vec![shape[0] * shape[1]]];
        let stored = other.get(self.below(4)).cloned();
        let tensor = |shape: Vec<usize>| WeightExpr::Tensor { name: name.clone(), shape };
        let made = match stored.clone() {
            Some(stored) => WeightExpr::View { shape: shape.to_vec(), of: tensor(stored).into() },
            None => tensor(shape.to_vec()),
        };
        self.tensors.insert(name, (float, stored.unwrap_or(shape.to_vec()), bytes));
        made
    }
}

fn along(mut shape: [usize; 2], axis: usize, len: usize) -> [usize; 2] {
    shape[axis] = len;
    shape
}
