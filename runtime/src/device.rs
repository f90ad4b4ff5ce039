//! What runs the launches of a plan. A device is an owned value: there is no current one, and two may live side by side.
mod code;
mod cpu;
mod host;

pub use host::Host;

use crate::memory::Buffer;
use crate::pool::Pool;
use atomc_artifact::Artifact;
use atomc_artifact::abi::Step;
use atomc_artifact::manifest::{Arg, Input, Manifest, Plan};

/// What the engine asks of a device.
pub trait Device: Send {
    /// Kind and variant, e.g. `host:x86-64-v4`.
    fn name(&self) -> &str;

    /// The threads of the host that work for this device.
    fn pool(&mut self) -> &mut Pool;

    /// Zeroed memory that the device's kernels reach.
    fn allocate(&mut self, bytes: usize) -> Result<Buffer, DeviceError>;

    /// Resolves every launch of the plans to a kernel and addresses, so that a step only follows pointers.
    ///
    /// # Safety
    /// The plans are those of the artifact that the device was opened with, the memory and inputs have the sizes that its
    /// manifest states, and both keep their addresses until the last [`Device::run`].
    unsafe fn bind(&mut self, plans: &[Plan], memory: &Memory, inputs: &dyn Fn(Input) -> *const u8);

    /// Runs one plan and returns when its logits are in the arena.
    ///
    /// # Safety
    /// [`Device::bind`] was called, the inputs hold a step of this size that fits the plan, and nobody else reads or writes
    /// what was bound meanwhile.
    unsafe fn run(&mut self, plan: usize, size: StepSize, observe: Option<&mut Launches>) -> Result<(), DeviceError>;
}

/// How much there is to do in one step.
#[derive(Clone, Copy, Debug)]
pub struct StepSize {
    pub step: Step,
    /// Tiles in the step's [`atomc_artifact::abi::Batch`].
    pub tiles: usize,
}

/// Time that the launches of a plan took.
#[derive(Clone, Debug, Default)]
pub struct Launches {
    pub steps: u64,
    /// By launch, added up over the steps.
    pub nanoseconds: Vec<u64>,
}

/// All memory that launches refer to, beside the inputs of a step.
#[derive(Debug)]
pub struct Memory {
    pub weights: Vec<Buffer>,
    /// By layer.
    pub cache_k: Vec<Buffer>,
    pub cache_v: Vec<Buffer>,
    /// Shared by all plans, of which one runs at a time.
    pub arena: Buffer,
}

impl Memory {
    /// Where an argument points.
    pub fn address(&self, arg: Arg, inputs: &dyn Fn(Input) -> *const u8) -> *mut u8 {
        match arg {
            Arg::Arena { offset } => self.arena.address().wrapping_add(offset),
            Arg::Weight { index } => self.weights[index].address(),
            Arg::CacheK { layer } => self.cache_k[layer].address(),
            Arg::CacheV { layer } => self.cache_v[layer].address(),
            Arg::Input { which } => inputs(which).cast_mut(),
        }
    }
}

/// Which device to open, in the form that `--device` takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The processor of this machine: the best variant that it can run, or the one named.
    Host { variant: Option<String> },
}

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
            _ => Err(DeviceError::UnknownDevice { given: text.to_owned() }),
        }
    }
}

impl DeviceChoice {
    /// Opens the device with the artifact's code for it.
    pub fn open(&self, artifact: &Artifact, threads: usize) -> Result<Box<dyn Device>, DeviceError> {
        let target = &artifact.manifest().targets[self.target(artifact.manifest())?];
        match self {
            DeviceChoice::Host { variant } => Ok(Box::new(Host::open(artifact, target, variant.as_deref(), threads)?)),
        }
    }

    /// Which of the targets of an artifact has the code for this device.
    pub fn target(&self, manifest: &Manifest) -> Result<usize, DeviceError> {
        let wanted = match self {
            DeviceChoice::Host { .. } => "host",
        };
        let have = || manifest.targets.iter().map(|target| target.name.clone()).collect();
        let found = manifest.targets.iter().position(|target| target.name == wanted);
        found.ok_or_else(|| DeviceError::NoTarget { wanted, have: have() })
    }
}

#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    #[error("unknown device `{given}`; this build has: host, host:<variant>")]
    UnknownDevice { given: String },
    #[error("the artifact has no code for target `{wanted}`; it has: {}", have.join(", "))]
    NoTarget { wanted: &'static str, have: Vec<String> },
    #[error("the artifact has no variant `{wanted}` for the host; it has: {}", have.join(", "))]
    UnknownVariant { wanted: String, have: Vec<String> },
    #[error("this CPU cannot run any variant in the artifact: {}", lacks(variants))]
    Unsupported { variants: Vec<(String, Vec<String>)> },
    #[error("this CPU cannot run variant `{variant}`: it lacks {}; the artifact has: {}", missing.join(", "), have.join(", "))]
    Lacks { variant: String, missing: Vec<String>, have: Vec<String> },
    #[error("cannot load the code of variant `{variant}`: {detail}")]
    Code { variant: String, detail: String },
    #[error("cannot start {threads} threads: {source}")]
    Threads { threads: usize, source: std::io::Error },
    #[error("cannot allocate {bytes} bytes: {source}")]
    OutOfMemory { bytes: usize, source: std::io::Error },
}

fn lacks(variants: &[(String, Vec<String>)]) -> String {
    let one = |(name, missing): &(String, Vec<String>)| format!("`{name}` needs {}", missing.join(", "));
    variants.iter().map(one).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_devices() {
        assert_eq!("host".parse::<DeviceChoice>().unwrap(), DeviceChoice::default());
        let named = DeviceChoice::Host { variant: Some("x86-64-v3".into()) };
        assert_eq!("host:x86-64-v3".parse::<DeviceChoice>().unwrap(), named);
        for wrong in ["", "host:", "hip:0", "hosts", "gpu"] {
            let message = wrong.parse::<DeviceChoice>().unwrap_err().to_string();
            assert_eq!(message, format!("unknown device `{wrong}`; this build has: host, host:<variant>"));
        }
    }
}
