//! Where numbers come from that are not finite: the step is run again, launch by launch, until one
//! makes the first of them.
//!
//! What tells that there are some is a number that is read anyway, so steps that are well pay
//! nothing for this.
use super::{Engine, StepError};
use crate::device::{DeviceBuffer, DeviceError};
use atomc_artifact::manifest::{Arg, DType, Launch, Logits as LogitsPlace, Plan, PlanKind, Signature, is_state};
use half::{bf16, f16};
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;

/// Bytes of a device's memory that are looked through at once.
const CHUNK: usize = 32 << 20;

/// A number that is not finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Odd {
    /// Not a number: a result of infinite ones, or of memory that was never written.
    NaN,
    /// More than the type of the result holds.
    Infinite,
}

/// That the logits of a step are not finite, and where the first such number came from, if it comes
/// again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotFinite {
    /// None if the step, run again, makes no such number.
    pub origin: Option<Origin>,
    /// Whether the step was run again: only where there is a single rank.
    pub sought: bool,
}

/// The first launch of a step with a result that is not finite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The kernel, by its name in the code object.
    pub symbol: String,
    /// Its place in the plan, from 0 on.
    pub launch: usize,
    /// Kind and tokens, e.g. `decode 1`.
    pub plan: String,
    /// The part of the model, e.g. `model.layers.0.mlp`.
    pub location: String,
    /// Of what kind the first such number of its result is.
    pub made: Odd,
    /// What it reads that is not finite: a weight, or the cache as earlier steps have left it.
    pub read: Option<(String, Odd)>,
}

impl fmt::Display for Odd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Odd::NaN => "NaN",
            Odd::Infinite => "an infinite number",
        })
    }
}

impl fmt::Display for NotFinite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.sought {
            return f.write_str("the logits are not finite; on several ranks no kernel is sought that made the first");
        }
        let Some(Origin { symbol, launch, plan, location, made, read }) = &self.origin else {
            return f.write_str(
                "the logits are not finite, but they are when the step is run again: memory may be at fault",
            );
        };
        let place = format!("launch {launch}, from 0 on, of plan `{plan}`, {location}");
        write!(f, "the logits are not finite: kernel `{symbol}` ({place}) is the first that makes {made}; ")?;
        match read {
            Some((what, odd)) => write!(f, "{what} that it reads holds {odd}"),
            None => f.write_str("what it reads is finite, so a number outgrew its type"),
        }
    }
}

impl Engine {
    /// That rows of logits begin with finite numbers: what is not finite before the head makes NaN
    /// of all of a row.
    pub(super) fn check_rows(&mut self, begin_well: bool) -> Result<(), StepError> {
        if begin_well { Ok(()) } else { Err(self.not_finite()) }
    }

    /// That the likeliest tokens of the plan that ran last have finite logits. Of a row without any
    /// number token 0 is the likeliest, so where logits are far away only those are fetched.
    pub(super) fn check_picks(&mut self, place: LogitsPlace, picks: &[u32]) -> Result<(), StepError> {
        let (is_host, vocab) = (self.is_host(), self.model().vocab);
        for (row, &pick) in picks.iter().enumerate().filter(|(_, pick)| is_host || **pick == 0) {
            let mut logit = [0; size_of::<f32>()];
            let at = row * place.stride + (pick as usize).min(vocab - 1);
            self.session.memory.arena.download(place.offset + at * size_of::<f32>(), &mut logit)?;
            if !f32::from_le_bytes(logit).is_finite() {
                return Err(self.not_finite());
            }
        }
        Ok(())
    }

