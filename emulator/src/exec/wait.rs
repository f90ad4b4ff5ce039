//! Waits for memory: which counters an instruction waits for, in the forms of all generations.
use crate::isa::Family;

/// Most outstanding operations that may remain after a wait, by counter; see
/// [`crate::fault::Counter`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wait {
    pub vector: Option<u8>,
    pub store: Option<u8>,
    pub lds: Option<u8>,
    pub scalar: Option<u8>,
}

impl Wait {
    /// Parses an instruction's whole text; `None` if it is no wait for memory.
    pub fn parse(text: &str, family: Family) -> Option<Wait> {
        let (name, rest) = text.split_once(' ').unwrap_or((text, ""));
        match name {
            "s_waitcnt" => Wait::classic(rest),
            _ if name.starts_with("s_waitcnt_") && name.ends_with("cnt") => {
                Wait::single(&name["s_waitcnt_".len()..], rest.split(',').nth(1)?)
            }
            _ if name.starts_with("s_wait_") && name.ends_with("cnt") && family >= Family::Gfx12 => {
                match name["s_wait_".len()..].split_once("_dscnt") {
                    Some((first, "")) => Wait::pair(first, rest),
                    _ => Wait::single(&name["s_wait_".len()..], rest),
                }
            }
            _ => None,
        }
    }

    /// `vmcnt(0) & lgkmcnt(1)`, with or without the sign between.
    fn classic(rest: &str) -> Option<Wait> {
        let mut wait = Wait::default();
        for part in rest.split_whitespace().filter(|p| *p != "&") {
            let (counter, n) = part.strip_suffix(')')?.split_once('(')?;
            let n = n.parse().ok()?;
            match counter {
                "vmcnt" => wait.vector = Some(n),
                "lgkmcnt" => wait.lds = Some(n),
                "expcnt" => {}
                _ => return None,
            }
        }
        Some(wait)
    }

    fn single(counter: &str, n: &str) -> Option<Wait> {
        let n = Some(immediate(n)? as u8);
        let none = Wait::default();
        Some(match counter {
            "vmcnt" | "loadcnt" => Wait { vector: n, ..none },
            "vscnt" | "storecnt" => Wait { store: n, ..none },
            "lgkmcnt" | "dscnt" => Wait { lds: n, ..none },
            "kmcnt" => Wait { scalar: n, ..none },
            "expcnt" | "samplecnt" | "bvhcnt" => none,
            _ => return None,
        })
    }

    /// `s_wait_loadcnt_dscnt`: the second counter is in the low byte.
    fn pair(first: &str, n: &str) -> Option<Wait> {
        let n = immediate(n)?;
        let wait = Wait::single(first, &(n >> 8).to_string())?;
        Some(Wait { lds: Some(n as u8 & 0x3f), ..wait })
    }
}

/// A number in decimal or hexadecimal.
pub fn immediate(text: &str) -> Option<u32> {
    let text = text.trim();
    match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None => text.parse::<i64>().ok().map(|n| n as u32),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form() {
        let parse = |text, family| Wait::parse(text, family).unwrap();
        let none = Wait::default();
        assert_eq!(
            parse("s_waitcnt vmcnt(3) lgkmcnt(0)", Family::Gfx942),
            Wait { vector: Some(3), lds: Some(0), ..none }
        );
        assert_eq!(parse("s_waitcnt_vscnt null, 0x0", Family::Gfx11), Wait { store: Some(0), ..none });
        assert_eq!(parse("s_wait_kmcnt 0x2", Family::Gfx12), Wait { scalar: Some(2), ..none });
        assert_eq!(parse("s_wait_loadcnt_dscnt 0x103", Family::Gfx12), Wait { vector: Some(1), lds: Some(3), ..none });
        assert_eq!(Wait::parse("s_wait_alu depctr_va_vcc(0)", Family::Gfx12), None);
        assert_eq!(Wait::parse("s_waitcnt_depctr depctr_va_vdst(0)", Family::Gfx11), None);
    }
}
