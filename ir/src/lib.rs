//! The graph IR: what a model's step computes, before anyone decides how.
//!
//! A [`Graph`] holds [`Op`]s over typed values in SSA form. Its text form ([`print`](Graph::print),
//! [`parse`]) is what tests, rules and reproducers are written in; [`verify`](Graph::verify) says
//! what is legal; [`interp`] says what it means.
//!
//! `ops.rs` is the op table: an entry an op with operands, attributes, shape rule and reference
//! meaning. Facts that others ask for are columns of it: which rows of each operand a row of the
//! result needs, which kernels make it, whether it keeps values, how much work it is. Printer,
//! parser, builder and verifier follow from the table. `elementwise.rs` holds elementwise ops as
//! formulas that are generic over the scalar, so that the interpreter and the emitted kernels use
//! the same line. `family.rs` is the table of schedule families. `graph.rs` hides petgraph.
//! `interp.rs` is the reference, in f32 or f64, and `trial/` checks kernels with it. `arch.rs` is
//! the type of an arch row. `layout.rs` has the places of elements in packed weights and in the
//! cache.
//!
//! # Quantised weights and rows
//!
//! A weight has an encoding: the type of its elements, which may have 8 or 4 bits, and its scales
//! and zero points, which are operands of `linear` after the weight. `Block` is the number of rows
//! and columns that share a scale, so a scale for a tensor, for each row, for groups or for squares
//! is one thing. In the place of zero points a weight may have least numbers, which are floats and
//! are added: `code * scale + least`, as types of GGUF with minima have it. The block is an
//! attribute and not derived from shapes, because the last block may be smaller. The verifier
//! refuses a weight that is cut or joined inside a block; the pass `merge_weights` makes blocks
//! smaller instead. Scales that rows have of their own lie in columns of panels
//! (`Layout::Columns`).
//!
//! The op `quantise` quantises rows; `quantise.rs` defines it. The result is one value: the scales
//! of a row come after its codes (`Layout::Scaled`). Its numbers are code times scale, so `linear`
//! and the passes need no rule of their own. In decode steps the prologue of a product makes it, or
//! a kernel of its own, or, where the chip's row says so, attention with one token (`requantised`).
//! MX quantises to numbers of the rows' type. The pass `mx_codes` makes them rows of codes
//! (`Layout::Mx`) where the chip's matrix instructions take such codes and their scales.
//!
//! # Experts
//!
//! The choices of a router are rows. `T*k` is a dimension, k rows for each token, so a value of a
//! token and one of its experts is a row like any other, and slices, norms, codes and epilogues
//! need no rule of their own. `grouped` multiplies each row by the matrix of its expert, from a
//! weight with three axes. `combine` adds up a token's rows. The rows of each expert are no value:
//! the pass `group` puts their list after the experts' indices (`Layout::Grouped`) for steps of
//! many tokens. The reference and decode kernels use the indices alone. An index below zero is an
//! expert of another rank: where ranks hold whole experts (`--ep N`), `route` counts a rank's own
//! from the first one, which is a shard of a constant.
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
pub use elementwise::{Elementwise, Number, Scalar, softplus};
pub use family::{Family, Tokens};
pub use graph::{Graph, NodeId, Value};
pub use ops::{Class, Maker, Norm, Op, Reads, Stage, Values, Within};
pub use quantise::{LEAST_SCALE, LEAST_SIZE};
pub use text::parse;
pub use types::{
    BOOK_BLOCKS, Best, Block, CacheType, DeltaSizes, Dim, Encode, Encoded, Fact, Layout, MOST_KEPT, Order, Router,
    Rule, SLOT_ALIGN, Score, Shape, SlotsType, TEXT, TensorType, Turn, Type, Whole, nth_name,
};
pub use verify::VerifyError;
