//! Runs AMD GPU code objects on the host: a functional interpreter with checks that hardware does
//! not make.
//!
//! LLVM's disassembler reads the instructions ([`decode`]); each becomes a function and its
//! operands once ([`exec`], [`vector`], [`mem`]). A launch ([`Emulator`]) sets up waves as the
//! command processor of a GPU would and runs its work-groups.
#[cfg(not(all(target_arch = "x86_64", target_endian = "little")))]
compile_error!("the memory of kernels is the memory of a little-endian 64-bit host; only x86-64 is tested");

mod code;
mod counts;
pub mod decode;
pub mod exec;
mod fault;
pub mod inst;
pub mod isa;
mod launch;
pub mod mem;
mod memory;
pub mod num;
pub mod random;
mod schedule;
pub mod testing;
pub mod timing;
pub mod vector;
pub mod wave;

pub use code::CodeObject;
pub use counts::Counts;
pub use exec::Checks;
pub use fault::{Counter, DecodeError, Fault, FaultKind, LaunchError, LoadError, Operation, Site, Unordered};
pub use launch::{Emulator, Grid, Options};
pub use memory::{Access, Memory};

use atomc_targets as _;
