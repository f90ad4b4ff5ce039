//! The executed instruction stream of one work-group, in a compact form.
//!
//! Facts that are the same each time an instruction runs are in [`Op`], once; those that depend on
//! addresses are in [`Event`]. Matrix instructions are not computed while a stream is recorded: no
//! address and no branch depends on them.
use crate::decode::Kernel;
use crate::exec::step::{Action, Class, Control, Step};
use crate::exec::wait::Wait;
use crate::inst::Operand;
use crate::isa::Isa;
use crate::mem::{Kind, Places, lanes};

/// A recorded work-group.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// The instructions of the kernel.
    pub ops: Vec<Op>,
    /// What each wave executed, in order.
    pub waves: Vec<Vec<Event>>,
}

/// One executed instruction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// Its place in [`Trace::ops`].
    pub op: u32,
    /// Clocks that LDS takes for it, conflicts of banks included.
    pub lds: u16,
    /// Bytes of memory that active lanes ask for; lanes outside of buffers ask for none.
    pub bytes: u16,
    /// Cache lines that these bytes touch.
    pub lines: u16,
    /// Lines that miss L1.
    pub misses: u16,
}

/// What an instruction is to a compute unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Op {
    pub unit: Unit,
    /// Clocks that it holds its unit, if it is [`Unit::Vector`], [`Unit::Matrix`] or
    /// [`Unit::Scalar`].
    pub clocks: u16,
    pub wait: Wait,
    /// Rows of the vector register file that it reads, without those that it adds to.
    pub reads: Box<[u16]>,
    /// Rows that a matrix instruction adds to.
    pub adds: Box<[u16]>,
    /// Rows that a matrix instruction writes.
    pub writes: Box<[u16]>,
}

/// The part of a compute unit that executes an instruction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unit {
    #[default]
    Scalar,
    Vector,
    Matrix,
    Lds,
    Load,
    Store,
    Atomic,
    ScalarLoad,
    Branch,
    Wait,
    Barrier,
    End,
}

impl Op {
    pub fn of(step: &Step, text: &str, isa: &Isa) -> Op {
        let unit = unit(step);
        let clocks = match unit {
            Unit::Matrix => passes(step, isa) * 4,
            Unit::Vector => vector_clocks(&step.inst.mnemonic),
            Unit::Scalar => idle(text),
            _ => 4,
        };
        let wait = match step.action {
            Action::Control(Control::Wait(wait)) => wait,
            _ => Wait::default(),
        };
        let mut op = Op { unit, clocks, wait, reads: step.registers.reads.clone(), ..Op::default() };
        if let (Unit::Matrix, Operand::Vector { row, count, .. }) = (unit, step.inst.operand(3)) {
            let adds = row..row + u16::from(count);
            op.reads = op.reads.iter().copied().filter(|r| !adds.contains(r)).collect();
            op.adds = adds.collect();
        }
        if unit == Unit::Matrix {
            op.writes = step.registers.writes.clone();
        }
        op
    }
}

fn unit(step: &Step) -> Unit {
    match (&step.action, step.class) {
        (Action::Control(control), _) => match control {
            Control::Wait(_) => Unit::Wait,
            Control::Barrier => Unit::Barrier,
            Control::Branch { .. } | Control::SetPc { .. } => Unit::Branch,
            Control::End => Unit::End,
            _ => Unit::Scalar,
        },
        (_, Class::Matrix) => Unit::Matrix,
        (_, Class::Valu) => Unit::Vector,
        (_, Class::Smem) => Unit::ScalarLoad,
        (_, Class::Lds) => Unit::Lds,
        (Action::Memory(op), Class::Vmem) => match op.kind {
            Kind::Store(_) | Kind::Store2 { .. } => Unit::Store,
            Kind::Atomic(_) => Unit::Atomic,
            _ => Unit::Load,
        },
        _ => Unit::Scalar,
    }
}

/// Clocks of `s_nop n`, which waits n + 1 times as long as an instruction takes to issue.
fn idle(text: &str) -> u16 {
    let count = text.strip_prefix("s_nop ").and_then(crate::exec::wait::immediate);
    4 + 4 * count.unwrap_or(0).min(15) as u16
}

