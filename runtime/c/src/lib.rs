//! The runtime as a library for C: `runtime/include/atomc.h` declares what is in it.
//!
//! It is a crate of its own because Cargo has one file for a library that others link, whatever its
//! features are: as a part of `atomc-runtime` every command with other features built that anew.
pub use atomc_runtime::capi::*;
