//! The chips. The example `timing` fits the numbers and prints these rows.
use super::chip::Origin::{Fitted as F, Source as S};
use super::chip::{COUNT, Chip, Origin};

const fn chip(
    name: &'static str,
    gfx: &'static str,
    cus: u32,
    [peak_clock, peak_hbm, fp8_rate]: [f64; 3],
    numbers: [f64; COUNT],
    origins: [Origin; COUNT],
) -> Chip {
    Chip { name, gfx, cus, xcds: 8, peak_clock, peak_hbm, fp8_rate, numbers, origins }
}

const FITTED: [Origin; COUNT] = [F; COUNT];

/// There are few rows of MI300X: its start of kernels and its latencies are those of MI308X, which
/// has the same silicon.
const SHARED: [Origin; COUNT] = [S, S, F, F, S, S, F, F, F, F, F, F];

/// The highest clock, HBM, and fp8 of a compute unit (AMD's data sheets); then launch, memset,
/// clock, power, near, far, hbm, cache, l2, group, atomics, store; see [`super::chip::NUMBERS`].
pub const CHIPS: [Chip; 3] = [
    chip(
        "MI308X",
        "gfx942",
        80,
        [2.1, 5.3, 4096.0],
        [3.048, 0.233, 1.294, 0.061, 183.386, 115.772, 3.307, 4.383, 1.325, 0.204, 1.266, 15.650],
        FITTED,
    ),
    chip(
        "MI300X",
        "gfx942",
        304,
        [2.1, 5.3, 4096.0],
        [3.048, 0.233, 1.468, 0.331, 183.386, 115.772, 4.767, 4.344, 2.136, 0.0, 7.751, 17.0],
        SHARED,
    ),
    chip(
        "MI355X",
        "gfx950",
        256,
        [2.4, 8.0, 8192.0],
        [2.875, 0.2, 2.033, 0.248, 258.431, 140.744, 5.632, 9.79, 1.61, 0.0, 2.066, 6.803],
        FITTED,
    ),
];
