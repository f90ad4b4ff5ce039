//! The artifact file.
pub mod abi;
pub mod manifest;
