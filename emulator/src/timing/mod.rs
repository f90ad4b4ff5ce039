//! A model of how long kernels take on chips, made without the chips.
//!
//! [`trace`] records the instructions of one work-group; [`cu`] runs it against the units of a
//! compute unit; [`chip`] computes the time of a launch from it. [`launch`] does all of that for a
//! launch of any kernel, and [`accuracy`] has the errors of that. `docs/timing.md` explains the
//! model and lists the things that it leaves out.
pub mod accuracy;
pub mod chip;
pub mod chips;
pub mod cu;
pub mod launch;
pub mod occupancy;
pub mod profile;
pub mod trace;
