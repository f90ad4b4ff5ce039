//! Reads AMDGPU code objects: ELF files for `amdgcn-amd-amdhsa` of code object version 4, 5 or 6,
//! as the linker makes them.
//!
//! The source is LLVM's "User Guide for AMDGPU Backend", sections "ELF Code Object", "Code Object
//! Metadata" and "Kernel Descriptor". What is read is checked: every range lies in the file, every
//! kernel has a descriptor and code.
#[allow(missing_docs, reason = "the structures and their fields are those of LLVM's guide, which describes them")]
mod descriptor;
mod error;
#[allow(missing_docs, reason = "the structures and their fields are those of LLVM's guide, which describes them")]
mod metadata;
#[cfg(test)]
mod tests;

use std::ops::Range;

use object::elf::{self, FileHeader64};
use object::read::elf::{FileHeader, ProgramHeader, Rela, SectionHeader, SectionTable, Sym};
use object::{LittleEndian, ReadRef, SectionIndex};

pub use descriptor::{DESCRIPTOR_BYTES, Descriptor, Preload, Properties, Rsrc1, Rsrc2};
pub use error::Error;
pub use metadata::{Arg, KernelMetadata, Metadata, ValueKind};

type Header = FileHeader64<LittleEndian>;

const LE: LittleEndian = LittleEndian;

/// A code object. Ranges named `file` index the bytes that [`CodeObject::read`] was given, and lie
/// inside them.
#[derive(Clone, Debug, PartialEq)]
pub struct CodeObject {
    /// Code object version: 4, 5 or 6.
    pub version: u8,
    /// What it was compiled for.
    pub isa: Isa,
    /// The ELF header's flags: processor, xnack and sramecc settings, generic version.
    pub flags: u32,
    /// What a loader maps, by address.
    pub segments: Vec<Segment>,
    /// What a loader adds to the words of mapped segments.
    pub relocations: Vec<Relocation>,
    /// In the order of the metadata.
    pub kernels: Vec<Kernel>,
}

/// A processor and its settings, e.g. `gfx942:sramecc+:xnack-`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Isa {
    /// As LLVM names it, e.g. `gfx942` or `gfx9-4-generic`.
    pub processor: String,
    /// Features with their state; a feature that is not listed may have either.
    pub features: Vec<(String, bool)>,
}

/// A loadable segment: `size` bytes at `address`, the first of them from the file, the others zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where it is to be mapped, relative to wherever the loader puts the object.
    pub address: u64,
    /// Bytes in memory, at least as many as `file` has.
    pub size: u64,
    /// The bytes that come from the file.
    pub file: Range<usize>,
    /// Whether it holds instructions.
    pub executable: bool,
    /// Whether code may write it, as data that is relocated.
    pub writable: bool,
}

/// A dynamic relocation of the type `R_AMDGPU_*` that `kind` numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relocation {
    /// Address of the word that the loader changes.
    pub address: u64,
    /// Number of the type, by the ELF standard for AMDGPU.
    pub kind: u32,
    /// What is added to the symbol's address, or to the base where there is no symbol.
    pub addend: i64,
    /// The dynamic symbol's address; none for relocations without a symbol.
    pub symbol: Option<u64>,
}

/// A function that can be dispatched.
#[derive(Clone, Debug, PartialEq)]
pub struct Kernel {
    /// As the source names the function; symbols are made of it.
    pub name: String,
    /// How waves start.
    pub descriptor: Descriptor,
    /// Address of the descriptor.
    pub descriptor_address: u64,
    /// From the entry that the descriptor names to the symbol's end.
    pub code: Code,
    /// Its arguments, and what it needs of the chip, as the compiler noted them.
    pub metadata: KernelMetadata,
}

/// The instructions of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Code {
    /// Address of the first one.
    pub address: u64,
    /// All of them.
    pub file: Range<usize>,
}

impl CodeObject {
    /// Reads a whole file. One that breaks the standard, or needs what this version does not know,
    /// is an error.
    pub fn read(bytes: &[u8]) -> Result<CodeObject, Error> {
        let header = Header::parse(bytes)?;
        if header.e_ident.data != elf::ELFDATA2LSB || header.e_machine.get(LE) != elf::EM_AMDGPU {
            return Err(Error::NotAmdgpu { machine: header.e_machine.get(LE) });
        }
        let version = version(header)?;
        if header.e_type.get(LE) != elf::ET_DYN {
            return Err(Error::NotLinked);
        }
        let metadata = metadata(header, bytes)?;
        let segments = segments(header, bytes)?;
        let sections = header.sections(LE, bytes)?;
        let symbols = symbols(&sections, bytes)?;
        let relocations = relocations(&sections, bytes)?;
        let mut object = CodeObject {
            version,
            isa: match &metadata.target {
                Some(target) => Isa::parse(target)?,
                None => Isa::of_flags(header.e_flags.get(LE))?,
            },
            flags: header.e_flags.get(LE),
            segments,
            relocations,
            kernels: Vec::new(),
        };
        for kernel in metadata.kernels {
            let kernel = object.find(kernel, &symbols, bytes)?;
            object.kernels.push(kernel);
        }
        Ok(object)
    }

