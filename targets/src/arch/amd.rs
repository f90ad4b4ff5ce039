//! Rows of AMD GPUs.
//!
//! Layouts of matrix instructions: AMD's matrix instruction calculator, and the ISA guides of CDNA
//! 2, 3, 4 and RDNA 3, 4, section "matrix arithmetic". Registers, waves and local memory: LLVM's
//! `AMDGPUUsage` and `AMDGPUBaseInfo`, and the same guides. Peaks and bandwidths: the data sheets
//! of the products named in the rows.
use atomc_ir::DType::{BF16, F8E4M3, F16, F32, I8};
use atomc_ir::arch::{
    Arch, BlockScaled, Chip, ComputeUnit, Fp8, Isa, Known, Machine, MatrixLayout, Memory, Product, ProductShape,
    Renormed, Requantised, RowExchange, Simt,
};

const TRIPLE: &str = "amdgcn-amd-amdhsa";

const CDNA2_UNIT: ComputeUnit = ComputeUnit {
    simds: 4,
    lds: 64 << 10,
    lds_group: 64 << 10,
    lds_granule: 512,
    vgprs: 512,
    vgpr_granule: 8,
    vgprs_wave: 512,
    waves: 8,
};

const RDNA_UNIT: ComputeUnit = ComputeUnit {
    simds: 2,
    lds: 64 << 10,
    lds_group: 64 << 10,
    lds_granule: 1024,
    vgprs: 1536,
    vgpr_granule: 24,
    vgprs_wave: 256,
    waves: 16,
};

/// As `RDNA_UNIT`, of chips without LLVM's `Feature1_5xVGPRs`: two thirds of the registers.
const SMALL_RDNA_UNIT: ComputeUnit = ComputeUnit { vgprs: 1024, vgpr_granule: 16, ..RDNA_UNIT };

/// Words of 32 bits as floats, and from RDNA 3 on bounds in bytes (resource descriptors in the
/// guides; LLVM's `getDefaultRsrcDataFormat`).
const CDNA_BUFFER: u32 = 0x0002_7000;
const RDNA_BUFFER: u32 = 0x3101_6000;

const IN_ORDER: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
/// RDNA 3 spreads the rows of a result over the halves of a wave in turn.
const EVEN_ODD: [u8; 16] = [0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15];

const MFMA: MatrixLayout = MatrixLayout { columns: 16, depth: 8, results: 4, replicated: false, a_rows: IN_ORDER };

const fn mfma(dtype: atomc_ir::DType, intrinsic: &'static str, elements: usize, integers: bool) -> Product {
    Product { dtype, intrinsic, elements, shape: ProductShape::Mfma { integers } }
}

const fn wmma(dtype: atomc_ir::DType, intrinsic: &'static str, elements: usize, integers: bool) -> Product {
    Product { dtype, intrinsic, elements, shape: ProductShape::Wmma { integers } }
}

const MFMA_F32: Product = mfma(F32, "llvm.amdgcn.mfma.f32.16x16x4f32", 1, false);

const fn mfma_f8f6f4(intrinsic: &'static str) -> Product {
    Product { dtype: F8E4M3, intrinsic, elements: 32, shape: ProductShape::MfmaF8f6f4 }
}

const fn wmma_iu8(intrinsic: &'static str, elements: usize) -> Product {
    Product { dtype: I8, intrinsic, elements, shape: ProductShape::WmmaIu8 }
}

/// CDNA 2 takes subnormal f16 numbers for zeros in matrix instructions ("Numerical accuracy" in
/// PyTorch's documentation, section on MI200), so f16 goes through f32 there.
const CDNA2: [Product; 3] = [
    mfma(BF16, "llvm.amdgcn.mfma.f32.16x16x16bf16.1k", 4, true),
    MFMA_F32,
    mfma(I8, "llvm.amdgcn.mfma.i32.16x16x16i8", 4, true),
];

