//! Trials of kernels: operands for a body, as numbers and as the bytes that a device gets, and the
//! judgement of the bytes that come back by the reference interpreter's values and error budgets.
mod bound;
mod bytes;
mod demand;
mod judge;
mod mask;
mod need;
mod part;
mod sample;
#[cfg(test)]
mod sampled_tests;
mod source;
mod step;
#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use bound::Bound;
pub(crate) use bytes::of_bits;
pub use bytes::{fetch, largest, round, store};
pub use demand::divides;
pub use judge::{Fault, Verdict};
pub use need::{need, need_of_operands};
pub use part::Reference;
pub use sample::Sampling;
pub use source::{Placing, Source};
pub use step::{Run, Step};

use crate::arch::Memory;
use crate::graph::{Graph, Value};
use crate::interp::{self, CacheState, SlotState, Tensor, Val};
use crate::layout::{CacheAt, CacheLayout, Groups, key_offset, value_offset};
use crate::ops::Op;
use crate::types::{CacheType, DType, Layout, SlotsType, TensorType, Type};

/// What activations are filled with. Weights, caches and tables of rotations always hold random
/// numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// Between -1 and 1.
    Random,
    /// Nothing but zero.
    Zeros,
    /// Random numbers up to 1,024, or up to 16 where attention makes exponents of them.
    Large,
    /// Random numbers that are subnormal in the type.
    Subnormal,
}

impl Fill {
    /// Every fill.
    pub const ALL: [Fill; 4] = [Fill::Random, Fill::Zeros, Fill::Large, Fill::Subnormal];

    /// Its name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Fill::Random => "random",
            Fill::Zeros => "zeros",
            Fill::Large => "large",
            Fill::Subnormal => "subnormal",
        }
    }

    fn scale(self, dtype: DType, exponents: bool) -> f64 {
        match self {
            Fill::Random => 1.0,
            Fill::Zeros => 0.0,
            Fill::Large if exponents => 16.0,
            Fill::Large => 1024.0,
            Fill::Subnormal if dtype == DType::F16 => (-15f64).exp2(),
            Fill::Subnormal => (-127f64).exp2(),
        }
    }
}

/// How large sinks are: the largest weigh as much as some thousand keys, so that they show in long
/// sequences too.
const SINK: f64 = 8.0;

/// A kernel's body with operands for one step.
pub struct Trial<'g> {
    /// The body of the kernel.
    pub graph: &'g Graph,
    /// How data lies on the target.
    pub memory: Memory,
    /// The step.
    pub step: Step,
    /// Bytes between pages of a cache.
    pub gap: usize,
    /// Sequences with slots of -1.
    pub slotless: Vec<usize>,
    /// By the number of the operand.
    params: Vec<Param>,
}

/// An operand as numbers.
enum Param {
    /// Rows of activations, or a weight.
    Numbers(Source),
    Indices(Vec<i32>),
    Cache(CacheState<f64>),
    Slots(SlotState<f64>),
    Batch,
}

/// The memory of a kernel's operand.
#[derive(Clone, Debug, PartialEq)]
pub enum Operand {
    /// Rows of activations, a weight, or indices.
    Tensor(Vec<u8>),
    /// Pages, or slots.
    Cache(Vec<u8>),
    /// The batch.
    Batch,
}

