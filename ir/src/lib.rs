//! The graph IR: what a model's step computes, before anyone decides how.
//!
//! A [`Graph`] holds [`Op`]s over typed values in SSA form. Its text form ([`print`](Graph::print),
//! [`parse`]) is what tests, rules and reproducers are written in; [`verify`](Graph::verify) says
//! what is legal; [`interp`] says what it means.
//!
//! ```
//! use atomc_ir::{Builder, DType, Dim, Shape, Type, parse};
//!
//! let mut b = Builder::new("last");
//! let x = b.input("x", Type::tensor(DType::BF16, Shape::led_by(Dim::Tokens, &[64])));
//! let weight = b.at("model.norm").weight("model.norm.weight", DType::BF16, &[64]);
//! let normed = b.rms_norm(x, weight, 1e-6)?;
//! let graph = b.finish(vec![("hidden".to_string(), normed)])?;
//!
//! let text = r#"graph @last(%x: bf16[T, 64]) {
//!   %0 = weight {name = "model.norm.weight"} : bf16[64] // model.norm
//!   %1 = rms_norm %x, %0 {eps = 1e-6} : bf16[T, 64] // model.norm
//!   return hidden = %1
//! }
//! "#;
//! assert_eq!(graph.print(), text);
//! assert_eq!(parse(text)?.print(), text);
//! # Ok::<(), atomc_ir::Diagnostic>(())
//! ```
#![warn(missing_docs)]

pub mod arch;
mod attr;
mod builder;
mod elementwise;
mod family;
mod graph;
pub mod interp;
pub mod layout;
mod ops;
mod quantise;
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
pub use elementwise::{Elementwise, Number, Scalar};
pub use family::{Family, Tokens};
pub use graph::{Graph, NodeId, Value};
pub use ops::{Class, Maker, Norm, Op, Reads, Stage, Values, Within};
pub use quantise::{LEAST_SCALE, LEAST_SIZE};
pub use text::parse;
pub use types::{
    Best, Block, CacheType, DeltaSizes, Dim, Encode, Encoded, Fact, Layout, Order, Router, Rule, SLOT_ALIGN, Score,
    Shape, SlotsType, TensorType, Type, Whole, nth_name,
};
pub use verify::VerifyError;
