//! LLVM's disassembler, one instruction at a time.
use std::ffi::{CStr, CString, c_char};
use std::sync::Once;

use inkwell::llvm_sys::disassembler::{
    LLVMCreateDisasmCPUFeatures, LLVMDisasmContextRef, LLVMDisasmDispose, LLVMDisasmInstruction,
};
use inkwell::targets::{InitializationConfig, Target};

use super::fatal;
use crate::isa::Isa;

/// The triple of every code object.
pub const TRIPLE: &str = "amdgcn-amd-amdhsa";

unsafe extern "C" {
    /// LLVM has it, but neither llvm-sys nor inkwell declares it.
    fn LLVMInitializeAMDGPUDisassembler();
}

/// Longer than any instruction (16 bytes). With this many bytes after the code, LLVM never looks
/// for a literal past the end, which would crash it.
const WINDOW: usize = 32;

/// Registers LLVM's AMDGPU back end; again and again is harmless.
pub fn initialise() {
    static INIT: Once = Once::new();
    INIT.call_once(|| {
        Target::initialize_amd_gpu(&InitializationConfig::default());
        // SAFETY: it adds to a table of LLVM's; `Once` keeps other calls out.
        unsafe { LLVMInitializeAMDGPUDisassembler() };
    });
}

/// A disassembler for one processor. It is used by one thread at a time.
pub struct Disassembler {
    context: LLVMDisasmContextRef,
    isa: Isa,
}

impl Disassembler {
    /// `None` if LLVM does not know the processor.
    pub fn new(isa: &Isa) -> Option<Disassembler> {
        initialise();
        let [triple, cpu, features] = [TRIPLE, isa.name, isa.features].map(|s| CString::new(s).expect("no zero byte"));
        // SAFETY: three strings that end in zero and outlive the call; no callbacks.
        let raw = unsafe {
            LLVMCreateDisasmCPUFeatures(
                triple.as_ptr(),
                cpu.as_ptr(),
                features.as_ptr(),
                std::ptr::null_mut(),
                0,
                None,
                None,
            )
        };
        (!raw.is_null()).then_some(Disassembler { context: raw, isa: *isa })
    }

    /// The text of the instruction that begins `code`, and its length in bytes; `None` if it is
    /// none, or ends past `code`.
    pub fn next(&self, code: &[u8], address: u64) -> Option<(String, usize)> {
        let left = code.len().min(WINDOW);
        let mut window = [0; WINDOW];
        window[..left].copy_from_slice(&code[..left]);
        let dword = |index| u32::from_le_bytes(std::array::from_fn(|byte| window[4 * index + byte]));
        if fatal::broken(&self.isa, std::array::from_fn(dword)).is_some() {
            return None;
        }
        let mut text = [0 as c_char; 256];
        let (start, room) = (window.as_mut_ptr(), text.len());
        // SAFETY: the context lives; LLVM reads at most `WINDOW` bytes, writes at most `room`, and
        // ends them in zero.
        let size =
            unsafe { LLVMDisasmInstruction(self.context, start, WINDOW as u64, address, text.as_mut_ptr(), room) };
        // SAFETY: zeroed before the call and ended in zero by it.
        let text = unsafe { CStr::from_ptr(text.as_ptr()) };
        (1..=left).contains(&size).then(|| (text.to_string_lossy().trim().to_string(), size))
    }
}

impl Drop for Disassembler {
    fn drop(&mut self) {
        // SAFETY: made by `new`, disposed once.
        unsafe { LLVMDisasmDispose(self.context) }
    }
}
