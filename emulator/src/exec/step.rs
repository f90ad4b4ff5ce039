//! A decoded instruction, with all that the loop needs to run and check it.
use super::salu::ScalarRun;
use super::wait::Wait;
use crate::inst::{Half, Inst, Operand, Unused};
use crate::mem::MemoryOp;
use crate::vector::Handler;

/// One instruction of a kernel.
#[derive(Debug)]
pub struct Step {
    pub inst: Inst,
    pub action: Action,
    pub class: Class,
    pub registers: Registers,
    /// Floating-point operations of a matrix instruction.
    pub flops: u32,
}

/// How an instruction is executed.
#[derive(Debug)]
pub enum Action {
    Vector(Handler),
    Dual(Box<Dual>),
    Scalar(ScalarRun),
    Memory(MemoryOp),
    Control(Control),
}

/// The halves of a dual instruction, in an order in which the first overwrites nothing that the
/// second reads, if there is one.
#[derive(Debug)]
pub struct Dual {
    pub first: (Handler, Inst),
    pub second: (Handler, Inst),
    /// A row of the first half's results that is set aside, if each half overwrites an operand of
    /// the other.
    pub swap: Option<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Scheduling hints, priorities, messages, controls of caches that others do not share: nothing
    /// that a functional model sees.
    Nop,
    /// Makes stores visible to the whole device.
    WriteBack,
    /// Makes later loads see the stores of the whole device.
    Invalidate,
    End,
    Branch {
        condition: Condition,
        target: u32,
    },
    Wait(Wait),
    /// `s_barrier`: signal, then wait.
    Barrier,
    Signal,
    BarrierWait,
    /// The address of the next instruction into a scalar pair.
    GetPc {
        dst: u8,
    },
    /// Jump to an address in a scalar pair; `s_swappc` also leaves the address of the next
    /// instruction.
    SetPc {
        src: u8,
        link: Option<u8>,
    },
    /// A clock into a scalar pair.
    Time {
        dst: u8,
    },
    /// Bits of the mode register from a constant, from a scalar register, or into one.
    SetMode {
        from: u8,
        width: u8,
        value: u32,
    },
    SetModeFrom {
        from: u8,
        width: u8,
        source: u8,
    },
    GetMode {
        from: u8,
        width: u8,
        dst: u8,
    },
    /// `s_set_gpr_idx_*` and `s_setvskip`.
    Alter(Alteration),
    Trap,
}

/// A change of the vector instructions that follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alteration {
    /// The first operand is added to the numbers of vector registers. Bits of `aux` select the
    /// operands: three sources, then the destination.
    IndexOn,
    /// The first operand is the new distance.
    Index,
    /// Bits of `aux` are the new choice of operands.
    IndexMode,
    IndexOff,
    /// They are skipped if the first operand has the bit that the second one numbers.
    Skip,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    Always,
    Scc(bool),
    /// Whether the mask is zero.
    Vcc {
        zero: bool,
    },
    Exec {
        zero: bool,
    },
}

/// The classes of instructions that are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    Salu,
    Valu,
    Matrix,
    Smem,
    Vmem,
    Lds,
    Control,
}

impl Class {
    /// Whether lanes run it.
    pub fn is_vector(self) -> bool {
        matches!(self, Class::Valu | Class::Matrix | Class::Vmem | Class::Lds)
    }
}

/// Registers that an instruction uses, for the checks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registers {
    /// Rows of the vector register file.
    pub reads: Box<[u16]>,
    pub writes: Box<[u16]>,
    /// Bits by number.
    pub scalar_reads: u128,
    pub scalar_writes: u128,
    /// All rows read or written, as bits.
    pub touched: [u64; 8],
    pub reads_scc: bool,
    pub writes_scc: bool,
    pub crosses_lanes: bool,
    pub selects: bool,
    /// It reads or writes one lane, which its third operand names, whether that lane is active or
    /// not.
    pub one_lane: bool,
    /// The operands of each of two written rows, if these are not simply all operands.
    pub halves: Option<Box<[Sources; 2]>>,
}

/// The registers that a part of a result depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    pub rows: Vec<u16>,
    pub scalars: u128,
}

