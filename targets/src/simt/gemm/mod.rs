//! Contractions: a schedule a file.
mod bytes;
mod codes;
mod codes_to_lds;
pub mod contract;
pub mod gemv;
pub mod gemv_bulk;
pub mod global_to_lds;
mod prologue;
pub mod quantised;
pub mod stream_k;
mod tile;
pub mod tiled;
pub mod warpgroup;