/// Passes of four clocks of a matrix instruction. Source: the guides of CDNA3 and CDNA4, tables of
/// "MFMA" passes, and LLVM's `SISchedule.td` (`SIDPGFX940FullSpeedModel`).
fn passes(step: &Step, isa: &Isa) -> u16 {
    let name: &str = &step.inst.mnemonic;
    let m = &step.inst.modifiers;
    let kind = name.rsplit('_').next().unwrap_or_default();
    let wide_only = m.cbsz < 2 || m.blgp < 2;
    // Operations of a SIMD in a pass.
    let rate = match kind {
        "f32" if !name.contains("xf32") => 256,
        "f64" => 256,
        "xf32" => 1024,
        "f8f6f4" if wide_only => 8192,
        "f8f6f4" => 16384,
        "f16" | "bf16" | "1k" => isa.rates.halves,
        _ => isa.rates.bytes,
    };
    // A block that is half as large does not take half of the passes.
    let least = if name.contains("32x32") { 8 } else { 4 };
    (step.flops / rate).max(if name.contains("4x4x4") { 2 } else { least }) as u16
}

/// Clocks of the vector unit. Source: the instruction-set guide of CDNA3 (rates of packed f32,
/// f64, transcendental and 32-bit products).
fn vector_clocks(name: &str) -> u16 {
    const QUARTER: [&str; 12] = [
        "v_exp_",
        "v_log_",
        "v_rcp_",
        "v_rsq_",
        "v_sqrt_",
        "v_sin_",
        "v_cos_",
        "v_mul_lo_u32",
        "v_mul_hi_u32",
        "v_mul_hi_i32",
        "v_mad_u64_u32",
        "v_mad_i64_i32",
    ];
    let packed = name.starts_with("v_pk_") && name.ends_with("_f32");
    match QUARTER.iter().any(|q| name.starts_with(q)) {
        true => 16,
        false if packed || name.ends_with("_f64") => 8,
        false => 4,
    }
}

/// Bytes of a cache line. Source: the instruction-set guide of CDNA3.
pub const LINE: u64 = 128;

/// Lines of L1, by sets. Source: 32 KiB of 64 ways (CDNA3 white paper).
const SETS: usize = 4;
const WAYS: usize = 64;

/// Notes what the running group executes.
pub struct Recorder {
    trace: Trace,
    /// Bytes of LDS that are read in a clock.
    lds_bytes: u32,
    wave: usize,
    /// Lines of each set, the last used first.
    l1: [Vec<u64>; SETS],
    lines: Vec<u64>,
}

impl Recorder {
    pub fn new(kernel: &Kernel, isa: &Isa, waves: u32) -> Recorder {
        let ops = kernel.steps.iter().zip(&kernel.texts).map(|(step, text)| Op::of(step, text, isa)).collect();
        let trace = Trace { ops, waves: vec![Vec::new(); waves as usize] };
        Recorder { trace, lds_bytes: isa.rates.lds, wave: 0, l1: Default::default(), lines: Vec::new() }
    }

    pub fn finish(self) -> Trace {
        self.trace
    }

    /// A wave executes an instruction.
    #[inline]
    pub fn step(&mut self, wave: usize, op: usize) {
        self.wave = wave;
        self.trace.waves[wave].push(Event { op: op as u32, ..Event::default() });
    }

    /// Records an access.
    pub fn access(&mut self, places: &Places, in_memory: u64, bytes: u32) {
        let Some(event) = self.trace.waves[self.wave].last_mut() else { return };
        if places.in_lds != 0 {
            event.lds += lds_clocks(places, bytes, self.lds_bytes);
        }
        if in_memory == 0 {
            return;
        }
        self.lines.clear();
        for lane in lanes(in_memory) {
            let bytes = places.bytes(lane, bytes);
            event.bytes += bytes as u16;
            for line in places.at[lane] / LINE..=(places.at[lane] + bytes.max(1) - 1) / LINE {
                if self.lines.last() != Some(&line) && !self.lines.contains(&line) {
                    self.lines.push(line);
                }
            }
        }
        event.lines += self.lines.len() as u16;
        let loads = self.trace.ops[event.op as usize].unit == Unit::Load;
        let missed = self.lines.iter().filter(|line| !loads || !keep(&mut self.l1, **line)).count();
        event.misses += missed as u16;
    }
}

