//! Random graphs that are legal and that the interpreter can run. A list of numbers decides what is
//! built, so that fewer and smaller numbers give simpler graphs.
use atomc_ir::results::HIDDEN;
use atomc_ir::rope::{Freqs, Scaling};
use atomc_ir::{Block, Builder, CacheType, DType, Dim, Elementwise, Graph, Op, Shape, Turn, Type, Value};
use proptest::prelude::*;

const HEAD_DIM: usize = 4;
const WIDTHS: [usize; 4] = [4, 8, 12, 16];

/// Graphs of up to some 150 nodes.
pub fn graphs() -> impl Strategy<Value = Graph> {
    proptest::collection::vec(any::<u16>(), 1..150).prop_map(|choices| Random::new(choices).graph())
}

struct Random {
    choices: std::vec::IntoIter<u16>,
    b: Builder,
    /// All float tensors made so far.
    pool: Vec<Value>,
    ids: Value,
    rows: Value,
    batch: Value,
    table: Value,
    cache: Value,
    cache_read: bool,
    weights: usize,
}

impl Random {
    fn new(choices: Vec<u16>) -> Random {
        let mut b = Builder::new("random");
        let index = |dim| Type::tensor(DType::I32, Shape(vec![dim]));
        let [ids, positions, lengths] = ["ids", "positions", "lengths"].map(|n| b.input(n, index(Dim::Tokens)));
        let rows = b.input("rows", index(Dim::Rows));
        let batch = b.input("batch", Type::Batch);
        let cache = b.input("kv0", Type::Cache(CacheType::even(DType::F32, 2, HEAD_DIM)));
        let x = b.input("x", Type::tensor(DType::F32, Shape::led_by(Dim::Tokens, &[8])));
        let freqs = b.rope_freqs(Freqs { theta: 100.0, dim: HEAD_DIM, scaling: Scaling::Default }).expect("even");
        let table = Op::RopeTable { scale: 1.0, growth: 0.0, original: 0, turn: Turn::Token };
        let table = b.push(table, &[positions, lengths, freqs]).expect("fits");
        let choices = choices.into_iter();
        Random { choices, b, pool: vec![x], ids, rows, batch, table, cache, cache_read: false, weights: 0 }
    }

    fn graph(mut self) -> Graph {
        while self.choices.len() > 0 {
            self.step();
        }
        // The last values, so that most of what was built is needed; sometimes one in the middle.
        let mut outputs: Vec<Value> = self.pool.iter().rev().take(2).copied().collect();
        outputs.push(self.pool[self.pool.len() / 2]);
        outputs.push(self.cache);
        let name = |(i, v): (usize, &Value)| match self.b.ty(*v) {
            Type::Tensor(t) if t.dtype.is_float() && t.shape.0[0] == Dim::Tokens => format!("{HIDDEN}.{i}"),
            _ => format!("r{i}"),
        };
        let names: Vec<String> = outputs.iter().enumerate().map(name).collect();
        self.b.finish(names.into_iter().zip(outputs).collect()).expect("legal by construction")
    }

    /// A number below `n`; zero when the list is at its end.
    fn below(&mut self, n: usize) -> usize {
        self.choices.next().unwrap_or(0) as usize % n
    }

    fn step(&mut self) {
        let location = format!("m.{}.{}", self.below(2), self.below(3));
        self.b.at(location);
        match self.below(16) {
            0 => self.unary(),
            1 | 2 => self.binary(),
            3 => self.linear(),
            4 => self.siblings(),
            5 | 13 => self.gated(),
            6 => self.norm(),
            7 => self.slice(),
            8 => self.concat(),
            9 => self.shape(),
            10 => self.gather(),
            11 | 14 | 15 => self.attention(),
            _ => self.cast(),
        }
    }

    /// One of the values, more often a late one.
    fn any(&mut self) -> Value {
        let back = self.below(self.pool.len()).min(self.below(self.pool.len()));
        self.pool[self.pool.len() - 1 - back]
    }

    fn shape_of(&self, v: Value) -> Shape {
        self.b.ty(v).as_tensor().expect("the pool holds tensors").shape.clone()
    }

    fn width(&self, v: Value) -> usize {
        self.shape_of(v).last().expect("all have a width")
    }

    fn dtype(&mut self) -> DType {
        [DType::F32, DType::BF16, DType::F16][self.below(3)]
    }

    fn push(&mut self, op: Op, operands: &[Value]) -> Value {
        let v = self.b.push(op, operands).expect("fits");
        self.pool.push(v);
        v
    }

    fn map(&mut self, op: Elementwise, operands: &[Value]) -> Value {
        self.push(Op::Map(op), operands)
    }

    /// A value as a matrix.
    fn matrix(&mut self) -> Value {
        let v = self.any();
        match &self.shape_of(v).0[..] {
            &[lead, Dim::Fixed(h), Dim::Fixed(d)] => {
                self.push(Op::Reshape { shape: Shape::led_by(lead, &[h * d]) }, &[v])
            }
            _ => v,
        }
    }

