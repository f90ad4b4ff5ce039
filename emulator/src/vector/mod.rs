//! Vector arithmetic: everything whose mnemonic begins with `v_`.
//!
//! # The contract
//! The decoder parses an instruction into an [`Inst`] and calls [`resolve`] once. `resolve`
//! - looks the mnemonic up (the suffix of the encoding is already gone; the halves of dual instructions come one by one with
//!   `v_dual_` replaced by `v_`),
//! - replaces every constant operand (`Int`, `Float`, `Literal`) by `Operand::Const` with the final bits for the operand's type,
//! - returns a [`VectorOp`], or `None` for an unknown mnemonic or for a modifier that it cannot interpret: the decoder makes a
//!   typed error of it that names the instruction and its address.
//!
//! `VectorOp::run` executes it. It may rely on `resolve`'s checks, reads and writes only `wave`, never fails, never touches
//! `wave.pc`, `wave.written` and `wave.scalar_written`: the interpreter's loop does the checks for uninitialised registers and
//! missing waits around it, from the operands and from the facts in [`VectorOp`]. Inactive lanes keep their value. A destination may
//! be the same register as a source. Lanes 32 to 63 of waves of 32 hold nothing: computing them is harmless, `exec` has zeros there.
//! In a dual instruction the loop takes care that both halves read before either writes.
use crate::inst::Inst;
use crate::isa::Isa;
use crate::wave::Wave;

/// Executes an instruction that [`resolve`] accepted.
///
/// It is `unsafe` only because it may be compiled for processor features that `resolve` found on this machine.
pub type Handler = unsafe fn(&mut Wave, &Inst);

/// What the interpreter must know about a vector instruction.
#[derive(Clone, Copy, Debug)]
pub struct VectorOp {
    pub run: Handler,
    /// How many of the first operands are destinations: 2 for `v_add_co_u32 v0, vcc, ...`, 0 for `v_nop`.
    pub dsts: u8,
    /// Operands that are read as well as written, as bits by position (`v_fmac`: 1; `v_swap`, `v_permlane32_swap`: both are set
    /// and `dsts` is 2).
    pub reads_dst: u8,
    /// Also reads `vcc` without naming it (`v_div_fmas`).
    pub reads_vcc: bool,
    /// Writes `exec` without naming it (`v_cmpx`).
    pub writes_exec: bool,
    /// A lane's result depends on other lanes (matrix instructions, `v_readlane`, permutations; DPP is added by the interpreter).
    pub crosses_lanes: bool,
    /// Selects by lane between operands 1 and 2 with the mask in operand 3: an uninitialised value that is not chosen is no fault.
    pub selects: bool,
    /// Floating-point operations of a matrix instruction, for the whole wave; 0 for all others.
    pub flops: u32,
}

/// Resolves a vector instruction; see the module's contract.
pub fn resolve(inst: &mut Inst, isa: &'static Isa) -> Option<VectorOp> {
    let _ = (inst, isa);
    None
}