/// Whether L1 has a line; it has it from now on.
fn keep(l1: &mut [Vec<u64>; SETS], line: u64) -> bool {
    let set = &mut l1[line as usize % SETS];
    let found = set.iter().position(|l| *l == line);
    match found {
        Some(at) => set[..=at].rotate_right(1),
        None => {
            set.truncate(WAYS - 1);
            set.insert(0, line);
        }
    }
    found.is_some()
}

/// Clocks of an access of LDS of `width` bytes a clock: lanes go in groups; in each, the bank of
/// four bytes with the most different dwords decides.
pub fn lds_clocks(places: &Places, bytes: u32, width: u32) -> u16 {
    // Narrow accesses do not use more than 32 banks.
    let width = if bytes >= 16 { width } else { 128 };
    // Lanes go in powers of two also where each has three dwords.
    let together = (width / bytes.max(4).next_power_of_two()).clamp(1, 64) as usize;
    let banks = (width / 4) as usize;
    let mut total = 0;
    for first in (0..64).step_by(together) {
        let group = (first..first + together).map(|at| if bytes == 16 { lane_of(at, together) } else { at });
        let active = group.filter(|lane| places.in_lds >> lane & 1 != 0);
        let dwords = active.flat_map(|lane| (0..bytes.div_ceil(4)).map(move |k| places.lds[lane] / 4 + k));
        let mut dwords: Vec<u32> = dwords.collect();
        dwords.sort_unstable();
        dwords.dedup();
        let mut load = [0u16; 64];
        dwords.iter().for_each(|d| load[*d as usize % banks] += 1);
        total += load.iter().copied().max().unwrap_or(0).max(1);
    }
    total
}

/// Lanes by fours in the order in which accesses of 16 bytes take them, from which they come eight
/// (CDNA3) or sixteen (CDNA4) at once. Sources: documentation of composable_kernel, "LDS bank
/// conflicts"; HipKittens, phases of `ds_read_b128`.
const EIGHTS: [usize; 8] = [0, 5, 1, 4, 2, 7, 3, 6];
const SIXTEENS: [usize; 8] = [0, 3, 5, 6, 1, 2, 4, 7];

fn lane_of(at: usize, together: usize) -> usize {
    let fours = if together == 8 { EIGHTS } else { SIXTEENS };
    at / 32 * 32 + fours[at % 32 / 4] * 4 + at % 4
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clocks(bytes: u32, width: u32, stride: u32) -> u16 {
        let mut places = Places { in_lds: u64::MAX, ..Places::default() };
        places.lds = std::array::from_fn(|lane| lane as u32 * stride);
        lds_clocks(&places, bytes, width)
    }

    #[test]
    fn lds_takes_clocks_by_bytes_and_banks() {
        assert_eq!([clocks(4, 128, 4), clocks(8, 128, 8), clocks(16, 128, 16), clocks(16, 256, 16)], [2, 4, 8, 4]);
        assert_eq!(clocks(12, 128, 12), 8, "of which a quarter is empty");
        // Everybody reads one bank; everybody reads the same dword.
        assert_eq!([clocks(4, 128, 128), clocks(4, 128, 0)], [64, 2]);
        // Rows of 128 bytes are in the way of each other, with 16 bytes more they are not.
        assert_eq!([clocks(16, 128, 128), clocks(16, 128, 144)], [64, 8]);
    }

    #[test]
    fn l1_forgets_what_was_not_used_for_longest() {
        let mut l1: [Vec<u64>; SETS] = Default::default();
        let (sets, ways) = (SETS as u64, WAYS as u64);
        (0..ways).for_each(|way| assert!(!keep(&mut l1, way * sets)));
        assert!(keep(&mut l1, 0));
        assert!(!keep(&mut l1, ways * sets));
        assert!(keep(&mut l1, 0) && !keep(&mut l1, sets));
    }
}