    /// A matrix of the step's tokens.
    fn tokens(&mut self) -> Value {
        let v = self.matrix();
        if self.shape_of(v).0[0] == Dim::Tokens { v } else { self.pool[0] }
    }

    /// A weight: of its own, one that was read before, or part of others.
    fn weight(&mut self, dtype: DType, shape: &[usize]) -> Value {
        self.weight_of_parts(dtype, shape, (1, 2))
    }

    /// A weight, or a concatenation of two weights, the first with `before` rows, or a slice of a
    /// larger weight with `before` more rows above it and `behind` below.
    fn weight_of_parts(&mut self, dtype: DType, shape: &[usize], (before, behind): (usize, usize)) -> Value {
        self.weights += 1;
        let (n, size) = (self.weights, shape.iter().map(|n| n.to_string()).collect::<Vec<_>>().join("x"));
        let name = |which: usize| format!("w{which}.{}.{size}", dtype.name());
        match self.below(5) {
            0 => self.b.weight(name(0), dtype, shape),
            1 if shape[0] > before => {
                let [mut top, mut rest] = [shape.to_vec(), shape.to_vec()];
                (top[0], rest[0]) = (before, shape[0] - before);
                let parts = [(n, top), (n + 100, rest)].map(|(n, s)| self.b.weight(name(n) + "part", dtype, &s));
                self.b.push(Op::Concat { axis: 0 }, &parts).expect("fits")
            }
            2 => {
                let mut larger = shape.to_vec();
                larger[0] += before + behind;
                let all = self.b.weight(name(n) + "whole", dtype, &larger);
                self.b.push(Op::Slice { axis: 0, start: before, len: shape[0] }, &[all]).expect("fits")
            }
            _ => self.b.weight(name(n), dtype, shape),
        }
    }

    fn unary(&mut self) {
        let x = self.any();
        let op = [Elementwise::Silu, Elementwise::Gelu, Elementwise::GeluTanh, Elementwise::Relu][self.below(4)];
        self.map(op, &[x]);
    }

    fn binary(&mut self) {
        let x = self.any();
        let op = [Elementwise::Add, Elementwise::Mul, Elementwise::SiluMul][self.below(3)];
        let same: Vec<Value> = self.pool.iter().copied().filter(|&v| self.shape_of(v) == self.shape_of(x)).collect();
        let other = match self.below(4) {
            0 => {
                let (width, dtype) = (self.width(x), self.dtype());
                let w = self.weight(dtype, &[width]);
                // A computed vector is no constant.
                if self.below(3) == 0 { self.map(Elementwise::Relu, &[w]) } else { w }
            }
            _ => same[self.below(same.len())],
        };
        self.map(op, &[x, other]);
    }

    fn project(&mut self, x: Value, width: usize, out: DType, bias: bool) -> Value {
        let dtype = self.dtype();
        let from = self.width(x);
        let y = match self.below(4) {
            1 => self.encoded(x, width, out),
            _ => {
                let w = self.weight(dtype, &[width, from]);
                self.push(Op::Linear { out, block: None }, &[x, w])
            }
        };
        if !bias {
            return y;
        }
        let vector = self.weight(dtype, &[width]);
        self.map(Elementwise::Add, &[y, vector])
    }

    /// A linear with a quantised weight, in blocks of any size.
    fn encoded(&mut self, x: Value, width: usize, out: DType) -> Value {
        let from = self.width(x);
        let codes = [DType::F8E4M3, DType::I8, DType::U4, DType::F4E2M1][self.below(4)];
        let block = Block { rows: [width, 1, 2, 3, 128][self.below(5)], cols: [from, 1, 3, 128][self.below(4)] };
        let grid = block.grid(width, from);
        let scale = self.dtype();
        let w = self.weight_of_parts(codes, &[width, from], (block.rows, 0));
        let mut operands = vec![x, w, self.weight(scale, &grid)];
        if codes.is_integer_code() && self.below(2) == 0 {
            let zero = [DType::I8, DType::U8, DType::F32, DType::F16][self.below(4)];
            operands.push(self.weight(zero, &grid));
        }
        self.push(Op::Linear { out, block: Some(block) }, &operands)
    }

    fn linear(&mut self) {
        let (x, width, out, bias) = (self.matrix(), WIDTHS[self.below(4)], self.dtype(), self.below(2) == 0);
        if self.shape_of(x).rank() == 2 {
            self.project(x, width, out, bias);
        }
    }

    /// Linears on one value.
    fn siblings(&mut self) {
        let (x, out, bias) = (self.tokens(), self.dtype(), self.below(2) == 0);
        for _ in 0..2 + self.below(2) {
            let (width, bias) = (WIDTHS[self.below(4)], bias || self.below(4) == 0);
            self.project(x, width, out, bias);
        }
    }