    /// Why the plan that ran last made logits that are not finite. There are none afterwards.
    pub(crate) fn not_finite(&mut self) -> StepError {
        self.output.begin(&[]);
        let found = match &mut self.ranks {
            None => self.origin().map(|origin| NotFinite { origin, sought: true }),
            // What a rank does not send is NaN.
            Some(ranks) => match ranks.missed((&mut self.session, &mut self.others)) {
                Ok(Some(rank)) => Err(DeviceError::Left { rank }),
                Ok(None) => Ok(NotFinite { origin: None, sought: false }),
                Err(error) => Err(error),
            },
        };
        found.map_or_else(StepError::from, |found| StepError::NotFinite(Box::new(found)))
    }

    /// Runs the plan that ran last again, as plans of a launch each.
    fn origin(&mut self) -> Result<Option<Origin>, DeviceError> {
        let plan = self.session.plans[self.last].clone();
        let shell = Plan { launches: vec![], calls: vec![], kind: PlanKind::Whole, ..plan.clone() };
        let single = |launch: &Launch| Plan { launches: vec![launch.clone()], ..shell.clone() };
        let singles: Vec<Plan> = plan.launches.iter().map(single).collect();
        // SAFETY: as when the engine was made: the launches are those of the artifact, over the
        // same memory.
        unsafe { self.session.device.bind(&singles, &self.session.memory) }?;
        let found = self.first(&plan);
        // SAFETY: as when the engine was made.
        unsafe { self.session.device.bind(&self.session.plans, &self.session.memory) }?;
        found
    }

    fn first(&mut self, plan: &Plan) -> Result<Option<Origin>, DeviceError> {
        self.session.memory.arena.fill(0..plan.arena_bytes, 0)?;
        self.session.memory.hidden.fill(0..self.target().hidden.bytes, 0)?;
        let mut before = self.values(plan)?;
        for (index, launch) in plan.launches.iter().enumerate() {
            let cached = self.cached(index, launch, &before)?;
            self.again(index, launch)?;
            let after = self.values(plan)?;
            let body = &self.target().kernels[launch.kernel].body;
            if let Some(made) = cached.or_else(|| changed(&results(body, launch), &before, &after)) {
                return self.describe(plan, index, made).map(Some);
            }
            before = after;
        }
        Ok(None)
    }

    /// Runs one launch of the step again, with its inputs still in memory. Slots, which the step
    /// has advanced, give other numbers, so if there are some all states are restored: sequences
    /// without a fault continue from them.
    fn again(&mut self, index: usize, launch: &Launch) -> Result<(), DeviceError> {
        let mut kept = vec![];
        let has_slots = self.session.units.iter().any(|unit| unit.kept.is_slots());
        let states: BTreeSet<usize> = launch.args.iter().filter_map(state).filter(|_| has_slots).collect();
        for state in states {
            let held = self.held(state);
            let mut bytes = vec![0; held.len()];
            self.session.memory.states[state].pages.download(held.start, &mut bytes)?;
            kept.push((state, held.start, bytes));
        }
        // SAFETY: the launch was bound as a plan, and the inputs are those of a step that the whole
        // plan ran.
        unsafe { self.session.device.run(index, self.session.inputs.step(), None) }?;
        kept.iter().try_for_each(|(state, start, bytes)| self.session.memory.states[*state].pages.upload(*start, bytes))
    }

    /// What a launch writes into the cache that is not finite: it runs over cleared pages for that,
    /// which get back what they had.
    fn cached(&mut self, index: usize, launch: &Launch, values: &Values) -> Result<Option<Odd>, DeviceError> {
        let Some(state) = launch.args.iter().find_map(state) else { return Ok(None) };
        // Slots have no recorded type.
        let (pages, Some(dtype)) = (self.held(state), self.dtype(state)) else { return Ok(None) };
        let mut kept = vec![0; pages.len()];
        self.session.memory.states[state].pages.download(pages.start, &mut kept)?;
        self.session.memory.states[state].pages.fill(pages.clone(), 0)?;
        self.again(index, launch)?;
        let made = find(&self.session.memory.states[state].pages, pages.clone(), dtype)?;
        self.session.memory.states[state].pages.upload(pages.start, &kept)?;
        self.session.memory.arena.upload(0, &values.arena)?;
        self.session.memory.hidden.upload(0, &values.hidden)?;
        Ok(made)
    }