const CDNA3: [Product; 5] = [
    mfma(BF16, "llvm.amdgcn.mfma.f32.16x16x16bf16.1k", 4, true),
    mfma(F16, "llvm.amdgcn.mfma.f32.16x16x16f16", 4, false),
    MFMA_F32,
    mfma(I8, "llvm.amdgcn.mfma.i32.16x16x32.i8", 8, true),
    mfma(F8E4M3, "llvm.amdgcn.mfma.f32.16x16x32.fp8.fp8", 8, true),
];

/// `f8f6f4` has twice the rate of the older instructions on e4m3. Only tiles of 32 by 32 take it:
/// products of few tokens wait for memory.
const CDNA4: [Product; 5] = [
    mfma(BF16, "llvm.amdgcn.mfma.f32.16x16x32.bf16", 8, false),
    mfma(F16, "llvm.amdgcn.mfma.f32.16x16x32.f16", 8, false),
    MFMA_F32,
    mfma(I8, "llvm.amdgcn.mfma.i32.16x16x64.i8", 16, true),
    CDNA3[4],
];

const LARGE_CDNA2: [Product; 2] =
    [mfma(BF16, "llvm.amdgcn.mfma.f32.32x32x8bf16.1k", 4, true), mfma(I8, "llvm.amdgcn.mfma.i32.32x32x8i8", 4, true)];

const LARGE_CDNA3: [Product; 4] = [
    mfma(BF16, "llvm.amdgcn.mfma.f32.32x32x8bf16.1k", 4, true),
    mfma(F16, "llvm.amdgcn.mfma.f32.32x32x8f16", 4, false),
    mfma(I8, "llvm.amdgcn.mfma.i32.32x32x16.i8", 8, true),
    mfma(F8E4M3, "llvm.amdgcn.mfma.f32.32x32x16.fp8.fp8", 8, true),
];

const LARGE_CDNA4: [Product; 4] = [
    mfma(BF16, "llvm.amdgcn.mfma.f32.32x32x16.bf16", 8, false),
    mfma(F16, "llvm.amdgcn.mfma.f32.32x32x16.f16", 8, false),
    mfma(I8, "llvm.amdgcn.mfma.i32.32x32x32.i8", 16, true),
    mfma_f8f6f4(BLOCK_SCALED.large),
];

/// The layouts are those of the matrix instruction calculator; Triton's are the same
/// (`accelerate-amd-matmul-mfma-gfx950.mlir`: lanes from 32 on have the scales of the next 32
/// columns).
const BLOCK_SCALED: BlockScaled = BlockScaled {
    small: "llvm.amdgcn.mfma.scale.f32.16x16x128.f8f6f4",
    large: "llvm.amdgcn.mfma.scale.f32.32x32x64.f8f6f4",
};

const RDNA3: [Product; 3] = [
    wmma(BF16, "llvm.amdgcn.wmma.f32.16x16x16.bf16", 16, true),
    wmma(F16, "llvm.amdgcn.wmma.f32.16x16x16.f16", 16, false),
    wmma_iu8("llvm.amdgcn.wmma.i32.16x16x16.iu8", 16),
];

const RDNA4: [Product; 4] = [
    wmma(BF16, "llvm.amdgcn.wmma.f32.16x16x16.bf16", 8, true),
    wmma(F16, "llvm.amdgcn.wmma.f32.16x16x16.f16", 8, false),
    wmma_iu8("llvm.amdgcn.wmma.i32.16x16x16.iu8", 8),
    wmma(F8E4M3, "llvm.amdgcn.wmma.f32.16x16x16.fp8.fp8", 8, true),
];

const GFX1250: [Product; 2] = [
    Product {
        dtype: BF16,
        intrinsic: "llvm.amdgcn.wmma.f32.16x16x32.bf16",
        elements: 16,
        shape: ProductShape::WmmaReuse,
    },
    Product {
        dtype: F16,
        intrinsic: "llvm.amdgcn.wmma.f32.16x16x32.f16",
        elements: 16,
        shape: ProductShape::WmmaReuse,
    },
];

