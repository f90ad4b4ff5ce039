//! Code objects, as a loader maps them.
use std::sync::OnceLock;

use atomc_artifact::hsaco;

use crate::decode::Kernel;
use crate::fault::{DecodeError, LoadError};
use crate::isa::Isa;

/// A loaded code object. Kernels are decoded when they are first launched.
pub struct CodeObject {
    pub isa: &'static Isa,
    /// The segments at their addresses, from address zero on; in pages, so that alignment of
    /// addresses holds.
    image: Vec<Page>,
    kernels: Vec<Entry>,
}

#[derive(Clone, Copy)]
#[repr(C, align(4096))]
struct Page([u8; 4096]);

struct Entry {
    kernel: hsaco::Kernel,
    decoded: OnceLock<Result<Kernel, DecodeError>>,
}

/// Far larger than any code object of ours.
const LARGEST_IMAGE: u64 = 1 << 30;

/// `R_AMDGPU_ABS64` and `R_AMDGPU_RELATIVE64`: the only dynamic relocations that a self-contained
/// object has.
const ABSOLUTE: u32 = 3;
const RELATIVE: u32 = 13;

impl CodeObject {
    pub fn load(bytes: &[u8]) -> Result<CodeObject, LoadError> {
        let object = hsaco::CodeObject::read(bytes)?;
        let isa = Isa::find(&object.isa.processor)
            .ok_or_else(|| LoadError::Isa { found: object.isa.processor.clone(), known: Isa::names().collect() })?;
        let size = object.segments.iter().map(|s| s.address + s.size).max().unwrap_or(0);
        if size > LARGEST_IMAGE {
            return Err(LoadError::TooLarge { bytes: size });
        }
        let mut code =
            CodeObject { isa, image: vec![Page([0; 4096]); size.div_ceil(4096) as usize], kernels: Vec::new() };
        for segment in &object.segments {
            let from = &bytes[segment.file.clone()];
            code.bytes_mut()[segment.address as usize..][..from.len()].copy_from_slice(from);
        }
        object.relocations.iter().try_for_each(|r| code.relocate(r))?;
        code.kernels = object.kernels.into_iter().map(|kernel| Entry { kernel, decoded: OnceLock::new() }).collect();
        Ok(code)
    }

    /// Names of the kernels, in the order of the metadata.
    pub fn kernels(&self) -> impl Iterator<Item = &str> {
        self.kernels.iter().map(|e| e.kernel.name.as_str())
    }

    /// The file's description of a kernel.
    pub fn kernel(&self, name: &str) -> Option<&hsaco::Kernel> {
        Some(&self.entry(name)?.kernel)
    }

    /// The decoded instructions of a kernel; `None` if there is no such kernel.
    pub fn decoded(&self, name: &str) -> Option<&Result<Kernel, DecodeError>> {
        let entry = self.entry(name)?;
        Some(entry.decoded.get_or_init(|| {
            let code = &entry.kernel.code;
            let range = code.address as usize..code.address as usize + code.file.len();
            Kernel::decode(&self.bytes()[range], code.address, self.isa)
        }))
    }

    /// The host address that the object's address zero has.
    pub fn image(&self) -> u64 {
        self.image.as_ptr() as u64
    }

    pub fn image_bytes(&self) -> u64 {
        self.image.len() as u64 * 4096
    }

    fn entry(&self, name: &str) -> Option<&Entry> {
        self.kernels.iter().find(|e| e.kernel.name == name)
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: pages are bytes without padding.
        unsafe { std::slice::from_raw_parts(self.image.as_ptr().cast(), self.image.len() * 4096) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        let len = self.image.len() * 4096;
        // SAFETY: pages are bytes without padding.
        unsafe { std::slice::from_raw_parts_mut(self.image.as_mut_ptr().cast(), len) }
    }

    fn relocate(&mut self, relocation: &hsaco::Relocation) -> Result<(), LoadError> {
        let base = self.image();
        let hsaco::Relocation { address, kind, addend, symbol } = *relocation;
        let value = match (kind, symbol) {
            (RELATIVE, _) => base.wrapping_add_signed(addend),
            (ABSOLUTE, Some(symbol)) => (base + symbol).wrapping_add_signed(addend),
            _ => return Err(LoadError::Relocation { kind, address }),
        };
        let word = usize::try_from(address).ok().and_then(|at| self.bytes_mut().get_mut(at..at.checked_add(8)?));
        word.ok_or(LoadError::Relocation { kind, address })?.copy_from_slice(&value.to_le_bytes());
        Ok(())
    }
}
