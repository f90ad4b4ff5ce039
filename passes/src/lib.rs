//! Rewrites of a graph: from the model that a frontend builds to kernels with their memory.
//!
//! A pass is a value in the table of [`pipeline`](PASSES); its file, its name and its name on the
//! command line are the same. [`run`] is the driver, [`plan`] and [`ledger`] give the memory and
//! the work of the result, and [`explain`] the places where work was merged or not, with the
//! reasons.
//!
//! ```
//! use atomc_passes::{Bucket, Cx, run};
//! # use atomc_ir::arch::{Cpu, Dot, Known, Machine, Memory, Renormed, Requantised, Vector};
//! # let arch = atomc_ir::Arch {
//! #     name: "example", target: "example", source: "", triple: "", cpu: "", attributes: "", features: &[],
//! #     machine: Machine::Cpu(Cpu { vector: Vector { lanes: 16, registers: 32 }, dot: Dot::Pairs }),
//! #     sibling: None,
//! #     executed: true,
//! #     memory: Memory { row: 32, alias: 1024, rows: 1, panel: 16, group_bytes: 64, block_tokens: 16, align: 64 },
//! #     requantised: Known::counted(Requantised { one: 48 << 10, several: 48 << 10, results: false }),
//! #     normed: Known::counted(Renormed::ALL),
//! # };
//!
//! let text = "graph @g(%x: bf16[T, 16]) {
//!   %0 = slice %x {axis = 1, start = 4, len = 12} : bf16[T, 12]
//!   %1 = slice %0 {axis = 1, start = 4, len = 8} : bf16[T, 8]
//!   return %1
//! }";
//! let mut graph = atomc_ir::parse(text)?;
//! let cx = Cx { arch: &arch, bucket: Bucket::Decode { tokens: 1 }, invariant: false };
//! let mut passes = vec![];
//! run(&mut graph, &cx, Some("canonicalise"), &mut |pass, _| passes.push(pass.name))?;
//! assert_eq!(passes, ["dce", "canonicalise"]);
//!
//! let after = "graph @g(%x: bf16[T, 16]) {
//!   %0 = slice %x {axis = 1, start = 8, len = 8} : bf16[T, 8]
//!   return %0
//! }
//! ";
//! assert_eq!(graph.print(), after);
//! # Ok::<(), atomc_ir::Diagnostic>(())
//! ```
mod bucket;
mod canonicalise;
mod cse;
mod dce;
mod explain;
mod fuse;
mod group;
mod ledger;
mod merge_weights;
mod mx_codes;
mod narrow;
mod pack;
mod pass;
mod pipeline;
mod plan;
mod repeat;
mod rewrite;
mod split;
#[cfg(test)]
mod testing;

pub use bucket::{Bucket, BucketOptions, buckets};
pub use explain::{Cause, Place, Why, explain};
pub use ledger::{Chosen, Ledger, chosen, ledger};
pub use pass::{Changed, Cx, Pass};
pub use pipeline::{PASSES, run};
pub use plan::{MemoryPlan, Order, Slot, plan, result_bytes};
pub use rewrite::{RULES, Rule};
