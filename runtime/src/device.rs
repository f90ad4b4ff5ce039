//! Devices, which run the launches of a plan. A device is an owned value: there is no current one,
//! and a process may have several.
//!
//! A device allocates memory, is bound once to the plans of a target, and then runs steps. Its
//! memory is either the host's or its own. In the host's memory the engine packs weights and reads
//! logits in place. For a device with memory of its own, weights are packed in a staging buffer and
//! uploaded, the inputs of a step are one block with one copy, and only the rows of logits that
//! were asked for are copied to the host. A greedy step (`Engine::step_greedy`) copies only the
//! picks: 4 bytes a row.
#[cfg(test)]
pub(crate) mod apart;
mod code;
mod cpu;
mod error;
pub mod exchange;
pub mod gpu;
mod host;
mod launch;
mod memory;

pub use error::DeviceError;
pub use exchange::Peer;
pub use gpu::{Gpu, GpuDevice, Started, Vendor};
pub use host::{Host, lacking};
pub use launch::{Launches, Part, StepSize, Stream};
pub use memory::{DeviceBuffer, DeviceMemory, InputAddresses, Memory, StateMemory};

use crate::memory::Buffer;
use crate::pool::Pool;
use crate::weights::Rank;
use atomc_artifact::Artifact;
use atomc_artifact::abi::{Pack, Prepare};
use atomc_artifact::manifest::{Manifest, Plan, Variant};
use std::ptr::NonNull;

/// The interface between the engine and a device.
pub trait Device: Send {
    /// Kind and variant, e.g. `host:x86-64-v4`.
    fn name(&self) -> &str;

    /// The product, as its driver names it, e.g. `NVIDIA H200`.
    fn product(&self) -> Option<&str> {
        None
    }

    /// Bytes a second that move when the device copies `bytes` bytes in its own memory, each read
    /// once and written once.
    fn copy_rate(&mut self, bytes: usize) -> Result<Option<f64>, DeviceError> {
        let _ = bytes;
        Ok(None)
    }

    /// The threads of the host that work for this device.
    fn pool(&mut self) -> &mut Pool;

    /// Bytes of memory that the device has, used or not.
    fn memory(&self) -> usize {
        crate::memory::installed()
    }

    /// Zeroed memory that the device's kernels reach, followed by readable slack.
    fn allocate(&mut self, bytes: usize) -> Result<DeviceBuffer, DeviceError>;

    /// Treats memory of the caller's as the device's own, except that the caller frees it.
    ///
    /// # Safety
    /// It is memory of this device, of that many bytes followed by readable slack, and stays until
    /// the result is dropped.
    unsafe fn adopt(&mut self, start: NonNull<u8>, bytes: usize) -> DeviceBuffer;

    /// Memory of the host in which the inputs of steps are put together, to be copied to a device
    /// that has its own.
    fn stage(&mut self, bytes: usize) -> Result<Buffer, DeviceError> {
        Buffer::new(bytes).map_err(|source| DeviceError::OutOfMemory { bytes, source })
    }

    /// Resolves every launch of the plans to a kernel and addresses, so that a step only follows
    /// pointers.
    ///
    /// # Safety
    /// The plans are those of the artifact that the device was opened with. The memory is the
    /// device's, has the sizes that its manifest states, and keeps its addresses until the last
    /// [`Device::run`].
    unsafe fn bind(&mut self, plans: &[Plan], memory: &Memory) -> Result<(), DeviceError>;

    /// Runs one plan. The inputs are free again when the call returns; the work may continue until
    /// something is downloaded.
    ///
    /// # Safety
    /// [`Device::bind`] was called, the inputs hold a step of this size that fits the plan, and
    /// nothing else reads or writes the bound memory meanwhile.
    unsafe fn run(
        &mut self,
        plan: usize,
        inputs: StepInputs<'_>,
        observe: Option<&mut Launches>,
    ) -> Result<(), DeviceError>;

    /// Whether [`Device::prepare`] can be called.
    fn prepares(&self) -> bool {
        false
    }

    /// Makes the inputs of a step in the device's block, of tensors that are in its memory.
    ///
    /// # Safety
    /// The device has the kernel for it, and the parameters are as that states; the stream is one
    /// of this device's.
    unsafe fn prepare(&mut self, prepare: &Prepare, stream: Stream) -> Result<(), DeviceError> {
        let _ = (prepare, stream);
        Err(DeviceError::Failed { device: self.name().to_owned(), detail: "it takes no tensors of a framework".into() })
    }

