//! The kernels of one code object: all of them are emitted at once.
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use atomc_artifact::manifest::{self, EXCHANGE, PACK, PREPARE};
use atomc_ir::{Arch, Diagnostic};
use inkwell::module::Module as Emitted;

use crate::llvm::Llvm;
use crate::spec::KernelSpec;
use crate::{select, simt};

/// A linked code object, or modules.
#[derive(Clone, Debug)]
pub struct Object {
    pub code: Vec<u8>,
    pub kernels: Vec<manifest::Kernel>,
}

/// A kernel to emit: of a body, or one of those on GPUs that work for frameworks, or for ranks.
pub enum Job<'a> {
    Body(&'a KernelSpec<'a>),
    Prepare,
    Pack,
    Exchange,
}

impl Job<'_> {
    /// The name of its function.
    pub fn symbol(&self) -> &str {
        match self {
            Job::Body(spec) => &spec.symbol,
            Job::Prepare => PREPARE,
            Job::Pack => PACK,
            Job::Exchange => EXCHANGE,
        }
    }

    /// The kernel as a module.
    pub fn emit<'c>(&self, llvm: Llvm<'c>, arch: &'c Arch) -> Result<(Emitted<'c>, manifest::Kernel), Diagnostic> {
        match self {
            Job::Body(spec) => select::emit(llvm, spec, arch),
            Job::Prepare => Ok(simt::emit_prepare(llvm, simt::gpu(arch)?)),
            Job::Pack => Ok(simt::emit_pack(llvm, simt::gpu(arch)?)),
            Job::Exchange => Ok(simt::emit_exchange(llvm, simt::gpu(arch)?)),
        }
    }
}

/// `f` of every item, on all cores, results in order.
pub fn parallel<T: Sync, R: Send>(
    items: &[T],
    f: impl Fn(&T) -> Result<R, Diagnostic> + Sync,
) -> Result<Vec<R>, Diagnostic> {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(items.len());
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<Option<Result<R, Diagnostic>>>> = Mutex::new(items.iter().map(|_| None).collect());
    std::thread::scope(|s| {
        for _ in 0..threads {
            s.spawn(|| {
                while let Some((i, item)) =
                    Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|i| Some((i, items.get(i)?)))
                {
                    let r = f(item);
                    results.lock().expect("no panic while held")[i] = Some(r);
                }
            });
        }
    });
    results.into_inner().expect("no panic while held").into_iter().map(|r| r.expect("every item was taken")).collect()
}
