//! Memory of the caller's.
use super::HostedError;
use crate::device::{Device, DeviceBuffer};
use crate::memory::SLACK;
use std::ptr::NonNull;

/// Returns this many bytes of zeroed memory of the device, which stay while the artifact is open,
/// or the reason for having none.
pub type Allocate<'a> = &'a mut dyn FnMut(usize) -> Result<NonNull<u8>, String>;

/// Alignment of memory.
pub(super) const ALIGN: usize = 64;

/// A buffer in the caller's memory, or in the device's if the caller gives none.
pub(super) fn buffer(
    device: &mut dyn Device,
    allocate: &mut Option<Allocate>,
    bytes: usize,
) -> Result<DeviceBuffer, HostedError> {
    let Some(allocate) = allocate else { return Ok(device.allocate(bytes)?) };
    let fault = |detail| HostedError::Allocate { detail };
    let start = allocate(bytes + SLACK).map_err(fault)?;
    if !start.addr().get().is_multiple_of(ALIGN) {
        return Err(fault(format!("memory at {start:p} does not begin at a multiple of {ALIGN}")));
    }
    // SAFETY: the caller of `Hosted::open` vouches for the memory. It has the size that was asked
    // for.
    Ok(unsafe { device.adopt(start, bytes) })
}
