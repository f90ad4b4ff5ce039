//! Family `rows` if a step's keys and values go into the cache and all other results are heads as
//! well: the work of some neighbouring tokens, as many as have their values of a dimension in one
//! run of memory, is cut into heads.
//!
//! A small team of lanes makes a head of one token, each lane vectors of both halves, so that their
//! rotation is loaded once. Neighbouring teams make the same head of the next tokens; the keys of
//! these are adjacent. A thread loads a vector of all the tokens' values and stores them dimension
//! by dimension.
use atomc_artifact::manifest;
use atomc_ir::arch::GpuArch;
use atomc_ir::arch::Isa;
use atomc_ir::layout::CacheLayout;
use atomc_ir::{Class, Diagnostic, Graph, Op, Type, Value};

use super::{Setup, vector};
use crate::cache::{Cache, Written};
use crate::code::{Int, Vector};
use crate::kernel::{heads, through_reshape};
use crate::row::{At, Col, Operand, is_norm};
use crate::simt::launch;
use crate::simt::launch::Kernel;
use crate::simt::machine::Gpu;
use crate::{KernelSpec, Tasks};

const THREADS: usize = 128;
/// Vectors of a head that a lane makes.
const VECTORS: usize = 2;

/// The tokens in a run of values, for a body of this kind.
pub fn run(graph: &Graph, arch: GpuArch) -> Option<usize> {
    let writes = |id| (graph.op(id).class() == Class::Effect).then(|| graph.operands(id));
    let written: Vec<_> = graph.ids().filter_map(writes).collect();
    let has_heads = |v: Value| graph.ty(v).as_tensor().is_some_and(|t| heads(&t.shape).is_some());
    let made = |&v: &Value| match (graph.ty(v), graph.op(v.node)) {
        (Type::Cache(_), _) => true,
        (_, Op::Reshape { .. }) => has_heads(v) || has_heads(graph.operands(v.node)[0]),
        _ => has_heads(v),
    };
    let [operands] = &written[..] else { return None };
    let cache = graph.ty(operands[0]).as_cache().filter(|c| !c.is_prefix && c.head_dim == c.value_dim)?;
    let plain = graph.outputs().iter().all(made) && !has_norm(graph, operands[2]);
    // It was measured on NVIDIA's only, and with elements of two bytes: on AMD's it takes more
    // registers than it may be worth.
    let measured = arch.simt.isa == Isa::Ptx && cache.dtype.size() == 2;
    (plain && measured).then(|| CacheLayout::of(cache, &arch.memory).group)
}

fn has_norm(graph: &Graph, v: Value) -> bool {
    is_norm(graph.op(v.node)) || graph.operands(v.node).iter().any(|&o| has_norm(graph, o))
}

pub fn emit<'c>(setup: &Setup<'c>, spec: &KernelSpec, run: usize) -> launch::Made<'c> {
    let code = setup.open(spec, THREADS)?;
    let tasks = {
        let c = &code;
        let kernel = launch::kernel(c, spec)?;
        let tokens = launch::step_size(c, spec, false);
        c.set_lanes(vector(spec.body));
        let parts = parts(&kernel, run)?;
        let times = parts.iter().map(|part| part.groups).sum();
        let (first, group) = (c.group() / times * run, c.group() % times);
        let run = Tokens { kernel: &kernel, first, tokens, run };
        launch::when_in_step(c, spec, &kernel, first, || {
            let mut begin = 0;
            for part in &parts {
                let own = group - begin;
                let not_before = c.less(begin, group + 1);
                let inside = not_before & c.less(own, part.groups);
                let mut made = Ok(());
                c.when(inside, || made = run.make(part, own));
                made?;
                begin += part.groups;
            }
            Ok(())
        })?;
        Tasks::Tokens { per: run.run, times }
    };
    Ok((code, manifest::Kernel::simt(tasks, THREADS)))
}

/// The part of some of a run's work-groups.
struct Part<'p, 'c> {
    what: What<'p, 'c>,
    groups: usize,
}

enum What<'p, 'c> {
    /// Heads of a number of elements each, as they are stored in a row.
    Heads {
        value: Value,
        out: &'p Operand<'c>,
        count: usize,
        dim: usize,
    },
    Keys {
        value: Value,
        cache: &'p Cache<'c>,
    },
    Values {
        value: Value,
        cache: &'p Cache<'c>,
    },
}

fn parts<'p, 'c>(kernel: &'p Kernel<'_, 'c>, run: usize) -> Result<Vec<Part<'p, 'c>>, Diagnostic> {
    let (c, mut parts) = (kernel.code, Vec::new());
    let groups = |count: usize, dim: usize| (run * count).div_ceil(THREADS / team(c, dim));
    for (v, out) in &kernel.outputs {
        let value = through_reshape(&kernel.rows, *v)?;
        if let Some((count, dim)) = heads(&kernel.rows.shape(value)?.shape) {
            parts.push(Part { what: What::Heads { value, out, count, dim }, groups: groups(count, dim) });
        }
    }
    for cache in &kernel.caches {
        let Some(Written { key, value: Some(value) }) = cache.written() else { continue };
        let (count, dim) = (cache.ty.heads, cache.ty.head_dim);
        parts.push(Part { what: What::Keys { value: key, cache }, groups: groups(count, dim) });
        let vectors = count * (dim / c.lanes());
        parts.push(Part { what: What::Values { value, cache }, groups: vectors.div_ceil(THREADS) });
    }
    Ok(parts)
}

