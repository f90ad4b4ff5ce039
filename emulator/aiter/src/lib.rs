//! Launches of other people's kernels: AMD's AITER publishes hand-written ones as code
//! objects. A [`Case`] has a kernel's arguments, grid and random operands, and knows in float64
//! what must come out.
//!
//! No code object of theirs is in this repository: [`open`] takes the folder `hsa` of a copy of
//! AITER's.
pub mod attention;
pub mod buffer;
pub mod experts;
pub mod gemm;
mod list;
pub mod numbers;

use std::path::Path;

pub use buffer::{Buffer, Slots};
pub use list::{Entry, entries};

use atomc_emulator::{Access, CodeObject, Counts, Emulator, Fault, Grid, LoadError, Memory, Options};

/// Work-items of a group of four waves, which nearly all of their kernels have.
pub const THREADS: u32 = 256;

/// Why a code object could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{path}: {error}")]
    Read { path: String, error: std::io::Error },
    #[error("{path}: {error}")]
    Load { path: String, error: LoadError },
}

/// Reads a code object, by its path below the folder.
pub fn open(folder: &Path, path: &str) -> Result<CodeObject, OpenError> {
    let full = folder.join(path);
    let bytes = std::fs::read(&full).map_err(|error| OpenError::Read { path: full.display().to_string(), error })?;
    CodeObject::load(&bytes).map_err(|error| OpenError::Load { path: full.display().to_string(), error })
}

/// A launch with its operands.
pub struct Case {
    /// The path of the code object, below the folder: `gfx942/i8gemm/....co`.
    pub path: String,
    /// For people: `200x384x1024, 2 splits`.
    pub sizes: String,
    pub grid: Grid,
    pub arguments: Slots,
    pub buffers: Vec<Buffer>,
    /// The results of a run, and what they should be.
    pub compare: Compare,
    /// Largest error that is right, as a part of the largest value.
    pub allowed: f64,
}

/// Reads what a kernel left in the buffers, and what float64 says.
pub type Compare = Box<dyn Fn(&[Buffer]) -> (Vec<f64>, Vec<f64>)>;

impl Case {
    /// Bytes that the launch may touch.
    pub fn memory(&self) -> Memory {
        let mut memory = Memory::default();
        for buffer in &self.buffers {
            // SAFETY: the buffers live as long as the case; callers run one launch at a time.
            unsafe { memory.map(buffer.address(), buffer.mapped(), Access::ReadWrite) };
        }
        memory
    }

    /// Runs the only kernel of the code object.
    pub fn run(&mut self, code: &CodeObject, options: &Options) -> Result<Counts, Fault> {
        let symbol = code.kernels().next().unwrap_or_default();
        let wanted = code.kernel(symbol).map_or(0, |k| k.metadata.kernarg_segment_size as usize);
        let mut arguments = self.arguments.bytes().to_vec();
        // A kernel's metadata may name arguments that its host leaves out.
        arguments.resize(arguments.len().max(wanted), 0);
        Emulator.launch(code, symbol, self.grid, &arguments, &self.memory(), options)
    }

    /// Largest error over largest value; infinite where a result is not a number.
    pub fn error(&self) -> f64 {
        let (got, wanted) = (self.compare)(&self.buffers);
        assert_eq!(got.len(), wanted.len(), "{}: as many results as references", self.path);
        let largest = wanted.iter().fold(0.0f64, |m, w| m.max(w.abs()));
        let error = got.iter().zip(&wanted).map(|(g, w)| (g - w).abs());
        let error = error.fold(0.0f64, |m, e| if e.is_nan() { f64::INFINITY } else { m.max(e) });
        error / largest.max(f64::MIN_POSITIVE)
    }
}
