//! The signature of a host kernel: `atomc_artifact::abi::HostKernel`.
use std::mem::offset_of;

use atomc_artifact::abi;
use atomc_ir::Diagnostic;
use atomc_ir::arch::CpuArch;
use inkwell::AddressSpace;

use super::LANES;
use crate::KernelSpec;
use crate::code::{Code, Int, Ptr};
use crate::kernel::Kernel;
use crate::llvm::Llvm;

/// An empty kernel. Vectors have 16 elements on every host.
pub fn open<'c>(llvm: Llvm<'c>, symbol: &str, arch: CpuArch<'c>) -> Code<'c> {
    let cx = llvm.cx;
    let (p, i) = (cx.ptr_type(AddressSpace::default()), cx.i64_type());
    let ty = cx.void_type().fn_type(&[p.into(), p.into(), p.into(), i.into(), i.into()], false);
    Code::open(llvm, symbol, arch.arch(), ty, LANES, i)
}

/// The kernel of a body, with its pointers from the argument array.
pub fn kernel<'a, 'c>(c: &'a Code<'c>, spec: &KernelSpec<'a>) -> Result<Kernel<'a, 'c>, Diagnostic> {
    Kernel::new(c, spec, |i| c.load_ptr(c.at(pointer(c, 0), 8 * i)))
}

/// Tokens and rows of the step.
pub fn step<'c>(c: &Code<'c>) -> (Int<'c>, Int<'c>) {
    let p = pointer(c, 1);
    let field = |offset: usize| c.load_i64(c.at(p, offset));
    (field(offset_of!(abi::Step, tokens)), field(offset_of!(abi::Step, rows)))
}

pub fn scratch<'c>(c: &Code<'c>) -> Ptr<'c> {
    pointer(c, 2)
}

/// The first task, and the end of the tasks.
pub fn tasks<'c>(c: &Code<'c>) -> (Int<'c>, Int<'c>) {
    let n = |i| c.as_int(c.function.get_nth_param(i).expect("five parameters"));
    (n(3), n(4))
}

fn pointer<'c>(c: &Code<'c>, i: u32) -> Ptr<'c> {
    c.function.get_nth_param(i).expect("five parameters").into_pointer_value()
}
