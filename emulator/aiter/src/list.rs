//! The kernels that are compared, and with which sizes.
use super::Case;
use super::attention::{Latent, Paged, Prompt};
use super::experts::{Choice, Experts, FirstStage};
use super::gemm::{Gemm, Kernel};
use super::numbers::Element;

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
    [gemms(), paged(), latent(), prompts(), experts(), first_stages(), choices()].into_iter().flatten().collect()
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

fn fp8(chip: &str) -> Element {
    Element::Fp8(chip == "gfx942")
}

fn paged() -> Vec<Entry> {
    let rows = [
        ("pa_bf16_noquant_gqa8_1tg_4w", 8, None, 1),
        ("pa_bf16_noquant_gqa16_1tg_4w", 16, None, 1),
        ("pa_bf16_noquant_gqa8_1tg_4w_mtp_msk1", 8, None, 2),
        ("pa_bf16_pertokenFp8_gqa8_2tg_4w", 8, Some(true), 1),
        ("pa_bf16_pertokenFp8_gqa16_2tg_4w", 16, Some(true), 1),
        ("pa_bf16_pertokenFp8_gqa8_1tg_4w_mtp_msk1", 8, Some(true), 2),
        ("pa_bf16_pertokenInt8_gqa8_2tg_4w", 8, Some(false), 1),
        ("pa_bf16_pertokenInt8_gqa16_2tg_4w", 16, Some(false), 1),
    ];
    let mut all = Vec::new();
    for (name, group, bytes, queries) in rows {
        for chip in BOTH {
            let cache = match bytes {
                None => Element::Bf16,
                Some(true) => fp8(chip),
                Some(false) => Element::Int8,
            };
            let size = Paged { contexts: &[2, 333, 100], kv_heads: 2, group, queries, cache };
            all.push(Entry::new("pa", chip, name, move || size.case(chip, name, 1)));
        }
    }
    all
}

fn latent() -> Vec<Entry> {
    let decode = Latent { lengths: &[70, 333], heads: 16, queries: 1, rows: 16, splits: 1, element: Element::Bf16 };
    let rows = [
        (BOTH, "mla_dec_stage1_bf16_a16w16_subQ16_mqa16", Latent { splits: 2, ..decode }),
        (BOTH, "mla_dec_stage1_bf16_a16w16_subQ128_mqa128", Latent { heads: 128, rows: 128, ..decode }),
        (BOTH, "mla_a16w16_qh16_m16x4_n16x1_coex0_mask1", Latent { queries: 4, rows: 128, ..decode }),
        (BOTH, "mla_a16w16_qh16_m32x4_n16x1_coex0_mask1", Latent { queries: 8, rows: 128, ..decode }),
        (BOTH, "mla_a16w16_qh8_qseqlen1_gqaratio8_v3", Latent { heads: 8, rows: 8, splits: 2, ..decode }),
        (BOTH, "mla_a8w8_qh16_qseqlen1_gqaratio16", Latent { rows: 128, element: Element::Fp8(true), ..decode }),
        (
            BOTH,
            "mla_a8w8_qh16_qseqlen2_gqaratio16",
            Latent { queries: 2, rows: 128, element: Element::Fp8(true), ..decode },
        ),
        (
            BOTH,
            "mla_a8w8_qh128_m32x4_n16x2_msk1",
            Latent { heads: 128, rows: 128, element: Element::Fp8(true), ..decode },
        ),
    ];
    let mut all = Vec::new();
    for (chips, name, mut size) in rows {
        for chip in chips {
            if size.element != Element::Bf16 {
                size.element = fp8(chip);
            }
            all.push(Entry::new("mla", chip, name, move || size.case(chip, name, 1)));
        }
    }
    all
}

