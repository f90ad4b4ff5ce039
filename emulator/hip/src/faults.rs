//! Faults on demand: the variable `HIP_EMULATED_FAULT` makes a call fail. `hipMalloc:3:2` lets
//! three calls of `hipMalloc` pass and gives the next one code 2. With `!` at the end, every call
//! of any function fails from then on, as after the loss of a device.
use std::sync::{LazyLock, Mutex, PoisonError};

use hip_sys::hipError_t;

/// The variable.
const VARIABLE: &str = "HIP_EMULATED_FAULT";

struct Fault {
    call: String,
    /// Calls that still pass.
    after: usize,
    code: hipError_t,
    always: bool,
    begun: bool,
}

static FAULT: LazyLock<Mutex<Option<Fault>>> = LazyLock::new(|| {
    let text = std::env::var(VARIABLE).ok();
    let fault = text.as_deref().map(|text| read(text).unwrap_or_else(|| panic!("{VARIABLE}={text}: CALL:AFTER:CODE")));
    Mutex::new(fault)
});

fn read(text: &str) -> Option<Fault> {
    let (text, always) = text.strip_suffix('!').map_or((text, false), |text| (text, true));
    let [call, after, code] = text.split(':').collect::<Vec<_>>().try_into().ok()?;
    Some(Fault { call: call.into(), after: after.parse().ok()?, code: code.parse().ok()?, always, begun: false })
}

/// The code with which a call fails, if it is to.
pub fn of(call: &str) -> Option<hipError_t> {
    let mut fault = FAULT.lock().unwrap_or_else(PoisonError::into_inner);
    let Fault { call: wanted, after, code, always, begun } = fault.as_mut()?;
    // The texts of errors are still there.
    if *begun {
        return (*always && !call.starts_with("hipDrvGetError")).then_some(*code);
    }
    if call != wanted {
        return None;
    }
    if *after > 0 {
        *after -= 1;
        return None;
    }
    *begun = true;
    Some(*code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_fault_is_written_as() {
        let fault = read("hipMalloc:3:2!").unwrap();
        assert_eq!((&fault.call[..], fault.after, fault.code, fault.always), ("hipMalloc", 3, 2, true));
        assert!(!read("hipFree:0:1").unwrap().always);
        assert!(["hipFree", "hipFree:1", "hipFree:x:1", "hipFree:1:2:3"].iter().all(|text| read(text).is_none()));
    }
}
