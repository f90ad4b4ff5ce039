//! Code objects for tests, from LLVM IR text.
use std::process::Command;

use inkwell::OptimizationLevel;
use inkwell::context::Context;
use inkwell::memory_buffer::MemoryBuffer;
use inkwell::targets::{CodeModel, FileType, RelocMode, Target, TargetTriple};

use crate::decode::disasm::{TRIPLE, initialise};
use crate::isa::Isa;

/// Compiles a module of `amdgpu_kernel` functions for a processor and links it. Panics if LLVM
/// refuses the text.
pub fn compile(ir: &str, isa: &Isa) -> Vec<u8> {
    initialise();
    let context = Context::create();
    let buffer = MemoryBuffer::create_from_memory_range_copy(format!("{ir}\0").as_bytes(), "test");
    let module = context.create_module_from_ir(buffer).unwrap_or_else(|e| panic!("{e}"));
    let triple = TargetTriple::create(TRIPLE);
    let target = Target::from_triple(&triple).expect("the target is registered");
    let machine = target
        .create_target_machine(
            &triple,
            isa.name,
            isa.features,
            OptimizationLevel::Default,
            RelocMode::PIC,
            CodeModel::Default,
        )
        .expect("a machine for the processor");
    module.set_triple(&triple);
    module.set_data_layout(&machine.get_target_data().get_data_layout());
    module.verify().unwrap_or_else(|e| panic!("{e}"));
    let object = machine.write_to_memory_buffer(&module, FileType::Object).unwrap_or_else(|e| panic!("{e}"));
    link(object.as_slice())
}

/// A code object of one relocatable object.
fn link(object: &[u8]) -> Vec<u8> {
    let dir = tempfile::tempdir().expect("a directory for the linker");
    std::fs::write(dir.path().join("k.o"), object).expect("the object is written");
    let lld =
        std::path::Path::new(env!("ATOMC_SYSROOT")).join("lib/rustlib").join(env!("ATOMC_HOST")).join("bin/rust-lld");
    let mut command = Command::new(lld);
    command.current_dir(dir.path()).args(["-flavor", "gnu", "-shared", "--strip-all", "-o", "k.hsaco", "k.o"]);
    let done = command.output().expect("rust-lld runs");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    std::fs::read(dir.path().join("k.hsaco")).expect("the linker wrote it")
}
