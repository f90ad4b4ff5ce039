//! Runs AMD GPU code objects on the host: a functional interpreter with checks that hardware does not make.
pub mod inst;
pub mod isa;
pub mod num;
pub mod vector;
pub mod wave;

use atomc_targets as _;
