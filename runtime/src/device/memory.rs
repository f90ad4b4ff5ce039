//! Memory that kernels of a device reach: memory of the host, which the engine reads and writes in
//! place, or memory of the device alone, which it reaches through copies.
use super::DeviceError;
use crate::memory::Buffer;
use atomc_artifact::abi::Batch;
use atomc_artifact::manifest::{Arg, Input, Launch};
use std::fmt::Debug;
use std::ops::Range;

/// Memory of a device, freed when dropped. Copies and fills run in the order of the calls, after
/// earlier work of the device.
pub trait DeviceMemory: Debug + Send {
    /// Bytes that it holds.
    fn len(&self) -> usize;

    /// Whether it holds no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The address for kernels, which the host must not follow.
    fn address(&self) -> *mut u8;

    /// Copies bytes to an offset. They are free again when the call returns.
    fn upload(&mut self, offset: usize, from: &[u8]) -> Result<(), DeviceError>;

    /// Copies bytes from an offset and waits for them.
    fn download(&self, offset: usize, to: &mut [u8]) -> Result<(), DeviceError>;

    /// Sets every byte of a range to one value.
    fn fill(&mut self, range: Range<usize>, value: u8) -> Result<(), DeviceError>;

    /// Copies a range to an offset. The two must not overlap.
    fn copy_within(&mut self, range: Range<usize>, to: usize) -> Result<(), DeviceError>;
}

/// What [`super::Device::allocate`] gives.
#[derive(Debug)]
pub enum DeviceBuffer {
    /// Memory that the host reads and writes in place.
    Host(Buffer),
    /// Memory that is copied to and from.
    Device(Box<dyn DeviceMemory>),
}

impl DeviceBuffer {
    /// The address for kernels.
    pub fn address(&self) -> *mut u8 {
        match self {
            DeviceBuffer::Host(buffer) => buffer.address(),
            DeviceBuffer::Device(memory) => memory.address(),
        }
    }

    /// Bytes that it holds.
    pub fn len(&self) -> usize {
        match self {
            DeviceBuffer::Host(buffer) => buffer.len(),
            DeviceBuffer::Device(memory) => memory.len(),
        }
    }

    /// Whether it holds no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes themselves, if the memory is the host's.
    pub fn host_view(&self) -> Option<&[u8]> {
        match self {
            DeviceBuffer::Host(buffer) => Some(buffer.as_slice()),
            DeviceBuffer::Device(_) => None,
        }
    }

    /// Like [`DeviceBuffer::host_view`], to write.
    pub fn host_view_mut(&mut self) -> Option<&mut [u8]> {
        match self {
            DeviceBuffer::Host(buffer) => Some(buffer.as_mut_slice()),
            DeviceBuffer::Device(_) => None,
        }
    }

    /// Copies bytes to an offset. They are free again when the call returns.
    pub fn upload(&mut self, offset: usize, from: &[u8]) -> Result<(), DeviceError> {
        match self {
            DeviceBuffer::Host(buffer) => buffer.as_mut_slice()[offset..][..from.len()].copy_from_slice(from),
            DeviceBuffer::Device(memory) => memory.upload(offset, from)?,
        }
        Ok(())
    }

    /// Copies bytes from an offset, and waits for them.
    pub fn download(&self, offset: usize, to: &mut [u8]) -> Result<(), DeviceError> {
        match self {
            DeviceBuffer::Host(buffer) => to.copy_from_slice(&buffer.as_slice()[offset..][..to.len()]),
            DeviceBuffer::Device(memory) => memory.download(offset, to)?,
        }
        Ok(())
    }

    /// Sets every byte of a range to one value.
    pub fn fill(&mut self, range: Range<usize>, value: u8) -> Result<(), DeviceError> {
        match self {
            DeviceBuffer::Host(buffer) => buffer.as_mut_slice()[range].fill(value),
            DeviceBuffer::Device(memory) => memory.fill(range, value)?,
        }
        Ok(())
    }

    /// Copies a range to an offset. The two must not overlap.
    pub fn copy_within(&mut self, range: Range<usize>, to: usize) -> Result<(), DeviceError> {
        match self {
            DeviceBuffer::Host(buffer) => buffer.as_mut_slice().copy_within(range, to),
            DeviceBuffer::Device(memory) => memory.copy_within(range, to)?,
        }
        Ok(())
    }
}

