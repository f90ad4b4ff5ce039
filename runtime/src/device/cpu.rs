//! The instruction sets that this processor and its operating system can run, by the names that
//! variants use.
use std::collections::BTreeSet;

/// The features that were found.
#[derive(Clone, Debug, Default)]
pub(super) struct Cpu {
    features: BTreeSet<&'static str>,
}

impl Cpu {
    /// Whether it has a feature. A name that this runtime does not know counts as absent.
    pub fn has(&self, name: &str) -> bool {
        self.features.contains(name)
    }

    /// The features of a variant that are missing here.
    pub fn lacks(&self, wanted: &[String]) -> Vec<String> {
        wanted.iter().filter(|name| !self.has(name)).cloned().collect()
    }

    /// Detects the features. With `tiles`, the operating system is asked to let this process use
    /// the tile registers of AMX: a permission of the process that its threads share, so the time
    /// to ask is before the pool starts.
    #[cfg(target_arch = "x86_64")]
    pub fn detect(tiles: bool) -> Cpu {
        let mut features = BTreeSet::new();
        macro_rules! detect {
            ($($name:tt)*) => { $(if std::is_x86_feature_detected!($name) { features.insert($name); })* };
        }
        detect!("sse3" "ssse3" "sse4.1" "sse4.2" "popcnt" "avx" "avx2" "fma" "f16c" "bmi1" "bmi2" "lzcnt" "movbe" "gfni" "vaes" "vpclmulqdq");
        detect!("avx512f" "avx512bw" "avx512cd" "avx512dq" "avx512vl" "avx512ifma" "avx512vbmi" "avx512vbmi2" "avx512vnni");
        detect!("avx512bitalg" "avx512vpopcntdq" "avx512bf16" "avx512fp16" "avxvnni");
        if tiles {
            features.extend(tile_features());
        }
        Cpu { features }
    }

    #[cfg(not(target_arch = "x86_64"))]
    pub fn detect(_tiles: bool) -> Cpu {
        Cpu::default()
    }
}

/// AMX, which the standard library does not detect yet: CPUID leaf 7, sub-leaves 0 and 1 (Intel SDM
/// volume 2, CPUID), and the permission of the system (Linux `Documentation/arch/x86/xstate.rst`).
#[cfg(target_arch = "x86_64")]
fn tile_features() -> Vec<&'static str> {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    if __cpuid(0).eax < 7 {
        return Vec::new();
    }
    let leaf = __cpuid_count(7, 0);
    let (bf16, tile, int8) = (leaf.edx >> 22 & 1, leaf.edx >> 24 & 1, leaf.edx >> 25 & 1);
    let fp16 = if leaf.eax >= 1 { __cpuid_count(7, 1).eax >> 21 & 1 } else { 0 };
    if tile == 0 || !tiles_permitted() {
        return Vec::new();
    }
    let named = [("amx-tile", tile), ("amx-bf16", bf16), ("amx-int8", int8), ("amx-fp16", fp16)];
    named.into_iter().filter(|(_, has)| *has == 1).map(|(name, _)| name).collect()
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn tiles_permitted() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    // SAFETY: the call asks for a permission and touches no memory. A kernel that does not know the
    // request refuses it.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

#[cfg(all(target_arch = "x86_64", not(target_os = "linux")))]
fn tiles_permitted() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_what_is_missing() {
        let cpu = Cpu { features: ["avx2", "fma"].into() };
        let wanted = ["avx2", "avx512f", "no-such-feature"].map(str::to_owned);
        assert_eq!(cpu.lacks(&wanted), ["avx512f", "no-such-feature"]);
        assert!(cpu.lacks(&[]).is_empty());
    }

    /// The kernel's own list is a second opinion.
    #[test]
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    fn agrees_with_the_kernel() {
        let info = std::fs::read_to_string("/proc/cpuinfo").unwrap();
        let Some(flags) = info.lines().find(|line| line.starts_with("flags")) else { return };
        let flags: Vec<&str> = flags.split_whitespace().collect();
        let cpu = Cpu::detect(true);
        for (name, flag) in [
            ("avx2", "avx2"),
            ("fma", "fma"),
            ("avx512f", "avx512f"),
            ("avx512bf16", "avx512_bf16"),
            ("avx512vnni", "avx512_vnni"),
        ] {
            assert_eq!(cpu.features.contains(name), flags.contains(&flag), "{name}");
        }
        if !flags.contains(&"amx_tile") {
            assert!(!cpu.features.contains("amx-tile"));
        }
        assert!(Cpu::detect(false).lacks(&["amx-tile".to_owned()]).len() == 1);
    }
}
