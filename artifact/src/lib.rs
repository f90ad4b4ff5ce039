//! The artifact file: one manifest and the code objects it names, every byte of it under a
//! checksum.
//!
//! The compiler calls [`write()`], the runtime [`Artifact::open`]. Both check the manifest by the
//! same rules ([`check`]), so every written artifact can be opened, and code that has an
//! [`Artifact`] may follow its indices without checks.
//!
//! `file.rs` has the layout of the file, `manifest.rs` the facts of the artifact.
//! `manifest/expr.rs` has the expressions of the weight plan, with one fold that shapes, names and
//! pieces are derived by. `check.rs` and `check/` hold all parts of a manifest against each other
//! and against the file. `abi.rs` has the C structures that kernels receive. `files.rs` opens and
//! writes the files that a user names. `hsaco.rs` reads AMDGPU code objects.
#![warn(missing_docs)]
pub mod abi;
pub mod check;
mod error;
mod escape;
mod expected;
mod file;
pub mod files;
mod fingerprint;
pub mod hsaco;
pub mod manifest;

pub use error::{Error, Part};
pub use escape::{escaped, escaped_json};
pub use expected::{Expected, Made, is_key};
pub use file::{Artifact, FORMAT_VERSION, Section, encode, fingerprint, lay_out, write};
pub use fingerprint::{Fingerprint, NoFingerprint};
pub use manifest::Manifest;
