//! A model of how long kernels take on chips, made without the chips.
//!
//! [`trace`] records what one work-group executes; [`cu`] runs it against the units of a compute
//! unit; [`chip`] makes a time of a launch of it. [`launch`] does all of that for a launch of any
//! kernel, and [`accuracy`] says how far that is off. `docs/timing.md` explains the model and says
//! what it leaves out.
pub mod accuracy;
pub mod chip;
pub mod chips;
pub mod cu;
pub mod launch;
pub mod occupancy;
pub mod profile;
pub mod trace;
