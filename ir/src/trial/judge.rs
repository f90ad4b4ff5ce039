//! The bytes that came back against what should have.
use super::mask::Mask;
use super::{Bound, Operand, Trial, fetch, groups};
use crate::graph::Value;
use crate::interp::{CacheState, Real, SlotState, Tensor, Val, complete};
use crate::layout::Groups;
use crate::ops::Op;
use crate::types::{CacheType, DType, SlotsType, TensorType, Type};

/// How a result fared.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdict {
    /// The largest error as a part of its budget, of all elements; at most 1 is right.
    pub worst: f64,
    /// Elements that were compared.
    pub elements: usize,
    /// Elements that there are.
    pub all: usize,
    /// Elements with a budget that is infinite or not a number.
    pub unbounded: usize,
    /// The first that is wrong.
    pub fault: Option<Fault>,
}

/// What is wrong.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// An element, with what it should be.
    Element {
        /// Where it lies.
        at: String,
        /// What the kernel made.
        got: f64,
        /// What the reference makes.
        want: f64,
        /// How far apart they may be.
        budget: f64,
    },
    /// Something beyond any budget.
    Other(String),
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Fault::Element { at, got, want, budget } => {
                write!(f, "{at}: {got}, should be {want} with a budget of {budget:.3e}")
            }
            Fault::Other(what) => f.write_str(what),
        }
    }
}

impl Verdict {
    /// Something that is wrong beyond any budget.
    pub fn wrong(what: String) -> Verdict {
        Verdict { worst: f64::INFINITY, fault: Some(Fault::Other(what)), ..Verdict::default() }
    }

    /// Both together.
    pub fn and(self, other: Verdict) -> Verdict {
        Verdict {
            worst: self.worst.max(other.worst),
            elements: self.elements + other.elements,
            all: self.all + other.all,
            unbounded: self.unbounded + other.unbounded,
            fault: self.fault.or(other.fault),
        }
    }

    /// Of a result that was compared whole.
    fn whole(self) -> Verdict {
        Verdict { all: self.elements, ..self }
    }

    fn see(&mut self, got: f64, want: f64, budget: f64, at: impl FnOnce() -> String) {
        self.elements += 1;
        // A budget that is not a number says nothing about the element.
        let is_unbounded = budget == f64::INFINITY || budget.is_nan();
        self.unbounded += usize::from(is_unbounded);
        let off = (got - want).abs();
        let part = match off {
            0.0 => 0.0,
            _ if got == want || got.is_nan() && want.is_nan() || is_unbounded => 0.0,
            _ if off.is_finite() && budget > 0.0 => off / budget,
            _ => f64::INFINITY,
        };
        if part > 1.0 && self.fault.is_none() {
            self.fault = Some(Fault::Element { at: at(), got, want, budget });
        }
        self.worst = self.worst.max(part);
    }
}

