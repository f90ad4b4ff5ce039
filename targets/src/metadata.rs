//! The metadata of several AMD objects as one note. LLVM writes a note into each object, a linker
//! puts them one after the other, and a loader reads the first: so kernels are emitted apart, in
//! parallel, and described together.
use atomc_ir::{Arch, Diagnostic};
use object::elf::{SHF_EXCLUDE, SHT_NOTE, SectionHeader64};
use object::read::elf::{ElfFile64, SectionHeader};
use object::{LittleEndian, U64};
use serde_json::Value;

use crate::llvm;

/// The kernels' part of the metadata, by LLVM's name.
const KERNELS: &str = "amdhsa.kernels";
/// Type of the note, and its owner.
const NT_AMDGPU_METADATA: u32 = 32;
const OWNER: &[u8] = b"AMDGPU\0";

fn fail(what: impl std::fmt::Display) -> Diagnostic {
    Diagnostic::new("target::metadata", format!("metadata of an object that LLVM made: {what}"))
}

/// The objects without their notes, and one more object with a note for all of them.
pub fn merge(objects: Vec<Vec<u8>>, arch: &Arch) -> Result<Vec<Vec<u8>>, Diagnostic> {
    let mut merged: Option<Value> = None;
    let mut apart = Vec::with_capacity(objects.len() + 1);
    for mut object in objects {
        let note = take_note(&mut object)?.ok_or_else(|| fail("there is none"))?;
        let mut metadata: Value = rmp_serde::from_slice(&note).map_err(fail)?;
        match &mut merged {
            None => merged = Some(metadata),
            Some(all) => {
                let more = metadata[KERNELS].take();
                let lists = (all[KERNELS].as_array_mut(), more);
                let (Some(all), Value::Array(more)) = lists else { return Err(fail("kernels are no list")) };
                all.extend(more);
            }
        }
        apart.push(object);
    }
    if let Some(merged) = merged {
        let mut object = llvm::assembled(&assembly(&rmp_serde::to_vec(&merged).map_err(fail)?), arch)?;
        take_note(&mut object)?;
        apart.push(object);
    }
    Ok(apart)
}

/// The description in the note that LLVM wrote; the section is marked so that a linker leaves it
/// out.
fn take_note(object: &mut [u8]) -> Result<Option<Vec<u8>>, Diagnostic> {
    let found = {
        let file = ElfFile64::<LittleEndian>::parse(&*object).map_err(fail)?;
        let headers = file.elf_section_table();
        let endian = LittleEndian;
        let note = headers.iter().enumerate().find(|(_, h)| {
            h.sh_type(endian) == SHT_NOTE && headers.section_name(endian, h).is_ok_and(|name| name == b".note")
        });
        let Some((index, header)) = note else { return Ok(None) };
        let mut notes = header.notes(endian, &*object).map_err(fail)?.ok_or_else(|| fail("no notes"))?;
        let first = notes.next().map_err(fail)?.ok_or_else(|| fail("an empty section"))?;
        let table = file.elf_header().e_shoff.get(endian) as usize;
        (table + index * size_of::<SectionHeader64<LittleEndian>>(), first.desc().to_vec())
    };
    let (header, note) = found;
    // The flags follow the name and the type.
    let flags = U64::new(LittleEndian, u64::from(SHF_EXCLUDE));
    object[header + 8..header + 16].copy_from_slice(object::bytes_of(&flags));
    Ok(Some(note))
}

/// A section with one note, as an assembler reads it.
fn assembly(description: &[u8]) -> String {
    let mut text = String::from(".section .note.metadata,\"a\",@note\n.p2align 2\n");
    text += &format!(".long {}, {}, {NT_AMDGPU_METADATA}\n", OWNER.len(), description.len());
    for bytes in [OWNER, description] {
        for line in bytes.chunks(32) {
            let list: Vec<String> = line.iter().map(u8::to_string).collect();
            text += &format!(".byte {}\n", list.join(", "));
        }
        text += ".p2align 2\n";
    }
    text
}
