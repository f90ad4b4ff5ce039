//! AITER's hand-written GEMM kernels: their arguments and grids.
use atomc_aiter::Slots;
use atomc_aiter::gemm::Family;
use atomc_emulator::timing::cu::CORE;
use atomc_emulator::timing::profile::Sample;
use atomc_emulator::timing::trace::Trace;
use atomc_emulator::{Access, CodeObject, Emulator, Grid, Memory};

/// Bytes of an element of A and of B, and of their scales.
pub fn element_bytes(family: Family) -> f64 {
    match family {
        Family::Int8 => 1.0,
        Family::Fp8Blocks => 1.0 + 4.0 / 128.0,
        Family::Fp4 => 0.5 + 1.0 / 32.0,
        Family::Bf16 => 2.0,
    }
}

/// A product of one tile.
#[derive(Clone, Copy, Debug)]
pub struct Product {
    pub m: u32,
    pub n: u32,
    pub k: u32,
    pub splits: u32,
}

/// Bytes between buffers. All of them are zeros, and only kernels touch them.
const REGION: usize = 64 << 20;
const REGIONS: usize = 8;

pub struct Arena {
    bytes: Vec<u128>,
    memory: Memory,
}

impl Arena {
    pub fn new() -> Arena {
        let bytes = vec![0u128; REGION / 16 * (REGIONS + 1)];
        let mut memory = Memory::default();
        // SAFETY: the arena owns them as long as the map.
        unsafe { memory.map(bytes.as_ptr() as u64, (REGION * (REGIONS + 1)) as u64, Access::ReadWrite) };
        Arena { bytes, memory }
    }

    fn region(&self, number: usize) -> u64 {
        (self.bytes.as_ptr() as u64).next_multiple_of(4096) + (number * REGION) as u64
    }
}

fn arguments(family: Family, p: Product, arena: &Arena) -> Slots {
    let mut slots = Slots::default();
    let Product { m, n, k, splits } = p;
    match family {
        Family::Int8 | Family::Fp8Blocks => {
            for region in 0..6 {
                slots.pointer(arena.region(region));
            }
            // AITER's tuner has 128 elements between the rows of A.
            slots.words(&[m, n, k, k + 128, k, n * 2, splits, m, n.div_ceil(128), k / 128]);
        }
        Family::Fp4 => {
            let scales = k.div_ceil(256) * 8;
            operands(&mut slots, arena).words(&[0, 0, n, 0, k, 0, k, 0, m, n, k]);
            slots.pointer(arena.region(3)).pointer(arena.region(4));
            slots.words(&[scales, 0, scales, 0, splits.ilog2()]);
        }
        Family::Bf16 => {
            let (out, row) = (n * 2, k * 2);
            operands(&mut slots, arena).words(&[out, 0, out, 0, row, 0, row, 0, m, n, k, splits, 1]);
            slots.pointer(arena.region(3)).word(0).pointer(arena.region(4));
            // The first group of a tile says that it has cleared it.
            let ready = arena.region(4) as *mut u32;
            // SAFETY: the region is larger, and no kernel runs.
            unsafe { (0..1024).for_each(|at| ready.add(at).write(splits)) };
        }
    }
    slots
}

/// The result, no operand to add, the factors, and what they and it are multiplied by.
fn operands<'s>(slots: &'s mut Slots, arena: &Arena) -> &'s mut Slots {
    slots.pointer(arena.region(0)).null().pointer(arena.region(1)).pointer(arena.region(2)).float(1.0).float(0.0)
}

/// What a tile of a kernel executes: the last of its splits.
pub fn record(code: &CodeObject, family: Family, product: Product, arena: &Arena) -> Result<Trace, String> {
    let symbol = code.kernels().next().ok_or("no kernel")?.to_string();
    let last = product.splits - 1;
    let (groups, group) = match family {
        Family::Int8 | Family::Fp8Blocks => ([product.splits, 1, 1], [last, 0, 0]),
        Family::Fp4 | Family::Bf16 => ([1, 1, product.splits], [0, 0, last]),
    };
    let grid = Grid { groups, threads: [256, 1, 1], dynamic_lds: 0 };
    let arguments = arguments(family, product, arena);
    Emulator.record(code, &symbol, grid, arguments.bytes(), &arena.memory, group).map_err(|e| e.to_string())
}

pub fn sample(code: &CodeObject, family: Family, product: Product, arena: &Arena) -> Result<Sample, String> {
    Ok(Sample::of(&record(code, family, product, arena)?, 1, &CORE))
}