    /// The MLP of a dense layer, with variations.
    fn gated(&mut self) {
        let (x, width, out, bias) = (self.tokens(), WIDTHS[self.below(4)], self.dtype(), self.below(2) == 0);
        let h = if self.below(2) == 0 { self.normed(x) } else { x };
        let gate = self.project(h, width, out, bias);
        let up = self.project(h, width, out, bias);
        let op = [Elementwise::Silu, Elementwise::Gelu, Elementwise::GeluTanh][self.below(3)];
        let gate = self.map(op, &[gate]);
        let both = if self.below(2) == 0 { [gate, up] } else { [up, gate] };
        let act = self.map(Elementwise::Mul, &both);
        let width = self.width(x);
        let down = self.project(act, width, out, false);
        let down = self.summed(down);
        self.map(Elementwise::Add, &[x, down]);
    }

    /// Over ranks, sometimes.
    fn summed(&mut self, x: Value) -> Value {
        if self.below(2) == 0 && self.b.ty(x).as_tensor().is_some_and(|t| t.shape.0[0] == Dim::Tokens) {
            return self.push(Op::AllReduce {}, &[x]);
        }
        x
    }

    fn normed(&mut self, x: Value) -> Value {
        let (width, dtype) = (self.width(x), self.dtype());
        let w = self.weight(dtype, &[width]);
        self.push(Op::RmsNorm { eps: 1e-5 }, &[x, w])
    }

    fn norm(&mut self) {
        let x = self.any();
        if self.shape_of(x).rank() > 1 {
            self.normed(x);
        }
    }

    fn slice(&mut self) {
        let x = self.matrix();
        if self.shape_of(x).rank() == 2 {
            let width = self.width(x);
            let len = [width, width.div_ceil(2), 1][self.below(3)];
            let start = self.below(width / len) * len;
            self.push(Op::Slice { axis: 1, start, len }, &[x]);
        }
    }

    fn concat(&mut self) {
        let x = self.matrix();
        let ty = self.b.ty(x).as_tensor().expect("a tensor").clone();
        if ty.shape.rank() == 2 && ty.shape.last() <= Some(16) {
            let fits = |v: &Value| {
                let t = self.b.ty(*v).as_tensor().expect("a tensor");
                t.dtype == ty.dtype && t.shape.rank() == 2 && t.shape.0[0] == ty.shape.0[0]
            };
            let mut parts: Vec<Value> = self.pool.iter().copied().filter(fits).collect();
            parts.truncate(1 + self.below(3));
            self.push(Op::Concat { axis: 1 }, &parts);
        }
    }

    fn shape(&mut self) {
        let x = self.matrix();
        let shape = self.shape_of(x);
        if shape.rank() == 2 && shape.last().is_some_and(|w| w % HEAD_DIM == 0) {
            let heads = Shape::led_by(shape.0[0], &[self.width(x) / HEAD_DIM, HEAD_DIM]);
            let x = self.push(Op::Reshape { shape: heads }, &[x]);
            if shape.0[0] == Dim::Tokens && self.below(2) == 0 {
                let table = self.table;
                self.push(Op::Rope {}, &[x, table]);
            }
        }
    }

    /// Rows of the step, or of an embedding, which may be computed.
    fn gather(&mut self) {
        if self.below(2) == 0 {
            let (x, rows) = (self.tokens(), [self.rows, self.ids][self.below(2)]);
            self.push(Op::Gather {}, &[x, rows]);
            return;
        }
        let dtype = self.dtype();
        let table = self.weight(dtype, &[8, 8]);
        let table = if self.below(3) == 0 { self.map(Elementwise::Relu, &[table]) } else { table };
        let ids = self.ids;
        self.push(Op::Gather {}, &[table, ids]);
    }

    fn attention(&mut self) {
        let (x, out, bias) = (self.tokens(), self.dtype(), self.below(2) == 0);
        let [q, k, v] = [16, 8, 8].map(|width| {
            let y = self.project(x, width, out, bias);
            let shape = Shape::led_by(Dim::Tokens, &[width / HEAD_DIM, HEAD_DIM]);
            self.push(Op::Reshape { shape }, &[y])
        });
        let [q, k] = [q, k].map(|y| {
            let y = if self.below(2) == 0 { self.normed(y) } else { y };
            let table = self.table;
            self.push(Op::Rope {}, &[y, table])
        });
        // A state that was read must not be written any more.
        if !self.cache_read {
            self.cache = self.b.push(Op::KvWrite {}, &[self.cache, k, v, self.batch]).expect("fits");
            self.cache_read = self.below(4) > 0;
        }
        if self.cache_read {
            let window = self.below(3);
            let o = self.push(Op::Attention { scale: 0.5, window }, &[q, self.cache, self.batch]);
            let flat = self.push(Op::Reshape { shape: Shape::led_by(Dim::Tokens, &[16]) }, &[o]);
            let width = self.width(x);
            let o = self.project(flat, width, out, bias);
            let o = self.summed(o);
            self.map(Elementwise::Add, &[x, o]);
        }
    }

    fn cast(&mut self) {
        let (x, to) = (self.any(), self.dtype());
        self.push(Op::Cast { to }, &[x]);
    }
}
