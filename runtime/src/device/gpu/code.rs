//! The kernels of a variant on a device: out of one code object, or each out of a module of its
//! own.
use super::Fit;
use super::context::Context;
use super::driver::Handle;
use crate::device::DeviceError;
use crate::pool::Pool;
use atomc_artifact::manifest::{EXCHANGE, Kernel, KernelDef, Module, PACK, PREPARE, Variant};
use std::ffi::CString;
use std::sync::{Arc, Mutex};

/// Shared memory that a kernel may use without an attribute that permits more.
const SHARED: usize = 48 << 10;

/// Loaded kernels, by their numbers.
#[derive(Debug)]
pub struct Code {
    pub kernels: Vec<Handle>,
    /// The one that makes a step's inputs.
    pub prepare: Option<Handle>,
    /// The one that makes weights.
    pub pack: Option<Handle>,
    /// The one by which ranks exchange rows.
    pub exchange: Option<Handle>,
    _modules: Vec<Loaded>,
}

// SAFETY: handles that drivers' functions take on any thread.
unsafe impl Send for Code {}

impl Code {
    /// Modules of kernels are loaded side by side: text has to be translated.
    pub fn load(
        context: &Arc<Context>,
        section: &[u8],
        defs: &[KernelDef],
        variant: &Variant,
        fit: Fit,
        pool: &mut Pool,
    ) -> Result<Code, DeviceError> {
        let named = defs.iter().map(|def| def.symbol.as_str()).zip(&variant.kernels);
        let prepare = variant.prepare.iter().map(|kernel| (PREPARE, kernel));
        let pack = variant.pack.iter().map(|kernel| (PACK, kernel));
        let exchange = variant.exchange.iter().map(|kernel| (EXCHANGE, kernel));
        let kernels: Vec<(&str, &Kernel)> = named.chain(prepare).chain(pack).chain(exchange).collect();
        let whole = match kernels.iter().all(|(_, kernel)| kernel.module.is_some()) {
            true => None,
            false => Some(Loaded::new(context, section)?),
        };
        let load = |index: usize| {
            let (symbol, kernel) = kernels[index];
            let own = match (&whole, &kernel.module) {
                (None, Some(module)) => {
                    Some(Loaded::new(context, image(module, fit, section).map_err(|detail| context.fault(detail))?)?)
                }
                _ => None,
            };
            let module = own.as_ref().or(whole.as_ref()).ok_or_else(|| context.fault("no code".into()))?;
            let handle = module.kernel(symbol)?;
            if kernel.shared > SHARED {
                // SAFETY: the kernel was just found.
                context.check(unsafe { context.driver.allow_shared(handle, kernel.shared) })?;
            }
            Ok((handle, own))
        };
        let found: Vec<Mutex<Option<Result<One, DeviceError>>>> = kernels.iter().map(|_| Mutex::new(None)).collect();
        pool.for_each(kernels.len(), |index| {
            *found[index].lock().expect("no panic while held") =
                Some(load(index).map(|(handle, own)| One(handle, own)));
        });
        let mut code = Code {
            kernels: Vec::new(),
            prepare: None,
            pack: None,
            exchange: None,
            _modules: whole.into_iter().collect(),
        };
        for one in found {
            let One(handle, own) = one.into_inner().expect("no panic while held").expect("every task ran")?;
            code.kernels.push(handle);
            code._modules.extend(own);
        }
        code.exchange = variant.exchange.as_ref().and_then(|_| code.kernels.pop());
        code.pack = variant.pack.as_ref().and_then(|_| code.kernels.pop());
        code.prepare = variant.prepare.as_ref().and_then(|_| code.kernels.pop());
        Ok(code)
    }
}

/// A kernel, and its module if that has no other kernel.
struct One(Handle, Option<Loaded>);

// SAFETY: handles that drivers' functions take on any thread.
unsafe impl Send for One {}

/// The part of the section to load. Code of the chip runs on later chips of its generation only;
/// text ends with a zero.
fn image<'a>(module: &Module, fit: Fit, section: &'a [u8]) -> Result<&'a [u8], String> {
    match (fit, module.cubin) {
        (Fit::Exact | Fit::Family(_), Some(cubin)) => Ok(cubin.of(section)),
        _ => Some(module.ptx.of(section)).filter(|text| text.ends_with(&[0])).ok_or("text without an end".into()),
    }
}

#[derive(Debug)]
struct Loaded {
    context: Arc<Context>,
    module: Handle,
}

// SAFETY: a handle that drivers' functions take on any thread.
unsafe impl Send for Loaded {}
// SAFETY: as above.
unsafe impl Sync for Loaded {}

impl Loaded {
    fn new(context: &Arc<Context>, code: &[u8]) -> Result<Loaded, DeviceError> {
        context.enter()?;
        // SAFETY: whole code, as the checksums of the artifact ensure. Its headers or last zero
        // give its length.
        let module = context.check(unsafe { context.driver.load(code) })?;
        Ok(Loaded { context: context.clone(), module })
    }

    fn kernel(&self, symbol: &str) -> Result<Handle, DeviceError> {
        let context = &self.context;
        let name = CString::new(symbol).map_err(|_| context.fault(format!("{symbol:?} is not a symbol")))?;
        // SAFETY: the module is loaded.
        let found = unsafe { context.driver.kernel(self.module, &name) };
        found.map_err(|fault| context.fault(format!("kernel `{symbol}`: {fault}")))
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: loaded by `new`, unloaded once.
            let _ = unsafe { self.context.driver.unload(self.module) };
        }
    }
}
