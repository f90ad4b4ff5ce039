//! Decoding: a kernel's code becomes a list of [`Step`]s, once.
pub mod disasm;
mod fatal;
mod modifier;
pub mod parse;
#[cfg(test)]
mod tests;

use crate::exec::control;
use crate::exec::salu::{self, extend_immediate};
use crate::exec::step::{Action, Alteration, Class, Control, Dual, Registers, Step, halves};
use crate::fault::DecodeError;
use crate::inst::{Inst, Operand, scalar};
use crate::isa::Isa;
use crate::mem;
use crate::vector::{self, VectorOp};
use disasm::Disassembler;

/// A decoded kernel.
#[derive(Debug)]
pub struct Kernel {
    pub steps: Vec<Step>,
    /// The disassembler's text of each step.
    pub texts: Vec<Box<str>>,
    /// The address after the last instruction.
    pub end: u64,
    /// Rows of the vector registers that any instruction uses, as bits.
    pub touched: [u64; 8],
    /// It has atomic operations on memory.
    pub publishes: bool,
}

impl Kernel {
    /// Decodes code that begins at an address.
    pub fn decode(code: &[u8], address: u64, isa: &'static Isa) -> Result<Kernel, DecodeError> {
        let disassembler = Disassembler::new(isa).ok_or(DecodeError::NoDisassembler { isa: isa.name })?;
        let mut kernel = Kernel {
            steps: Vec::new(),
            texts: Vec::new(),
            end: address + code.len() as u64,
            touched: [0; 8],
            publishes: false,
        };
        let mut at = 0;
        while at < code.len() {
            let here = address + at as u64;
            let (text, size) = disassembler.next(&code[at..], here).ok_or(DecodeError::NotCode { address: here })?;
            let step = step(&text, here, &code[at..at + size], isa)?;
            let rows = step.registers.reads.iter().chain(&step.registers.writes);
            rows.for_each(|row| kernel.touched[usize::from(row / 64)] |= 1 << (row % 64));
            kernel.publishes |= matches!(&step.action, Action::Memory(op) if op.is_atomic_on_memory());
            // Registers by index may be any.
            if matches!(step.action, Action::Control(Control::Alter(Alteration::IndexOn))) {
                kernel.touched = [u64::MAX; 8];
            }
            kernel.steps.push(step);
            kernel.texts.push(text.into());
            at += size;
        }
        kernel.link()?;
        Ok(kernel)
    }

    /// The step that begins at an address.
    pub fn index(&self, address: u64) -> Option<usize> {
        self.steps.binary_search_by_key(&address, |s| s.inst.address).ok()
    }

    /// Makes indices of the addresses that branches jump to.
    fn link(&mut self) -> Result<(), DecodeError> {
        for at in 0..self.steps.len() {
            let step = &self.steps[at];
            let Action::Control(Control::Branch { condition, .. }) = step.action else { continue };
            let address = step.inst.address;
            let target = step.inst.aux;
            let text = || self.texts[at].to_string();
            let index = self.index(target).ok_or_else(|| DecodeError::Target { text: text(), address, target })?;
            self.steps[at].action = Action::Control(Control::Branch { condition, target: index as u32 });
        }
        Ok(())
    }
}

fn step(text: &str, address: u64, code: &[u8], isa: &'static Isa) -> Result<Step, DecodeError> {
    let unknown = || DecodeError::Unknown { text: text.into(), address };
    let unclear = |part: parse::Unclear| DecodeError::Unclear { text: text.into(), address, part: part.0 };
    let mut halves = parse::instructions(text, address).map_err(unclear)?;
    halves.iter_mut().for_each(|half| embedded(half, code));
    let second = if halves.len() == 2 { halves.pop() } else { None };
    let mut inst = halves.pop().ok_or_else(unknown)?;
    if let Some(second) = second {
        return dual(inst, second, isa).ok_or_else(unknown);
    }
    if inst.mnemonic.starts_with("v_") {
        let op = vector::resolve(&mut inst, isa).ok_or_else(unknown)?;
        return Ok(vector_step(inst, op, isa));
    }
    if let Some(control) = control::resolve(&inst, text, isa) {
        return control_step(inst, control, address, code.len()).ok_or_else(unknown);
    }
    if let Some(op) = mem::resolve(&inst) {
        let (dsts, reads_dst) = op.destinations();
        let mut registers = Registers::of(&inst, dsts, reads_dst);
        registers.touch_only_reads();
        if matches!(op.kind, mem::Kind::ToLds(_)) {
            registers.scalar_reads |= 1 << scalar::M0;
        }
        let class = match op.space {
            mem::Space::Lds => Class::Lds,
            mem::Space::Scalar | mem::Space::ScalarBuffer => Class::Smem,
            _ => Class::Vmem,
        };
        return Ok(Step { inst, action: Action::Memory(op), class, registers, flops: 0 });
    }
    extend_immediate(&mut inst);
    let op = salu::resolve(&inst.mnemonic).ok_or_else(unknown)?;
    Ok(scalar_step(inst, op))
}