/// The row of a step of one token. Of several a kernel of its own makes codes: each work-group of a
/// product would run some thirty vector instructions for each number. The model of times
/// (docs/timing.md) has steps of 2 and 4 tokens of Qwen3-8B 3 to 10 % faster so.
const CODED: usize = 16 << 10;

/// As bf16 these fill a work-group's local memory for rows once. With more, each work-group reads
/// and normalises the rows once more for every 32 KiB. At 8 tokens of 4,096 numbers a wave would
/// run 61 vector instructions for 256 columns; 8 of them are the product. Counted in the emulator
/// (`tests/tests/counted.rs`). The cost of an additional launch is not measured.
const NORMED: usize = 16 << 10;
/// The limit before a weight that is decoded, which takes as many instructions as the norm of twice
/// as many numbers.
const NORMED_BEFORE_CODES: usize = 32 << 10;

const fn row(
    name: &'static str,
    features: &'static [&'static str],
    source: &'static str,
    attributes: &'static str,
    simt: Simt,
) -> Arch {
    Arch {
        name,
        target: name,
        source,
        triple: TRIPLE,
        cpu: name,
        attributes,
        features,
        sibling: None,
        executed: true,
        machine: Machine::Simt(simt),
        memory: super::GPU_MEMORY,
        requantised: Known::counted(Requantised { one: CODED, several: 0, results: true }),
        normed: Known::counted(Renormed { floats: NORMED, quantised: NORMED_BEFORE_CODES }),
    }
}

/// Work-groups run on one compute unit of a pair. Each of its SIMDs has its own registers.
const RDNA: &str = "+cumode,+real-true16";

const RX_7900_XTX: Chip = Chip { name: "RX 7900 XTX", units: 96, bandwidth: 960.0, bf16: 122.9, fp8: 0.0, fp4: 0.0 };

const RX_9070_XT: Chip = Chip { name: "RX 9070 XT", units: 64, bandwidth: 644.6, bf16: 194.6, fp8: 389.3, fp4: 0.0 };

/// CDNA 3. CDNA 2 and 4 are given by their differences from it.
const GFX942: Simt = Simt {
    wave: 64,
    unit: CDNA2_UNIT,
    chip: Chip { name: "MI300X", units: 304, bandwidth: 5324.8, bf16: 1307.4, fp8: 2614.9, fp4: 0.0 },
    matrix: MFMA,
    products: &CDNA3,
    mfma_32x32: &LARGE_CDNA3,
    block_scaled: None,
    fp8: Fp8::Fnuz,
    packs_bf16: false,
    scales_pairs: false,
    direct_to_lds: 4,
    buffer_word: Some(CDNA_BUFFER),
    bulk_copies: false,
    warpgroup_mma: false,
    dependent_launch: false,
    clusters: Known::counted([0; 2]),
    gemv: super::GEMV,
    measured: None,
    avoided: &[],
    rows_of_16: RowExchange::Crossbar,
    isa: Isa::Amdgcn,
};

/// A row that takes the kernels of a sibling chip, with other numbers.
const fn like(sibling: &'static str, row: Arch) -> Arch {
    Arch { sibling: Some(sibling), ..row }
}

/// RDNA 3 apart from registers and size.
const GFX1100: Simt = Simt {
    wave: 32,
    unit: RDNA_UNIT,
    chip: RX_7900_XTX,
    matrix: MatrixLayout { columns: 16, depth: 16, results: 8, replicated: true, a_rows: EVEN_ODD },
    products: &RDNA3,
    mfma_32x32: &[],
    block_scaled: None,
    fp8: Fp8::None,
    packs_bf16: false,
    scales_pairs: false,
    direct_to_lds: 0,
    buffer_word: Some(RDNA_BUFFER),
    bulk_copies: false,
    warpgroup_mma: false,
    dependent_launch: false,
    clusters: Known::counted([0; 2]),
    gemv: super::GEMV,
    measured: None,
    avoided: &[],
    rows_of_16: RowExchange::PermuteX16,
    isa: Isa::Amdgcn,
};

