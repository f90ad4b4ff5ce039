//! One launch with its body: operands in, results out, both judged.
use atomc_artifact::manifest::{Arg, Input, KernelDef, Launch, Plan, Target};
use atomc_ir::arch::Memory;
use atomc_ir::interp::Val;
use atomc_ir::layout::CacheLayout;
use atomc_ir::trial::{Bound, Operand, Placing, Reference, Run, Sampling, Step, Trial, Verdict, divides};
use atomc_ir::{DType, Graph, Op, TensorType, Type, Value};
use atomc_runtime::device::{DeviceBuffer, DeviceError};
use atomc_runtime::probe::{Outcome, POISON, Piece, Probe, ProbeError, ProbeStep};

use super::super::failure::Failure;
use super::cases::Case;
use super::fit::{Fit, Room};

/// Bytes between pages of a cache, so that code shows which takes them to touch.
pub const GAP: usize = 256;

/// The byte that fills the room after a step's numbers made by kernels. Its number is that of no
/// row and no table.
const BEHIND: u8 = i8::MAX as u8;

/// A launch of a plan, and what its kernel must compute.
pub struct Bench {
    plan: usize,
    launch: usize,
    pub symbol: String,
    body: Graph,
    memory: Memory,
    args: Vec<Arg>,
    vocab: usize,
    pub room: Room,
    /// The number of results, which are the last arguments.
    results: usize,
}

/// A launch that was run.
pub struct Ran {
    pub step: ProbeStep,
    /// Each argument's memory before, in order; empty for inputs, which follow from the step, for
    /// V, which lies in K's, and for weights where only a sample is computed.
    pub before: Vec<Vec<u8>>,
    /// The memory afterwards.
    pub after: Vec<Vec<u8>>,
    /// What the results should be; nothing where only a sample is computed.
    pub want: Vec<Val<Bound>>,
    pub verdict: Verdict,
}

/// How kernels are tried.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Random operands, and a sample of results, from this seed.
    pub seed: u64,
    /// Whether all of each result is computed.
    pub whole: bool,
    /// Threads of the host.
    pub threads: usize,
    /// Bytes of the host's memory that a try may take.
    pub memory: usize,
    /// Whether the device's memory is the host's.
    pub on_host: bool,
}

/// Bytes of a weight that are made at once for a device with memory of its own.
const CHUNK: usize = 64 << 20;

impl Bench {
    pub fn new(target: &Target, plan: usize, launch: usize, vocab: usize) -> Result<Bench, Failure> {
        let item: &Launch = &target.plans[plan].launches[launch];
        let def = &target.kernels[item.kernel];
        let wrong = |what: &str| Failure::new("verify", format!("kernel {}: {what}", def.symbol));
        let body = body(def)?;
        let (plan_item, memory) = (&target.plans[plan], memory(target));
        fit(target, plan_item, &memory).check(&body, &item.args).map_err(|e| wrong(&e))?;
        let results = body.outputs().iter().filter(|&&v| body.ty(v).as_tensor().is_some()).count();
        let (symbol, args, room) = (def.symbol.clone(), item.args.clone(), Room::of(target, plan_item));
        Ok(Bench { plan, launch, symbol, memory, args, vocab, room, results, body })
    }

    /// Checks that there is memory to try a case, and gives the bytes that are left for the
    /// reference and for weights.
    pub fn check_room(&self, target: &Target, case: &Case, options: &Options) -> Result<usize, Failure> {
        let fit = fit(target, &target.plans[self.plan], &self.memory);
        let need = match options.whole || !divides(&self.body) {
            true => fit.need(&self.body, &self.args, &case.step),
            false => fit.need_of_sample(&self.body, &self.args, &case.step, options.on_host),
        };
        match need {
            Some(need) if need <= options.memory => Ok(options.memory - need),
            need => {
                let need = need.map_or("more than any machine has".to_owned(), |need| format!("{need} bytes"));
                let has = options.memory;
                let message = format!("kernel {}: {case} takes {need}; this machine has {has}", self.symbol);
                Err(Failure::new("memory", message).help("--memory says how much a try may take."))
            }
        }
    }

