//! LLVM's library has a C++ library inside and lets others see half of it: libFuzzer is to find all
//! of its own before that.
fn main() {
    if std::env::var_os("CARGO_FEATURE_LIBFUZZER").is_some() {
        println!("cargo:rustc-link-lib=stdc++");
    }
}
