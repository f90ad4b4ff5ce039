//! Lets the tests find the LLVM that came with the toolchain, which `atomc-targets` links.
use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-env-changed=ATOMC_LLVM_DIR");
    let dir = std::env::var_os("ATOMC_LLVM_DIR").map(PathBuf::from).unwrap_or_else(|| sysroot().join("lib"));
    println!("cargo:rustc-link-arg=-Wl,-rpath,{}", dir.display());
}

fn sysroot() -> PathBuf {
    let rustc = std::env::var_os("RUSTC").expect("cargo sets RUSTC");
    let out = Command::new(rustc).args(["--print", "sysroot"]).output().expect("rustc runs");
    PathBuf::from(String::from_utf8(out.stdout).expect("a path in UTF-8").trim())
}
