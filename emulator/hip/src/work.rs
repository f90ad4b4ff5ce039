//! The work of streams.
use std::ffi::{CStr, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use atomc_emulator::{CodeObject, Emulator, Grid, Options};
use hip_sys::{hipError_t, hipError_t_hipErrorInvalidValue, hipError_t_hipErrorLaunchFailure, hipError_t_hipSuccess};

use crate::memory::Blocks;

/// A kernel.
pub struct Function {
    code: Arc<CodeObject>,
    name: String,
    /// The offset of each parameter among the arguments, and its bytes.
    parameters: Vec<(usize, usize)>,
}

/// One thing to do.
#[derive(Clone)]
pub enum Work {
    Fill { to: usize, value: u8, bytes: usize },
    Copy { to: usize, from: usize, bytes: usize },
    Launch { function: Arc<Function>, grid: Grid, arguments: Vec<u8> },
}

/// A stream: the work since its capture began, if it is captured.
#[derive(Default)]
pub struct Queue(Mutex<Option<Vec<Work>>>);

impl Queue {
    fn kept(&self) -> std::sync::MutexGuard<'_, Option<Vec<Work>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn begin(&self) -> hipError_t {
        match self.kept().replace(vec![]) {
            None => hipError_t_hipSuccess,
            Some(_) => hipError_t_hipErrorInvalidValue,
        }
    }

    pub fn end(&self) -> Option<Vec<Work>> {
        self.kept().take()
    }

    /// Keeps work while the stream is captured, or gives it back.
    pub fn keep(&self, work: Work) -> Option<Work> {
        match &mut *self.kept() {
            Some(kept) => {
                kept.push(work);
                None
            }
            None => Some(work),
        }
    }
}

impl Function {
    pub fn find(code: &Arc<CodeObject>, name: &CStr) -> Option<Function> {
        let name = name.to_str().ok()?;
        let parameters = code.kernel(name)?.metadata.explicit_args();
        let parameters = parameters.map(|arg| (arg.offset as usize, arg.size as usize)).collect();
        Some(Function { code: code.clone(), name: name.to_owned(), parameters })
    }

    /// The launch of a kernel with copies of its parameters.
    ///
    /// # Safety
    /// There is a pointer for each parameter, to as many bytes as it has.
    pub unsafe fn launch(
        function: &Arc<Function>,
        (groups, threads, dynamic_lds): ([u32; 3], [u32; 3], u32),
        parameters: *mut *mut c_void,
    ) -> Work {
        let end = function.parameters.iter().map(|(offset, bytes)| offset + bytes).max().unwrap_or(0);
        let mut arguments = vec![0; end];
        for (index, &(offset, bytes)) in function.parameters.iter().enumerate() {
            // SAFETY: by the contract of this function.
            let from = unsafe { std::slice::from_raw_parts((*parameters.add(index)).cast::<u8>(), bytes) };
            arguments[offset..][..bytes].copy_from_slice(from);
        }
        Work::Launch { function: function.clone(), grid: Grid { groups, threads, dynamic_lds }, arguments }
    }
}

impl Work {
    /// # Safety
    /// At each address as many bytes may be read or written as the work says, and nothing else uses
    /// the memory of kernels meanwhile.
    pub unsafe fn run(&self, blocks: &Blocks) -> hipError_t {
        match self {
            Work::Fill { to, value, bytes } => {
                // SAFETY: by the contract of this function.
                unsafe { std::ptr::with_exposed_provenance_mut::<u8>(*to).write_bytes(*value, *bytes) };
                hipError_t_hipSuccess
            }
            Work::Copy { to, from, bytes } => {
                let from = std::ptr::with_exposed_provenance::<u8>(*from);
                // SAFETY: by the contract of this function.
                unsafe { std::ptr::with_exposed_provenance_mut::<u8>(*to).copy_from(from, *bytes) };
                hipError_t_hipSuccess
            }
            Work::Launch { function, grid, arguments } => {
                let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get());
                let options = Options { threads, ..Options::default() };
                match Emulator.launch(&function.code, &function.name, *grid, arguments, &blocks.ranges, &options) {
                    Ok(_) => hipError_t_hipSuccess,
                    Err(fault) => {
                        eprintln!("HIP on the emulator: {fault}");
                        hipError_t_hipErrorLaunchFailure
                    }
                }
            }
        }
    }
}

/// The bytes of a 64-bit ELF file that ends with its table of sections, as linkers write it.
///
/// # Safety
/// Such a file is there.
pub unsafe fn image<'i>(start: *const u8) -> &'i [u8] {
    // Places in the header (ELF-64, "ELF Header"): e_shoff, then e_shentsize and e_shnum.
    const TABLE: usize = 40;
    const ENTRY: usize = 58;
    const ENTRIES: usize = 60;
    // SAFETY: by the contract of this function there is a header.
    let word = |at: usize, bytes: usize| unsafe {
        std::slice::from_raw_parts(start.add(at), bytes)
            .iter()
            .rev()
            .fold(0usize, |word, &byte| word << 8 | byte as usize)
    };
    let bytes = word(TABLE, 8) + word(ENTRY, 2) * word(ENTRIES, 2);
    // SAFETY: by the contract of this function.
    unsafe { std::slice::from_raw_parts(start, bytes) }
}
