//! Buffers, arguments and launches for tests.
use atomc_emulator::isa::Isa;
use atomc_emulator::{Access, CodeObject, Counts, Emulator, Fault, Grid, Memory, Options, testing};

/// A processor of each generation that can be interpreted, or every one where
/// `ATOMC_TEST_SIBLINGS` is set.
pub fn isas() -> Vec<&'static Isa> {
    let mut all: Vec<&Isa> = Isa::names().filter_map(Isa::find).collect();
    if std::env::var_os("ATOMC_TEST_SIBLINGS").is_none() {
        all.dedup_by_key(|isa| isa.family);
    }
    all
}

pub fn compile(ir: &str, isa: &Isa) -> CodeObject {
    CodeObject::load(&testing::compile(ir, isa)).expect("a code object of ours")
}

/// Kernel arguments in the order in which they are pushed, each at a multiple of its size.
#[derive(Default)]
pub struct Arguments {
    pub bytes: Vec<u8>,
    pub memory: Memory,
}

impl Arguments {
    /// A pointer to these elements, which are mapped without any slack.
    pub fn buffer<T>(mut self, data: &mut [T]) -> Arguments {
        let address = data.as_mut_ptr() as u64;
        // SAFETY: tests keep their buffers while kernels run, and look at them afterwards.
        unsafe { self.memory.map(address, size_of_val(data) as u64, Access::ReadWrite) };
        self.value(address)
    }

    pub fn value<T: Copy>(mut self, value: T) -> Arguments {
        let size = size_of::<T>();
        self.bytes.resize(self.bytes.len().next_multiple_of(size), 0);
        // SAFETY: a plain number is its bytes.
        let bytes = unsafe { std::slice::from_raw_parts((&raw const value).cast::<u8>(), size) };
        self.bytes.extend_from_slice(bytes);
        self
    }

    pub fn launch(&self, code: &CodeObject, kernel: &str, grid: Grid) -> Result<Counts, Fault> {
        self.launch_with(code, kernel, grid, &Options::default())
    }

    pub fn launch_with(&self, code: &CodeObject, kernel: &str, grid: Grid, options: &Options) -> Result<Counts, Fault> {
        Emulator.launch(code, kernel, grid, &self.bytes, &self.memory, options)
    }
}