    /// The bytes of a state from the first page that a sequence holds to the last.
    fn held(&self, state: usize) -> Range<usize> {
        let group = self.target().states[state].group;
        let (held, bytes) = (self.kv.held(group), self.session.units[group].bytes);
        held.start * bytes..held.end * bytes
    }

    /// The type of what is in the pages of a state.
    fn dtype(&self, state: usize) -> Option<DType> {
        self.session.units[self.target().states[state].group].dtype
    }

    fn values(&self, plan: &Plan) -> Result<Values, DeviceError> {
        let (mut arena, mut hidden) = (vec![0; plan.arena_bytes], vec![0; self.target().hidden.bytes]);
        self.session.memory.arena.download(0, &mut arena)?;
        self.session.memory.hidden.download(0, &mut hidden)?;
        Ok(Values { arena, hidden })
    }

    fn describe(&self, plan: &Plan, launch: usize, made: Odd) -> Result<Origin, DeviceError> {
        let item = &plan.launches[launch];
        let kind = match plan.kind {
            PlanKind::Decode => "decode",
            PlanKind::Verify { .. } => "verify",
            PlanKind::Any => "any",
            PlanKind::Whole => "whole",
        };
        let mut read = None;
        for arg in &item.args {
            read = match read {
                None => self.odd_operand(arg)?,
                found => found,
            };
        }
        Ok(Origin {
            symbol: self.target().kernels[item.kernel].symbol.clone(),
            launch,
            plan: format!("{kind} {}", plan.tokens),
            location: item.location.clone(),
            made,
            read,
        })
    }

    /// Whether a weight or a cache holds what is not finite.
    fn odd_operand(&self, arg: &Arg) -> Result<Option<(String, Odd)>, DeviceError> {
        let (name, buffer, bytes, dtype) = match *arg {
            Arg::Weight { index } => {
                let weight = &self.target().weights[index];
                (
                    format!("weight `{}`", weight.name),
                    &self.session.memory.weights[index],
                    0..weight.bytes,
                    weight.dtype,
                )
            }
            Arg::State { state, stream: 0 } => {
                let Some(dtype) = self.dtype(state) else { return Ok(None) };
                let name = format!("the cache of layer {}", self.target().states[state].layer);
                (name, &self.session.memory.states[state].pages, self.held(state), dtype)
            }
            _ => return Ok(None),
        };
        Ok(find(buffer, bytes, dtype)?.map(|odd| (name, odd)))
    }
}

/// What the launches of a plan leave to each other.
struct Values {
    arena: Vec<u8>,
    hidden: Vec<u8>,
}

fn state(arg: &Arg) -> Option<usize> {
    match *arg {
        Arg::State { state, .. } => Some(state),
        _ => None,
    }
}

/// The tensors that a launch makes: its last arguments, with the types of the body's results,
/// except for caches. None if the body does not have them.
fn results(body: &str, launch: &Launch) -> Vec<(Arg, DType)> {
    let Some(signature) = Signature::of(body) else { return vec![] };
    let types: Vec<&str> = signature.results.into_iter().filter(|ty| !is_state(ty)).collect();
    let first = launch.args.len().saturating_sub(types.len());
    let dtype = |ty: &&str| match ty.split('[').next() {
        Some("f32") => Some(DType::F32),
        Some("f16") => Some(DType::F16),
        Some("bf16") => Some(DType::BF16),
        _ => None,
    };
    launch.args[first..].iter().zip(&types).filter_map(|(&arg, ty)| Some((arg, dtype(ty)?))).collect()
}

