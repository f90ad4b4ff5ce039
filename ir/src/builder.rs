//! Shorthand for building graphs: what model frontends are written with.
use crate::Diagnostic;
use crate::elementwise::{Elementwise, Number};
use crate::graph::{Graph, Value};
use crate::ops::Op;
use crate::rope::Freqs;
use crate::types::{DType, Dim, Shape, Type, Whole};

type Made = Result<Value, Diagnostic>;

/// Builds one graph; every node gets the location that was set last.
pub struct Builder {
    graph: Graph,
    location: String,
}

impl Builder {
    /// An empty graph of this name.
    pub fn new(name: &str) -> Builder {
        Builder { graph: Graph::new(name), location: String::new() }
    }

    /// The module path for the nodes that follow.
    pub fn at(&mut self, location: impl Into<String>) -> &mut Self {
        self.location = location.into();
        self
    }

    /// The type of a value.
    pub fn ty(&self, v: Value) -> &Type {
        self.graph.ty(v)
    }

    /// The op that makes a value.
    pub fn op(&self, v: Value) -> &Op {
        self.graph.op(v.node)
    }

    /// What a value is made of.
    pub fn operands(&self, v: Value) -> Vec<Value> {
        self.graph.operands(v.node)
    }

    /// A parameter.
    pub fn input(&mut self, name: &str, ty: Type) -> Value {
        self.graph.input(name, ty)
    }

    /// A parameter by its name.
    pub fn given(&self, name: &str) -> Option<Value> {
        let has_name = |v: &Value| matches!(self.graph.op(v.node), Op::Input { name: own, .. } if own == name);
        self.graph.inputs().into_iter().find(has_name)
    }

    /// A tensor of the checkpoint.
    pub fn weight(&mut self, name: impl Into<String>, dtype: DType, shape: &[usize]) -> Value {
        let ty = Type::tensor(dtype, Shape::fixed(shape));
        self.graph.add(Op::Weight { name: name.into() }, &[], vec![ty], &self.location).into()
    }

    /// `count` tensors of the checkpoint of this shape, stacked: see [`Op::Weights`].
    pub fn weights(
        &mut self,
        name: impl Into<String>,
        dtype: DType,
        (count, shape): (usize, &[usize]),
        whole: Option<Whole>,
    ) -> Value {
        let ty = Type::tensor(dtype, Shape::fixed(&[&[count], shape].concat()));
        self.graph.add(Op::Weights { name: name.into(), count, whole }, &[], vec![ty], &self.location).into()
    }

    /// Any op.
    pub fn push(&mut self, op: Op, operands: &[Value]) -> Made {
        self.graph.push(op, operands, &self.location).map(Value::from)
    }

    /// An elementwise op.
    pub fn map(&mut self, op: Elementwise, operands: &[Value]) -> Made {
        self.push(Op::Map(op), operands)
    }

    /// `a + b`
    pub fn add(&mut self, a: Value, b: Value) -> Made {
        self.map(Elementwise::Add, &[a, b])
    }

    /// `x`, multiplied with a constant; by 1 it stays as it is.
    pub fn scale(&mut self, x: Value, by: f64) -> Made {
        if by == 1.0 { Ok(x) } else { self.map(Elementwise::Scale { by: Number(by) }, &[x]) }
    }

    /// See [`Op::Gather`].
    pub fn gather(&mut self, table: Value, rows: Value) -> Made {
        self.push(Op::Gather {}, &[table, rows])
    }

    /// See [`Op::Linear`].
    pub fn linear(&mut self, x: Value, w: Value, out: DType) -> Made {
        self.push(Op::Linear { out, block: None }, &[x, w])
    }

    /// See [`Op::RmsNorm`].
    pub fn rms_norm(&mut self, x: Value, weight: Value, eps: f64) -> Made {
        self.push(Op::RmsNorm { eps }, &[x, weight])
    }

    /// See [`Op::RopeFreqs`].
    pub fn rope_freqs(&mut self, freqs: Freqs) -> Made {
        self.push(Op::RopeFreqs { freqs }, &[])
    }

    /// See [`Op::Rope`].
    pub fn rope(&mut self, x: Value, table: Value) -> Made {
        self.push(Op::Rope {}, &[x, table])
    }

    /// See [`Op::Argmax`].
    pub fn argmax(&mut self, x: Value) -> Made {
        self.push(Op::Argmax {}, &[x])
    }

    /// `[T, n]` as `[T, heads, n / heads]`.
    pub fn heads(&mut self, x: Value, heads: usize, head_dim: usize) -> Made {
        self.push(Op::Reshape { shape: Shape::led_by(Dim::Tokens, &[heads, head_dim]) }, &[x])
    }

    /// `[T, heads, d]` as `[T, heads * d]`.
    pub fn flat(&mut self, x: Value, width: usize) -> Made {
        self.push(Op::Reshape { shape: Shape::led_by(Dim::Tokens, &[width]) }, &[x])
    }

    /// The graph, verified, with results under their names.
    pub fn finish(mut self, results: Vec<(String, Value)>) -> Result<Graph, Diagnostic> {
        self.graph.set_results(results);
        self.graph.verify().map_err(|e| Diagnostic::new("ir::verify", e.to_string()))?;
        Ok(self.graph)
    }
}
