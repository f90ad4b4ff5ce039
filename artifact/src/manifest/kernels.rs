//! Kernels: what each computes, and how the variants of a target run it.
use serde::{Deserialize, Serialize};

use super::{is_one, one};

/// What a kernel computes, the same in every variant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelDef {
    /// Name of the function in the code objects, for profilers with the schedule of the first
    /// variant in it.
    pub symbol: String,
    /// Schedule family: `rows`, `matvec`, …
    pub family: String,
    /// The body in the text form of the graph IR, which says what the function must compute.
    pub body: String,
    /// Most tokens of a step that the kernel is for, or rows of logits where it makes a row for
    /// each of those.
    pub tokens: usize,
    /// Most tokens of a sequence that it is for, if it is not for any number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub each: Option<usize>,
}

/// The same kernels for one level of an instruction set: one code object.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Variant {
    /// `x86-64-v4-amx`, `x86-64-v3`, `gfx942`, …
    pub name: String,
    /// What the device must have, by the names that the device reports, e.g. `avx512f`.
    pub features: Vec<String>,
    /// What times on a GPU are compared with; none on the host.
    pub chip: Option<Chip>,
    /// Whether the compiler's tests run such code, on hardware or emulated; otherwise it was never
    /// run.
    pub executed: bool,
    /// Index of the section that holds the code: one code object, or the modules of the kernels.
    pub section: usize,
    /// By the kernel number that launches use.
    pub kernels: Vec<Kernel>,
    /// The kernel [`PREPARE`], which makes a step's inputs of a framework's tensors on the device;
    /// none on the host.
    pub prepare: Option<Kernel>,
    /// The kernel [`PACK`], which makes weights of tensors on the device; none on the host.
    pub pack: Option<Kernel>,
    /// The kernel [`EXCHANGE`], by which ranks exchange rows; none on the host, and none without
    /// ranks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exchange: Option<Kernel>,
}

/// Name of the function of [`Variant::prepare`].
pub const PREPARE: &str = "atomc_prepare";

/// Name of the function of [`Variant::pack`].
pub const PACK: &str = "atomc_pack";

/// Name of the function of [`Variant::exchange`].
pub const EXCHANGE: &str = "atomc_exchange";

/// The largest product with an architecture, by its data sheet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Chip {
    /// Name of the product, for reports.
    pub name: String,
    /// Bytes of memory a second.
    pub bandwidth: f64,
    /// Operations a second of dense products of 16-bit floats; an addition is one, a product
    /// another.
    pub flops: f64,
}

impl Chip {
    /// The least seconds for these bytes and operations of a kernel with this [`Kernel::rate`], by
    /// the peaks.
    pub fn floor(&self, bytes: u64, flops: u64, rate: u32) -> f64 {
        (bytes as f64 / self.bandwidth).max(flops as f64 / (self.flops * f64::from(rate)))
    }
}

/// How a variant runs a kernel: what a loader must know to launch it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kernel {
    /// The schedule by which the compiler made it, e.g. `gemv_bulk`.
    pub schedule: String,
    /// Parts of a launch: work-groups of a GPU, or what the host's threads take one by one, in any
    /// order.
    pub tasks: Tasks,
    /// Bytes of scratch that each thread of the host needs, 64-byte aligned; 0 on GPUs.
    pub scratch: usize,
    /// Work-items of a work-group, of which there is one for each task; 0 on the host.
    pub threads: usize,
    /// Bytes of device memory that all launches share: zero at first, and a kernel that counts in
    /// it leaves its counters zero; 0 on the host.
    pub workspace: usize,
    /// Bytes of shared memory that a launch gives each work-group, in addition to those that the
    /// code declares itself; 0 on AMD and the host.
    pub shared: usize,
    /// Operations on what the kernel multiplies in the time of one on 16-bit floats, by the chip's
    /// data sheet: more than one where quantised operands are multiplied as they lie.
    pub rate: u32,
    /// Whether the kernel may begin while the one before it ends, because it waits for it where it
    /// has to; on NVIDIA only.
    pub overlaps: bool,
    /// Work-groups that wait for each other: the device must have as many units, or they would wait
    /// for ever; 1 if none waits.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub together: usize,
    /// Where the kernel's own module lies, if kernels are loaded one by one, as on NVIDIA.
    pub module: Option<Module>,
    /// What the kernel takes of a GPU; none on the host.
    pub resources: Option<Resources>,
}

impl Kernel {
    /// A kernel for GPUs, in work-groups of this many threads, of a schedule without a name yet.
    pub fn simt(tasks: Tasks, threads: usize) -> Kernel {
        Kernel { threads, ..Kernel::host(tasks, 0) }
    }

    /// A kernel of the host, likewise.
    pub fn host(tasks: Tasks, scratch: usize) -> Kernel {
        Kernel {
            schedule: String::new(),
            tasks,
            scratch,
            threads: 0,
            workspace: 0,
            shared: 0,
            rate: 1,
            overlaps: false,
            together: 1,
            module: None,
            resources: None,
        }
    }
}

/// A kernel's code for NVIDIA, in the section of its variant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Module {
    /// Text, ended by a zero, which a driver translates for any chip that can run the variant.
    pub ptx: Extent,
    /// Code of the chip that the variant is named after, if an assembler was at hand when the
    /// artifact was made.
    pub cubin: Option<Extent>,
}

