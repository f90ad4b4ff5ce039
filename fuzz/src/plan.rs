//! Plans of weights, generated: sound by construction, so that all of them are loaded.
use std::collections::BTreeMap;

use atomc_runtime::Pool;
use atomc_runtime::checkpoint::{CheckpointError, Float, Source, Tensor};
use atomc_runtime::device::DeviceBuffer;
use atomc_runtime::manifest::{DType, Layout, Weight, WeightExpr};
use atomc_runtime::memory::Buffer;
use atomc_runtime::weights::{self, Given, Loading, Rank, Sink};

/// Largest number of rows or columns of a weight.
const MOST: usize = 70;
/// Deepest expression.
const DEPTH: usize = 4;
/// Types that a tensor of a checkpoint may have.
const FLOATS: [Float; 4] = [Float::BF16, Float::F16, Float::F32, Float::F64];

/// The plan that the bytes spell, loaded at once and tensor by tensor, which must come out alike.
pub fn weights(data: &[u8]) {
    let mut spell = Spell { data, tensors: BTreeMap::new() };
    let ranks = 1 + spell.below(3);
    let rank = Rank { number: spell.below(ranks), of: ranks };
    let shape = [1 + spell.below(MOST), 1 + spell.below(MOST)];
    let expr = spell.expr(shape, ranks, DEPTH);
    let weight = spell.weight(shape, expr);
    let source = Made(spell.tensors);
    let mut pool = Pool::new(1).expect("one thread");
    let all = std::slice::from_ref(&weight);
    let mut at_once = [DeviceBuffer::Host(Buffer::new(weight.bytes).expect("memory"))];
    weights::load(Sink { weights: all, rank, buffers: &mut at_once, pool: &mut pool }, &source, &|_, _| ())
        .expect("a sound plan");
    let mut one_by_one = [DeviceBuffer::Host(Buffer::new(weight.bytes).expect("memory"))];
    let mut loading = Loading::new(all);
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

/// What bytes spell; behind their end there are zeros.
struct Spell<'a> {
    data: &'a [u8],
    tensors: BTreeMap<String, (Float, Vec<usize>, Vec<u8>)>,
}

impl Spell<'_> {
    fn below(&mut self, most: usize) -> usize {
        let Some((first, rest)) = self.data.split_first() else { return 0 };
        self.data = rest;
        usize::from(*first) % most
    }

    fn weight(&mut self, [rows, cols]: [usize; 2], expr: WeightExpr) -> Weight {
        let dtype = [DType::F32, DType::BF16, DType::F16][self.below(3)];
        let (layout, elements) = match self.below(2) {
            0 => {
                let stride = cols + self.below(9);
                (Layout::Rows { stride }, (rows - 1) * stride + cols)
            }
            _ => {
                let (width, group) = (1 << self.below(6), 1 << self.below(5));
                let (rows, cols) = (rows.next_multiple_of(width), cols.next_multiple_of(group));
                (Layout::Panels { width, group, rows, cols }, rows * cols)
            }
        };
        let bytes = elements * dtype.size();
        Weight { name: "w".into(), dtype, shape: vec![rows, cols], layout, bytes, expr }
    }

    /// An expression of this shape.
    fn expr(&mut self, shape: [usize; 2], ranks: usize, depth: usize) -> WeightExpr {
        let axis = self.below(2);
        match if depth == 0 { 0 } else { self.below(4) } {
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
            _ => self.tensor(shape),
        }
    }

    fn tensor(&mut self, shape: [usize; 2]) -> WeightExpr {
        let float = FLOATS[self.below(FLOATS.len())];
        let name = format!("t{}", self.tensors.len());
        let first = self.below(256);
        let bytes = (0..shape[0] * shape[1] * float.size()).map(|i| (first + i * 7) as u8).collect();
        self.tensors.insert(name.clone(), (float, shape.to_vec(), bytes));
        WeightExpr::Tensor { name, shape: shape.to_vec() }
    }
}

fn along(mut shape: [usize; 2], axis: usize, len: usize) -> [usize; 2] {
    shape[axis] = len;
    shape
}
