//! The chips. The example `timing` fits the numbers and prints these rows.
use super::chip::Origin::{Fitted as F, Source as S};
use super::chip::{COUNT, Chip, Origin};

const fn chip(
    name: &'static str,
    gfx: &'static str,
    cus: u32,
    [peak_clock, peak_hbm]: [f64; 2],
    numbers: [f64; COUNT],
    origins: [Origin; COUNT],
) -> Chip {
    Chip { name, gfx, cus, xcds: 8, peak_clock, peak_hbm, numbers, origins }
}

const FITTED: [Origin; COUNT] = [F; COUNT];

/// There are 30 rows of MI300X: what its silicon has in common with MI308X is from there.
const SHARED: [Origin; COUNT] = [S, S, F, F, S, S, F, F, F, S, S, F];

/// Launch, memset, clock, power, near, far, hbm, cache, l2, group, atomics, store; see
/// [`super::chip::NUMBERS`].
pub const CHIPS: [Chip; 3] = [
    chip(
        "MI308X",
        "gfx942",
        80,
        [2.1, 5.3],
        [2.525, 0.2, 1.28, 0.0, 201.1, 96.84, 3.259, 16.37, 1.742, 0.76, 1.119, 12.1],
        FITTED,
    ),
    chip(
        "MI300X",
        "gfx942",
        304,
        [2.1, 5.3],
        [2.525, 0.2, 1.511, 0.014, 201.1, 96.84, 5.294, 3.752, 2.525, 0.76, 1.119, 9.007],
        SHARED,
    ),
    chip(
        "MI355X",
        "gfx950",
        256,
        [2.4, 8.0],
        [2.935, 0.2, 2.029, 0.248, 251.4, 138.4, 5.611, 15.76, 1.609, 0.246, 1.914, 7.615],
        FITTED,
    ),
];