impl Trial<'_> {
    /// A tensor result: its elements, and the zeros that pad its rows.
    pub fn judge_tensor(&self, ty: &TensorType, want: &Tensor<Bound>, got: &[u8]) -> Verdict {
        let mut verdict = self.judge_padding(ty, want.data.len() / ty.width().max(1), got);
        for (row, values) in want.data.chunks(ty.width()).enumerate() {
            for (col, value) in values.iter().enumerate() {
                self.see(&mut verdict, ty, (row, col), *value, got);
            }
        }
        verdict.all = verdict.elements;
        verdict
    }

    /// Judges the zeros that pad this many rows.
    fn judge_padding(&self, ty: &TensorType, rows: usize, got: &[u8]) -> Verdict {
        let (width, mut verdict) = (ty.width(), Verdict::default());
        for row in 0..rows {
            for col in width..self.memory.padded(width) {
                let number = fetch(got, row * self.row_stride(ty) + col, ty.dtype);
                verdict.see(number, 0.0, 0.0, || format!("row {row}, column {col}"));
            }
        }
        verdict
    }

    /// Elements from one row of a result to the next.
    fn row_stride(&self, ty: &TensorType) -> usize {
        match self.memory.row_scales(ty) {
            Some(_) => self.memory.result_stride(ty),
            None => self.memory.stride(ty.width()),
        }
    }

    /// One element of a tensor result.
    fn see(&self, verdict: &mut Verdict, ty: &TensorType, (row, col): (usize, usize), want: Bound, got: &[u8]) {
        let stride = self.row_stride(ty);
        let scale = self.memory.row_scales(ty).map_or(1.0, |scales| {
            let first = ty.dtype.bytes(row * stride) + scales.first;
            fetch(&got[first..], col / scales.group, scales.dtype)
        });
        let number = fetch(got, row * stride + col, ty.dtype) * scale;
        verdict.see(number, want.get(), want.budget(), || format!("row {row}, column {col}"));
    }

    /// Of a result what the reference made of some rows, and of these the elements of a mask.
    pub(super) fn judge_part(&self, v: Value, want: &Val<Bound>, of: (&[usize], &Mask), got: &[u8]) -> Verdict {
        let ((rows, mask), mut verdict) = (of, Verdict::default());
        match (self.graph.ty(v), want) {
            (Type::Tensor(ty), Val::Float(want)) => {
                for (place, &row) in rows.iter().enumerate() {
                    for col in mask.cols(place) {
                        self.see(&mut verdict, ty, (row, col), want.data[place * mask.width + col], got);
                    }
                }
            }
            (Type::Tensor(_), Val::Int(want)) => {
                for (place, &row) in rows.iter().enumerate().filter(|(place, _)| mask.any(*place)) {
                    verdict.see(fetch(got, row, DType::I32), f64::from(want[place]), 0.0, || format!("row {row}"));
                }
            }
            (Type::Cache(c), Val::Cache(want)) => {
                let batch = self.step.batch();
                let keys = c.heads * c.head_dim;
                for (place, &token) in rows.iter().enumerate() {
                    let Some(at) = self.written(v, (batch.sequences[token], batch.positions[token])) else { continue };
                    let entry = &want.entries[&at];
                    for col in mask.cols(place) {
                        let (value, part) = if col < keys {
                            (entry.0[col], (col, true))
                        } else {
                            (entry.1[col - keys], (col - keys, false))
                        };
                        self.see_cached(&mut verdict, *c, (at, part), value, got);
                    }
                }
            }
            _ => unreachable!("bodies with other results are computed whole"),
        }
        verdict
    }

    /// The place at which a cache has an entry by the token of a position, if the token writes one.
    fn written(&self, v: Value, (sequence, position): (i32, i32)) -> Option<(i32, i32)> {
        let Op::KeyWrite { every: Some(every), .. } = *self.graph.op(v.node) else { return Some((sequence, position)) };
        let rows = complete(position, Some(every));
        (rows > complete(position - 1, Some(every))).then(|| (sequence, rows - 1))
    }

    /// What of all results no sample leaves out: how many elements there are, padding, and what no
    /// token writes of a cache.
    pub(super) fn judge_rest(&self, operands: &[Operand], got: &[impl AsRef<[u8]>]) -> Verdict {
        let (mut all, cx) = (Verdict::default(), self.step.cx());
        for (&v, got) in self.graph.outputs().iter().zip(got) {
            let got = got.as_ref();
            let (rest, elements) = match self.graph.ty(v) {
                Type::Tensor(t) if t.dtype == DType::I32 => (Verdict::default(), t.shape.elements(cx.tokens, cx.rows)),
                Type::Tensor(t) => {
                    let elements = t.shape.elements(cx.tokens, cx.rows);
                    let rest = self.judge_padding(t, elements / t.width().max(1), got);
                    let padding = rest.elements;
                    (rest, elements + padding)
                }
                Type::Cache(c) => {
                    let before = self.state(v).and_then(|n| operands.get(n)).expect("a state comes from a state");
                    let batch = self.step.batch();
                    let tokens = batch.sequences.into_iter().zip(batch.positions);
                    let written = tokens.filter_map(|at| self.written(v, at)).collect::<Vec<_>>();
                    let elements = written.len() * c.heads * (c.head_dim + c.value_dim);
                    (self.judge_unwritten(*c, &written, before, got), elements)
                }
                _ => unreachable!("bodies with other results are computed whole"),
            };
            all = all.and(Verdict { all: elements, ..rest });
        }
        all
    }

    fn see_cached(
        &self,
        verdict: &mut Verdict,
        c: CacheType,
        (at, (i, is_key)): ((i32, i32), (usize, bool)),
        want: Bound,
        got: &[u8],
    ) {
        let number = fetch(&got[self.cache_offset(c, at, (i, is_key))..], 0, c.dtype);
        let name = if is_key { "key" } else { "value" };
        let place = || format!("{name} of sequence {}, position {}, element {i}", at.0, at.1);
        verdict.see(number, want.get(), want.budget(), place);
    }

    /// That of a cache nothing changed but the keys and values of some positions.
    fn judge_unwritten(&self, c: CacheType, written: &[(i32, i32)], before: &Operand, got: &[u8]) -> Verdict {
        let Operand::Cache(before) = before else { unreachable!("a cache's operand is a cache") };
        let (mut rest, size) = (before.clone(), c.dtype.size());
        for &at in written {
            for (count, is_key) in [(c.heads * c.head_dim, true), (c.heads * c.value_dim, false)] {
                for i in 0..count {
                    let offset = self.cache_offset(c, at, (i, is_key));
                    rest[offset..offset + size].copy_from_slice(&got[offset..offset + size]);
                }
            }
        }
        match rest == got {
            true => Verdict::default(),
            false => {
                let byte = (0..rest.len()).find(|&i| rest[i] != got[i]).unwrap_or(0);
                Verdict::wrong(format!("byte {byte} of the cache, which belongs to nobody"))
            }
        }
    }

    /// A list of indices, of which none may be off.
    pub fn judge_indices(&self, want: &[i32], got: &[u8]) -> Verdict {
        let mut verdict = Verdict::default();
        for (row, &want) in want.iter().enumerate() {
            verdict.see(fetch(got, row, DType::I32), f64::from(want), 0.0, || format!("row {row}"));
        }
        verdict.whole()
    }

    /// The experts of rows, and what each has.
    pub fn judge_groups(&self, groups: Groups, experts: &[i32], got: &[u8]) -> Verdict {
        let (want, [block, pair]) = (groups.place(experts), groups.parts());
        let parts = [("row", 0, groups.pairs), ("block", block, groups.blocks()), ("place", pair, want.len() - pair)];
        let mut verdict = Verdict::default();
        for (what, start, len) in parts {
            for i in 0..len {
                let (got, want) = (fetch(got, start + i, DType::I32), f64::from(want[start + i]));
                verdict.see(got, want, 0.0, || format!("{what} {i}"));
            }
        }
        verdict.whole()
    }

    /// A cache result: every entry, and that nothing else changed.
    pub fn judge_cache(&self, c: CacheType, want: &CacheState<Bound>, before: &Operand, got: &[u8]) -> Verdict {
        let mut verdict = Verdict::default();
        for (&at, entry) in &want.entries {
            for (numbers, is_key) in [(&entry.0, true), (&entry.1, false)] {
                for (i, &bound) in numbers.iter().enumerate() {
                    self.see_cached(&mut verdict, c, (at, (i, is_key)), bound, got);
                }
            }
        }
        let written: Vec<_> = want.entries.keys().copied().collect();
        verdict.whole().and(self.judge_unwritten(c, &written, before, got))
    }

    /// Slots: every number of the states that the step keeps, and that nothing else changed.
    pub fn judge_slots(&self, ty: &SlotsType, want: &SlotState<Bound>, before: &Operand, got: &[u8]) -> Verdict {
        let Operand::Cache(before) = before else { unreachable!("a state's operand is one") };
        let (mut verdict, mut rest) = (Verdict::default(), before.clone());
        let is_kept = |&(sequence, tokens): &(i32, i32)| {
            let run = self.step.runs[sequence as usize];
            let behind = (tokens as usize).saturating_sub(run.position);
            self.has_slot(sequence) && behind > 0 && ty.keeps(run.tokens, behind == run.tokens)
        };
        for (&at, numbers) in want.entries.iter().filter(|(at, _)| is_kept(at)) {
            let (sequence, start) = (at.0, self.slot_offset(ty, at));
            let here = &got[start..start + ty.dtype.bytes(numbers.len())];
            rest[start..start + here.len()].copy_from_slice(here);
            for (i, bound) in numbers.iter().enumerate() {
                let at = || format!("element {i} of the state of sequence {sequence} behind {} tokens", at.1);
                verdict.see(fetch(here, i, ty.dtype), bound.get(), bound.budget(), at);
            }
        }
        match (0..rest.len()).find(|&i| rest[i] != got[i]) {
            Some(byte) => {
                verdict.whole().and(Verdict::wrong(format!("byte {byte} of the slots, which belongs to nobody")))
            }
            None => verdict.whole(),
        }
    }

    /// Judges all results, with their bytes by number.
    pub fn judge(&self, operands: &[Operand], want: &[Val<Bound>], got: &[impl AsRef<[u8]>]) -> Verdict {
        let mut all = Verdict::default();
        for ((&v, want), got) in self.graph.outputs().iter().zip(want).zip(got) {
            let got = got.as_ref();
            all = all.and(match (self.graph.ty(v), want) {
                (Type::Tensor(t), Val::Float(want)) => self.judge_tensor(t, want, got),
                (Type::Tensor(t), Val::Int(want)) => match groups(t, want.len()) {
                    Some(groups) => self.judge_groups(groups, want, got),
                    None => self.judge_indices(want, got),
                },
                (Type::Cache(c), Val::Cache(want)) => {
                    let before = self.state(v).and_then(|n| operands.get(n)).expect("a state comes from a state");
                    self.judge_cache(*c, want, before, got)
                }
                (Type::Slots(ty), Val::Slots(want)) => {
                    let before = self.state(v).and_then(|n| operands.get(n)).expect("a state comes from a state");
                    self.judge_slots(ty, want, before, got)
                }
                _ => unreachable!("results are tensors and states"),
            });
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(got: f64, want: f64, budget: f64) -> f64 {
        let mut verdict = Verdict::default();
        verdict.see(got, want, budget, String::new);
        verdict.worst
    }

    #[test]
    fn what_is_not_a_number() {
        assert_eq!(part(f64::NAN, f64::NAN, 0.5), 0.0);
        assert_eq!(part(f64::NAN, f64::NAN, f64::NAN), 0.0);
        assert_eq!(part(1.0, 2.0, f64::NAN), 0.0, "the budget says nothing");
        assert_eq!(part(f64::NAN, 1.0, 0.5), f64::INFINITY);
        assert_eq!(part(1.0, f64::NAN, 0.5), f64::INFINITY);
    }
}