impl<'g> Trial<'g> {
    /// Operands from a seed. Indices are given, by number of the operand.
    pub fn new(
        graph: &'g Graph,
        memory: Memory,
        step: Step,
        (fill, seed): (Fill, u64),
        indices: &dyn Fn(usize) -> Option<Vec<i32>>,
    ) -> Result<Trial<'g>, String> {
        let (mut random, step) = (Random(seed), step.for_slots_of(graph));
        let exponents = graph.ids().any(|id| graph.op(id).attends());
        // A choice by scores that may all be taken as zero is none.
        let chooses = graph.ids().any(|id| matches!(graph.op(id), Op::Choose { .. } | Op::ChooseBlocks { .. }));
        let fill = if chooses && fill == Fill::Subnormal { Fill::Random } else { fill };
        let mut params = Vec::new();
        for (number, v) in graph.inputs().into_iter().enumerate() {
            params.push(match graph.ty(v) {
                Type::Tensor(t) if t.dtype == DType::I32 => {
                    let drawn = || match listed_by(graph, v) {
                        Some(list) => Some(random.positions(t, list, &step)),
                        None => experts(graph, v).map(|count| random.experts(count, t, &step)),
                    };
                    let given = indices(number).or_else(drawn);
                    Param::Indices(given.ok_or_else(|| format!("nothing gives the indices %{}", name(graph, v)))?)
                }
                Type::Tensor(t) => {
                    let always = sign_of(graph, v).is_some() || is_table(graph, v) || weighs(graph, v);
                    let fill = if always { Fill::Random } else { fill };
                    Param::Numbers(source(graph, v, t, &step, (fill.scale(t.dtype, exponents), seed)))
                }
                Type::Cache(c) => Param::Cache(history(*c, &step, &mut random)),
                Type::Slots(s) => Param::Slots(kept(s, &step, &mut random)),
                Type::Batch => Param::Batch,
            });
        }
        Ok(Trial { graph, memory, step, gap: 0, slotless: vec![], params })
    }

    /// With slots of -1 for these sequences: what they go on from is zeros, and nothing is kept of
    /// them.
    pub fn without_slots(mut self, slotless: &[usize]) -> Trial<'g> {
        self.slotless = slotless.to_vec();
        for value in &mut self.params {
            let Param::Slots(state) = value else { continue };
            let lost = state.entries.iter_mut().filter(|((sequence, _), _)| slotless.contains(&(*sequence as usize)));
            lost.for_each(|(_, numbers)| numbers.fill(0.0));
        }
        self
    }

    /// What the kernel should make, with budgets.
    pub fn want(&self) -> Result<Vec<Val<Bound>>, String> {
        let bounds = |source: &Source| {
            let numbers = source.tensor();
            let data = numbers.data.iter().map(|&v| Bound::operand(v, source.ty().dtype)).collect();
            Val::Float(Tensor::new(numbers.shape, data))
        };
        let param = |name: &str| {
            let number = self.number(name)?;
            Some(match &self.params[number] {
                Param::Numbers(source) => bounds(source),
                Param::Indices(indices) => Val::Int(indices.clone()),
                _ => self.state_of(number)?,
            })
        };
        interp::run_with(self.graph, self.step.cx(), &param, &|_| None, &|_, _, _| None)
    }

    /// The number of a parameter.
    fn number(&self, wanted: &str) -> Option<usize> {
        self.graph.inputs().into_iter().position(|v| name(self.graph, v) == wanted)
    }

    /// A state, or the batch, as the reference takes it.
    fn state_of(&self, number: usize) -> Option<Val<Bound>> {
        let dtype = dtype(self.graph.ty(self.graph.inputs()[number])).unwrap_or(DType::I32);
        let bounds = |values: &[f64]| values.iter().map(|&v| Bound::operand(v, dtype)).collect::<Vec<_>>();
        Some(match &self.params[number] {
            Param::Cache(c) => {
                let entry = |(k, v): &(Vec<f64>, Vec<f64>)| Arc::new((bounds(k), bounds(v)));
                Val::Cache(CacheState { entries: c.entries.iter().map(|(at, e)| (*at, entry(e))).collect() })
            }
            Param::Slots(s) => {
                let entries = s.entries.iter().map(|(at, e)| (*at, bounds(e))).collect();
                Val::Slots(SlotState { entries, each: s.each })
            }
            Param::Batch => Val::Batch(self.step.batch()),
            Param::Numbers(_) | Param::Indices(_) => return None,
        })
    }

    /// The memory of each operand, in the order of the kernel's arguments.
    pub fn operands(&self) -> Vec<Operand> {
        (0..self.params.len()).map(|number| self.operand(number)).collect()
    }

    /// The memory of one operand.
    pub fn operand(&self, number: usize) -> Operand {
        match (self.graph.ty(self.graph.inputs()[number]), &self.params[number]) {
            (Type::Tensor(t), Param::Indices(ints)) => {
                let words = groups(t, ints.len()).map_or_else(|| ints.clone(), |groups| groups.place(ints));
                Operand::Tensor(words.iter().flat_map(|i| i.to_le_bytes()).collect())
            }
            (_, Param::Numbers(source)) => {
                let placing = Placing::new(source, &self.memory);
                let mut bytes = vec![0; placing.bytes()];
                placing.write(0, &mut bytes, 1);
                Operand::Tensor(bytes)
            }
            (Type::Cache(c), Param::Cache(state)) => self.place_cache(*c, state),
            (Type::Slots(s), Param::Slots(state)) => self.place_slots(s, state),
            _ => Operand::Batch,
        }
    }

    /// The number of the operand that has a state in its memory.
    pub fn state(&self, v: Value) -> Option<usize> {
        let mut v = Some(v).filter(|&v| self.graph.ty(v).is_state())?;
        while !matches!(self.graph.op(v.node), Op::Input { .. }) {
            v = self.graph.operands(v.node).into_iter().find(|&o| self.graph.ty(o).is_state())?;
        }
        self.graph.inputs().iter().position(|&i| i == v)
    }

    fn place_cache(&self, c: CacheType, state: &CacheState<f64>) -> Operand {
        let layout = CacheLayout::of(c, &self.memory);
        let blocks = self.step.blocks(layout.block_tokens);
        let mut pages = vec![0; blocks * self.block_stride(c)];
        for page in pages.chunks_mut(self.block_stride(c)) {
            page[layout.block_bytes..].fill(u8::MAX);
        }
        for (&(s, p), entry) in &state.entries {
            for (numbers, is_key) in [(&entry.0, true), (&entry.1, false)] {
                for (i, &number) in numbers.iter().enumerate() {
                    store(&mut pages[self.cache_offset(c, (s, p), (i, is_key))..], 0, number, c.dtype);
                }
            }
        }
        Operand::Cache(pages)
    }

    /// Slots of sequences that begin, and all others, hold what is not a number.
    fn place_slots(&self, ty: &SlotsType, state: &SlotState<f64>) -> Operand {
        let mut slots = vec![u8::MAX; self.step.blocks(self.memory.block_tokens) * self.slot_stride(ty)];
        for (&at, numbers) in state.entries.iter().filter(|((s, _), _)| self.has_slot(*s)) {
            let slot = &mut slots[self.slot_offset(ty, at)..];
            numbers.iter().enumerate().for_each(|(i, &number)| store(slot, i, number, ty.dtype));
        }
        Operand::Cache(slots)
    }

    /// Whether a sequence has a slot in the step.
    fn has_slot(&self, sequence: i32) -> bool {
        !self.slotless.contains(&(sequence as usize))
    }

    /// Bytes from one slot to the next.
    pub fn slot_stride(&self, ty: &SlotsType) -> usize {
        ty.bytes() + self.gap
    }

    /// Where the slot for the state behind some tokens of a sequence begins.
    fn slot_offset(&self, ty: &SlotsType, (sequence, tokens): (i32, i32)) -> usize {
        let (run, block) = (self.step.runs[sequence as usize], self.memory.block_tokens);
        let entry = ty.entry((tokens as usize).saturating_sub(run.position), run.tokens);
        self.step.block(sequence as usize, entry * block, block) * self.slot_stride(ty)
    }

    /// Bytes from one page of a cache to the next.
    pub fn block_stride(&self, c: CacheType) -> usize {
        CacheLayout::of(c, &self.memory).block_bytes + self.gap
    }

    /// Where an element of the key, or of the value, of a sequence's position lies, in bytes.
    fn cache_offset(&self, c: CacheType, (s, p): (i32, i32), (i, is_key): (usize, bool)) -> usize {
        let (tokens, position) = (self.memory.block_tokens, p as usize);
        let page = self.step.block(s as usize, position, tokens) * self.block_stride(c);
        let (width, offset): (usize, fn(_, &_, _) -> usize) =
            if is_key { (c.head_dim, key_offset) } else { (c.value_dim, value_offset) };
        let at = CacheAt { token: position % tokens, head: i / width, col: i % width };
        page + offset(c, &self.memory, at)
    }
}

