//! Links the LLVM that comes with the Rust toolchain, so that nobody installs one.
//!
//! `ATOMC_LLVM_DIR` names another folder that holds a `libLLVM` of the same version, for packagers.
use std::path::{Path, PathBuf};
use std::process::Command;

/// What to do where there is none.
const INSTALL: &str = "atomc links the LLVM of Rust 1.95.0: `rustup toolchain install 1.95.0`, then `cargo +1.95.0 …`. \
                       ATOMC_LLVM_DIR names another folder that has it, and `--no-default-features` needs none";

fn main() {
    println!("cargo:rerun-if-env-changed=ATOMC_LLVM_DIR");
    let dir = std::env::var_os("ATOMC_LLVM_DIR").map(PathBuf::from).unwrap_or_else(|| sysroot().join("lib"));
    let Some(name) = library(&dir) else {
        println!("cargo::error=no libLLVM-22 in {}: {INSTALL}", dir.display());
        return;
    };
    println!("cargo:rustc-link-search=native={}", dir.display());
    println!("cargo:rustc-link-lib=dylib={name}");
    println!("cargo:rustc-link-arg=-Wl,-rpath,{}", dir.display());
    println!("cargo:dir={}", dir.display());
    println!("cargo:sysroot={}", sysroot().display());
    println!("cargo:rustc-env=ATOMC_SYSROOT={}", sysroot().display());
    println!("cargo:rustc-env=ATOMC_HOST={}", std::env::var("HOST").expect("cargo sets HOST"));
}

fn sysroot() -> PathBuf {
    let rustc = std::env::var_os("RUSTC").expect("cargo sets RUSTC");
    let out = Command::new(rustc).args(["--print", "sysroot"]).output().expect("rustc runs");
    PathBuf::from(String::from_utf8(out.stdout).expect("a path in UTF-8").trim())
}

/// The linker name of `libLLVM-22….so`.
fn library(dir: &Path) -> Option<String> {
    let names = std::fs::read_dir(dir).ok()?.filter_map(|e| e.ok()?.file_name().into_string().ok());
    let mut found: Vec<_> =
        names.filter_map(|n| Some(n.strip_prefix("lib")?.strip_suffix(".so")?.to_string())).collect();
    found.retain(|n| n.starts_with("LLVM-22"));
    found.sort();
    found.pop()
}
