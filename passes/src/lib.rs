//! Rewrites of a graph: from the model that a frontend builds to kernels with their memory.
//!
//! A pass is a value in the table of [`pipeline`](PASSES); its file, its name and what the CLI calls it are the same.
//! [`run`] is the driver, [`plan`] and [`ledger`] say what the result needs, [`explain`] why a rule did not fire.
mod bucket;
mod canonicalise;
mod cse;
mod dce;
mod fuse;
mod ledger;
mod merge_weights;
mod narrow;
mod pack;
mod pass;
mod pipeline;
mod plan;
mod rewrite;
mod split;
#[cfg(test)]
mod testing;

pub use bucket::{Bucket, BucketOptions, buckets};
pub use ledger::{Ledger, ledger};
pub use pass::{Changed, Cx, Pass};
pub use pipeline::{PASSES, run};
pub use plan::{MemoryPlan, Order, Slot, plan, result_bytes};
pub use rewrite::{Explanation, RULES, Rule, explain};