    /// What each argument is: operands, then results.
    pub fn args(&self) -> &[Arg] {
        &self.args
    }

    /// The argument at which results begin.
    pub fn first_result(&self) -> usize {
        self.args.len() - self.results
    }

    pub fn reads_cache(&self) -> bool {
        self.body.inputs().into_iter().any(|v| self.body.ty(v).as_cache().is_some())
    }

    pub fn body(&self) -> &Graph {
        &self.body
    }

    pub fn run(&self, probe: &mut Probe, case: &Case, options: &Options) -> Result<Ran, Failure> {
        let room = self.check_room(probe.target(), case, options)?;
        let trial = self.trial(case, options.seed)?;
        let want = if options.whole { trial.want().map_err(|e| self.wrong(e))? } else { vec![] };
        probe.keep_at_most(self.weights(probe.target()).saturating_add(room - room / PARTS));
        self.keep(probe, &trial, options.threads)?;
        let operands = self.operands(&trial, options.whole);
        let before = self.contents(&operands);
        let step = self.probe_step(&trial.step, &self.ids(case, options.seed), trial.gap);
        let contents: Vec<(Arg, &[u8])> =
            self.args.iter().copied().zip(before.iter().map(Vec::as_slice)).filter(|(_, b)| !b.is_empty()).collect();
        let outcome = match probe.run(self.plan, self.launch, &step, &contents) {
            Ok(outcome) => outcome,
            Err(ProbeError::Launch(e)) => {
                let (after, verdict) = (before.clone(), Verdict::wrong(e.to_string()));
                return Ok(Ran { step, before, after, want, verdict });
            }
            Err(e) => return Err(Failure::new("device", format!("kernel {}: {e}", self.symbol))),
        };
        let after = self.after(&outcome, &before);
        let results = self.results(&trial, &after);
        let verdict = match options.whole {
            true => trial.judge(&operands, &want, &results),
            false => {
                let sampling = Sampling { seed: options.seed, every_column: case.is_full };
                let memory = room / PARTS;
                let reference = Reference { sampling: Some(sampling), threads: options.threads, memory };
                trial.compare(reference, &operands, &results).map_err(|e| self.wrong(e))?
            }
        };
        let verdict = verdict.and(self.strays(&outcome, &contents));
        Ok(Ran { step, before, after, want, verdict })
    }

    /// Bytes of the weights of the launch.
    fn weights(&self, target: &Target) -> usize {
        let bytes = |arg: &Arg| if let Arg::Weight { index } = arg { target.weights[*index].bytes } else { 0 };
        self.args.iter().map(bytes).sum()
    }

    /// Makes the weights of a trial on the device, if they are not there.
    fn keep(&self, probe: &mut Probe, trial: &Trial, threads: usize) -> Result<(), Failure> {
        for operand in 0..self.body.inputs().len() {
            let (Arg::Weight { index }, Some(placing)) = (self.args[self.arg_of(operand)], trial.placing(operand))
            else {
                continue;
            };
            let fault = |e| Failure::new("device", format!("kernel {}: {e}", self.symbol));
            let room = probe.target().weights[index].bytes;
            if placing.bytes() > room {
                return Err(fault(ProbeError::Room { arg: Arg::Weight { index }, bytes: placing.bytes(), room }));
            }
            probe.keep(index, &placing.tag(), |buffer| write(&placing, buffer, threads)).map_err(fault)?;
        }
        Ok(())
    }

    /// The memory of operands, without that of weights unless these are wanted too.
    fn operands(&self, trial: &Trial, weights: bool) -> Vec<Operand> {
        let one = |operand: usize| match self.args[self.arg_of(operand)] {
            Arg::Weight { .. } if !weights => Operand::Tensor(vec![]),
            _ => trial.operand(operand),
        };
        (0..self.body.inputs().len()).map(one).collect()
    }

