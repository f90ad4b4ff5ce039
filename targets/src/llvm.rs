//! LLVM as this crate uses it: contexts, modules to objects, modules to text.
use std::cell::RefCell;
use std::ffi::{CStr, c_void};
use std::sync::Once;

use atomc_ir::arch::Machine;
use atomc_ir::{Arch, Diagnostic};
use inkwell::OptimizationLevel;
use inkwell::builder::Builder;
use inkwell::context::Context;
use inkwell::llvm_sys::LLVMDiagnosticSeverity;
use inkwell::llvm_sys::core::{
    LLVMContextSetDiagnosticHandler, LLVMDisposeMessage, LLVMGetDiagInfoDescription, LLVMGetDiagInfoSeverity,
};
use inkwell::llvm_sys::prelude::LLVMDiagnosticInfoRef;
use inkwell::module::{FlagBehavior, Module};
use inkwell::passes::PassBuilderOptions;
use inkwell::targets::{CodeModel, FileType, InitializationConfig, RelocMode, Target, TargetMachine, TargetTriple};

use crate::Form;

/// The place where a kernel is built: a context, and the builder of all its instructions. Both
/// outlive every value.
#[derive(Clone, Copy)]
pub struct Llvm<'c> {
    pub cx: &'c Context,
    pub b: &'c Builder<'c>,
}

pub fn context() -> Context {
    static INIT: Once = Once::new();
    INIT.call_once(|| {
        Target::initialize_x86(&InitializationConfig::default());
        Target::initialize_amd_gpu(&InitializationConfig::default());
        Target::initialize_nvptx(&InitializationConfig::default());
    });
    Context::create()
}

fn machine(arch: &Arch) -> Result<TargetMachine, Diagnostic> {
    let triple = TargetTriple::create(arch.triple);
    let fail =
        |e: String| Diagnostic::new("target::llvm", format!("LLVM has no target machine for {}: {e}", arch.name));
    let target = Target::from_triple(&triple).map_err(|e| fail(e.to_string()))?;
    target
        .create_target_machine(
            &triple,
            arch.cpu,
            arch.attributes,
            OptimizationLevel::Default,
            RelocMode::PIC,
            CodeModel::Default,
        )
        .ok_or_else(|| fail("refused".into()))
}

/// Emitters write straight code; these passes hoist and share repeated parts. No pass here invents
/// calls to a C library.
const PASSES: &str = "early-cse<memssa>,instcombine<no-verify-fixpoint>,loop-mssa(licm),early-cse,simplifycfg";

/// On GPUs loops end with their test, so that carried values keep their registers.
const SIMT_PASSES: &str =
    "early-cse<memssa>,instcombine<no-verify-fixpoint>,loop-mssa(loop-rotate,licm),early-cse<memssa>,simplifycfg";

/// The version of code objects, times 100, from which on they may be for a family of chips.
const GENERIC_OBJECTS: u64 = 600;

fn optimise(module: &Module, arch: &Arch) -> Result<TargetMachine, Diagnostic> {
    module
        .verify()
        .unwrap_or_else(|e| panic!("emitted IR for {} is broken: {e}\n{}", arch.name, module.print_to_string()));
    let machine = machine(arch)?;
    if arch.is_generic() {
        let version = module.get_context().i32_type().const_int(GENERIC_OBJECTS, false);
        module.add_basic_value_flag("amdhsa_code_object_version", FlagBehavior::Error, version);
    }
    module.set_triple(&TargetTriple::create(arch.triple));
    module.set_data_layout(&machine.get_target_data().get_data_layout());
    let passes = match arch.machine {
        Machine::Cpu(_) => PASSES,
        Machine::Simt(_) => SIMT_PASSES,
    };
    module
        .run_passes(passes, &machine, PassBuilderOptions::create())
        .map_err(|e| Diagnostic::new("target::llvm", format!("optimising for {}: {e}", arch.name)))?;
    Ok(machine)
}

pub fn object(module: &Module, arch: &Arch) -> Result<Vec<u8>, Diagnostic> {
    emit(module, arch, FileType::Object)
}

/// Assembles a text to an object.
pub fn assembled(text: &str, arch: &Arch) -> Result<Vec<u8>, Diagnostic> {
    let cx = context();
    let module = cx.create_module("assembled");
    module.set_inline_assembly(text);
    object(&module, arch)
}

pub fn text(module: &Module, arch: &Arch, form: Form) -> Result<String, Diagnostic> {
    match form {
        Form::Llvm => {
            optimise(module, arch)?;
            Ok(module.print_to_string().to_string())
        }
        Form::Asm => {
            let asm = emit(module, arch, FileType::Assembly)?;
            Ok(String::from_utf8_lossy(&asm).trim_end_matches('\0').to_string())
        }
    }
}

fn emit(module: &Module, arch: &Arch, file: FileType) -> Result<Vec<u8>, Diagnostic> {
    let machine = optimise(module, arch)?;
    let fail = |e: String| Diagnostic::new("target::llvm", format!("emitting for {}: {e}", arch.name));
    let (made, errors) = heard(module, || machine.write_to_memory_buffer(module, file));
    match errors.into_iter().next() {
        Some(error) => Err(fail(error)),
        None => Ok(made.map_err(|e| fail(e.to_string()))?.as_slice().to_vec()),
    }
}

/// The result of `make`, and the errors that LLVM reports meanwhile. Its other reports are for
/// developers: that it cannot keep as many waves as requested, for example.
fn heard<R>(module: &Module, make: impl FnOnce() -> R) -> (R, Vec<String>) {
    let (context, errors) = (module.get_context().raw(), RefCell::new(vec![]));
    // SAFETY: the context is the module's, which lives, and `errors` lives until its handler is
    // taken away below.
    unsafe { LLVMContextSetDiagnosticHandler(context, Some(hear), (&raw const errors).cast_mut().cast()) };
    let made = make();
    // SAFETY: as above; LLVM goes on as it does without a handler.
    unsafe { LLVMContextSetDiagnosticHandler(context, None, std::ptr::null_mut()) };
    (made, errors.into_inner())
}

/// Takes a report of LLVM; `errors` is the list of [`heard`].
extern "C" fn hear(told: LLVMDiagnosticInfoRef, errors: *mut c_void) {
    // SAFETY: LLVM lends its report for this call, and gives a text that is ours to free.
    let (text, severity) = unsafe {
        let text = LLVMGetDiagInfoDescription(told);
        let copy = CStr::from_ptr(text).to_string_lossy().into_owned();
        LLVMDisposeMessage(text);
        (copy, LLVMGetDiagInfoSeverity(told))
    };
    match severity {
        LLVMDiagnosticSeverity::LLVMDSError => {
            // SAFETY: this is the list that `heard` above gave to LLVM. Nothing else refers to it.
            unsafe { &*errors.cast::<RefCell<Vec<String>>>() }.borrow_mut().push(text);
        }
        _ => tracing::debug!(text, "LLVM"),
    }
}
