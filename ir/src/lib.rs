//! The graph IR: what a model's step computes, before anyone decides how.
//!
//! A [`Graph`] holds [`Op`]s over typed values in SSA form. Its text form ([`print`](Graph::print), [`parse`]) is what tests,
//! rules and reproducers are written in; [`verify`](Graph::verify) says what is legal; [`interp`] says what it means.
pub mod arch;
mod attr;
mod builder;
mod elementwise;
mod family;
mod graph;
pub mod interp;
pub mod layout;
mod ops;
pub mod results;
mod shapes;
mod text;
pub mod trial;
mod types;
mod verify;

pub use arch::Arch;
/// Rotary frequencies, as configurations have them.
pub use atomc_config::freqs as rope;
pub use atomc_config::{DType, Diagnostic};
pub use builder::Builder;
pub use elementwise::{Elementwise, Scalar};
pub use family::{Family, Tokens};
pub use graph::{Graph, NodeId, Value};
pub use ops::{Class, Maker, Norm, Op, Reads, Stage, Values};
pub use text::parse;
pub use types::{Block, CacheType, Dim, Layout, Shape, TensorType, Type};
pub use verify::VerifyError;