/// The groups that follow the indices of experts, if there are some.
pub fn groups(t: &TensorType, pairs: usize) -> Option<Groups> {
    match t.layout {
        Layout::Grouped { experts, tile } => Some(Groups { experts, tile, pairs }),
        _ => None,
    }
}

/// The exponent of the least scale of e8m0.
const LEAST_POWER: f64 = -127.0;

/// The power of two that makes codes of numbers: the least one that e8m0 has with which all of them
/// fit.
fn scale_of(values: &[f64], dtype: DType) -> f64 {
    let most = values.iter().fold(0.0f64, |most, v| most.max(v.abs()));
    if most == 0.0 { 1.0 } else { (most / bytes::largest(dtype)).log2().ceil().max(LEAST_POWER).exp2() }
}

fn name(graph: &Graph, v: Value) -> &str {
    match graph.op(v.node) {
        Op::Input { name } => name,
        _ => unreachable!("parameters are inputs"),
    }
}

/// How many experts there are, of a parameter that has the experts of rows.
pub fn experts(graph: &Graph, v: Value) -> Option<usize> {
    graph.users(v).iter().find_map(|&(user, slot)| {
        let table = match *graph.op(user) {
            Op::Group { experts, .. } => return Some(experts),
            Op::Grouped { .. } if slot == 2 => graph.operands(user)[1],
            // The operand that is added to an expert's rows after the sum over all ranks.
            Op::Gather {} if slot == 1 => graph.operands(user)[0],
            _ => return None,
        };
        graph.ty(table).as_tensor()?.shape.0[0].fixed()
    })
}

