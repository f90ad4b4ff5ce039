//! One metadata note of many. A linker puts the notes of its inputs one behind the other, but loaders read the first alone, and
//! so would not know the kernels of the others.
use object::elf::{PT_NOTE, SHT_NOTE};
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader};
use serde_json::Value;

use super::{Error, Header, LE, NT_AMDGPU_METADATA};

const NAME: &[u8; 8] = b"AMDGPU\0\0";
const KERNELS: &str = "amdhsa.kernels";

/// Where `p_filesz` and `sh_size` lie in their headers.
const P_FILESZ: usize = 32;
const P_MEMSZ: usize = 40;
const SH_SIZE: usize = 32;

/// Joins the metadata notes of a linked code object in place: the file keeps its size, the note becomes smaller.
pub fn join_metadata(code: &mut [u8]) -> Result<(), Error> {
    let header = Header::parse(&*code)?;
    let programs = header.program_headers(LE, &*code)?;
    let Some(number) = programs.iter().position(|p| p.p_type(LE) == PT_NOTE) else { return Err(Error::NoMetadata) };
    let (offset, size) = (programs[number].p_offset(LE), programs[number].p_filesz(LE));
    let Some(joined) = joined(header, code)? else { return Ok(()) };
    let program = header.e_phoff(LE) as usize + number * header.e_phentsize(LE) as usize;
    let sections = header.section_headers(LE, &*code)?;
    let section = sections.iter().position(|s| s.sh_type(LE) == SHT_NOTE && s.sh_offset(LE) == offset);
    let section = section.map(|number| header.e_shoff(LE) as usize + number * header.e_shentsize(LE) as usize);
    let room = code.get_mut(offset as usize..(offset + size) as usize).filter(|room| joined.len() <= room.len());
    let room = room.ok_or(Error::NoMetadata)?;
    room.fill(0);
    room[..joined.len()].copy_from_slice(&joined);
    let len = (joined.len() as u64).to_le_bytes();
    let fields = [Some(program + P_FILESZ), Some(program + P_MEMSZ), section.map(|s| s + SH_SIZE)];
    fields.into_iter().flatten().for_each(|at| code[at..at + 8].copy_from_slice(&len));
    Ok(())
}

/// The one note, if there is more than one.
fn joined(header: &Header, code: &[u8]) -> Result<Option<Vec<u8>>, Error> {
    let mut all: Vec<Value> = Vec::new();
    for program in header.program_headers(LE, code)? {
        let Some(mut notes) = program.notes(LE, code)? else { continue };
        while let Some(note) = notes.next()? {
            if note.name() != b"AMDGPU" || note.n_type(LE) != NT_AMDGPU_METADATA {
                return Err(Error::OtherNote);
            }
            all.push(rmp_serde::from_slice(note.desc())?);
        }
    }
    let mut rest = all.into_iter();
    let Some(mut first) = rest.next().filter(|_| rest.len() > 0) else { return Ok(None) };
    for mut note in rest {
        let kernels = note.get_mut(KERNELS).map(Value::take);
        let (Some(Value::Array(list)), Some(Value::Array(more))) = (first.get_mut(KERNELS), kernels) else {
            return Err(Error::NoMetadata);
        };
        list.extend(more);
    }
    let text = rmp_serde::to_vec(&first)?;
    let mut note = Vec::with_capacity(text.len() + 24);
    note.extend(7u32.to_le_bytes());
    note.extend((text.len() as u32).to_le_bytes());
    note.extend(NT_AMDGPU_METADATA.to_le_bytes());
    note.extend(NAME);
    note.extend(text);
    note.resize(note.len().next_multiple_of(4), 0);
    Ok(Some(note))
}
