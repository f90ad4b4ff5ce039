//! The kernels that are compared, and with which sizes.
use super::Case;
use super::gemm::{Gemm, Kernel};

/// One comparison.
pub struct Entry {
    pub family: &'static str,
    pub chip: &'static str,
    pub name: &'static str,
    make: Box<dyn Fn() -> Case>,
}

impl Entry {
    fn new(family: &'static str, chip: &'static str, name: &'static str, make: impl Fn() -> Case + 'static) -> Entry {
        Entry { family, chip, name, make: Box::new(make) }
    }

    /// Makes the operands.
    pub fn case(&self) -> Case {
        (self.make)()
    }
}

/// All of them.
pub fn entries() -> Vec<Entry> {
    gemms()
}

/// Chips of a product's kernel, its name, M, N, K and splits.
type Row = (&'static [&'static str], &'static str, [usize; 4]);

const GFX942: &[&str] = &["gfx942"];
const GFX950: &[&str] = &["gfx950"];
const BOTH: &[&str] = &["gfx942", "gfx950"];

const INT8: &[Row] = &[
    (BOTH, "I8gemm_bf16_perTokenI8_BpreShuffle_16x128", [33, 256, 1280, 5]),
    (BOTH, "I8gemm_bf16_perTokenI8_BpreShuffle_32x128", [32, 256, 512, 1]),
    (BOTH, "I8gemm_bf16_perTokenI8_BpreShuffle_48x128", [50, 128, 768, 1]),
    (BOTH, "I8gemm_bf16_perTokenI8_BpreShuffle_64x128", [64, 256, 512, 2]),
    (BOTH, "I8gemm_bf16_perTokenI8_BpreShuffle_80x128", [100, 128, 512, 1]),
    (BOTH, "I8gemm_bf16_perTokenI8_BpreShuffle_96x128", [96, 256, 640, 1]),
    (GFX942, "I8gemm_bf16_perTokenI8_BpreShuffle_112x256", [200, 512, 1024, 1]),
    (BOTH, "I8gemm_bf16_perTokenI8_BpreShuffle_128x128", [200, 384, 1024, 2]),
    (BOTH, "I8gemm_bf16_perTokenI8_BpreShuffle_160x128", [300, 256, 640, 1]),
];

const FP8: &[Row] = &[
    (BOTH, "fp8gemm_bf16_blockscale_BpreShuffle_32x128", [20, 256, 512, 1]),
    (BOTH, "fp8gemm_bf16_blockscale_BpreShuffle_48x128", [70, 256, 1280, 3]),
    (BOTH, "fp8gemm_bf16_blockscale_BpreShuffle_64x128", [64, 128, 768, 1]),
    (BOTH, "fp8gemm_bf16_blockscale_BpreShuffle_80x128", [80, 256, 512, 2]),
    (BOTH, "fp8gemm_bf16_blockscale_BpreShuffle_96x128", [130, 384, 896, 1]),
    (BOTH, "fp8gemm_bf16_blockscale_BpreShuffle_128x128", [128, 256, 512, 1]),
];

const FP4: &[Row] = &[
    (GFX950, "f4gemm_bf16_per1x32Fp4_BpreShuffle_32x128", [5, 384, 1536, 1]),
    (GFX950, "f4gemm_bf16_per1x32Fp4_BpreShuffle_64x256", [64, 512, 768, 1]),
    (GFX950, "f4gemm_bf16_per1x32Fp4_BpreShuffle_64x1024", [70, 2048, 768, 1]),
    (GFX950, "f4gemm_bf16_per1x32Fp4_BpreShuffle_96x384", [96, 384, 512, 1]),
    (GFX950, "f4gemm_bf16_per1x32Fp4_BpreShuffle_128x128", [130, 256, 1024, 1]),
    (GFX950, "f4gemm_bf16_per1x32Fp4_BpreShuffle_128x512", [128, 512, 1024, 2]),
    (GFX950, "f4gemm_bf16_per1x32Fp4_BpreShuffle_160x384", [161, 768, 512, 1]),
    (GFX950, "f4gemm_bf16_per1x32Fp4_BpreShuffle_256x256", [300, 512, 1024, 2]),
];

const BF16: &[Row] = &[
    (GFX950, "bf16gemm_bf16_tn_256x256", [300, 512, 384, 1]),
    (GFX950, "bf16gemm_bf16_tn_256x256_bpreshuffle", [300, 512, 384, 1]),
    (BOTH, "bf16gemm_fp32bf16_tn_32x64_pf3_splitk", [40, 128, 512, 1]),
    (BOTH, "bf16gemm_fp32bf16_tn_48x64_pf3_splitk", [48, 192, 448, 1]),
    (BOTH, "bf16gemm_fp32bf16_tn_32x64_splitk_clean", [32, 128, 1024, 4]),
    (BOTH, "bf16gemm_fp32bf16_tn_64x64_bshuffle_splitk_clean", [70, 128, 1024, 4]),
    (BOTH, "bf16gemm_fp32bf16_tn_96x64_splitk_clean", [100, 128, 1024, 4]),
    (BOTH, "bf16gemm_fp32bf16_tn_128x64_bshuffle_splitk", [128, 128, 512, 1]),
    (BOTH, "bf16gemm_fp32bf16_tn_160x64_bshuffle_splitk", [200, 64, 512, 1]),
];

fn gemms() -> Vec<Entry> {
    let families = [("i8gemm", INT8), ("fp8gemm_blockscale", FP8), ("f4gemm", FP4), ("bf16gemm", BF16)];
    let mut all = Vec::new();
    for (family, rows) in families {
        for (chips, name, [m, n, k, splits]) in rows {
            for chip in *chips {
                let kernel = Kernel::parse(name).expect("the name of a product's kernel");
                let size = Gemm { m: *m, n: *n, k: *k, splits: *splits };
                all.push(Entry::new(family, chip, name, move || kernel.case(chip, name, size, 1)));
            }
        }
    }
    all
}