impl Registers {
    /// The registers of the operands. The first `dsts` of them are written; bit k of `reads_dst`
    /// says that operand k is read as well.
    pub fn of(inst: &Inst, dsts: u8, reads_dst: u8) -> Registers {
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        let mut r = Registers::default();
        for (k, source) in inst.operands().iter().enumerate() {
            let written = k < usize::from(dsts);
            let read = !written || reads_dst >> k & 1 != 0;
            match source.operand {
                Operand::Vector { row, count, half } => {
                    // An instruction that writes one half of a register does not read the other
                    // half's old value for that.
                    let read = read && !(written && merges(inst, half));
                    let rows = row..row + u16::from(count);
                    rows.clone().for_each(|row| r.touched[usize::from(row / 64)] |= 1 << (row % 64));
                    if read {
                        reads.extend(rows.clone());
                    }
                    if written {
                        writes.extend(rows);
                    }
                }
                Operand::Scalar { index, count } => {
                    let bits = chosen(inst, k, count) << index;
                    r.scalar_reads |= if read { bits } else { 0 };
                    r.scalar_writes |= if written { bits } else { 0 };
                }
                Operand::Scc => r.reads_scc = true,
                _ => {}
            }
        }
        (r.reads, r.writes) = (reads.into(), writes.into());
        r
    }

    /// For loads: their destinations have a check of their own.
    pub fn touch_only_reads(&mut self) {
        self.touched = [0; 8];
        self.reads.iter().for_each(|row| self.touched[usize::from(row / 64)] |= 1 << (row % 64));
    }

    /// The registers of two instructions that run as one.
    pub fn join(self, other: Registers) -> Registers {
        let both = |a: Box<[u16]>, b: Box<[u16]>| a.iter().chain(b.iter()).copied().collect();
        Registers {
            reads: both(self.reads, other.reads),
            writes: both(self.writes, other.writes),
            scalar_reads: self.scalar_reads | other.scalar_reads,
            scalar_writes: self.scalar_writes | other.scalar_writes,
            touched: std::array::from_fn(|k| self.touched[k] | other.touched[k]),
            reads_scc: self.reads_scc | other.reads_scc,
            writes_scc: self.writes_scc | other.writes_scc,
            crosses_lanes: self.crosses_lanes | other.crosses_lanes,
            selects: false,
            one_lane: false,
            halves: None,
        }
    }
}

/// The scalar registers of an operand that are read, as bits from its first on: packed instructions
/// on 32-bit numbers may take one of two for both halves.
fn chosen(inst: &Inst, operand: usize, count: u8) -> u128 {
    let m = &inst.modifiers;
    match operand.checked_sub(1) {
        Some(k) if count == 2 && is_packed(&inst.mnemonic) => {
            let [low, high] = [m.op_sel.unwrap_or(0), m.op_sel_hi.unwrap_or(u8::MAX)].map(|select| select >> k & 1);
            1 << low | 1 << high
        }
        _ => (1 << count) - 1,
    }
}

fn is_packed(mnemonic: &str) -> bool {
    mnemonic.starts_with("v_pk_") && mnemonic.ends_with("32")
}

/// A result goes into a part of the register: which one, the operand says, or a modifier, or the
/// name of the instruction.
fn merges(inst: &Inst, half: Half) -> bool {
    let is_named = ["_mixlo_", "_mixhi_"].iter().any(|half| inst.mnemonic.contains(half));
    half != Half::Whole || is_named || inst.modifiers.sdwa.is_some_and(|s| s.unused == Unused::Preserve)
}

/// The registers that the low and the high half of a 64-bit result depend on: compilers leave an
/// unneeded half undefined.
pub fn halves(inst: &Inst) -> Option<Box<[Sources; 2]>> {
    let name: &str = &inst.mnemonic;
    let upward = ["v_mad_u64_u32", "v_mad_co_u64_u32", "v_lshlrev_b64", "v_lshl_add_u64", "v_add_nc_u64"];
    let packed = is_packed(name) || name == "v_mov_b64";
    if !packed && !upward.contains(&name) {
        return None;
    }
    let m = &inst.modifiers;
    // Elements that the halves take of source k.
    let (low, high) = match packed {
        true => (m.op_sel.unwrap_or(0), m.op_sel_hi.unwrap_or(u8::MAX)),
        false => (0, u8::MAX),
    };
    // A sum with a carry has a second result.
    let results = if name.starts_with("v_mad_") { 2 } else { 1 };
    let mut parts = [Sources::default(), Sources::default()];
    for (k, source) in inst.operands()[results..].iter().enumerate() {
        let chosen = [low >> k & 1, high >> k & 1];
        match source.operand {
            Operand::Vector { row, count: 2, .. } => {
                parts.iter_mut().zip(chosen).for_each(|(part, half)| part.rows.push(row + u16::from(half)));
                if !packed {
                    parts[1].rows.push(row);
                }
            }
            Operand::Vector { row, .. } => parts.iter_mut().for_each(|part| part.rows.push(row)),
            Operand::Scalar { index, count: 2 } => {
                parts.iter_mut().zip(chosen).for_each(|(part, half)| part.scalars |= 1 << (index + half));
                if !packed {
                    parts[1].scalars |= 1 << index;
                }
            }
            Operand::Scalar { index, .. } => parts.iter_mut().for_each(|part| part.scalars |= 1 << index),
            _ => {}
        }
    }
    Some(Box::new(parts))
}
