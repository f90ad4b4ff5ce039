//! Opens an atomc artifact, loads weights into it and runs its steps.
//!
//! ```no_run
//! use atomc_runtime::{Checkpoint, Engine, EngineOptions, Params, generate};
//! use std::ops::ControlFlow;
//!
//! let mut engine = Engine::open("m.atomc", &EngineOptions::default())?;
//! engine.load_weights(&Checkpoint::open("models/qwen3")?, &|_done, _total| ())?;
//! let params = Params::for_model(engine.model(), 100);
//! let answer = generate::generate(&mut engine, &[1, 2, 3], &params, |token| {
//!     println!("{token}");
//!     ControlFlow::Continue(())
//! })?;
//! # Ok::<(), atomc_runtime::Error>(())
//! ```
//!
//! [`Engine::step`] is the layer below: new tokens for any number of sequences in, logits out.
//! Everything is an owned value: two engines, on one device or on two, know nothing of each other.
//!
//! `weights.rs` evaluates the weight plan. `pool.rs` is the thread pool. `device.rs` is the trait
//! of devices, `device/host.rs` and `device/gpu.rs` are the devices. `kv.rs` is the paged KV cache,
//! `batch.rs` the inputs of a step, `engine.rs` the engine; `sample.rs` and `generate.rs` choose
//! tokens. `capi.rs` is the C interface (`include/atomc.h` is generated), which `runtime/c/` builds
//! as a library. A framework drives `hosted.rs` instead of the engine. `trust.rs` is the list of
//! artifacts that a user trusts, `signature.rs` checks the signature of an artifact's maker.
//! `adapters.rs` reads LoRA adapters. `offload.rs` keeps what leaves the cache.
//! `ranks.rs` runs a step on several devices. `probe.rs` runs one launch of a plan alone.
//! `sight.rs` has the places of
//! images in sequences, `tower.rs` makes rows of them.
#![warn(missing_docs)]
#[cfg(target_endian = "big")]
compile_error!("artifacts and checkpoints are little-endian, and so must the host be");

pub mod adapters;
pub mod bandwidth;
pub mod batch;
pub mod capi;
pub mod checkpoint;
pub mod device;
pub mod engine;
mod error;
pub mod forks;
pub mod generate;
pub mod hosted;
pub mod kv;
pub mod memory;
pub mod offload;
pub mod pool;
pub mod probe;
mod ranks;
pub mod sample;
pub mod schedule;
mod session;
pub mod sight;
pub mod signature;
pub mod states;
pub mod tower;
#[cfg(test)]
mod toy;
pub mod trust;
pub mod weights;

pub use adapters::{Adapter, AdapterError};
pub use atomc_artifact::{Artifact, Expected, manifest};
pub use checkpoint::{Checkpoint, CheckpointError, Random, Source};
pub use device::{DeviceChoice, DeviceError, Launches};
pub use engine::{Chosen, Engine, EngineOptions, Logits, Request, StepError, Want};
pub use error::Error;
pub use generate::{Answer, Finish, Guesses, Params};
pub use hosted::{Hosted, HostedOptions};
pub use kv::{Fork, KvError, SeqId};
pub use offload::{Offload, OffloadError};
pub use pool::Pool;
pub use sample::{Sampler, Sampling, SamplingError, greedy};
pub use signature::SignatureError;
pub use tower::{Tower, TowerError};
pub use trust::{TrustError, TrustList};
