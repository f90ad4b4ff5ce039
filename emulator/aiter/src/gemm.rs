//! Products: `i8gemm`, `fp8gemm_blockscale`, `f4gemm` and `bf16gemm`. D is M by N; both operands
//! have K innermost.
use super::numbers::{Element, Random, shuffle, shuffle_scales};
use super::{Buffer, Case, Slots, THREADS};
use atomc_emulator::Grid;
use atomc_emulator::num::e8m0_to_f32;

/// One product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gemm {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    /// Parts of K; powers of two for `f4gemm`.
    pub splits: usize,
}

/// What a kernel's name says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel {
    pub family: Family,
    /// Rows and columns of a work-group.
    pub tile: (usize, usize),
    /// The second operand lies in the order of [`shuffle`].
    pub shuffled: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    Int8,
    Fp8Blocks,
    Fp4,
    Bf16,
}

impl Family {
    /// The folder of a chip's code objects.
    pub fn folder(self) -> &'static str {
        match self {
            Family::Int8 => "i8gemm",
            Family::Fp8Blocks => "fp8gemm_blockscale",
            Family::Fp4 => "f4gemm",
            Family::Bf16 => "bf16gemm",
        }
    }
}

impl Kernel {
    /// Parses a file's name without its extension.
    pub fn parse(name: &str) -> Option<Kernel> {
        let family = match name.split_once('_')?.0 {
            "I8gemm" => Family::Int8,
            "fp8gemm" => Family::Fp8Blocks,
            "f4gemm" => Family::Fp4,
            "bf16gemm" => Family::Bf16,
            _ => return None,
        };
        let tile = |part: &str| {
            let (m, n) = part.split_once('x')?;
            Some((m.parse().ok()?, n.parse().ok()?))
        };
        // `per1x32Fp4` is not a tile.
        let tile = name.split('_').find_map(tile)?;
        let shuffled = match family {
            Family::Bf16 => name.contains("bpreshuffle") || name.contains("bshuffle"),
            _ => !name.contains("noBpreShuffle"),
        };
        Some(Kernel { family, tile, shuffled })
    }

    /// A launch of the kernel with random operands.
    pub fn case(self, chip: &str, name: &str, size: Gemm, seed: u64) -> Case {
        let fnuz = chip == "gfx942";
        let mut random = Random::new(seed);
        let (arguments, buffers, compare) = match self.family {
            Family::Int8 | Family::Fp8Blocks => self.bytes(size, fnuz, &mut random),
            Family::Fp4 => self.fp4(size, &mut random),
            Family::Bf16 => self.bf16(size, &mut random),
        };
        let Gemm { m, n, k, splits } = size;
        let splits = if splits > 1 { format!(", {splits} splits") } else { String::new() };
        Case {
            path: format!("{chip}/{}/{name}.co", self.family.folder()),
            sizes: format!("{m} x {n} x {k}{splits}"),
            grid: self.grid(size),
            arguments,
            buffers,
            compare,
            // Truncation to bf16; parts of K are added in bf16.
            allowed: if size.splits > 1 { 1.6e-2 } else { 8e-3 },
        }
    }

    fn grid(self, Gemm { m, n, k, splits }: Gemm) -> Grid {
        let (x, y) = (n.div_ceil(self.tile.1), m.div_ceil(self.tile.0));
        let groups = match self.family {
            Family::Int8 | Family::Fp8Blocks => [x * splits, y, 1],
            Family::Fp4 => [x, y, k.div_ceil((k / splits).next_multiple_of(256))],
            Family::Bf16 => [x, y, splits],
        };
        Grid { groups: groups.map(|v| v as u32), threads: [THREADS, 1, 1], dynamic_lds: 0 }
    }

    /// int8 with a scale a row, or fp8 with a scale for 128 of K (and 128 columns).
    fn bytes(self, size: Gemm, fnuz: bool, random: &mut Random) -> Parts {
        let Gemm { m, n, k, splits } = size;
        let blocks = self.family == Family::Fp8Blocks;
        let element = if blocks { Element::Fp8(fnuz) } else { Element::Int8 };
        let operands = Operands::random(element, size, random);
        let (count_a, count_b) = if blocks { (k / 128 * m, n / 128 * (k / 128)) } else { (m, n) };
        let scale_a = random.floats(count_a, 0.01, 0.02);
        let scale_b = random.floats(count_b, 0.01, 0.02);
        let buffers = vec![
            Buffer::zeros(m * n * 2),
            Buffer::bytes(&operands.a),
            Buffer::bytes(&shuffle(&operands.b, k)),
            Buffer::floats(&scale_a),
            Buffer::floats(&scale_b),
            Buffer::zeros(n * 4),
        ];
        let mut slots = Slots::default();
        let words = [m, n, k, k, k, n * 2, splits].map(|v| v as u32);
        slots.buffers(&buffers).words(&words);
        if blocks {
            slots.words(&[m, n.div_ceil(128), k.div_ceil(128)].map(|v| v as u32));
        }
        let scale = move |row: usize, column: usize, block: usize| match blocks {
            true => f64::from(scale_a[block * m + row]) * f64::from(scale_b[column / 128 * (k / 128) + block]),
            false => f64::from(scale_a[row]) * f64::from(scale_b[column]),
        };
        (slots, buffers, Box::new(move |b| (b[0].as_bf16().collect(), operands.product(128, &scale))))
    }

