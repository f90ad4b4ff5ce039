//! The graph IR: what a model's step computes, before anyone decides how.
//!
//! A [`Graph`] holds [`Op`]s over typed values in SSA form. Its text form ([`print`](Graph::print), [`parse`]) is what tests,
//! rules and reproducers are written in; [`verify`](Graph::verify) says what is legal; [`interp`] says what it means.
pub mod arch;
mod builder;
mod diag;
mod elementwise;
mod graph;
pub mod interp;
pub mod layout;
mod ops;
pub mod rope;
mod text;
pub mod trial;
mod types;
mod verify;

pub use arch::Arch;
pub use builder::Builder;
pub use diag::Diagnostic;
pub use elementwise::{Elementwise, Scalar};
pub use graph::{Graph, NodeId, Value};
pub use ops::{Class, Family, Op, Stage};
pub use text::parse;
pub use types::{CacheType, DType, Dim, Layout, Shape, TensorType, Type};
pub use verify::VerifyError;