    /// The kernel of this name; the error lists those that there are.
    pub fn kernel(&self, name: &str) -> Result<&Kernel, Error> {
        self.kernels.iter().find(|k| k.name == name).ok_or_else(|| Error::UnknownKernel {
            name: name.into(),
            known: self.kernels.iter().map(|k| k.name.clone()).collect(),
        })
    }

    /// The place in the file of `size` bytes at an address, which must lie in one segment and come
    /// from the file.
    pub fn file_range(&self, address: u64, size: u64) -> Option<Range<usize>> {
        let segment =
            self.segments.iter().find(|s| address >= s.address && address - s.address < s.file.len() as u64)?;
        let start = segment.file.start + usize::try_from(address - segment.address).ok()?;
        let end = start.checked_add(usize::try_from(size).ok()?)?;
        (end <= segment.file.end).then_some(start..end)
    }

    fn find(&self, metadata: KernelMetadata, symbols: &[Symbol], bytes: &[u8]) -> Result<Kernel, Error> {
        let name = metadata.name.clone();
        let missing = |symbol: &str| Error::NoSymbol { kernel: name.clone(), symbol: symbol.into() };
        let outside = |what| Error::Outside { kernel: name.clone(), what };
        let symbol = |wanted: &str| symbols.iter().find(|s| s.name == wanted).ok_or_else(|| missing(wanted));
        let at = symbol(&metadata.symbol)?;
        let range = self.file_range(at.address, DESCRIPTOR_BYTES as u64).ok_or(outside("descriptor"))?;
        let descriptor = Descriptor::read(&bytes[range]).ok_or(outside("descriptor"))?;
        let function = symbol(&name)?;
        let entry = at.address.wrapping_add_signed(descriptor.entry_offset);
        if entry != function.address {
            return Err(Error::Entry { kernel: name, entry, symbol: function.address });
        }
        let file = self.file_range(entry, function.size).ok_or(outside("code"))?;
        let code = Code { address: entry, file };
        Ok(Kernel { name, descriptor, descriptor_address: at.address, code, metadata })
    }
}

impl Isa {
    /// Of a target id: `amdgcn-amd-amdhsa--gfx942:sramecc+:xnack-`, or the part after its `--`.
    /// Newer compilers name the processor in the architecture as well:
    /// `amdgpu9.42-amd-amdhsa-unknown-gfx942`.
    pub fn parse(target: &str) -> Result<Isa, Error> {
        let fail = || Error::Target { target: target.into() };
        let id = target.rfind("-gfx").map_or(target, |at| &target[at + 1..]);
        let mut parts = id.split(':');
        let processor = parts.next().filter(|p| p.starts_with("gfx")).ok_or_else(fail)?.to_string();
        let feature = |part: &str| match part.split_at_checked(part.len().wrapping_sub(1))? {
            ("", _) => None,
            (name, "+") => Some((name.to_string(), true)),
            (name, "-") => Some((name.to_string(), false)),
            _ => None,
        };
        let features = parts.map(feature).collect::<Option<_>>().ok_or_else(fail)?;
        Ok(Isa { processor, features })
    }

    /// Of the ELF header's flags: what assemblers that leave the target out of the metadata write.
    pub fn of_flags(flags: u32) -> Result<Isa, Error> {
        let mach = flags & 0xff;
        let known = MACHINES.iter().find(|(number, _)| *number == mach);
        let (_, processor) = known.ok_or(Error::Target { target: format!("machine {mach:#x}") })?;
        let state = |shift: u32| match flags >> shift & 3 {
            2 => Some(false),
            3 => Some(true),
            _ => None,
        };
        // `EF_AMDGPU_FEATURE_SRAMECC_V4` and `EF_AMDGPU_FEATURE_XNACK_V4`
        let features = [("sramecc", state(10)), ("xnack", state(8))];
        let features = features.into_iter().filter_map(|(name, on)| Some((name.to_string(), on?))).collect();
        Ok(Isa { processor: processor.to_string(), features })
    }

    /// Whether code for this ISA runs on a device that reports `device`: the same processor, and no
    /// feature in another state.
    pub fn runs_on(&self, device: &Isa) -> bool {
        self.processor == device.processor && self.features.iter().all(|f| device.features.contains(f))
    }
}

impl std::fmt::Display for Isa {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.processor)?;
        self.features.iter().try_for_each(|(name, on)| write!(f, ":{name}{}", if *on { '+' } else { '-' }))
    }
}