/// What is not finite of that which changed, and so was written, from where a result begins to
/// where the next one does.
fn changed(results: &[(Arg, DType)], before: &Values, after: &Values) -> Option<Odd> {
    results.iter().find_map(|&(arg, dtype)| {
        let (start, before, after) = match arg {
            Arg::Arena { offset } => (offset, &before.arena, &after.arena),
            Arg::Hidden => (0, &before.hidden, &after.hidden),
            Arg::Drafted { offset } => (offset, &before.hidden, &after.hidden),
            _ => return None,
        };
        let next = results.iter().filter_map(|(other, _)| match *other {
            Arg::Arena { offset } if arg.in_hidden().is_none() && offset > start => Some(offset),
            _ => None,
        });
        let bytes = start..next.min().unwrap_or(after.len());
        let (before, after) = (&before[bytes.clone()], &after[bytes]);
        let pairs = before.chunks_exact(dtype.size()).zip(after.chunks_exact(dtype.size()));
        pairs.filter(|(before, after)| before != after).find_map(|(_, after)| odd(dtype, after))
    })
}

/// The first number in a part of a buffer that is not finite.
fn find(buffer: &DeviceBuffer, bytes: Range<usize>, dtype: DType) -> Result<Option<Odd>, DeviceError> {
    let look = |values: &[u8]| values.chunks_exact(dtype.size()).find_map(|value| odd(dtype, value));
    if let Some(view) = buffer.host_view() {
        return Ok(look(&view[bytes]));
    }
    for start in bytes.clone().step_by(CHUNK) {
        let mut values = vec![0; CHUNK.min(bytes.end - start)];
        buffer.download(start, &mut values)?;
        if let Some(odd) = look(&values) {
            return Ok(Some(odd));
        }
    }
    Ok(None)
}

fn odd(dtype: DType, value: &[u8]) -> Option<Odd> {
    let number = match (dtype, value) {
        (DType::F32, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
        (DType::F16, &[a, b]) => f16::from_le_bytes([a, b]).to_f32(),
        (DType::BF16, &[a, b]) => bf16::from_le_bytes([a, b]).to_f32(),
        // It has no infinity, and NaN with either sign.
        (DType::F8E4M3, &[bits]) if bits & 0x7f == 0x7f => f32::NAN,
        _ => 0.0,
    };
    match number {
        number if number.is_nan() => Some(Odd::NaN),
        number if number.is_infinite() => Some(Odd::Infinite),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_a_body_returns() {
        let body = "graph @k(%a0: bf16[T, 120], %a1: cache<bf16, 1, 24>) {\n  %0, %1 = split %a0 {n = 2} : bf16[T, 60], f16[T, 60]\n  \
                    %2 = kv_write %a1, %0 : cache<bf16, 1, 24> #3 // model.layers.0\n  return %1, %2, %0\n}\n";
        let args = [9, 8, 7].map(|offset| Arg::Arena { offset }).to_vec();
        let launch = Launch { kernel: 0, args, segment: 0, location: String::new(), bytes: 0, flops: 0, chosen: None };
        let found = results(body, &launch);
        assert_eq!(found, [(Arg::Arena { offset: 8 }, DType::F16), (Arg::Arena { offset: 7 }, DType::BF16)]);
        assert_eq!(results("", &launch), []);
    }

    #[test]
    fn knows_what_is_not_finite() {
        assert_eq!(odd(DType::F32, &f32::NAN.to_le_bytes()), Some(Odd::NaN));
        assert_eq!(odd(DType::F32, &f32::MAX.to_le_bytes()), None);
        assert_eq!(odd(DType::F16, &f16::NEG_INFINITY.to_le_bytes()), Some(Odd::Infinite));
        assert_eq!(odd(DType::BF16, &bf16::NAN.to_le_bytes()), Some(Odd::NaN));
        assert_eq!((odd(DType::F8E4M3, &[0xff]), odd(DType::F8E4M3, &[0x7e])), (Some(Odd::NaN), None));
        assert_eq!(odd(DType::I32, &[0xff; 4]), None);
    }
}