    /// Operands for a case.
    pub fn trial(&self, case: &Case, seed: u64) -> Result<Trial<'_>, Failure> {
        let ids = self.ids(case, seed);
        let indices = |operand: usize| self.indices(operand, case, &ids);
        let trial = Trial::new(&self.body, self.memory, case.step.clone(), (case.fill, seed), &indices);
        let mut trial = trial.map_err(|e| self.wrong(e))?;
        trial.gap = GAP;
        Ok(trial)
    }

    fn wrong(&self, what: String) -> Failure {
        Failure::new("verify", format!("kernel {}: {what}", self.symbol))
    }

    fn ids(&self, case: &Case, seed: u64) -> Vec<u32> {
        ids(case.step.tokens(), self.vocab, seed)
    }

    /// The argument at which an operand begins.
    pub fn arg_of(&self, operand: usize) -> usize {
        self.body.inputs()[..operand].iter().map(|&v| if self.body.ty(v).as_cache().is_some() { 2 } else { 1 }).sum()
    }

    /// Indices that the step gives.
    fn indices(&self, operand: usize, case: &Case, ids: &[u32]) -> Option<Vec<i32>> {
        match self.args[self.arg_of(operand)] {
            Arg::Input { which: Input::Ids } => Some(ids.iter().map(|&id| id as i32).collect()),
            Arg::Input { which: Input::Positions | Input::Times | Input::Heights | Input::Widths } => {
                Some(case.step.batch().positions)
            }
            Arg::Input { which: Input::Lengths | Input::Ends } => Some(case.step.lengths()),
            Arg::Input { which: Input::Adapters } => {
                let of_run =
                    |(sequence, run): (usize, &Run)| vec![adapter(sequence).map_or(-1, |slot| slot as i32); run.tokens];
                Some(case.step.runs.iter().enumerate().flat_map(of_run).collect())
            }
            Arg::Input { which: Input::Rows } => Some(match self.grouped() {
                Some(count) => groups(case.step.tokens(), case.step.rows(), count),
                None => case.step.wanted(),
            }),
            Arg::Input { which: Input::Sources } => Some(sources(ids.len())),
            _ => None,
        }
    }

    /// Whether a step has as many tokens as the kernel reads together.
    pub fn takes(&self, case: &Case) -> bool {
        self.grouped().is_none_or(|count| case.step.tokens() >= count)
    }

    /// How many rows that follow each other are read for each wanted one, if several are.
    fn grouped(&self) -> Option<usize> {
        self.body.ids().find_map(|id| match *self.body.op(id) {
            Op::GatherRun { count } => Some(count),
            _ => None,
        })
    }

    /// Bytes of each argument before the launch: operands, then nothing for results.
    fn contents(&self, operands: &[Operand]) -> Vec<Vec<u8>> {
        let mut contents: Vec<Vec<u8>> = Vec::with_capacity(self.args.len());
        for (operand, v) in operands.iter().zip(self.body.inputs()) {
            match operand {
                Operand::Tensor(bytes) => contents.push(self.with_room(bytes, v, self.args[contents.len()])),
                Operand::Cache(slots) if self.body.ty(v).as_slots().is_some() => contents.push(slots.clone()),
                Operand::Cache(pages) => contents.extend([pages.clone(), Vec::new()]),
                Operand::Batch => contents.push(Vec::new()),
            }
        }
        contents.resize(self.args.len(), Vec::new());
        contents
    }

    /// An operand with the room after its rows filled as an earlier step may have left it, where
    /// its numbers name rows. Poison would not do: numbers below zero mean "none".
    fn with_room(&self, bytes: &[u8], v: Value, arg: Arg) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        match (arg, self.body.ty(v)) {
            (Arg::Arena { .. }, Type::Tensor(t)) if t.dtype == DType::I32 => bytes.resize(self.bytes(t), BEHIND),
            _ => {}
        }
        bytes
    }

    /// The step as a device gets it, with `gap` bytes between pages.
    pub fn probe_step(&self, step: &Step, ids: &[u32], gap: usize) -> ProbeStep {
        let tokens = self.memory.block_tokens;
        let mut all = sources(ids.len()).into_iter().map(|row| row as usize);
        let mut ids = ids.iter().copied();
        let piece = |(sequence, run): (usize, &Run)| Piece {
            sources: all.by_ref().take(run.tokens).collect(),
            tokens: ids.by_ref().take(run.tokens).collect(),
            position: run.position,
            rows: run.rows,
            adapter: adapter(sequence),
            table: step.table(sequence, tokens),
        };
        let pieces = step.runs.iter().enumerate().map(piece).collect();
        let bytes = |v: Value| match self.body.ty(v) {
            Type::Cache(c) => Some(CacheLayout::of(*c, &self.memory).block_bytes + gap),
            Type::Slots(s) => Some(s.bytes() + gap),
            _ => None,
        };
        let block_stride = self.body.inputs().into_iter().filter_map(bytes).max().unwrap_or(0);
        ProbeStep { pieces, blocks: step.blocks(tokens), block_stride }
    }

    /// Bytes of each argument after the launch: caches, and results with all the room that they
    /// have.
    fn after(&self, outcome: &Outcome, before: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let first = self.first_result();
        let bytes = |(number, arg): (usize, &Arg)| match *arg {
            Arg::State { state, stream: 0 } => outcome.states[&state].clone(),
            Arg::Arena { .. } | Arg::Hidden | Arg::Drafted { .. } if number >= first => {
                let memory = if arg.in_hidden().is_some() { &outcome.hidden } else { &outcome.arena };
                let range = self.extent(number - first);
                memory[range.start.min(memory.len())..range.end.min(memory.len())].to_vec()
            }
            _ => before[number].clone(),
        };
        self.args.iter().enumerate().map(bytes).collect()
    }

    /// Bytes of the arena, or of the hidden rows, that a tensor result may take.
    fn extent(&self, result: usize) -> std::ops::Range<usize> {
        let offset = match self.args[self.first_result() + result] {
            Arg::Arena { offset } => offset,
            Arg::Hidden => 0,
            Arg::Drafted { offset } => offset,
            _ => return 0..0,
        };
        let mut types = self.body.outputs().iter().filter_map(|&v| self.body.ty(v).as_tensor());
        offset..offset + types.nth(result).map_or(0, |t| self.bytes(t))
    }

    /// Bytes of rows in the arena, for which there is room: the launch fits its body.
    pub fn bytes(&self, t: &TensorType) -> usize {
        self.room.bytes(t, &self.memory).expect("a size that lies in a buffer")
    }

    /// The bytes of each result of the body.
    fn results<'a>(&self, trial: &Trial, after: &'a [Vec<u8>]) -> Vec<&'a [u8]> {
        let mut tensor = self.first_result();
        let mut bytes = |v: Value| match trial.state(v) {
            Some(operand) if self.body.ty(v).is_state() => &after[self.arg_of(operand)][..],
            _ => {
                tensor += 1;
                &after[tensor - 1][..]
            }
        };
        self.body.outputs().iter().map(|&v| bytes(v)).collect()
    }

    /// Whether anything of the arena or of the hidden rows but results changed.
    fn strays(&self, outcome: &Outcome, contents: &[(Arg, &[u8])]) -> Verdict {
        let mut arena = vec![POISON; outcome.arena.len()];
        let mut hidden = vec![POISON; outcome.hidden.len()];
        for (arg, bytes) in contents {
            match *arg {
                Arg::Arena { offset } => arena[offset..offset + bytes.len()].copy_from_slice(bytes),
                Arg::Hidden => hidden[..bytes.len()].copy_from_slice(bytes),
                Arg::Drafted { offset } => hidden[offset..offset + bytes.len()].copy_from_slice(bytes),
                _ => {}
            }
        }
        for (result, arg) in self.args[self.first_result()..].iter().enumerate() {
            let (expected, found) = match arg.in_hidden() {
                Some(_) => (&mut hidden, &outcome.hidden),
                None => (&mut arena, &outcome.arena),
            };
            let range = self.extent(result);
            let range = range.start.min(found.len())..range.end.min(found.len());
            expected[range.clone()].copy_from_slice(&found[range]);
        }
        let stray = |expected: &[u8], found: &[u8]| match expected == found {
            true => None,
            false => (0..expected.len()).find(|&byte| expected[byte] != found[byte]),
        };
        let fault = |byte, what: &str| Verdict::wrong(format!("byte {byte} of the {what}, which is not the kernel's"));
        match (stray(&arena, &outcome.arena), stray(&hidden, &outcome.hidden)) {
            (Some(byte), _) => fault(byte, "arena"),
            (None, Some(byte)) => fault(byte, "hidden rows"),
            (None, None) => Verdict::default(),
        }
    }
}

