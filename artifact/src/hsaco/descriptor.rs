//! The kernel descriptor: 64 bytes that tell the command processor how to start waves.
use super::word;

pub const DESCRIPTOR_BYTES: usize = 64;

/// `llvm::amdhsa::kernel_descriptor_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    pub group_segment_fixed_size: u32,
    pub private_segment_fixed_size: u32,
    pub kernarg_size: u32,
    /// From the descriptor to the first instruction.
    pub entry_offset: i64,
    pub compute_pgm_rsrc1: Rsrc1,
    pub compute_pgm_rsrc2: Rsrc2,
    /// Its fields differ between generations; see [`Descriptor::accum_offset`].
    pub compute_pgm_rsrc3: u32,
    pub properties: Properties,
    pub preload: Preload,
}

/// COMPUTE_PGM_RSRC1, as its bits are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rsrc1(pub u32);

/// COMPUTE_PGM_RSRC2, as its bits are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rsrc2(pub u32);

/// KERNEL_CODE_PROPERTIES: which user SGPRs are set up, and the wave size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Properties(pub u16);

/// Dwords of the kernarg segment that are loaded into user SGPRs before the wave starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preload {
    pub length: u16,
    /// First dword.
    pub offset: u16,
}

impl Descriptor {
    /// Of the first 64 bytes; none if there are fewer.
    pub fn read(bytes: &[u8]) -> Option<Descriptor> {
        let u32_at = |at| word::<4>(bytes, at).map(u32::from_le_bytes);
        let u16_at = |at| word::<2>(bytes, at).map(u16::from_le_bytes);
        let preload = u16_at(58)?;
        u32_at(60)?;
        Some(Descriptor {
            group_segment_fixed_size: u32_at(0)?,
            private_segment_fixed_size: u32_at(4)?,
            kernarg_size: u32_at(8)?,
            entry_offset: i64::from_le_bytes(word(bytes, 16)?),
            compute_pgm_rsrc3: u32_at(44)?,
            compute_pgm_rsrc1: Rsrc1(u32_at(48)?),
            compute_pgm_rsrc2: Rsrc2(u32_at(52)?),
            properties: Properties(u16_at(56)?),
            preload: Preload { length: preload & 0x7f, offset: preload >> 7 },
        })
    }

    /// gfx90a, gfx94x and gfx950: the first accumulation register's place in the unified file.
    pub fn accum_offset(&self) -> u32 {
        ((self.compute_pgm_rsrc3 & 0x3f) + 1) * 4
    }

    /// gfx90a, gfx94x and gfx950: the waves of a group run on different compute units' shares.
    pub fn tg_split(&self) -> bool {
        self.compute_pgm_rsrc3 >> 16 & 1 != 0
    }
}

/// Methods that pick `width` bits from `from` on.
macro_rules! fields {
    ($($(#[$doc:meta])* $name:ident: $from:literal, $width:literal;)*) => {
        $($(#[$doc])* pub fn $name(self) -> u32 {
            (u32::from(self.0) >> $from) & ((1 << $width) - 1)
        })*
    };
}

impl Rsrc1 {
    fields! {
        /// Granules of vector registers, less one.
        granulated_vgprs: 0, 6;
        /// Granules of scalar registers (gfx9).
        granulated_sgprs: 6, 4;
        priority: 10, 2;
        /// MODE.FP_ROUND for f32: nearest even, up, down, to zero.
        round_mode_32: 12, 2;
        /// The same for f16 and f64.
        round_mode_16_64: 14, 2;
        /// MODE.FP_DENORM for f32: bit 0 keeps those of sources, bit 1 those of results.
        denorm_mode_32: 16, 2;
        /// The same for f16 and f64.
        denorm_mode_16_64: 18, 2;
        privileged: 20, 1;
        /// MODE.DX10_CLAMP (gfx9 to gfx11): clamping makes NaN zero.
        dx10_clamp: 21, 1;
        debug_mode: 22, 1;
        /// MODE.IEEE (gfx9 to gfx11): signalling NaNs become quiet in min, max and the like.
        ieee_mode: 23, 1;
        bulky: 24, 1;
        cdbg_user: 25, 1;
        /// f16 results of conversions saturate (gfx9 and later).
        fp16_overflow: 26, 1;
        /// Work-group processor mode (gfx10 and later).
        wgp_mode: 29, 1;
        mem_ordered: 30, 1;
        forward_progress: 31, 1;
    }
}

impl Rsrc2 {
    fields! {
        /// A wave has scratch memory.
        private_segment: 0, 1;
        user_sgprs: 1, 5;
        trap_handler: 6, 1;
        workgroup_id_x: 7, 1;
        workgroup_id_y: 8, 1;
        workgroup_id_z: 9, 1;
        workgroup_info: 10, 1;
        /// Work-item ids: 0 for x, 1 for x and y, 2 for all.
        workitem_ids: 11, 2;
        /// Exceptions: address watch, memory violation.
        exception_address_watch: 13, 1;
        exception_memory: 14, 1;
        /// Granules of LDS; the dispatch sets them.
        granulated_lds: 15, 9;
        /// Floating-point exceptions that are enabled, one bit each.
        exceptions: 24, 7;
    }
}

impl Properties {
    fields! {
        private_segment_buffer: 0, 1;
        dispatch_ptr: 1, 1;
        queue_ptr: 2, 1;
        kernarg_segment_ptr: 3, 1;
        dispatch_id: 4, 1;
        flat_scratch_init: 5, 1;
        private_segment_size: 6, 1;
        /// Waves of 32 (gfx10 and later).
        wave32: 10, 1;
        uses_dynamic_stack: 11, 1;
    }
}
