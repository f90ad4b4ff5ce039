//! Lets tests and benchmarks find the LLVM that `atomc-targets` links, and the linker in the same
//! toolchain.
fn main() {
    let known = |name: &str| std::env::var(name).expect("atomc-targets says where it is");
    println!("cargo:rustc-link-arg=-Wl,-rpath,{}", known("DEP_ATOMC_LLVM_DIR"));
    println!("cargo:rustc-env=ATOMC_SYSROOT={}", known("DEP_ATOMC_LLVM_SYSROOT"));
    println!("cargo:rustc-env=ATOMC_HOST={}", known("HOST"));
}