    /// Whether [`Device::pack`] can be called.
    fn packs(&self) -> bool {
        false
    }

    /// Puts a rectangle of a tensor into a weight, and waits for nothing.
    ///
    /// # Safety
    /// The device has the kernel for it. Tensor and weight are in its memory, as the parameters
    /// say, and stay until the stream has done the work. The stream is one of this device's.
    unsafe fn pack(&mut self, pack: &Pack, stream: Stream) -> Result<(), DeviceError> {
        let _ = (pack, stream);
        Err(DeviceError::Failed { device: self.name().to_owned(), detail: "it packs no weights".into() })
    }

    /// Makes memory for exchanges of rows with other ranks, and says how they reach it; none if the
    /// device has no kernel for it, or none for the calls of these plans.
    fn offer(&mut self, ranks: usize, plans: &[Plan]) -> Result<Option<Peer>, DeviceError> {
        let _ = (ranks, plans);
        Ok(None)
    }

    /// Whether the device's kernels reach the memory of a rank's device, from now on.
    fn reach(&mut self, peer: &Peer) -> Result<bool, DeviceError> {
        let _ = peer;
        Ok(false)
    }

    /// From the next [`Device::bind`] on, [`Device::run`] exchanges rows with these ranks, all of
    /// which it reaches; without them nothing is exchanged.
    fn join(&mut self, rank: Rank, peers: Option<&[Peer]>) -> Result<(), DeviceError> {
        let _ = (rank, peers);
        Ok(())
    }

    /// The rank that exchanges have waited for in vain since this was last asked. After a call on
    /// every rank exchanges begin anew.
    fn missed(&mut self) -> Result<Option<usize>, DeviceError> {
        Ok(None)
    }

    /// The stream on which the device runs by itself, if it has streams.
    fn stream(&self) -> Stream {
        Stream::default()
    }

    /// Memory with undefined contents, for launches and copies on a stream from now until it is
    /// dropped. Copies to it and from it are on that stream.
    ///
    /// # Safety
    /// The stream is one of this device's, and stays until the memory has been dropped.
    unsafe fn scratch(&mut self, bytes: usize, stream: Stream) -> Result<DeviceBuffer, DeviceError> {
        let _ = stream;
        self.allocate(bytes)
    }

    /// Waits for everything on a stream.
    ///
    /// # Safety
    /// The stream is one of this device's.
    unsafe fn wait(&mut self, stream: Stream) -> Result<(), DeviceError> {
        let _ = stream;
        Ok(())
    }

    /// Runs a part of a plan for a step. The device's block already has its inputs. Copies nothing,
    /// allocates nothing, and does not wait if there are streams.
    ///
    /// # Safety
    /// As for [`Device::run`]; the stream is one of this device's.
    unsafe fn launch(&mut self, part: Part) -> Result<(), DeviceError>;
}

/// One step: its size, and the block of inputs as far as the step uses it. If the device's memory
/// is the host's the bytes are in place, otherwise they have to be copied.
#[derive(Clone, Copy, Debug)]
pub struct StepInputs<'a> {
    /// Tokens, rows and tiles.
    pub size: StepSize,
    /// From the beginning of the block as far as the step uses it.
    pub bytes: &'a [u8],
}

/// Which device to open, in the form that `--device` takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The processor of this machine: the best variant that it can run, or the one named.
    Host {
        /// A name that `atomc inspect` lists, e.g. `x86-64-v4`.
        variant: Option<String>,
    },
    /// A GPU by its driver's number.
    Gpu {
        /// The vendor of the driver that counts.
        vendor: Vendor,
        /// The number, from 0 on.
        ordinal: usize,
    },
}

/// The names of devices.
const DEVICES: &[&str] = &["host", "host:<variant>", "hip", "hip:<number>", "cuda", "cuda:<number>"];

impl Default for DeviceChoice {
    fn default() -> DeviceChoice {
        DeviceChoice::Host { variant: None }
    }
}

impl std::str::FromStr for DeviceChoice {
    type Err = DeviceError;

