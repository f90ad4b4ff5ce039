//! Lets the binary and the tests find the LLVM that `atomc-targets` links. Without the compiler
//! there is none.
fn main() {
    println!("cargo:rerun-if-env-changed=DEP_ATOMC_LLVM_DIR");
    if let Ok(dir) = std::env::var("DEP_ATOMC_LLVM_DIR") {
        // An archive of `dist/build.sh` has the library next to the binary, and keeps this part
        // alone.
        println!("cargo:rustc-link-arg-bins=-Wl,-rpath,$ORIGIN/../lib");
        println!("cargo:rustc-link-arg=-Wl,-rpath,{dir}");
    }
}
