//! Attention over the paged cache: a schedule a file.
pub mod decode;
mod flash;
pub mod kv_dequant;
pub mod latent;
pub mod latent_warpgroup;
mod online_softmax;
pub mod prefill;
pub mod prefill_warpgroup;
mod rounds;
mod score_pairs;
mod sizes;