    /// fp4 with a scale for 32 of K.
    fn fp4(self, size: Gemm, random: &mut Random) -> Parts {
        let Gemm { m, n, k, splits } = size;
        let operands = Operands::random(Element::Fp4, size, random);
        let columns = (k / 32).next_multiple_of(8);
        let mut scales = |rows: usize| -> Vec<u8> {
            (0..rows.next_multiple_of(256) * columns).map(|_| random.below(5) as u8 + 125).collect()
        };
        let (scale_a, scale_b) = (scales(m), scales(n));
        let b = if self.shuffled { shuffle(&operands.b, k / 2) } else { operands.b.clone() };
        let buffers = vec![
            Buffer::zeros(m.next_multiple_of(256) * n * 2),
            Buffer::bytes(&operands.a),
            Buffer::bytes(&b),
            Buffer::bytes(&shuffle_scales(&scale_a, columns)),
            Buffer::bytes(&shuffle_scales(&scale_b, columns)),
        ];
        let mut slots = Slots::default();
        let [n32, k32, c32] = [n, k, columns].map(|v| v as u32);
        slots.buffers(&buffers[..1]).null().buffers(&buffers[1..3]).float(1.0).float(0.0);
        slots.words(&[0, 0, n32, 0, k32, 0, k32, 0, m as u32, n32, k32]).buffers(&buffers[3..]);
        slots.words(&[c32, 0, c32, 0, splits.ilog2()]);
        let scale = move |row: usize, column: usize, block: usize| {
            let of = |scales: &[u8], row: usize| f64::from(e8m0_to_f32(scales[row * columns + block]));
            of(&scale_a, row) * of(&scale_b, column)
        };
        (slots, buffers, Box::new(move |b| (b[0].as_bf16().take(m * n).collect(), operands.product(32, &scale))))
    }

    fn bf16(self, size: Gemm, random: &mut Random) -> Parts {
        let Gemm { m, n, k, splits } = size;
        let operands = Operands::random(Element::Bf16, size, random);
        let b = if self.shuffled { shuffle(&operands.b, k * 2) } else { operands.b.clone() };
        let buffers = vec![
            Buffer::zeros(m * n * 2),
            Buffer::bytes(&operands.a),
            Buffer::bytes(&b),
            Buffer::zeros(n * 4),
            Buffer::zeros(4096),
        ];
        let mut slots = Slots::default();
        let [out, row] = [n * 2, k * 2].map(|v| v as u32);
        slots.buffers(&buffers[..1]).null().buffers(&buffers[1..3]).float(1.0).float(0.0);
        slots.words(&[out, 0, out, 0, row, 0, row, 0]);
        slots.words(&[m, n, k, splits, 1].map(|v| v as u32)).buffers(&buffers[3..4]).word(0);
        slots.buffers(&buffers[4..]);
        (slots, buffers, Box::new(move |b| (b[0].as_bf16().collect(), operands.product(k, &|_, _, _| 1.0))))
    }
}

type Parts = (Slots, Vec<Buffer>, super::Compare);

/// Operands as codes, rows of K one after the other.
struct Operands {
    element: Element,
    size: Gemm,
    a: Vec<u8>,
    b: Vec<u8>,
}

impl Operands {
    fn random(element: Element, size: Gemm, random: &mut Random) -> Operands {
        let Gemm { m, n, k, .. } = size;
        Operands { element, size, a: element.random(m * k, random), b: element.random(n * k, random) }
    }

    /// The product; `scale` gives the factor of a row, a column and a block of K.
    fn product(&self, block: usize, scale: &dyn Fn(usize, usize, usize) -> f64) -> Vec<f64> {
        let Gemm { m, n, k, .. } = self.size;
        let [a, b] = [(&self.a, m), (&self.b, n)].map(|(codes, rows)| self.element.values(codes, rows * k));
        let mut out = Vec::with_capacity(m * n);
        for (row, a) in a.chunks_exact(k).enumerate() {
            for (column, b) in b.chunks_exact(k).enumerate() {
                let parts = a.chunks(block).zip(b.chunks(block)).enumerate();
                let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
                out.push(parts.map(|(at, (a, b))| dot(a, b) * scale(row, column, at)).sum());
            }
        }
        out
    }
}
