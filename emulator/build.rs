//! Lets tests and benchmarks find the LLVM that `atomc-targets` links.
fn main() {
    let dir = std::env::var("DEP_ATOMC_LLVM_DIR").expect("atomc-targets says where it is");
    println!("cargo:rustc-link-arg=-Wl,-rpath,{dir}");
}
