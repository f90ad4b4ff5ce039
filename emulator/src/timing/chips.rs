//! The chips.
use super::chip::{COUNT, Chip};

const fn chip(name: &'static str, gfx: &'static str, cus: u32, numbers: [f64; COUNT]) -> Chip {
    Chip { name, gfx, cus, xcds: 8, numbers }
}

pub const CHIPS: [Chip; 3] = [
    chip("MI300X", "gfx942", 304, [2.5, 1.5, 1.5, 0.1, 350.0, 100.0, 4.5, 10.0, 1.8, 0.5, 2.0, 6.0]),
    chip("MI308X", "gfx942", 80, [2.5, 1.5, 1.4, 0.05, 350.0, 100.0, 3.5, 10.0, 1.8, 0.5, 2.0, 6.0]),
    chip("MI355X", "gfx950", 256, [2.5, 1.5, 2.3, 0.3, 350.0, 100.0, 6.4, 12.0, 1.8, 0.5, 2.0, 6.0]),
];