/// The memory that a layer keeps between steps.
#[derive(Debug)]
pub struct StateMemory {
    /// The pages, the first one at the beginning. The inputs of a step have the distance between
    /// pages.
    pub pages: DeviceBuffer,
    /// Offset of each stream in a page.
    pub streams: Vec<usize>,
    /// The number of the table, among those of the inputs, in which sequences have the numbers of
    /// its pages.
    pub table: usize,
    /// Whether kernels update its contents in place: the same step, run again, gives other numbers.
    pub advances: bool,
}

/// All memory that launches refer to.
#[derive(Debug)]
pub struct Memory {
    /// By their numbers.
    pub weights: Vec<DeviceBuffer>,
    /// By their numbers.
    pub states: Vec<StateMemory>,
    /// Shared by all plans, as one runs at a time.
    pub arena: DeviceBuffer,
    /// The rows between body and head of a step.
    pub hidden: DeviceBuffer,
    /// The rows that heads read, if they are not the body's.
    pub head_input: Option<DeviceBuffer>,
    /// Shared by all kernels that want one, as one runs at a time: zero between launches.
    pub workspace: DeviceBuffer,
    /// The inputs of each step.
    pub inputs: InputAddresses,
}

/// The addresses of a step's inputs for kernels. All of them are in one block;
/// [`super::Device::run`] takes its beginning.
#[derive(Clone, Copy, Debug)]
pub struct InputAddresses {
    /// The beginning of the block.
    pub block: *mut u8,
    /// An [`atomc_artifact::abi::Step`].
    pub step: *mut u8,
    /// Where [`Input::Ids`] begins.
    pub ids: *mut u8,
    /// Where [`Input::Positions`] begins.
    pub positions: *mut u8,
    /// Where [`Input::Lengths`] begins.
    pub lengths: *mut u8,
    /// Where [`Input::Rows`] begins.
    pub rows: *mut u8,
    /// Where [`Input::Sources`] begins.
    pub sources: *mut u8,
    /// Where [`Input::Adapters`] begins.
    pub adapters: *mut u8,
    /// Where [`Input::Times`] begins.
    pub times: *mut u8,
    /// Where [`Input::Heights`] begins.
    pub heights: *mut u8,
    /// Where [`Input::Widths`] begins.
    pub widths: *mut u8,
    /// Where [`Input::Ends`] begins.
    pub ends: *mut u8,
    /// Where [`Input::Taps`] begins.
    pub taps: *mut u8,
    /// Where [`Input::Shares`] begins.
    pub shares: *mut u8,
    /// Where [`Input::Given`] begins, in a buffer of its own.
    pub given: *mut u8,
    /// An [`atomc_artifact::abi::Batch`] for each table.
    pub batches: *mut u8,
}

// SAFETY: these are addresses for kernels. They are followed only under the contract of
// `Device::run`.
unsafe impl Send for InputAddresses {}

impl InputAddresses {
    /// The address of an input.
    pub fn of(&self, which: Input) -> *mut u8 {
        match which {
            Input::Ids => self.ids,
            Input::Positions => self.positions,
            Input::Lengths => self.lengths,
            Input::Rows => self.rows,
            Input::Sources => self.sources,
            Input::Adapters => self.adapters,
            Input::Times => self.times,
            Input::Heights => self.heights,
            Input::Widths => self.widths,
            Input::Ends => self.ends,
            Input::Taps => self.taps,
            Input::Shares => self.shares,
            Input::Given => self.given,
        }
    }

    /// The batch with a table.
    pub fn batch(&self, table: usize) -> *mut u8 {
        self.batches.wrapping_add(table * size_of::<Batch>())
    }
}

impl Memory {
    /// The address of an argument of a launch, before the head of its plan or in it.
    pub fn address(&self, arg: Arg, in_head: bool) -> *mut u8 {
        match arg {
            Arg::Arena { offset } => self.arena.address().wrapping_add(offset),
            Arg::Weight { index } => self.weights[index].address(),
            Arg::State { state, stream } => {
                let StateMemory { pages, streams, .. } = &self.states[state];
                pages.address().wrapping_add(streams[stream])
            }
            Arg::Batch { state } => self.inputs.batch(self.states[state].table),
            Arg::Hidden => match &self.head_input {
                Some(rows) if in_head => rows.address(),
                _ => self.hidden.address(),
            },
            Arg::Drafted { offset } => self.hidden.address().wrapping_add(offset),
            Arg::Input { which } => self.inputs.of(which),
        }
    }

    /// The parameters of a GPU's kernel: the launch's arguments, the step and the workspace.
    pub fn parameters(&self, launch: &Launch, in_head: bool) -> Vec<u64> {
        let args = launch.args.iter().map(|&arg| self.address(arg, in_head));
        args.chain([self.inputs.step, self.workspace.address()]).map(|address| address as u64).collect()
    }
}
