use super::Vendor;
use crate::forks::Forked;

/// Reasons why a device cannot be opened, or could not do a call.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "a message says what its variant means, and shows the fields")]
pub enum DeviceError {
    #[error("unknown device `{given}`; this build has: {}", have.join(", "))]
    UnknownDevice { given: String, have: Vec<&'static str> },
    #[error("the artifact has no code for target `{wanted}`; it has: {}", have.join(", "))]
    NoTarget { wanted: String, have: Vec<String> },
    #[error("{device} has {units} units, but {together} work-groups of `{schedule}` wait for each other")]
    Units { device: String, schedule: String, together: usize, units: usize },
    #[error("the artifact has no variant `{wanted}` for the host; it has: {}", have.join(", "))]
    UnknownVariant { wanted: String, have: Vec<String> },
    #[error("this CPU cannot run any variant in the artifact: {}", lacks(variants))]
    Unsupported { variants: Vec<(String, Vec<String>)> },
    #[error("this CPU cannot run variant `{variant}`: it lacks {}; the artifact has: {}", missing.join(", "), have.join(", "))]
    Lacks { variant: String, missing: Vec<String>, have: Vec<String> },
    #[error("cannot load the code of variant `{variant}`: {detail}")]
    Code { variant: String, detail: String },
    #[error("threads: cannot start {threads}: {source}")]
    Threads { threads: usize, source: std::io::Error },
    #[error(
        "cache_tokens: {tokens} tokens take {bytes} bytes of cache and tables, but {device} has {memory} bytes of memory; \
         at most {most} tokens would fit"
    )]
    Cache { tokens: usize, bytes: u128, device: String, memory: usize, most: usize },
    #[error(
        "slots: {slots} sequences take {bytes} bytes of states, but {device} has {memory} bytes of memory; at most {most} \
         would fit"
    )]
    Slots { slots: usize, bytes: u128, device: String, memory: usize, most: usize },
    #[error("cannot allocate {bytes} bytes: {source}")]
    OutOfMemory { bytes: usize, source: std::io::Error },
    #[error("{vendor} cannot be used on this machine: {detail}")]
    NoDriver { vendor: Vendor, detail: String },
    #[error("there is no device {}:{ordinal}; {vendor} finds {count} on this machine", vendor.prefix())]
    NoDevice { vendor: Vendor, ordinal: usize, count: usize },
    #[error(transparent)]
    Forked(#[from] Forked),
    #[error("{device} has no memory left: {detail}")]
    Full { device: String, detail: String },
    #[error(
        "a kernel on {device} had a fault: {detail}. What it left in memory is not to be trusted: load the model again"
    )]
    Kernel { device: String, detail: String },
    #[error("{device} is lost to this process: {detail}")]
    Lost { device: String, detail: String },
    #[error("rank {rank} has left the step")]
    Left { rank: usize },
    #[error("{device}: {detail}")]
    Failed { device: String, detail: String },
}

fn lacks(variants: &[(String, Vec<String>)]) -> String {
    let one = |(name, missing): &(String, Vec<String>)| format!("`{name}` needs {}", missing.join(", "));
    variants.iter().map(one).collect::<Vec<_>>().join("; ")
}
