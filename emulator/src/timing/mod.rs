//! A model of how long kernels take on chips, made without the chips.
//!
//! [`trace`] records what one work-group executes; [`cu`] runs it against the units of a compute
//! unit; [`chip`] makes a time of a launch of it. `docs/timing.md` explains the model and says what
//! it leaves out.
pub mod chip;
pub mod chips;
pub mod cu;
pub mod occupancy;
pub mod profile;
pub mod trace;
