//! Faults of a kernel or its launch.
use thiserror::Error;

/// Why a code object cannot be loaded.
#[derive(Debug, Error)]
pub enum LoadError {
    #[error(transparent)]
    Object(#[from] atomc_artifact::hsaco::Error),
    #[error("no interpreter for `{found}`; there is one for {}", .known.join(", "))]
    Isa { found: String, known: Vec<&'static str> },
    #[error("relocation of type {kind} at {address:#x} is not supported")]
    Relocation { kind: u32, address: u64 },
    #[error("the image of the code object needs {bytes} bytes")]
    TooLarge { bytes: u64 },
}

/// An instruction that cannot be interpreted.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum DecodeError {
    #[error("no instruction at {address:#x}")]
    NotCode { address: u64 },
    #[error("`{text}` at {address:#x}: cannot read `{part}`")]
    Unclear { text: String, address: u64, part: String },
    #[error("`{text}` at {address:#x} has no interpretation")]
    Unknown { text: String, address: u64 },
    #[error("`{text}` at {address:#x} jumps to {target:#x}, where no instruction of the kernel begins")]
    Target { text: String, address: u64, target: u64 },
    #[error("LLVM has no disassembler for {isa}")]
    NoDisassembler { isa: &'static str },
}

/// A launch that went wrong.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("kernel `{kernel}`{}: {kind}", place(.site))]
pub struct Fault {
    pub kernel: String,
    /// Absent for faults that no instruction made.
    pub site: Option<Box<Site>>,
    pub kind: FaultKind,
}

/// The place of a fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// The instruction as LLVM disassembles it.
    pub text: String,
    /// Offset in the code object's image.
    pub address: u64,
    pub group: [u32; 3],
    pub wave: u32,
    /// Absent for instructions that act on the whole wave.
    pub lane: Option<u8>,
}

fn place(site: &Option<Box<Site>>) -> String {
    let Some(s) = site else { return String::new() };
    let [x, y, z] = s.group;
    let lane = s.lane.map_or(String::new(), |l| format!(" lane {l}"));
    format!(", group ({x}, {y}, {z}) wave {}{lane}, `{}` at {:#x}", s.wave, s.text, s.address)
}

/// Memory counters that `s_waitcnt` and its successors wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// `vmcnt`, or `loadcnt` on gfx12: loads into vector registers (and stores, before gfx11).
    Vector,
    /// `vscnt`, or `storecnt` on gfx12.
    Store,
    /// `lgkmcnt`: LDS and scalar loads; only LDS (`dscnt`) on gfx12.
    Lds,
    /// `kmcnt` on gfx12: scalar loads.
    Scalar,
}

impl std::fmt::Display for Counter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Counter::Vector => "vmcnt/loadcnt",
            Counter::Store => "vscnt/storecnt",
            Counter::Lds => "lgkmcnt/dscnt",
            Counter::Scalar => "lgkmcnt/kmcnt",
        })
    }
}