    fn from_str(text: &str) -> Result<DeviceChoice, DeviceError> {
        match text.split_once(':') {
            None if text == "host" => Ok(DeviceChoice::Host { variant: None }),
            Some(("host", variant)) if !variant.is_empty() => {
                Ok(DeviceChoice::Host { variant: Some(variant.to_owned()) })
            }
            _ => {
                let (prefix, number) = text.split_once(':').unwrap_or((text, "0"));
                let vendor = Vendor::ALL.into_iter().find(|vendor| vendor.prefix() == prefix);
                match (vendor, number.parse()) {
                    (Some(vendor), Ok(ordinal)) => Ok(DeviceChoice::Gpu { vendor, ordinal }),
                    _ => Err(DeviceError::UnknownDevice { given: text.to_owned(), have: DEVICES.to_vec() }),
                }
            }
        }
    }
}

impl DeviceChoice {
    /// Opens the device with the artifact's code for it.
    pub fn open(&self, artifact: &Artifact, threads: usize) -> Result<Box<dyn Device>, DeviceError> {
        let target = &artifact.manifest().targets[self.target(artifact.manifest())?];
        match self {
            DeviceChoice::Host { variant } => Ok(Box::new(Host::open(artifact, target, variant.as_deref(), threads)?)),
            DeviceChoice::Gpu { vendor, ordinal } => {
                Ok(Box::new(Gpu::open(*vendor, artifact, target, *ordinal, threads)?))
            }
        }
    }

    /// Runs one plan on a stream of the caller's, if the device has streams.
    ///
    /// # Safety
    /// As for [`Gpu::on_stream`].
    pub unsafe fn open_on(
        &self,
        artifact: &Artifact,
        threads: usize,
        stream: Stream,
    ) -> Result<Box<dyn Device>, DeviceError> {
        let DeviceChoice::Gpu { vendor, ordinal } = self else { return self.open(artifact, threads) };
        let target = &artifact.manifest().targets[self.target(artifact.manifest())?];
        // SAFETY: passed on to the caller.
        Ok(Box::new(unsafe { Gpu::on_stream(*vendor, artifact, target, *ordinal, stream, threads) }?))
    }

    /// Starts the device's driver, if it has one. For devices that are opened while the result is
    /// alive it is started already.
    pub fn start(&self) -> Result<Option<Started>, DeviceError> {
        match self {
            DeviceChoice::Host { .. } => Ok(None),
            DeviceChoice::Gpu { vendor, ordinal } => vendor.start(*ordinal).map(Some),
        }
    }

    /// The target of an artifact that has the code for this device.
    pub fn target(&self, manifest: &Manifest) -> Result<usize, DeviceError> {
        match self {
            DeviceChoice::Host { .. } => target(manifest, "host"),
            DeviceChoice::Gpu { vendor, ordinal } => vendor.device(*ordinal)?.target(manifest),
        }
    }
}

/// The number of a target in an artifact.
pub fn target(manifest: &Manifest, wanted: &str) -> Result<usize, DeviceError> {
    let have = || manifest.targets.iter().map(|target| target.name.clone()).collect();
    let found = manifest.targets.iter().position(|target| target.name == wanted);
    found.ok_or_else(|| DeviceError::NoTarget { wanted: wanted.to_owned(), have: have() })
}

/// A variant with code that does not unpack.
pub fn packed(variant: &Variant, fault: &atomc_artifact::Error) -> DeviceError {
    DeviceError::Code { variant: variant.name.clone(), detail: fault.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_devices() {
        assert_eq!("host".parse::<DeviceChoice>().unwrap(), DeviceChoice::default());
        let named = DeviceChoice::Host { variant: Some("x86-64-v3".into()) };
        assert_eq!("host:x86-64-v3".parse::<DeviceChoice>().unwrap(), named);
        let gpu = |vendor, ordinal| DeviceChoice::Gpu { vendor, ordinal };
        assert_eq!("hip".parse::<DeviceChoice>().unwrap(), gpu(Vendor::Hip, 0));
        assert_eq!("cuda:1".parse::<DeviceChoice>().unwrap(), gpu(Vendor::Cuda, 1));
        for wrong in ["", "host:", "hip:", "hip:x", "cuda:-1", "hosts", "gpu"] {
            let message = wrong.parse::<DeviceChoice>().unwrap_err().to_string();
            assert_eq!(
                message,
                format!(
                    "unknown device `{wrong}`; this build has: host, host:<variant>, hip, hip:<number>, cuda, cuda:<number>"
                )
            );
        }
    }
}