/// And RDNA 4.
const GFX1201: Simt = Simt {
    chip: RX_9070_XT,
    matrix: MatrixLayout { columns: 16, depth: 8, results: 8, replicated: false, a_rows: IN_ORDER },
    products: &RDNA4,
    fp8: Fp8::Ocp,
    ..GFX1100
};

const fn rdna3(
    name: &'static str,
    features: &'static [&'static str],
    source: &'static str,
    unit: ComputeUnit,
    chip: Chip,
) -> Arch {
    row(name, features, source, RDNA, Simt { unit, chip, ..GFX1100 })
}

const fn rdna4(name: &'static str, features: &'static [&'static str], source: &'static str, chip: Chip) -> Arch {
    row(name, features, source, RDNA, Simt { chip, ..GFX1201 })
}

pub const ROWS: [Arch; 15] = [
    row(
        "gfx90a",
        &["gfx90a"],
        "CDNA 2 ISA guide; AMD Instinct MI250X data sheet, one of its two dies",
        "",
        Simt {
            chip: Chip { name: "MI250X, one die", units: 110, bandwidth: 1638.4, bf16: 191.5, fp8: 0.0, fp4: 0.0 },
            products: &CDNA2,
            mfma_32x32: &LARGE_CDNA2,
            fp8: Fp8::None,
            ..GFX942
        },
    ),
    row("gfx942", &["gfx942"], "CDNA 3 ISA guide; AMD Instinct MI300X data sheet", "", GFX942),
    like(
        "gfx942",
        row(
            "gfx9-4-generic",
            &["gfx9-4-generic"],
            "AMDGPUUsage, generic processors: gfx942 and gfx950 without instructions for 8-bit floats",
            "",
            Simt { fp8: Fp8::None, chip: Chip { fp8: 0.0, ..GFX942.chip }, ..GFX942 },
        ),
    ),
    Arch {
        // Tiles of prompts have up to 256 tokens.
        memory: Memory { rows: 256, ..super::GPU_MEMORY },
        ..row(
            "gfx950",
            &["gfx950"],
            "CDNA 4 ISA guide; AMD Instinct MI355X data sheet",
            "",
            Simt {
                unit: ComputeUnit { lds: 160 << 10, lds_group: 160 << 10, lds_granule: 1280, ..CDNA2_UNIT },
                chip: Chip { name: "MI355X", units: 256, bandwidth: 8192.0, bf16: 2516.6, fp8: 5033.2, fp4: 10066.3 },
                products: &CDNA4,
                mfma_32x32: &LARGE_CDNA4,
                block_scaled: Some(BLOCK_SCALED),
                fp8: Fp8::Ocp,
                packs_bf16: true,
                scales_pairs: true,
                direct_to_lds: 16,
                rows_of_16: RowExchange::Swap,
                ..GFX942
            },
        )
    },
    rdna3("gfx1100", &["gfx1100"], "RDNA 3 ISA guide; AMD Radeon RX 7900 XTX specifications", RDNA_UNIT, RX_7900_XTX),
    like(
        "gfx1100",
        rdna3(
            "gfx1101",
            &["gfx1101"],
            "RDNA 3 ISA guide; AMD Radeon RX 7800 XT specifications",
            RDNA_UNIT,
            Chip { name: "RX 7800 XT", units: 60, bandwidth: 624.1, bf16: 74.6, fp8: 0.0, fp4: 0.0 },
        ),
    ),
    like(
        "gfx1100",
        rdna3(
            "gfx1102",
            &["gfx1102"],
            "RDNA 3 ISA guide; AMD Radeon RX 7600 specifications",
            SMALL_RDNA_UNIT,
            Chip { name: "RX 7600", units: 32, bandwidth: 288.0, bf16: 43.5, fp8: 0.0, fp4: 0.0 },
        ),
    ),
    like(
        "gfx1100",
        rdna3(
            "gfx1150",
            &["gfx1150"],
            "RDNA 3.5 ISA guide; AMD Ryzen AI 9 HX 370 specifications (2.9 GHz, 128 bits of LPDDR5X-8000)",
            SMALL_RDNA_UNIT,
            Chip { name: "Radeon 890M", units: 16, bandwidth: 128.0, bf16: 23.8, fp8: 0.0, fp4: 0.0 },
        ),
    ),
    like(
        "gfx1100",
        rdna3(
            "gfx1151",
            &["gfx1151"],
            "RDNA 3.5 ISA guide; AMD Ryzen AI Max+ 395 specifications (2.9 GHz, 256 bits of LPDDR5X-8000)",
            RDNA_UNIT,
            Chip { name: "Radeon 8060S", units: 40, bandwidth: 256.0, bf16: 59.4, fp8: 0.0, fp4: 0.0 },
        ),
    ),
    like(
        "gfx1100",
        rdna3(
            "gfx1152",
            &["gfx1152"],
            "RDNA 3.5 ISA guide; AMD Ryzen AI 7 350 specifications (3 GHz, 128 bits of LPDDR5X-8000)",
            SMALL_RDNA_UNIT,
            Chip { name: "Radeon 860M", units: 8, bandwidth: 128.0, bf16: 12.3, fp8: 0.0, fp4: 0.0 },
        ),
    ),
    like(
        "gfx1100",
        rdna3(
            "gfx11-generic",
            &["gfx11-generic"],
            "AMDGPUUsage, generic processors: the smallest register file of RDNA 3 and 3.5, the largest chip",
            SMALL_RDNA_UNIT,
            RX_7900_XTX,
        ),
    ),
    like(
        "gfx1201",
        rdna4(
            "gfx1200",
            &["gfx1200"],
            "RDNA 4 ISA guide; AMD Radeon RX 9060 XT specifications",
            Chip { name: "RX 9060 XT", units: 32, bandwidth: 322.3, bf16: 102.6, fp8: 205.1, fp4: 0.0 },
        ),
    ),
    rdna4("gfx1201", &["gfx1201"], "RDNA 4 ISA guide; AMD Radeon RX 9070 XT specifications", RX_9070_XT),
    like(
        "gfx1201",
        rdna4("gfx12-generic", &["gfx12-generic"], "AMDGPUUsage, generic processors: what RDNA 4 has", RX_9070_XT),
    ),
    Arch {
        executed: false,
        ..row(
            "gfx1250",
            &["gfx1250"],
            "LLVM 22: AMDGPUUsage and FeatureISAVersion12_50; the vendor has published neither a guide nor numbers by this name",
            "+real-true16",
            Simt {
                wave: 32,
                unit: ComputeUnit {
                    simds: 4,
                    lds: 320 << 10,
                    lds_group: 320 << 10,
                    lds_granule: 2048,
                    vgprs: 1024,
                    vgpr_granule: 16,
                    vgprs_wave: 1024,
                    waves: 16,
                },
                chip: Chip { name: "not announced", units: 256, bandwidth: 0.0, bf16: 0.0, fp8: 0.0, fp4: 0.0 },
                matrix: MatrixLayout { columns: 16, depth: 16, results: 8, replicated: false, a_rows: IN_ORDER },
                products: &GFX1250,
                mfma_32x32: &[],
                block_scaled: None,
                fp8: Fp8::Ocp,
                packs_bf16: true,
                scales_pairs: false,
                direct_to_lds: 16,
                buffer_word: None,
                bulk_copies: false,
                warpgroup_mma: false,
                dependent_launch: false,
                clusters: Known::counted([0; 2]),
                gemv: super::GEMV,
                measured: None,
                avoided: &[],
                rows_of_16: RowExchange::PermuteX16,
                isa: Isa::Amdgcn,
            },
        )
    },
];