/// What tokens attend to: the lists of a token, the positions of an entry, and whether an entry is
/// seen only where all of them are there.
#[derive(Clone, Copy)]
struct Listed {
    lists: usize,
    size: usize,
    complete: bool,
}

/// What a parameter lists, if it does.
fn listed_by(graph: &Graph, v: Value) -> Option<Listed> {
    graph.users(v).iter().find_map(|&(user, slot)| match *graph.op(user) {
        Op::AttendListed { block: Some(block), .. } if slot == 3 => {
            let lists = graph.ty(graph.operands(user)[1]).as_cache()?.heads;
            Some(Listed { lists, size: block, complete: false })
        }
        Op::AttendListed { block: None, .. } if slot == 3 => Some(Listed { lists: 1, size: 1, complete: false }),
        Op::AttendPart { every, .. } if slot == 3 => {
            Some(Listed { lists: 1, size: every.unwrap_or(1), complete: true })
        }
        _ => None,
    })
}

/// Whether a parameter weighs the scores of a choice: were it as small as the queries, f32 would
/// not tell scores apart.
fn weighs(graph: &Graph, v: Value) -> bool {
    graph.users(v).iter().any(|&(user, slot)| matches!(graph.op(user), Op::Choose { .. }) && slot == 1)
}

/// Whether a parameter is a table of rotations, which are never large.
fn is_table(graph: &Graph, v: Value) -> bool {
    graph.users(v).iter().any(|&(user, slot)| matches!(graph.op(user), Op::Rope {} | Op::RopePairs {}) && slot == 1)
}

/// The sign of a parameter that says how much of a state is kept, or how much of it is made anew,
/// or that has sums of squares or of exponentials.
fn sign_of(graph: &Graph, v: Value) -> Option<f64> {
    graph.users(v).iter().find_map(|&(user, slot)| match (graph.op(user), slot) {
        (Op::DeltaRule { .. } | Op::Scan {}, 4) => Some(-1.0),
        (Op::DeltaRule { .. } | Op::Scan {}, 5) | (Op::PartNorm { .. }, 2) | (Op::Join { .. }, 1 | 3) => Some(1.0),
        _ => None,
    })
}

/// How many there are, of a parameter that names experts, axes or columns, in f32.
fn named(graph: &Graph, v: Value) -> Option<usize> {
    graph.users(v).iter().find_map(|&(user, slot)| match graph.op(user) {
        Op::RopeTable { .. } if slot == 5 => Some(3),
        Op::RouteGiven { .. } | Op::Reorder {} if slot == 1 => {
            graph.ty(graph.operands(user)[0]).as_tensor()?.shape.last()
        }
        _ => None,
    })
}

/// Whether a parameter has attention's sinks.
fn is_sinks(graph: &Graph, v: Value) -> bool {
    let is_it = |op: &Op, slot| matches!((op, slot), (Op::Attention { .. }, 3) | (Op::Join { .. }, 4));
    graph.users(v).iter().any(|&(user, slot)| is_it(graph.op(user), slot))
}

fn dtype(ty: &Type) -> Option<DType> {
    match ty {
        Type::Tensor(t) => Some(t.dtype),
        Type::Cache(c) => Some(c.dtype),
        Type::Slots(s) => Some(s.dtype),
        Type::Batch => None,
    }
}

