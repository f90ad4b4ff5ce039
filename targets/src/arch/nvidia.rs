//! Rows of NVIDIA GPUs.
//!
//! Layouts of matrix instructions: the PTX guide, "Matrix fragments for mma.m16n8k16". Registers,
//! warps and shared memory: the CUDA programming guide, "Compute capabilities". Peaks and
//! bandwidths: the data sheets of the products named in the rows.
use atomc_ir::DType::{BF16, F16};
use atomc_ir::arch::{
    Arch, Avoided, Chip, ComputeUnit, Fp8, Isa, Known, Machine, MatrixLayout, Measured, Product, ProductShape,
    Renormed, Requantised, RowExchange, Simt, StreamK, WarpgroupPrefill,
};

const TRIPLE: &str = "nvptx64-nvidia-cuda";

/// A multiprocessor, with the registers of one warp's 32 lanes as one.
const UNIT: ComputeUnit = ComputeUnit {
    simds: 4,
    lds: 228 << 10,
    lds_group: 227 << 10,
    lds_granule: 1024,
    vgprs: 512,
    vgpr_granule: 8,
    vgprs_wave: 255,
    waves: 16,
};

/// Two instructions make 16 rows. Their columns are dealt out so that a lane's results are of
/// consecutive rows.
const MMA: MatrixLayout = MatrixLayout {
    columns: 8,
    depth: 8,
    results: 4,
    replicated: false,
    a_rows: [0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15],
};

const PRODUCTS: [Product; 2] = [
    Product {
        dtype: BF16,
        intrinsic: "llvm.nvvm.mma.m16n8k16.row.col.bf16",
        elements: 4,
        shape: ProductShape::Mma { integers: true },
    },
    Product {
        dtype: F16,
        intrinsic: "llvm.nvvm.mma.m16n8k16.row.col.f32.f32",
        elements: 4,
        shape: ProductShape::Mma { integers: false },
    },
];

/// On an H200, with the models of docs/performance.md.
const H200: Measured = Measured {
    ring_bytes: 160 << 10,
    cluster_tokens: 16,
    cluster_panels: 8,
    stream_k: StreamK {
        tokens: 17,
        // On 2026-11-25. MXFP4 of 8 tokens takes 3.36 ms, and 3.21 by `gemv_bulk_dequant`.
        decoded: [8, 16],
        few: 32,
        slots: 12,
        groups: 4,
        // On 2026-11-27: int4 of 64 tokens, output of Qwen3-8B, 25.3 us with 4 and 22.1 with 8.
        least: [4, 8],
        stages: 8,
        row_bytes: 32 << 10,
        ring: 16,
        registers: [56, 208, 240],
    },
    // On 2026-11-26, on an H100: kernels `group`, norm and sum take 3.8 us of a layer's step.
    grouping: 16 << 20,
    tile_cost: 38,
    registers: [40, 232],
    // Two groups of four waves have 64 queries each.
    prefill: WarpgroupPrefill { heads: 4, dim: 256, in_registers: 128, stages: 4 },
};

/// On an H100: with 32 Ki numbers of 8 rows each work-group takes 13 us of 49 for gate and up of
/// Qwen3-8B, and a kernel of its own 5. `stream_k` multiplies rows that are quantised in memory.
const WITH_STREAM_K: Known<Requantised> =
    Known::measured(Requantised { one: 48 << 10, several: 16 << 10, results: false });

/// Beyond 32 tokens of 4,096 numbers, `gemv_bulk_dequant` has no room for rows next to a quantised
/// weight of gate and up. `gemm_warpgroup_few` takes rows that are in memory.
const WITH_WARPGROUPS: Known<Renormed> = Known::measured(Renormed { floats: usize::MAX, quantised: 128 << 10 });

/// No chip of this kind ever ran chunks of a recurrence.
const CHUNKS: Avoided =
    Avoided { schedule: "delta_chunks", because: Known::counted("no chip of this kind ever ran it") };

