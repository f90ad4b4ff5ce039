//! The bytes that came back against what should have.
use super::{Bound, Operand, Trial, fetch, groups};
use crate::interp::{CacheState, Real, SlotState, Tensor, Val};
use crate::layout::Groups;
use crate::types::{CacheType, DType, SlotsType, TensorType, Type};

/// How a result fared.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdict {
    /// The largest error as a part of its budget, of all elements; at most 1 is right.
    pub worst: f64,
    /// Elements that were compared.
    pub elements: usize,
    /// Elements whose budget has no end, or is not a number.
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
            unbounded: self.unbounded + other.unbounded,
            fault: self.fault.or(other.fault),
        }
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
        let width = ty.width();
        let padded = self.memory.padded(width);
        let scales = self.memory.row_scales(ty);
        let stride = if scales.is_some() { self.memory.result_stride(ty) } else { self.memory.stride(width) };
        let mut verdict = Verdict::default();
        for (row, values) in want.data.chunks(width).enumerate() {
            for col in 0..padded {
                let (value, budget) = values.get(col).map_or((0.0, 0.0), |v| (v.get(), v.budget()));
                let scale = match scales {
                    Some(scales) if col < width => {
                        let first = ty.dtype.bytes(row * stride) + scales.first;
                        fetch(&got[first..], col / scales.group, scales.dtype)
                    }
                    _ => 1.0,
                };
                let got = fetch(got, row * stride + col, ty.dtype) * scale;
                verdict.see(got, value, budget, || format!("row {row}, column {col}"));
            }
        }
        verdict
    }

    /// A list of indices, of which none may be off.
    pub fn judge_indices(&self, want: &[i32], got: &[u8]) -> Verdict {
        let mut verdict = Verdict::default();
        for (row, &want) in want.iter().enumerate() {
            verdict.see(fetch(got, row, DType::I32), f64::from(want), 0.0, || format!("row {row}"));
        }
        verdict
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
        verdict
    }

    /// A cache result: every entry, and that nothing else changed.
    pub fn judge_cache(&self, c: CacheType, want: &CacheState<Bound>, before: &Operand, got: &[u8]) -> Verdict {
        let Operand::Cache(before) = before else { unreachable!("a cache's operand is a cache") };
        let mut verdict = Verdict::default();
        let mut rest = before.clone();
        let size = c.dtype.size();
        for (&at, (keys, values)) in &want.entries {
            for (numbers, is_key) in [(keys, true), (values, false)] {
                for (i, bound) in numbers.iter().enumerate() {
                    let offset = self.cache_offset(c, at, (i, is_key));
                    let here = &got[offset..offset + size];
                    rest[offset..offset + size].copy_from_slice(here);
                    let name = if is_key { "key" } else { "value" };
                    let at = || format!("{name} of sequence {}, position {}, element {i}", at.0, at.1);
                    verdict.see(fetch(here, 0, c.dtype), bound.get(), bound.budget(), at);
                }
            }
        }
        match (0..rest.len()).find(|&i| rest[i] != got[i]) {
            Some(byte) => verdict.and(Verdict::wrong(format!("byte {byte} of the cache, which belongs to nobody"))),
            None => verdict,
        }
    }

    /// Slots: every number of those that the step has, and that nothing else changed.
    pub fn judge_slots(&self, ty: &SlotsType, want: &SlotState<Bound>, before: &Operand, got: &[u8]) -> Verdict {
        let Operand::Cache(before) = before else { unreachable!("a state's operand is one") };
        let (mut verdict, mut rest) = (Verdict::default(), before.clone());
        for (&sequence, numbers) in want.entries.iter().filter(|(s, _)| self.has_slot(**s)) {
            let start = self.slot_offset(ty, sequence);
            let here = &got[start..start + ty.dtype.bytes(numbers.len())];
            rest[start..start + here.len()].copy_from_slice(here);
            for (i, bound) in numbers.iter().enumerate() {
                let at = || format!("element {i} of the state of sequence {sequence}");
                verdict.see(fetch(here, i, ty.dtype), bound.get(), bound.budget(), at);
            }
        }
        match (0..rest.len()).find(|&i| rest[i] != got[i]) {
            Some(byte) => verdict.and(Verdict::wrong(format!("byte {byte} of the slots, which belongs to nobody"))),
            None => verdict,
        }
    }

    /// All results, whose bytes are given by number.
    pub fn judge(&self, operands: &[Operand], want: &[Val<Bound>], got: &[Vec<u8>]) -> Verdict {
        let mut all = Verdict::default();
        for ((&v, want), got) in self.graph.outputs().iter().zip(want).zip(got) {
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