/// Lanes that make a head.
fn team(c: &Gpu, dim: usize) -> usize {
    dim.div_ceil(VECTORS * c.lanes()).next_power_of_two().min(c.simt.wave)
}

/// The tokens of a work-group, as far as the step has them.
struct Tokens<'t, 'a, 'c> {
    kernel: &'t Kernel<'a, 'c>,
    first: Int<'c>,
    tokens: Int<'c>,
    run: usize,
}

impl<'c> Tokens<'_, '_, 'c> {
    /// The part's work of one of its work-groups.
    fn make(&self, part: &Part<'_, 'c>, group: Int<'c>) -> Result<(), Diagnostic> {
        let (c, rows) = (self.kernel.code, &self.kernel.rows);
        match part.what {
            What::Heads { value, out, count, dim } => {
                self.each_head(group, (count, dim), value, |row, head, cols| {
                    let store = |(col, lanes): (Int<'c>, Vector<'c>)| {
                        let at = At { row, head: None, col: Col::Var(head * dim + col) };
                        c.store_floats(rows.address(out, at), lanes, out.ty.dtype);
                    };
                    cols.into_iter().for_each(store);
                })?;
                let is_first = c.equal(group, 0);
                c.when(is_first, || self.pad(out, count * dim));
                Ok(())
            }
            What::Keys { value, cache } => {
                self.each_head(group, (cache.ty.heads, cache.ty.head_dim), value, |row, head, cols| {
                    let at = (head, cache.slot(c, row));
                    cols.into_iter().for_each(|(col, lanes)| cache.write_key_part(c, lanes, at, col));
                })
            }
            What::Values { value, cache } => self.values(group, value, cache),
        }
    }

    /// `store` for the vectors of the team's head. Teams without one make the last again.
    fn each_head(
        &self,
        group: Int<'c>,
        (count, dim): (usize, usize),
        value: Value,
        store: impl Fn(Int<'c>, Int<'c>, Vec<(Int<'c>, Vector<'c>)>),
    ) -> Result<(), Diagnostic> {
        let (c, rows, size) = (self.kernel.code, &self.kernel.rows, team(self.kernel.code, dim));
        let item = group * (THREADS / size) + c.thread() / size;
        let row = c.smaller(self.first + item % self.run, self.tokens - 1);
        let head = c.smaller(item / self.run, count - 1);
        rows.set_team(c.lanes_team(c.thread() % size, size));
        rows.forget();
        rows.prepare(value, row, Some(head))?;
        let made = rows.each_columns(dim, VECTORS, |cols| {
            let made = |&col: &Int<'c>| Ok((col, rows.eval(value, At { row, head: Some(head), col: Col::Var(col) })?));
            store(row, head, cols.iter().map(made).collect::<Result<_, Diagnostic>>()?);
            Ok(())
        });
        rows.forget();
        made
    }

    /// Zeros from a column on.
    fn pad(&self, out: &Operand<'c>, from: usize) {
        let (c, rows) = (self.kernel.code, &self.kernel.rows);
        let vectors = (rows.padded(out) - from) / c.lanes();
        c.repeat(c.thread(), vectors * self.run, THREADS, |item| {
            let row = c.smaller(self.first + item % self.run, self.tokens - 1);
            let col = item / self.run * c.lanes() + from;
            let at = At { row, head: None, col: Col::Var(col) };
            c.store_floats(rows.address(out, at), c.zero(), out.ty.dtype);
        });
    }

    /// A vector of every token's value, by a thread.
    fn values(&self, group: Int<'c>, value: Value, cache: &Cache<'c>) -> Result<(), Diagnostic> {
        let (c, rows) = (self.kernel.code, &self.kernel.rows);
        let vectors = cache.ty.head_dim / c.lanes();
        let item = group * THREADS + c.thread();
        let (head, col) = (item / vectors, item % vectors * c.lanes());
        let of = |row: Int<'c>| rows.eval(value, At { row, head: Some(head), col: Col::Var(col) });
        c.when(c.less(head, cache.ty.heads), || {
            let end = self.first + self.run;
            let whole = c.less(end, self.tokens + 1);
            let is_run = whole & cache.is_run(c, self.first);
            let run = c.when(is_run, || {
                let all = (0..self.run).map(|i| of(self.first + i)).collect::<Result<Vec<_>, _>>()?;
                cache.write_value_run(c, &all, head, cache.slot(c, self.first), col);
                Ok(())
            });
            let end = c.pick_int(is_run, self.first, c.smaller(end, self.tokens));
            let rest = c.repeat(self.first, end, 1, |row| {
                cache.write_value_part(c, of(row)?, head, cache.slot(c, row), col);
                Ok(())
            });
            run.and(rest)
        })
    }
}
