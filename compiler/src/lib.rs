//! The atomc compiler: frontends that read a model's configuration, and the driver that makes an
//! artifact of it.
//!
//! Without the `compiler` feature this library has only the files of models (`model.rs`), and the
//! `atomc` binary only the verbs that run artifacts.
#[cfg(feature = "compiler")]
pub mod driver;
#[cfg(feature = "emulator")]
pub mod emulated;
#[cfg(feature = "compiler")]
pub mod frontend;
pub mod model;