/// Numbers of processors in the flags of the ELF header (`EF_AMDGPU_MACH_AMDGCN_*`).
const MACHINES: [(u32, &str); 3] = [(0x3f, "gfx90a"), (0x4c, "gfx942"), (0x4f, "gfx950")];

/// `ELFOSABI_AMDGPU_HSA`
const OS_ABI: u8 = 64;

fn version(header: &Header) -> Result<u8, Error> {
    let (abi, version) = (header.e_ident.os_abi, header.e_ident.abi_version);
    match version {
        _ if abi != OS_ABI => Err(Error::OsAbi { found: abi }),
        // ELFABIVERSION_AMDGPU_HSA_V4 and its successors
        2..=4 => Ok(version + 2),
        found => Err(Error::Version { found }),
    }
}

const NT_AMDGPU_METADATA: u32 = 32;

fn metadata(header: &Header, bytes: &[u8]) -> Result<Metadata, Error> {
    let mut found = None;
    for program in header.program_headers(LE, bytes)? {
        let Some(mut notes) = program.notes(LE, bytes)? else { continue };
        while let Some(note) = notes.next()? {
            if note.name() == b"AMDGPU" && note.n_type(LE) == NT_AMDGPU_METADATA {
                // A loader that takes the first would not see the kernels of the others.
                if found.replace(rmp_serde::from_slice(note.desc())?).is_some() {
                    return Err(Error::ManyNotes);
                }
            }
        }
    }
    found.ok_or(Error::NoMetadata)
}

fn segments(header: &Header, bytes: &[u8]) -> Result<Vec<Segment>, Error> {
    let mut segments = Vec::new();
    for program in header.program_headers(LE, bytes)?.iter().filter(|p| p.p_type(LE) == elf::PT_LOAD) {
        let (address, size) = (program.p_vaddr(LE), program.p_memsz(LE));
        let end = program.p_offset(LE).checked_add(program.p_filesz(LE)).filter(|end| *end <= bytes.len() as u64);
        let valid = program.p_filesz(LE) <= size && address.checked_add(size).is_some();
        let (Some(end), true) = (end, valid) else { return Err(Error::Segment { address }) };
        let flags = program.p_flags(LE);
        segments.push(Segment {
            address,
            size,
            file: program.p_offset(LE) as usize..end as usize,
            executable: flags & elf::PF_X != 0,
            writable: flags & elf::PF_W != 0,
        });
    }
    segments.sort_by_key(|s| s.address);
    match segments.windows(2).find(|w| w[0].address + w[0].size > w[1].address) {
        Some(w) => Err(Error::Segment { address: w[1].address }),
        None => Ok(segments),
    }
}

struct Symbol {
    name: String,
    address: u64,
    size: u64,
}

/// Symbols that the dynamic table defines; kernels and their descriptors are always among them.
fn symbols(sections: &SectionTable<'_, Header>, bytes: &[u8]) -> Result<Vec<Symbol>, Error> {
    let table = sections.symbols(LE, bytes, elf::SHT_DYNSYM)?;
    let defined = table.iter().filter(|s| !s.is_undefined(LE));
    let symbol = |s: &elf::Sym64<LittleEndian>| {
        let name = String::from_utf8_lossy(s.name(LE, table.strings())?).into_owned();
        let size = match s.st_size(LE) {
            0 => up_to_end(sections, s),
            size => size,
        };
        Ok(Symbol { name, address: s.st_value(LE), size })
    };
    defined.map(symbol).collect()
}

/// Bytes from a symbol to the end of its section: hand-written kernels have symbols of size 0.
fn up_to_end(sections: &SectionTable<'_, Header>, symbol: &elf::Sym64<LittleEndian>) -> u64 {
    let index = SectionIndex(usize::from(symbol.st_shndx(LE)));
    let end = sections.section(index).map(|s| s.sh_addr(LE).saturating_add(s.sh_size(LE)));
    end.map_or(0, |end| end.saturating_sub(symbol.st_value(LE)))
}

fn relocations(sections: &SectionTable<'_, Header>, bytes: &[u8]) -> Result<Vec<Relocation>, Error> {
    let table = sections.symbols(LE, bytes, elf::SHT_DYNSYM)?;
    let mut all = Vec::new();
    for section in sections.iter() {
        let Some((relas, _)) = section.rela(LE, bytes)? else { continue };
        for rela in relas {
            let symbol = match rela.symbol(LE, false) {
                Some(index) => Some(table.symbol(index)?.st_value(LE)),
                None => None,
            };
            all.push(Relocation {
                address: rela.r_offset(LE),
                kind: rela.r_type(LE, false),
                addend: rela.r_addend(LE),
                symbol,
            });
        }
    }
    Ok(all)
}

/// Reads a little-endian word of `N` bytes.
fn word<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.read_bytes_at(at as u64, N as u64).ok()?.try_into().ok()
}