fn prompts() -> Vec<Entry> {
    let plain = Prompt {
        batch: 1,
        queries: 300,
        keys: 300,
        heads: 2,
        kv_heads: 1,
        head: 128,
        causal: false,
        element: Element::Bf16,
    };
    let causal = Prompt { causal: true, heads: 8, kv_heads: 4, ..plain };
    let wide = Prompt { head: 192, ..plain };
    let bytes = |size: Prompt, fnuz| Prompt { element: Element::Fp8(fnuz), ..size };
    let rows = [
        ("gfx942", "fwd_hd128_bf16_rtne", plain),
        ("gfx942", "fwd_hd128_bf16_rtz", plain),
        ("gfx942", "fwd_hd128_bf16_causal_rtne", causal),
        ("gfx942", "fwd_hd192x128_bf16_rtne", wide),
        ("gfx942", "fwd_hd192x128_bf16_causal_rtna", Prompt { causal: true, heads: 8, kv_heads: 4, ..wide }),
        ("gfx942", "fwd_hd128_fp8", bytes(plain, true)),
        ("gfx942", "fwd_hd128_fp8_causal", bytes(causal, true)),
        ("gfx950", "fwd_hd128_bf16", plain),
        ("gfx950", "fwd_hd128_bf16_causal", causal),
        ("gfx950", "fwd_hd192_hd128_bf16", wide),
        ("gfx950", "fwd_hd128_fp8", bytes(plain, false)),
        ("gfx950", "fwd_hd128_fp8_causal", bytes(causal, false)),
    ];
    let entry = |(chip, name, size): (&'static str, &'static str, Prompt)| {
        let folder = if chip == "gfx942" { "fmha_v3_fwd/MI300" } else { "fmha_v3_fwd" };
        Entry::new("fmha_v3_fwd", chip, name, move || size.case(chip, folder, name, 1))
    };
    rows.map(entry).into()
}

fn experts() -> Vec<Entry> {
    let plain = Experts { tokens: 40, dim: 512, inner: 256, experts: 4, chosen: 2, tile: (32, 256), persistent: 0 };
    let turns = Experts { persistent: 6, ..plain };
    let rows = [
        ("gfx942", "fmoe_bf16_blockscaleFp8_g1u1_novs_silu_1tg_32x128", Experts { tile: (32, 128), ..plain }),
        ("gfx942", "fmoe_bf16_blockscaleFp8_g1u1_novs_silu_1tg_32x256", plain),
        ("gfx942", "fmoe_bf16_blockscaleFp8_g1u1_vs_silu_1tg_32x256", plain),
        ("gfx942", "fmoe_bf16_blockscaleFp8_g1u1_vs_silu_1tg_ps_32x256", turns),
        ("gfx942", "fmoe_bf16_blockscaleFp8_g1u1_vs_silu_1tg_64x256", Experts { tile: (64, 256), ..plain }),
        ("gfx950", "fmoe_bf16_blockscaleFp8_g1u1_novs_silu_1tg_32x256", plain),
        ("gfx950", "fmoe_bf16_blockscaleFp8_g1u1_vs_silu_1tg_32x256", plain),
        ("gfx950", "fmoe_bf16_blockscaleFp8_g1u1_vs_silu_1tg_ps_32x256", turns),
    ];
    let entry = |(chip, name, size): (&'static str, &'static str, Experts)| {
        Entry::new("fmoe", chip, name, move || size.case(chip, name, 1))
    };
    rows.map(entry).into()
}

fn first_stages() -> Vec<Entry> {
    let size = Experts { tokens: 40, dim: 512, inner: 256, experts: 4, chosen: 2, tile: (32, 128), persistent: 0 };
    let rows = [
        ("fmoe_stage1_bf16_pertokenFp8_g1u1_32x128_3tg_pf2", size.tile, true, false),
        ("fmoe_stage1_bf16_pertokenFp8_g1u1_64x128_2tg_pf3", (64, 128), true, false),
        ("fmoe_stage1_bf16_pertokenFp8_g1u1_128x128_pf2", (128, 128), true, false),
        ("fmoe_stage1_bf16_pertokenFp8_doweight_g1u1_32x64_4tg_pf2", (32, 64), true, true),
        ("fmoe_stage1_bf16_pertokenInt8_g1u1_48x128_2tg_pf2", (48, 128), false, false),
    ];
    let mut all = Vec::new();
    for (name, tile, floats, weighted) in rows {
        for chip in BOTH {
            let element = if floats { fp8(chip) } else { Element::Int8 };
            let stage = FirstStage { size: Experts { tile, ..size }, element, weighted };
            all.push(Entry::new("fmoe_2stages", chip, name, move || stage.case(chip, name, 1)));
        }
    }
    all
}

fn choices() -> Vec<Entry> {
    let plain = Choice { tokens: 21, rows: 4, experts: 128, chosen: 4, bf16: false, renormalise: true };
    let rows = [
        ("topksoftmax_4x128x4", plain),
        ("topksoftmax_4x128x8_bf16", Choice { chosen: 8, bf16: true, ..plain }),
        ("topksoftmax_4x256x8", Choice { experts: 256, chosen: 8, renormalise: false, ..plain }),
        ("topksoftmax_12x128x6", Choice { rows: 12, chosen: 6, ..plain }),
    ];
    let mut all = Vec::new();
    for (name, size) in rows {
        for chip in BOTH {
            all.push(Entry::new("topksoftmax", chip, name, move || size.case(chip, name, 1)));
        }
    }
    all
}