/// The part of the memory that is left which the reference may take; weights may take the rest.
const PARTS: usize = 4;

/// A tensor in a device's memory.
fn write(placing: &Placing, buffer: &mut DeviceBuffer, threads: usize) -> Result<(), DeviceError> {
    if let Some(bytes) = buffer.host_view_mut() {
        placing.write(0, &mut bytes[..placing.bytes()], threads);
        return Ok(());
    }
    let per = (CHUNK / placing.piece.max(1)).clamp(1, placing.pieces.max(1));
    let mut chunk = vec![0; per * placing.piece];
    for first in (0..placing.pieces).step_by(per) {
        let bytes = &mut chunk[..per.min(placing.pieces - first) * placing.piece];
        placing.write(first, bytes, threads);
        buffer.upload(first * placing.piece, bytes)?;
    }
    Ok(())
}

/// The adapter of a sequence: every other one has the first.
fn adapter(sequence: usize) -> Option<usize> {
    sequence.is_multiple_of(2).then_some(0)
}

/// The row of a draft's that each token takes: the last first.
fn sources(tokens: usize) -> Vec<i32> {
    (0..tokens as i32).rev().collect()
}

/// The first of so many rows that are read together, for each wanted row.
fn groups(tokens: usize, rows: usize, count: usize) -> Vec<i32> {
    (0..rows).map(|row| (row * count).min(tokens.saturating_sub(count)) as i32).collect()
}

