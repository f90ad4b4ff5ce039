//! The programs on this machine: a shared object, compiled and linked with the toolchain.
use std::process::Command;

use inkwell::OptimizationLevel;
use inkwell::context::Context;
use inkwell::memory_buffer::MemoryBuffer;
use inkwell::targets::{CodeModel, FileType, InitializationConfig, RelocMode, Target, TargetTriple};
use libloading::{Library, Symbol};

use crate::program::{INPUTS, Program, THREADS};

/// A loaded shared object.
pub struct Host {
    library: Library,
    _directory: tempfile::TempDir,
}

/// One work-item: its number, inputs and outputs.
type Function = unsafe extern "C" fn(i32, *const u32, *mut u32);

impl Host {
    pub fn compile(ir: &str) -> Host {
        Target::initialize_x86(&InitializationConfig::default());
        let context = Context::create();
        let buffer = MemoryBuffer::create_from_memory_range_copy(format!("{ir}\0").as_bytes(), "fuzz");
        let module = context.create_module_from_ir(buffer).unwrap_or_else(|e| panic!("{e}\n{ir}"));
        let triple = TargetTriple::create("x86_64-unknown-linux-gnu");
        let machine = Target::from_triple(&triple)
            .unwrap()
            .create_target_machine(
                &triple,
                "x86-64-v3",
                "",
                OptimizationLevel::Default,
                RelocMode::PIC,
                CodeModel::Default,
            )
            .unwrap();
        module.set_triple(&triple);
        module.set_data_layout(&machine.get_target_data().get_data_layout());
        let object = machine.write_to_memory_buffer(&module, FileType::Object).unwrap();
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("k.o"), object.as_slice()).unwrap();
        let lld = concat!(env!("ATOMC_SYSROOT"), "/lib/rustlib/", env!("ATOMC_HOST"), "/bin/rust-lld");
        let done = Command::new(lld)
            .current_dir(directory.path())
            .args(["-flavor", "gnu", "-shared", "-o", "k.so", "k.o"])
            .output()
            .unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        // SAFETY: the object has no constructors.
        let library = unsafe { Library::new(directory.path().join("k.so")) }.unwrap();
        Host { library, _directory: directory }
    }

    pub fn run(&self, program: &Program, input: &[u32]) -> Vec<u32> {
        // SAFETY: the module defines the function with this signature.
        let function: Symbol<Function> = unsafe { self.library.get(program.name().as_bytes()) }.unwrap();
        let mut output = vec![0; THREADS * program.outputs()];
        assert_eq!(input.len(), THREADS * INPUTS);
        for thread in 0..THREADS {
            // SAFETY: the function reads the inputs of its work-item and writes its outputs.
            unsafe { function(thread as i32, input.as_ptr(), output.as_mut_ptr()) };
        }
        output
    }
}