/// Nor tiles of heads that have matrices of their own.
const HEADS: Avoided =
    Avoided { schedule: "gemm_tiled_heads", because: Known::counted("no chip of this kind ever ran it") };

const SLOWER: &str = "slower than gemv_blocks on an H200";

const AVOIDED: [Avoided; 2] = [Avoided { schedule: "gemm_tiled_blocks", because: Known::measured(SLOWER) }, HEADS];

const ESTIMATED_AVOIDED: [Avoided; 3] =
    [Avoided { schedule: "gemm_tiled_blocks", because: Known::estimated(SLOWER, "sm_90a") }, CHUNKS, HEADS];

const fn row(
    name: &'static str,
    features: &'static [&'static str],
    source: &'static str,
    attributes: &'static str,
    (unit, chip, fp8): (ComputeUnit, Chip, Fp8),
    // Clusters, copies by the machine and dependent launch exist on the same chips.
    (clusters, warpgroup_mma, measured): (Known<[usize; 2]>, bool, Option<Known<Measured>>),
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
        executed: false,
        machine: Machine::Simt(Simt {
            wave: 32,
            unit,
            chip,
            matrix: MMA,
            products: &PRODUCTS,
            mfma_32x32: &[],
            block_scaled: None,
            fp8,
            packs_bf16: true,
            scales_pairs: false,
            direct_to_lds: 16,
            buffer_word: None,
            bulk_copies: clusters.value[0] > 0,
            warpgroup_mma,
            dependent_launch: clusters.value[0] > 0,
            clusters,
            gemv: super::GEMV,
            measured,
            avoided: if warpgroup_mma { &AVOIDED } else { &ESTIMATED_AVOIDED },
            rows_of_16: RowExchange::Shuffle,
            isa: Isa::Ptx,
        }),
        memory: super::GPU_MEMORY,
        requantised: if warpgroup_mma { WITH_STREAM_K } else { super::REQUANTISED },
        normed: if warpgroup_mma { WITH_WARPGROUPS } else { Known::estimated(Renormed::ALL, "sm_90a") },
    }
}

pub const ROWS: [Arch; 3] = [
    Arch {
        // Its PTX was executed by a newer GPU.
        sibling: None,
        executed: true,
        ..row(
            "sm_80",
            &["sm_80"],
            "CUDA programming guide, compute capability 8.0; NVIDIA A100 80GB SXM data sheet",
            "+ptx78",
            (
                ComputeUnit { lds: 164 << 10, lds_group: 163 << 10, ..UNIT },
                Chip { name: "A100 80GB", units: 108, bandwidth: 2039.0, bf16: 312.0, fp8: 0.0, fp4: 0.0 },
                Fp8::None,
            ),
            (Known::counted([0; 2]), false, None),
        )
    },
    Arch {
        sibling: None,
        executed: true,
        ..row(
            "sm_90a",
            &["sm_90a"],
            "CUDA programming guide, compute capability 9.0; NVIDIA H200 SXM data sheet",
            "+ptx86",
            (UNIT, Chip { name: "H200", units: 132, bandwidth: 4800.0, bf16: 989.5, fp8: 1979.0, fp4: 0.0 }, Fp8::Ocp),
            // Half of the units; and as `cudaOccupancyMaxActiveClusters` says on an H200.
            (Known::measured([66, 30]), true, Some(Known::measured(H200))),
        )
    },
    row(
        "sm_100a",
        &["sm_100a"],
        "CUDA programming guide, compute capability 10.0; NVIDIA B200 data sheet",
        "+ptx86",
        (UNIT, Chip { name: "B200", units: 148, bandwidth: 8000.0, bf16: 2250.0, fp8: 4500.0, fp4: 9000.0 }, Fp8::Ocp),
        (Known::estimated([66, 30], "sm_90a"), false, Some(Known::estimated(H200, "sm_90a"))),
    ),
];
