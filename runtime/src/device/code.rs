//! A shared object out of the artifact, in this process.
use super::DeviceError;
use atomc_artifact::abi::HostKernel;
use atomc_artifact::manifest::{KernelDef, Variant};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd};

/// Loaded code and its kernels, in the order of the target's list.
#[derive(Debug)]
pub(super) struct Code {
    pub kernels: Vec<HostKernel>,
    /// The kernels point into it. It is dropped before the file.
    _library: Library,
    /// Kept open. The loader knows a library by its path, here the number of this descriptor: a new
    /// file with the same number would get the old library.
    _file: File,
}

impl Code {
    /// # Safety
    /// Loading code runs its initialisers and trusts its kernels to have the signature that the
    /// artifact states.
    pub unsafe fn load(bytes: &[u8], variant: &Variant, kernels: &[KernelDef]) -> Result<Code, DeviceError> {
        let fault = |detail: String| DeviceError::Code { variant: variant.name.clone(), detail };
        let file = memory_file(bytes).map_err(|error| fault(format!("cannot make a file in memory: {error}")))?;
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        // SAFETY: passed on to the caller.
        let library =
            unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL) }.map_err(|error| fault(error.to_string()))?;
        let mut found = Vec::with_capacity(kernels.len());
        for kernel in kernels {
            // SAFETY: passed on to the caller; the library lives as long as the pointer that is
            // copied out of it.
            match unsafe { library.get::<HostKernel>(&kernel.symbol) } {
                Ok(symbol) => found.push(*symbol),
                Err(_) => return Err(fault(format!("it has no kernel `{}`", kernel.symbol))),
            }
        }
        Ok(Code { kernels: found, _library: library, _file: file })
    }
}

/// A file without a name that holds these bytes.
fn memory_file(bytes: &[u8]) -> io::Result<File> {
    /// Linux 6.3: the file may be executed, whatever the system's default is. Older kernels refuse
    /// the flag.
    const MFD_EXEC: libc::c_uint = 0x10;
    let create = |flags| {
        // SAFETY: the name is a C string; the call touches nothing else.
        unsafe { libc::memfd_create(c"atomc".as_ptr(), libc::MFD_CLOEXEC | flags) }
    };
    let descriptor = match create(MFD_EXEC) {
        -1 => create(0),
        descriptor => descriptor,
    };
    if descriptor == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just made and has no other owner.
    let mut file = unsafe { File::from_raw_fd(descriptor) };
    file.write_all(bytes)?;
    Ok(file)
}
