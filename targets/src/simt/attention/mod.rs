//! Attention over the paged cache: a schedule a file.
pub mod attend;
pub mod decode;
pub mod kv_dequant;
pub mod prefill;
pub mod prefill_warpgroup;