/// Token ids all over the vocabulary, its ends among them.
fn ids(tokens: usize, vocab: usize, seed: u64) -> Vec<u32> {
    let id = |token: usize| match token {
        0 => vocab - 1,
        1 => 0,
        _ => (token as u64).wrapping_add(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize % vocab,
    };
    (0..tokens).map(|token| id(token) as u32).collect()
}

fn fit<'a>(target: &'a Target, plan: &'a Plan, memory: &'a Memory) -> Fit<'a> {
    Fit { target, plan, memory }
}

/// What a kernel must compute.
pub fn body(def: &KernelDef) -> Result<Graph, Failure> {
    let wrong = |what: String| Failure::new("verify", format!("kernel {}: {what}", def.symbol));
    let body = atomc_ir::parse(&def.body).map_err(|e| wrong(format!("its body cannot be read: {e}")))?;
    body.verify().map_err(|e| wrong(format!("its body is broken: {e}")))?;
    Ok(body)
}

/// How data lies on a target.
pub fn memory(target: &Target) -> Memory {
    let l = target.layout;
    Memory {
        row: l.row,
        alias: l.alias,
        rows: l.rows,
        panel: l.panel,
        group_bytes: l.group_bytes,
        block_tokens: l.block_tokens,
        align: l.align,
    }
}
