//! The host as a device with memory that the engine cannot reach, to test the paths for devices
//! with memory of their own.
use super::{Device, DeviceBuffer, DeviceError, DeviceMemory, Launches, Memory, Part, StepInputs};
use crate::memory::Buffer;
use crate::pool::Pool;
use atomc_artifact::manifest::Plan;
use std::ops::Range;
use std::ptr::NonNull;

pub(crate) struct Apart {
    host: Box<dyn Device>,
    /// The device's block of inputs.
    block: *mut u8,
}

// SAFETY: the pointer is used in `run` alone.
unsafe impl Send for Apart {}

#[derive(Debug)]
struct Hidden(Buffer);

impl DeviceMemory for Hidden {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn address(&self) -> *mut u8 {
        self.0.address()
    }

    fn upload(&mut self, offset: usize, from: &[u8]) -> Result<(), DeviceError> {
        self.0.as_mut_slice()[offset..][..from.len()].copy_from_slice(from);
        Ok(())
    }

    fn download(&self, offset: usize, to: &mut [u8]) -> Result<(), DeviceError> {
        to.copy_from_slice(&self.0.as_slice()[offset..][..to.len()]);
        Ok(())
    }

    fn fill(&mut self, range: Range<usize>, value: u8) -> Result<(), DeviceError> {
        self.0.as_mut_slice()[range].fill(value);
        Ok(())
    }

    fn copy_within(&mut self, range: Range<usize>, to: usize) -> Result<(), DeviceError> {
        self.0.as_mut_slice().copy_within(range, to);
        Ok(())
    }
}

impl Apart {
    pub fn new(host: Box<dyn Device>) -> Apart {
        Apart { host, block: std::ptr::null_mut() }
    }
}

pub(crate) fn memory(bytes: usize) -> DeviceBuffer {
    DeviceBuffer::Device(Box::new(Hidden(Buffer::new(bytes).unwrap())))
}

impl Device for Apart {
    fn name(&self) -> &str {
        "apart"
    }

    fn pool(&mut self) -> &mut Pool {
        self.host.pool()
    }

    fn allocate(&mut self, bytes: usize) -> Result<DeviceBuffer, DeviceError> {
        Ok(memory(bytes))
    }

    unsafe fn adopt(&mut self, start: NonNull<u8>, bytes: usize) -> DeviceBuffer {
        // SAFETY: passed on to the caller.
        DeviceBuffer::Device(Box::new(Hidden(unsafe { Buffer::foreign(start, bytes, Box::new(|_| ())) })))
    }

    unsafe fn bind(&mut self, plans: &[Plan], memory: &Memory) -> Result<(), DeviceError> {
        self.block = memory.inputs.block;
        // SAFETY: passed on to the caller.
        unsafe { self.host.bind(plans, memory) }
    }

    unsafe fn run(
        &mut self,
        plan: usize,
        inputs: StepInputs<'_>,
        observe: Option<&mut Launches>,
    ) -> Result<(), DeviceError> {
        // SAFETY: the block is at least as large as a step's inputs, and the rest is passed on to
        // the caller.
        unsafe {
            std::ptr::copy_nonoverlapping(inputs.bytes.as_ptr(), self.block, inputs.bytes.len());
            self.host.run(plan, inputs, observe)
        }
    }

    unsafe fn launch(&mut self, part: Part) -> Result<(), DeviceError> {
        // SAFETY: passed on to the caller.
        unsafe { self.host.launch(part) }
    }
}