/// The kinds of faults.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum FaultKind {
    #[error("the code object has no such kernel; it has {}", .known.join(", "))]
    UnknownKernel { known: Vec<String> },
    #[error("{0}")]
    Decode(#[from] DecodeError),
    #[error("{0}")]
    Launch(LaunchError),
    #[error("{operation} of {bytes} bytes at {address:#x}, outside all mapped ranges{}", near(.nearest))]
    OutOfBounds { operation: Operation, address: u64, bytes: u32, nearest: Option<(u64, u64)> },
    #[error("{operation} of {bytes} bytes at {address:#x} is not aligned")]
    Misaligned { operation: Operation, address: u64, bytes: u32 },
    #[error("{operation} of {bytes} bytes at {address:#x} of {size} bytes of LDS")]
    LdsOutOfBounds { operation: Operation, address: u32, bytes: u32, size: u32 },
    #[error("{operation} of {bytes} bytes at {address:#x} of {size} bytes of scratch")]
    ScratchOutOfBounds { operation: Operation, address: u32, bytes: u32, size: u32 },
    #[error("{register} holds nothing that the program computed")]
    Uninitialised { register: String },
    #[error("{active} lanes are active, but this matrix instruction wants all of them")]
    PartialMatrix { active: u32 },
    #[error("LDS at {address:#x} was never written")]
    UninitialisedLds { address: u32 },
    #[error("{register} is still being loaded: no wait on {counter} covers it")]
    MissingWait { register: String, counter: Counter },
    #[error("LDS at {address:#x} is still being loaded from memory: no wait on vmcnt covers it")]
    MissingLdsWait { address: u32 },
    #[error("{operation} of LDS at {address:#x} races with a {other} by wave {wave}: no barrier is between them")]
    LdsRace { operation: Operation, address: u32, other: Operation, wave: u32 },
    #[error("read of {address:#x}, which wave {wave} of group {} stored at {store:#x}: {why}", triple(.group))]
    Unpublished { address: u64, group: [u32; 3], wave: u32, store: u64, why: Unordered },
    #[error(
        "{operation} at {address:#x}, which other devices use too: a cache may keep it, as it is not of system scope"
    )]
    NotShared { operation: Operation, address: u64 },
    #[error("waves wait at different barriers, or wait for waves that ended: {detail}")]
    DivergentBarrier { detail: String },
    #[error("all waves wait and none can go on")]
    Deadlock,
    #[error("{0} instructions were executed; the limit of the options is reached")]
    Endless(u64),
    #[error("{0}")]
    Unsupported(String),
    #[error("control left the kernel's code")]
    LeftCode,
}

fn near(nearest: &Option<(u64, u64)>) -> String {
    nearest.map_or(String::new(), |(start, end)| format!("; the nearest is {start:#x} to {end:#x}"))
}

fn triple([x, y, z]: &[u32; 3]) -> String {
    format!("({x}, {y}, {z})")
}

/// The reason why a store of one work-group is not ordered before a load of another. The place of a
/// publication is that of its atomic operation.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Unordered {
    #[error("its group publishes at {published:#x}, and no wait of the wave that stored is before that")]
    Outstanding { published: u64 },
    #[error("its group publishes at {published:#x}, and nothing was written back from the die's cache before that")]
    Cached { published: u64 },
    #[error("caches were not invalidated since the reader's group read the counter")]
    Stale,
    #[error("the reader's group has read no counter by which that group publishes")]
    Unread,
}

/// How memory is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Read,
    Write,
    Atomic,
}

impl std::fmt::Display for Operation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Operation::Read => "read",
            Operation::Write => "write",
            Operation::Atomic => "atomic operation",
        })
    }
}

/// Launches that cannot begin.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum LaunchError {
    #[error("{found} work-items in a group; the kernel allows 1 to {limit}")]
    Threads { found: u64, limit: u64 },
    #[error("{found} bytes of explicit arguments; the kernel takes {wanted}")]
    Arguments { found: usize, wanted: usize },
    #[error("{found} bytes of LDS; a group has at most {limit}")]
    Lds { found: u64, limit: u32 },
    #[error("the kernel is for waves of {found} lanes; this interpreter runs {wanted} on this processor")]
    Lanes { found: u32, wanted: u32 },
    #[error("{0} bytes of scratch for each work-item")]
    Scratch(u64),
    #[error("hidden argument {0} is not supported")]
    Hidden(String),
}

/// A fault between the instruction and the loop that knows the place.
#[derive(Debug)]
pub struct Trap {
    pub kind: FaultKind,
    pub lane: Option<u8>,
}

impl Trap {
    pub fn wave(kind: FaultKind) -> Box<Trap> {
        Box::new(Trap { kind, lane: None })
    }

    pub fn lane(kind: FaultKind, lane: u32) -> Box<Trap> {
        Box::new(Trap { kind, lane: Some(lane as u8) })
    }
}
