/// Why bytes are not a code object that this version can use.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "a message says what its variant means, and shows the fields")]
pub enum Error {
    #[error("not a 64-bit ELF file, or a damaged one: {0}")]
    Elf(#[from] object::read::Error),
    #[error("an ELF file for machine {machine}, not for AMDGPU ({})", object::elf::EM_AMDGPU)]
    NotAmdgpu { machine: u16 },
    #[error("an AMDGPU file for OS ABI {found}, not for HSA ({})", super::OS_ABI)]
    OsAbi { found: u8 },
    #[error(
        "code object ABI version {found} is unknown: versions 4, 5 and 6 (2, 3 and 4 in the ELF header) can be read"
    )]
    Version { found: u8 },
    #[error("a relocatable object: it must be linked to a shared one first")]
    NotLinked,
    #[error("the code object has no metadata note")]
    NoMetadata,
    #[error("the code object has several metadata notes, of which loaders read one")]
    ManyNotes,
    #[error("the code object's metadata is damaged: {0}")]
    Metadata(#[from] rmp_serde::decode::Error),
    #[error("`{target}` is not a target id such as `amdgcn-amd-amdhsa--gfx942:xnack-`")]
    Target { target: String },
    #[error("the segment at {address:#x} lies outside the file, or on another segment")]
    Segment { address: u64 },
    #[error("kernel `{kernel}`: there is no symbol `{symbol}`")]
    NoSymbol { kernel: String, symbol: String },
    #[error("kernel `{kernel}`: its {what} lies outside the segments of the file")]
    Outside { kernel: String, what: &'static str },
    #[error("kernel `{kernel}`: its descriptor enters at {entry:#x}, its symbol is at {symbol:#x}")]
    Entry { kernel: String, entry: u64, symbol: u64 },
    #[error("no kernel `{name}`; the code object has: {}", known.join(", "))]
    UnknownKernel { name: String, known: Vec<String> },
}