/// A part of a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Extent {
    /// Offset in bytes from the beginning of what it is a part of.
    pub start: usize,
    /// Length in bytes.
    pub bytes: usize,
}

impl Extent {
    /// The part itself.
    pub fn of(self, section: &[u8]) -> &[u8] {
        &section[self.start..][..self.bytes]
    }
}

/// What a kernel takes of a GPU, as its code object states or as its instructions show.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resources {
    /// Vector registers of a work-item.
    pub vgprs: usize,
    /// Accumulation registers of a work-item, on AMD's chips for servers.
    pub agprs: usize,
    /// Scalar registers of a wave; 0 on NVIDIA.
    pub sgprs: usize,
    /// Bytes of static LDS of a work-group.
    pub lds: usize,
    /// Bytes of scratch memory of a work-item: anything but 0 is slow.
    pub scratch: usize,
    /// Vector registers that did not fit and live in scratch memory.
    pub vgpr_spills: usize,
    /// Scalar registers that did not fit and live in vector registers.
    pub sgpr_spills: usize,
    /// Waves that a SIMD can hold at once, less than one where a work-group's LDS leaves SIMDs
    /// idle.
    pub occupancy: f32,
    /// Size of the function's machine code.
    pub code_bytes: usize,
    /// Instructions of the whole function, loops counted once.
    pub instructions: usize,
    /// Matrix instructions among them.
    pub matrix: usize,
    /// Innermost loops, in the order of their addresses.
    pub loops: Vec<LoopReport>,
}

/// Instructions in the body of a loop, by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoopReport {
    /// All of the loop's instructions.
    pub instructions: usize,
    /// Products of matrices: MFMA, WMMA, `mma`.
    pub matrix: usize,
    /// Vector instructions that compute, without `matrix`.
    pub valu: usize,
    /// Scalar instructions that compute, load or branch.
    pub salu: usize,
    /// Reads and writes of LDS.
    pub lds: usize,
    /// Loads from global memory, of any size.
    pub loads: usize,
    /// Loads from global memory of 16 bytes a work-item.
    pub loads_x4: usize,
    /// Waits for memory of any kind.
    pub waits: usize,
    /// Waits among them that leave the latest loads from global memory in flight.
    pub partial_waits: usize,
    /// Vector and matrix instructions between a global load and the first wait for it, around the
    /// loop's back edge if need be: the mean over the loads.
    pub overlap: usize,
    /// Barriers of the work-group.
    pub barriers: usize,
}

/// How many independent tasks a launch has. Counts rounded up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Tasks {
    /// The same for every step.
    Fixed(usize),
    /// `ceil(tokens / per) * times`
    Tokens {
        /// Tokens of one task.
        per: usize,
        /// Tasks for each group of tokens.
        times: usize,
    },
    /// `ceil(rows / per) * times`
    Rows {
        /// Rows of logits of one task.
        per: usize,
        /// Tasks for each group of rows.
        times: usize,
    },
    /// `ceil(tokens * choices / per) * times`
    Choices {
        /// Rows of each token.
        choices: usize,
        /// Rows of one task.
        per: usize,
        /// Tasks for each group of rows.
        times: usize,
    },
    /// Tasks for each block of rows that have one expert: as many blocks as `tokens * choices` rows
    /// can fill if each expert, or having none, leaves one that is not full.
    Blocks {
        /// Rows of each token.
        choices: usize,
        /// How many experts there are.
        experts: usize,
        /// Rows of a block.
        tile: usize,
        /// Tasks for each block.
        times: usize,
    },
    /// `tiles * times`: see [`crate::abi::Batch::tiles`].
    Tiles {
        /// Tasks for each tile.
        times: usize,
    },
    /// Parts of the result that several tasks may share.
    Shared {
        /// The parts in steps of at most `limit` tokens.
        few: Parts,
        /// The most tokens of such a step.
        limit: usize,
        /// Those of all others.
        many: Parts,
    },
}

/// `ceil(tokens / per) * times` parts of a result, each with as many tasks as [`Parts::sharing`]
/// says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parts {
    /// Tokens of one part.
    pub per: usize,
    /// Parts for each group of tokens.
    pub times: usize,
    /// Most tasks that share a part, a power of two.
    pub splits: usize,
    /// Most tasks of a launch with shared parts.
    pub most: usize,
}

impl Tasks {
    /// The parts of a step that tasks may share.
    pub fn parts(self, tokens: usize) -> Option<Parts> {
        match self {
            Tasks::Shared { few, limit, many } => Some(if tokens <= limit { few } else { many }),
            _ => None,
        }
    }
}

impl Parts {
    /// The number of tasks that share each of `parts` parts: the largest power of two, up to
    /// `splits`, with which a launch has at most `most` tasks; otherwise one.
    pub fn sharing(&self, parts: usize) -> usize {
        let powers = (0..usize::BITS).map(|shift| 1 << shift).take_while(|power: &usize| *power <= self.splits);
        powers.filter(|power| parts.saturating_mul(*power) <= self.most).last().unwrap_or(1)
    }

    /// Parts of a step, and the tasks of each.
    pub fn of_step(&self, tokens: usize) -> [usize; 2] {
        let parts = tokens.div_ceil(self.per).saturating_mul(self.times);
        [parts, self.sharing(parts)]
    }

    /// Tasks of a step.
    pub fn tasks(&self, tokens: usize) -> usize {
        let [parts, each] = self.of_step(tokens);
        parts.saturating_mul(each)
    }
}