/// Takes the constant of a multiply-add with one from the code: LLVM 22 prints those from 128 to
/// 248 as the inline constants that an operand of that number would be.
fn embedded(inst: &mut Inst, code: &[u8]) {
    let at = match &*inst.mnemonic {
        "v_fmamk_f32" | "v_fmamk_f16" | "v_madmk_f32" | "v_madmk_f16" => 2,
        "v_fmaak_f32" | "v_fmaak_f16" | "v_madak_f32" | "v_madak_f16" => 3,
        _ => return,
    };
    if let Some(word) = code.last_chunk::<4>() {
        inst.operands[at].operand = Operand::Literal(u32::from_le_bytes(*word).into());
    }
}

fn scalar_step(inst: Inst, op: salu::ScalarOp) -> Step {
    let mut registers = Registers::of(&inst, op.dsts, u8::from(op.reads_dst));
    registers.reads_scc |= op.reads_scc;
    registers.writes_scc = op.writes_scc;
    if inst.mnemonic.contains("exec_") {
        let bits = if inst.mnemonic.ends_with("b32") { 1 } else { 3u128 };
        registers.scalar_reads |= bits << scalar::EXEC;
        registers.scalar_writes |= bits << scalar::EXEC;
    }
    Step { inst, action: Action::Scalar(op.run), class: Class::Salu, registers, flops: 0 }
}

fn control_step(mut inst: Inst, control: Control, address: u64, size: usize) -> Option<Step> {
    let mut registers = Registers::default();
    match control {
        Control::Branch { .. } => {
            let words = match inst.operand(0) {
                Operand::Int(n) => n as i16,
                Operand::Literal(n) => n as i16,
                _ => return None,
            };
            inst.aux = (address + size as u64).wrapping_add_signed(i64::from(words) * 4);
        }
        Control::SetPc { src, .. } => registers.scalar_reads = 3 << src,
        Control::SetModeFrom { source, .. } => registers.scalar_reads = 1 << source,
        Control::Alter(_) => registers.scalar_reads = Registers::of(&inst, 0, 0).scalar_reads,
        _ => {}
    }
    Some(Step { inst, action: Action::Control(control), class: Class::Control, registers, flops: 0 })
}

fn vector_step(inst: Inst, op: VectorOp, isa: &Isa) -> Step {
    let registers = vector_registers(&inst, &op, isa);
    let class = if op.flops == 0 { Class::Valu } else { Class::Matrix };
    Step { inst, action: Action::Vector(op.run), class, registers, flops: op.flops }
}

fn vector_registers(inst: &Inst, op: &VectorOp, isa: &Isa) -> Registers {
    let mut registers = Registers::of(inst, op.dsts, op.reads_dst);
    if op.reads_vcc {
        registers.scalar_reads |= if isa.lanes == 64 { 3 } else { 1 } << scalar::VCC;
    }
    if op.writes_exec {
        registers.scalar_writes |= 3 << scalar::EXEC;
    }
    registers.crosses_lanes = op.crosses_lanes || inst.modifiers.dpp.is_some();
    registers.selects = op.selects;
    registers.one_lane = matches!(&*inst.mnemonic, "v_readlane_b32" | "v_writelane_b32");
    registers.halves = halves(inst).filter(|_| registers.writes.len() == 2);
    registers
}

/// Finds an order in which neither half reads a result of the other.
fn dual(mut a: Inst, mut b: Inst, isa: &'static Isa) -> Option<Step> {
    let ops = [vector::resolve(&mut a, isa)?, vector::resolve(&mut b, isa)?];
    let [ra, rb] = [vector_registers(&a, &ops[0], isa), vector_registers(&b, &ops[1], isa)];
    let hurts = |first: &Registers, second: &Registers| first.writes.iter().any(|w| second.reads.contains(w));
    let (keeps, swaps) = (!hurts(&ra, &rb), !hurts(&rb, &ra));
    let swap = if keeps || swaps { None } else { ra.writes.first().copied() };
    let (first, second) = ((ops[0].run, a.clone()), (ops[1].run, b));
    let dual = match keeps || !swaps {
        true => Dual { first, second, swap },
        false => Dual { first: second, second: first, swap },
    };
    let registers = ra.join(rb);
    Some(Step { inst: a, action: Action::Dual(Box::new(dual)), class: Class::Valu, registers, flops: 0 })
}
