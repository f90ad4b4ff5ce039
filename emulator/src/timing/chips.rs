//! The chips. The example `timing` fits the numbers and prints these rows.
use super::chip::Origin::{Fitted as F, Source as S};
use super::chip::{COUNT, Chip, Origin};

const fn chip(
    name: &'static str,
    gfx: &'static str,
    cus: u32,
    numbers: [f64; COUNT],
    origins: [Origin; COUNT],
) -> Chip {
    Chip { name, gfx, cus, xcds: 8, numbers, origins }
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
        [2.523, 0.200, 1.280, 0.000, 201.332, 96.845, 3.260, 16.511, 1.742, 0.760, 1.121, 13.580],
        FITTED,
    ),
    chip(
        "MI300X",
        "gfx942",
        304,
        [2.523, 0.200, 1.461, 0.000, 201.332, 96.845, 6.656, 3.764, 2.541, 0.760, 1.121, 11.198],
        SHARED,
    ),
    chip(
        "MI355X",
        "gfx950",
        256,
        [2.936, 0.200, 2.029, 0.248, 251.362, 138.442, 5.611, 15.794, 1.609, 0.246, 1.712, 7.615],
        FITTED,
    ),
];
