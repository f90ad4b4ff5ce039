//! AITER's hand-written GEMM kernels: their arguments and grids.
use atomc_emulator::aiter::gemm::Family;
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

/// Bytes between buffers; all of them are zeros, which nobody touches but kernels.
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

/// Kernel arguments, each in 16 bytes.
struct Arguments(Vec<u8>);

impl Arguments {
    fn word(&mut self, at: usize, value: u32) -> &mut Arguments {
        self.0[at..at + 4].copy_from_slice(&value.to_le_bytes());
        self
    }

    fn pointer(&mut self, at: usize, value: u64) -> &mut Arguments {
        self.0[at..at + 8].copy_from_slice(&value.to_le_bytes());
        self
    }
}

fn arguments(family: Family, p: Product, arena: &Arena) -> Vec<u8> {
    let mut a = Arguments(vec![0; 512]);
    let Product { m, n, k, splits } = p;
    match family {
        Family::Int8 | Family::Fp8Blocks => {
            (0..6).for_each(|i| drop(a.pointer(16 * i, arena.region(i))));
            let words = [m, n, k, k + 128, k, n * 2, splits, m, n.div_ceil(128), k / 128];
            words.iter().enumerate().for_each(|(i, w)| drop(a.word(96 + 16 * i, *w)));
        }
        Family::Fp4 => {
            let pointers = [(0, 0), (32, 1), (48, 2), (272, 3), (288, 4)];
            pointers.iter().for_each(|(at, region)| drop(a.pointer(*at, arena.region(*region))));
            a.word(64, 1f32.to_bits()).word(112, n).word(128, n).word(144, n).word(160, k).word(192, k);
            a.word(224, m).word(240, n).word(256, k);
            a.word(304, k.div_ceil(256) * 8).word(336, k.div_ceil(256) * 8).word(368, splits.ilog2());
        }
        Family::Bf16 => {
            let pointers = [(0, 0), (32, 1), (48, 2), (304, 3), (336, 4)];
            pointers.iter().for_each(|(at, region)| drop(a.pointer(*at, arena.region(*region))));
            a.word(64, 1f32.to_bits()).word(96, n * 2).word(128, n * 2).word(160, k * 2).word(192, k * 2);
            a.word(224, m).word(240, n).word(256, k).word(272, splits).word(288, 1);
            // The first group of a tile says that it has cleared it.
            let ready = arena.region(4) as *mut u32;
            // SAFETY: no kernel runs.
            unsafe { (0..1024).for_each(|i| ready.add(i).write(splits)) };
        }
    }
    a.0
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
    let bytes = arguments(family, product, arena);
    let size = code.kernel(&symbol).map_or(0, |k| k.metadata.kernarg_segment_size as usize);
    let bytes = &bytes[..size.clamp(256, 512).min(bytes.len())];
    Emulator.record(code, &symbol, grid, bytes, &arena.memory, group).map_err(|e| e.to_string())
}

pub fn sample(code: &CodeObject, family: Family, product: Product, arena: &Arena) -> Result<Sample, String> {
    Ok(Sample::of(&record(code, family, product, arena)?, 1, &CORE))
}