/// The numbers of a parameter. Activations, which are led by the step's tokens or rows, take the
/// scale; weights do not. Two of one type have others, and those of a weight are the same in every
/// kernel that has it.
fn source(graph: &Graph, v: Value, t: &TensorType, step: &Step, (scale, seed): (f64, u64)) -> Source {
    let cx = step.cx();
    let shape: Vec<usize> = t.shape.0.iter().map(|d| d.at(cx.tokens, cx.rows)).collect();
    let weight = t.shape.0.first().is_none_or(|d| d.fixed().is_some());
    let (sinks, sign, named) = (is_sinks(graph, v), sign_of(graph, v), named(graph, v));
    let number = |random: f64| match t.dtype {
        _ if named.is_some() => {
            let count = named.unwrap_or(1) as f64;
            ((random + 1.0) / 2.0 * count).floor().min(count - 1.0)
        }
        _ if !weight => sign.map_or(random, |sign| sign * random.abs()) * scale,
        // Powers of two around one.
        DType::E8M0 => (4.0 * random).exp2(),
        dtype if dtype.is_code() => {
            let (least, largest) = (bytes::least(dtype), bytes::largest(dtype));
            least + (random + 1.0) / 2.0 * (largest - least)
        }
        _ if sinks => random * SINK,
        _ => random,
    };
    let before = graph.inputs().into_iter().take_while(|&other| other != v);
    let same = before.filter(|&other| graph.ty(other) == graph.ty(v)).count();
    // FNV-1a.
    let name = format!("{t} {same} {sinks} {seed}");
    let key = name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    Source::new(t, shape, key, number)
}

/// Entries for every position before and in the step.
fn history(c: CacheType, step: &Step, random: &mut Random) -> CacheState<f64> {
    let mut state = CacheState::default();
    for (s, run) in step.runs.iter().enumerate() {
        for p in 0..run.position + run.tokens {
            let mut numbers = |width: usize| -> Vec<f64> {
                (0..c.heads * width).map(|_| bytes::round(random.next(), c.dtype)).collect()
            };
            let keys = numbers(c.head_dim);
            let values = match c.is_prefix {
                true => keys.chunks(c.head_dim).flat_map(|key| key[..c.value_dim].to_vec()).collect(),
                false => numbers(c.value_dim),
            };
            state.entries.insert((s as i32, p as i32), Arc::new((keys, values)));
        }
    }
    state
}

/// What sequences that are not new have.
fn kept(ty: &SlotsType, step: &Step, random: &mut Random) -> SlotState<f64> {
    let mut numbers = || (0..ty.numbers()).map(|_| bytes::round(random.next(), ty.dtype)).collect();
    let old = step.runs.iter().enumerate().filter(|(_, run)| run.position > 0 && run.tokens > 0);
    let entries = old.map(|(s, run)| ((s as i32, run.position as i32), numbers())).collect();
    SlotState { entries, ..SlotState::new(ty) }
}

/// Numbers between -1 and 1 that every float type of tensors holds exactly.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 40) as i64 % 256 - 128) as f64 / 128.0
    }

    /// Positions of each token's sequence up to its own, in ascending order: as many as the list
    /// has room for, if there are as many, and then -1.
    fn positions(&mut self, t: &TensorType, Listed { lists, size, complete }: Listed, step: &Step) -> Vec<i32> {
        let (k, mut all) = (t.choices() / lists, Vec::new());
        for position in step.batch().positions.into_iter().flat_map(|position| std::iter::repeat_n(position, lists)) {
            let there = if complete { (position as usize + 1) / size } else { position as usize / size + 1 };
            let count = there.min(k);
            let part = (self.next() + 1.0) / 2.0;
            all.extend((0..count).map(|i| ((i as f64 + part) * there as f64 / count as f64) as i32));
            all.extend(std::iter::repeat_n(-1, k - count));
        }
        all
    }

    /// The experts of a step's rows. One in sixteen tokens has none for its last.
    fn experts(&mut self, count: usize, t: &TensorType, step: &Step) -> Vec<i32> {
        let (k, cx) = (t.choices(), step.cx());
        let mut all = Vec::new();
        for _ in 0..t.shape.elements(cx.tokens, cx.rows) / k {
            let first = ((self.next() + 1.0) * 128.0) as usize * 7;
            all.extend((0..k).map(|choice| ((first + choice * (first % 3 + 1)) % count) as i32));
            if first.is_multiple_of(16)
                && let Some(last) = all.last_mut()
            {
                *last = -1;
            }
        }
        all
    }
}
