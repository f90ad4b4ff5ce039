//! LLVM's disassembler.
use std::ffi::{CStr, CString, c_char};
use std::sync::Once;

use atomc_ir::Diagnostic;
use inkwell::llvm_sys::disassembler::{
    LLVMCreateDisasmCPUFeatures, LLVMDisasmContextRef, LLVMDisasmDispose, LLVMDisasmInstruction,
};
use inkwell::llvm_sys::target::{LLVMInitializeAMDGPUTargetInfo, LLVMInitializeAMDGPUTargetMC};

unsafe extern "C" {
    /// In `llvm-c/Target.h` for every target with a disassembler; `llvm-sys` does not declare this
    /// one.
    fn LLVMInitializeAMDGPUDisassembler();
}

const TRIPLE: &CStr = c"amdgcn-amd-amdhsa";

/// Longer than any instruction's text.
const TEXT_BYTES: usize = 512;

/// Longer than any instruction (16 bytes). With this many bytes after the code, LLVM never looks
/// for a literal past the end, which would crash it.
const WINDOW: usize = 32;

/// A decoder for one processor.
pub struct Disassembler(LLVMDisasmContextRef);

/// One instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instruction {
    pub address: u64,
    pub bytes: u64,
    /// As an assembler reads it, without leading white space.
    pub text: String,
}

impl Disassembler {
    /// For an AMD processor, with more LLVM features than it has by itself.
    pub fn amd(processor: &str, features: &str) -> Result<Disassembler, Diagnostic> {
        static INIT: Once = Once::new();
        // SAFETY: These functions only fill LLVM's registry of targets.
        INIT.call_once(|| unsafe {
            LLVMInitializeAMDGPUTargetInfo();
            LLVMInitializeAMDGPUTargetMC();
            LLVMInitializeAMDGPUDisassembler();
        });
        let fail = || Diagnostic::new("target::disasm", format!("LLVM cannot disassemble for `{processor}`"));
        let cpu = CString::new(processor).map_err(|_| fail())?;
        let features = CString::new(features).map_err(|_| fail())?;
        let none = std::ptr::null_mut();
        // SAFETY: The strings end with a zero and outlive the call; no callbacks are given.
        let context = unsafe {
            LLVMCreateDisasmCPUFeatures(TRIPLE.as_ptr(), cpu.as_ptr(), features.as_ptr(), none, 0, None, None)
        };
        if context.is_null() { Err(fail()) } else { Ok(Disassembler(context)) }
    }

    /// Every instruction of `code`, the first of which is at `address`.
    pub fn all(&mut self, code: &[u8], address: u64) -> Result<Vec<Instruction>, Diagnostic> {
        let mut at = 0;
        let mut found = Vec::new();
        while at < code.len() {
            let pc = address + at as u64;
            let (bytes, text) = self.one(&code[at..], pc).ok_or_else(|| {
                Diagnostic::new("target::disasm", format!("the bytes at {pc:#x} are no instruction of this processor"))
            })?;
            found.push(Instruction { address: pc, bytes: bytes as u64, text });
            at += bytes;
        }
        Ok(found)
    }

    fn one(&mut self, code: &[u8], pc: u64) -> Option<(usize, String)> {
        let left = code.len().min(WINDOW);
        let mut window = [0; WINDOW];
        window[..left].copy_from_slice(&code[..left]);
        let mut text = [0 as c_char; TEXT_BYTES];
        let (start, len) = (window.as_mut_ptr(), WINDOW as u64);
        // SAFETY: LLVM reads at most `len` bytes, writes none of them, and ends the text with a
        // zero inside its buffer.
        let bytes = unsafe { LLVMDisasmInstruction(self.0, start, len, pc, text.as_mut_ptr(), TEXT_BYTES) };
        // SAFETY: As above; the buffer was zero before.
        let text = unsafe { CStr::from_ptr(text.as_ptr()) };
        (1..=left).contains(&bytes).then(|| (bytes, text.to_string_lossy().trim().to_string()))
    }
}

impl Drop for Disassembler {
    fn drop(&mut self) {
        // SAFETY: The context is this value's own.
        unsafe { LLVMDisasmDispose(self.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `s_mov_b32 s0, literal`, with the literal after the end of the code.
    #[test]
    fn an_instruction_that_ends_behind_the_code_is_none() {
        let mut disassembler = Disassembler::amd("gfx942", "").unwrap();
        let code = [0xbe8000ff_u32, 0x2a].map(u32::to_le_bytes).concat();
        assert_eq!(disassembler.all(&code, 0).unwrap()[0].text, "s_mov_b32 s0, lit(0x2a)");
        for end in 1..8 {
            let failed = disassembler.all(&code[..end], 0x100).unwrap_err();
            assert!(failed.to_string().contains("the bytes at 0x100 are no instruction"), "{end}: {failed}");
        }
    }
}
