//! Kernels of the host, loaded into this process.
use std::ffi::c_void;

use atomc_ir::Arch;
use atomc_targets::Object;

use super::Launch;

/// Whether this CPU can run code of a row. AMX has no stable detection macro.
pub fn supported(arch: &Arch) -> bool {
    let leaf = std::arch::x86_64::__cpuid_count(7, 0).edx;
    let more = std::arch::x86_64::__cpuid_count(7, 1).eax;
    arch.features.iter().all(|f| match *f {
        "avx512f" => is_x86_feature_detected!("avx512f"),
        "avx512vnni" => is_x86_feature_detected!("avx512vnni"),
        "avx512vbmi" => is_x86_feature_detected!("avx512vbmi"),
        "avx512bf16" => more >> 5 & 1 == 1,
        "amx-bf16" => leaf >> 22 & 1 == 1 && amx_allowed(),
        "avx2" => is_x86_feature_detected!("avx2"),
        "fma" => is_x86_feature_detected!("fma"),
        _ => true,
    })
}

/// Asks Linux for the tile registers: `arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)`.
fn amx_allowed() -> bool {
    unsafe extern "C" {
        fn syscall(number: i64, ...) -> i64;
    }
    // SAFETY: the call has no memory operands.
    unsafe { syscall(158, 0x1023i64, 18i64) == 0 }
}

/// Runs the kernel `k` over two ranges of tasks, as two threads would.
pub fn run(object: &Object, launch: &Launch) {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("k.so");
    std::fs::write(&path, &object.code).expect("a file");
    let count = launch.tasks as i64;
    let mut scratch = super::Memory::new(object.kernels[0].scratch);
    type Kernel = unsafe extern "C" fn(*const *mut c_void, *const i64, *mut c_void, i64, i64);
    // SAFETY: the object was just made, and the arguments follow its ABI.
    unsafe {
        let library = libloading::Library::new(&path).expect("a shared object");
        let kernel = library.get::<Kernel>(b"k").expect("the kernel");
        for (from, to) in [(0, count / 2), (count / 2, count)] {
            kernel(launch.args.as_ptr(), launch.step.as_ptr(), scratch.ptr(), from, to);
        }
    }
}
