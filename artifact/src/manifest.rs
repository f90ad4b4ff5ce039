//! What an artifact says about itself: a plain serde value, written as JSON in the first section.
//!
//! The compiler writes every stride, offset and count that a loader needs, so that the runtime
//! obeys and never derives.
mod expr;

pub use atomc_dtype::{DType, Fact, Order, STAR, Whole, nth_name};
pub use expr::{Sources, Term, WeightExpr};
use serde::{Deserialize, Serialize};

/// Everything but the code: what shaped the artifact, and for each target the weights it wants and
/// the steps it can run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The atomc version that wrote the file.
    pub producer: String,
    /// Every option and model fact that shaped the artifact, echoed. Its hash is the compile key.
    pub config: serde_json::Value,
    /// What runs of the model: sizes, and tokens that end an answer.
    pub model: Model,
    /// Ranks that share the model out, each of which runs this artifact with its shards of the
    /// weights; 1 for none.
    pub tensor_parallel: usize,
    /// Ranks that hold some of the experts each, whole, and run this artifact as those of
    /// `tensor_parallel` do, which are as many or 1; 1 for none.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub expert_parallel: usize,
    /// At least one; their names differ.
    pub targets: Vec<Target>,
}

fn one() -> usize {
    1
}

fn is_one(count: &usize) -> bool {
    *count == 1
}

impl Manifest {
    /// How many ranks share the model out, in whichever way.
    pub fn ranks(&self) -> usize {
        self.tensor_parallel.max(self.expert_parallel)
    }

    /// The compile key: the hash of the producer and of everything that shaped the artifact.
    pub fn key(&self) -> String {
        let text = format!("{}\n{}", self.producer, self.config);
        blake3::hash(text.as_bytes()).to_hex().to_string()
    }
}

/// Facts of the model that whoever runs it needs, and that no target changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// As `config.json` names it, e.g. `Qwen3ForCausalLM`.
    pub architecture: String,
    /// Layers of the decoder, of all ranks alike.
    pub layers: usize,
    /// Numbers of a token between layers.
    pub hidden: usize,
    /// Token ids are below this, and a row of logits has so many, all ranks together.
    pub vocab: usize,
    /// Longest sequence that the model was made for.
    pub max_positions: usize,
    /// Token ids that end an answer, from `config.json` and `generation_config.json` where it lay
    /// beside it.
    pub stop: Vec<u32>,
    /// The token that a prompt begins with, if the model's files name one.
    pub bos: Option<u32>,
}

/// One buffer of parameters in device memory, and how to make it from a checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Weight {
    /// For messages: the expression in one line, e.g. `concat(a.weight, b.weight)`.
    pub name: String,
    /// Type of the elements in the buffer, whatever the checkpoint has.
    pub dtype: DType,
    /// Logical shape: one axis or more.
    pub shape: Vec<usize>,
    /// How the elements lie in the buffer.
    pub layout: Layout,
    /// Size of the buffer, padding included.
    pub bytes: usize,
    /// How to make the values, in their logical shape.
    pub expr: WeightExpr,
}

impl Weight {
    /// The logical shape as a stack of matrices: how many, their rows, their columns. A vector is
    /// one row.
    pub fn matrices(&self) -> [usize; 3] {
        match self.shape[..] {
            [ref stack @ .., rows, cols] => [stack.iter().product(), rows, cols],
            _ => [1, 1, self.shape.iter().product()],
        }
    }
}

/// Where element (row, column) of a weight lies. Padding is zero. The matrices of a stack lie one
/// after the other, each with its padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Layout {
    /// Row-major; `stride` elements from one row to the next. A vector is one row.
    Rows {
        /// Elements from one row to the next.
        stride: usize,
    },
    /// Panels of `width` rows; inside a panel, groups of `group` consecutive columns; inside a
    /// group, row by row: element (r, c) is at
    /// `((r / width) * (cols / group) + c / group) * width * group + (r % width) * group + c % group`.
    /// `rows` and `cols` are the padded sizes.
    Panels {
        /// Rows of a panel.
        width: usize,
        /// Columns that lie together in a row.
        group: usize,
        /// Rows with padding, a multiple of `width`.
        rows: usize,
        /// Columns with padding, a multiple of `group`.
        cols: usize,
    },
}

/// What a layer keeps between steps. Arguments name states by their place in [`Target::states`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// Number of the layer whose state it is, from 0 on.
    pub layer: usize,
    /// Index into [`Target::groups`].
    pub group: usize,
}

/// States of one kind. Sequences have one table for all states of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StateGroup {
    /// A sequence has a page for every [`DataLayout::block_tokens`] of its tokens.
    Paged(Paged),
    /// A sequence has one slot, whatever its length, which is zero when it begins and which every
    /// step replaces.
    Slots(Slots),
}

/// How far pages lie apart is [`crate::abi::Batch::block_stride`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Paged {
    /// Bytes of a page.
    pub block_bytes: usize,
    /// What a page holds of each token, one behind the other: K and V of attention.
    pub streams: Vec<PageStream>,
    /// Keys that a token sees at most, itself among them; 0 for all. Pages that lie further back
    /// are not read.
    pub window: usize,
}

impl Paged {
    /// The bytes of a page that the weights of tokens are multiplied with. Kernels give tokens that
    /// do not exist yet the weight zero, but zero times what an earlier owner left may be NaN, so a
    /// page that is not full is cleared here first.
    pub fn values(&self) -> std::ops::Range<usize> {
        let values = self.streams.iter().filter_map(|stream| match stream.layout {
            StreamLayout::Tokens => None,
            StreamLayout::Numbers => Some(stream.at),
            StreamLayout::Prefix { of } => Some(self.streams[of].at),
        });
        values.fold(self.block_bytes..0, |all, at| all.start.min(at.start)..all.end.max(at.start + at.bytes))
    }
}

/// A slot of so many bytes for each sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slots {
    /// Bytes of one sequence's slot.
    pub bytes: usize,
}

/// A part of a page: `width` numbers of each of `heads` heads, for each token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PageStream {
    /// `k` or `v`.
    pub name: String,
    /// Where it lies in a page.
    pub at: Extent,
    /// Type of the numbers, to which they are rounded when a token is written.
    pub dtype: DType,
    /// Key/value heads of this rank.
    pub heads: usize,
    /// Numbers of a head, without padding.
    pub width: usize,
    /// How tokens and numbers lie in the part.
    pub layout: StreamLayout,
}

/// How a stream lies in its part of a page: head after head, each a matrix in panels of
/// [`DataLayout::panel`] rows and groups of [`DataLayout::group_bytes`], widths padded to
/// [`DataLayout::row`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum StreamLayout {
    /// A row for each token: what queries are multiplied with.
    Tokens,
    /// A row for each number: what the weights of tokens are multiplied with.
    Numbers,
    /// The first numbers of each row of another stream, whose layout is `tokens`, and nothing
    /// beside it.
    Prefix {
        /// Index of the other stream, which comes earlier.
        of: usize,
    },
}

/// One target: code variants, and what is common to them. Targets differ in how they lay out
/// weights and states, so each has its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// `host`, `gfx942`, …
    pub name: String,
    /// Paddings and sizes that hold for all its kernels.
    pub layout: DataLayout,
    /// By the number that arguments use.
    pub weights: Vec<Weight>,
    /// By the number that arguments use.
    pub states: Vec<State>,
    /// The kinds of state, each with a table of its own in a step.
    pub groups: Vec<StateGroup>,
    /// The buffer between the body and the head of a plan.
    pub hidden: Hidden,
    /// By the kernel number that launches use.
    pub kernels: Vec<KernelDef>,
    /// Best first: the loader takes the first whose features the device has.
    pub variants: Vec<Variant>,
    /// In the order in which a runtime should consider them.
    pub plans: Vec<Plan>,
}

impl Target {
    /// Bytes of workspace that serve all kernels, whatever the variant.
    pub fn workspace(&self) -> usize {
        self.variants.iter().flat_map(|variant| &variant.kernels).map(|kernel| kernel.workspace).max().unwrap_or(0)
    }
}

impl Target {
    /// The group of a state.
    pub fn group(&self, state: usize) -> &StateGroup {
        &self.groups[self.states[state].group]
    }

    /// The type of what pages hold: where there are none a caller keeps keys, of the hidden rows'
    /// type.
    pub fn cache_dtype(&self) -> DType {
        let paged = self.groups.iter().find_map(|group| match group {
            StateGroup::Paged(pages) => pages.streams.first(),
            StateGroup::Slots(_) => None,
        });
        paged.map_or(self.hidden.dtype, |stream| stream.dtype)
    }

    /// The hash of the plan of weights: packed weights fit every target of the same name and key.
    pub fn weights_key(&self) -> String {
        let text = serde_json::to_string(&self.weights).expect("a plan of weights is JSON");
        blake3::hash(text.as_bytes()).to_hex().to_string()
    }
}

/// How kernels lay out what they read and make. Loaders find all that they need beside weights and
/// states; this is for who wants to read results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataLayout {
    /// Rows of activations are padded with zeros to a multiple of this many elements.
    pub row: usize,
    /// Rows that would be a multiple of this many elements apart are `row` elements further apart.
    pub alias: usize,
    /// Results have room for a multiple of this many rows, but for those of plans of kind `decode`.
    pub rows: usize,
    /// Rows in a panel of a page.
    pub panel: usize,
    /// Bytes of a row's group of columns in a panel.
    pub group_bytes: usize,
    /// Tokens in a page.
    pub block_tokens: usize,
    /// Bytes that kernels may read beyond a buffer.
    pub align: usize,
}

/// Rows between the body of a step and its head, one for each token, in a buffer of their own:
/// `stride` elements apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hidden {
    /// Type of the numbers.
    pub dtype: DType,
    /// Numbers of a token, without padding: [`Model::hidden`].
    pub width: usize,
    /// Elements from one token to the next.
    pub stride: usize,
    /// Size of the buffer: room for the tokens of every plan, and for what kernels write beyond
    /// them.
    pub bytes: usize,
}

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
    /// Whether the compiler's tests run such code, on hardware or emulated; otherwise nobody has
    /// seen it run.
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
}

/// Name of the function of [`Variant::prepare`].
pub const PREPARE: &str = "atomc_prepare";
/// Name of the function of [`Variant::pack`].
pub const PACK: &str = "atomc_pack";

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
    /// The seconds that the peaks allow for so many bytes and operations.
    pub fn floor(&self, bytes: u64, flops: u64) -> f64 {
        (bytes as f64 / self.bandwidth).max(flops as f64 / self.flops)
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
    /// Bytes of device memory that all launches share: zero at first, and whoever counts in it
    /// leaves its counters zero; 0 on the host.
    pub workspace: usize,
    /// Bytes of shared memory that a launch gives each work-group, beside what the code declares
    /// for itself; 0 on AMD and the host.
    pub shared: usize,
    /// Whether the kernel may begin while the one before it ends, because it waits for it where it
    /// has to; on NVIDIA only.
    pub overlaps: bool,
    /// Where the kernel's own module lies, if kernels are loaded one by one, as on NVIDIA.
    pub module: Option<Module>,
    /// What the kernel takes of a GPU; none on the host.
    pub resources: Option<Resources>,
}

impl Kernel {
    /// A kernel for GPUs, in work-groups of so many threads, of a schedule that is not named yet.
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
            overlaps: false,
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
}

/// One way to run a step: launches in order over one arena.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Which steps it can run.
    pub kind: PlanKind,
    /// Most tokens in one step.
    pub tokens: usize,
    /// Most rows of logits in one step.
    pub rows: usize,
    /// Size of the buffer in which values live between launches. Nothing in it outlives the step.
    pub arena_bytes: usize,
    /// Who attends. An engine runs those plans of kind `decode` and `whole` that attend themselves.
    pub attention: Attention,
    /// In the order in which they run; each may need all before it.
    pub launches: Vec<Launch>,
    /// Launches before this one make the hidden rows of all tokens; from it on they make logits of
    /// the hidden rows that [`Input::Rows`] names, and read nothing else of the step.
    pub body: usize,
    /// What is the caller's to do between launches, in order.
    pub calls: Vec<Call>,
    /// Rows of all tokens that the body leaves in the arena beside [`Target::hidden`], as whoever
    /// compiled the model asked for: `hidden.2` is what enters layer 2. They stay until something
    /// else runs. The same in every plan of a target that has a head.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hidden: Vec<NamedRows>,
    /// Where the logits are when the last launch has run.
    pub logits: Logits,
    /// Where the likeliest tokens are; without them, whoever wants them looks through the logits.
    pub picks: Option<Picks>,
}

/// What a step must be like for a plan to run it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PlanKind {
    /// Exactly one token of each sequence.
    Decode,
    /// Every mixture.
    Any,
    /// Every mixture, of which nothing but logits is wanted: there are no hidden rows, and all is
    /// body.
    Whole,
}

/// Who computes attention, and so who keeps keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Attention {
    /// The plan's kernels, over [`Target::states`].
    Own,
    /// Whoever runs the plan, with a cache of its own: [`Work::Attention`].
    Caller,
}

/// Work of the caller's, due when all launches before `before` have run; launches from there on
/// need it done.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Call {
    /// Number of the first launch that needs it done.
    pub before: usize,
    /// What is to be done.
    pub work: Work,
}

/// Kinds of work that an artifact leaves to whoever runs it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Work {
    /// Puts other rows in the place of the embeddings of tokens, in a step that has some; else
    /// there is nothing to do. The launches before read the tokens and nothing else of a step, and
    /// no other launch reads tokens.
    Embedding {
        /// The embeddings, of [`Model::hidden`] numbers each.
        value: Place,
    },
    /// Sums a value over all ranks, in place.
    AllReduce {
        /// This rank's part of the sum before, the sum after.
        value: Place,
    },
    /// Puts `k` and `v`, of `heads` heads each, into the caller's cache and attends; `q` and `k`
    /// are normed and rotated, and a head of `q` is as wide as one of `k`. `window` counts the keys
    /// that a token sees, 0 for all. Where the width of `out` is no multiple of
    /// [`DataLayout::row`], its padding up to that must be zero when launches go on, so whoever
    /// runs the plan clears the rows before the caller fills them.
    Attention {
        /// Number of the layer, which names the caller's cache.
        layer: usize,
        /// Key/value heads of this rank.
        heads: usize,
        /// Queries, head by head.
        q: Place,
        /// Keys of the step's tokens, head by head.
        k: Place,
        /// Values of the step's tokens, head by head.
        v: Place,
        /// Where the result goes, head by head.
        out: Place,
        /// Factor of the products of queries and keys.
        scale: f64,
        /// Keys that a token sees at most, itself among them; 0 for all.
        window: usize,
    },
}

/// A value of the arena that callers know by its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedRows {
    /// Differs from the names of the plan's other rows.
    pub name: String,
    /// Where it lies when the body has run.
    pub place: Place,
}

/// Where in the arena a value lies that has a row for each token of the step: `stride` elements
/// from one row to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// Where it begins in the arena, in bytes.
    pub offset: usize,
    /// Numbers of a row, without padding.
    pub width: usize,
    /// Elements from one row to the next.
    pub stride: usize,
    /// Type of the numbers.
    pub dtype: DType,
}

/// f32 logits in the arena: `rows` rows, `stride` elements apart, of all tokens of the vocabulary,
/// or of the part of it that the rank has: in order of the ranks the parts are all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Logits {
    /// Where they begin in the arena, in bytes.
    pub offset: usize,
    /// Logits of a row that this rank has.
    pub width: usize,
    /// Elements from one row to the next.
    pub stride: usize,
}

/// i32 token ids in the arena: the likeliest of each of `rows` rows of logits, the lowest of
/// equals, `stride` elements apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Picks {
    /// Where they begin in the arena, in bytes.
    pub offset: usize,
    /// Elements from one row's token to the next one's.
    pub stride: usize,
}

/// One kernel with its arguments.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Launch {
    /// Index into the target's `kernels` and into each variant's.
    pub kernel: usize,
    /// Of the body's inputs in order, where a cache is two, K and V, and then of its results. New
    /// states have none: they are where the old ones are.
    pub args: Vec<Arg>,
    /// Which segment between attention boundaries this launch belongs to; boundaries have their own
    /// number.
    pub segment: usize,
    /// Module path of the model part, for reports, e.g. `model.layers.0.mlp`.
    pub location: String,
    /// Bytes that must move at the plan's full size, cache reads aside.
    pub bytes: u64,
    /// Operations at the plan's full size; the same holds for them as for `bytes`.
    pub flops: u64,
}

/// What one pointer of a kernel's argument array points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Arg {
    /// A value that lives between launches.
    Arena {
        /// Bytes from the arena's beginning.
        offset: usize,
    },
    /// The beginning of a weight's buffer.
    Weight {
        /// Index into [`Target::weights`].
        index: usize,
    },
    /// A stream of a paged state in its first page, or a state's first slot.
    State {
        /// Index into [`Target::states`].
        state: usize,
        /// Index into [`Paged::streams`]; 0 for a slot.
        stream: usize,
    },
    /// One [`crate::abi::Batch`], with the table of the group that this state is of. All states of
    /// a launch are of that group.
    Batch {
        /// Index into [`Target::states`].
        state: usize,
    },
    /// The rows of [`Target::hidden`].
    Hidden,
    /// What the caller gives for the step.
    Input {
        /// Which of them.
        which: Input,
    },
}

/// What the caller gives for a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Input {
    /// `i32 [tokens]`: token ids.
    Ids,
    /// `i32 [tokens]`: position of each token in its sequence.
    Positions,
    /// `i32 [tokens]`: length of the token's sequence after this step.
    Lengths,
    /// `i32 [rows]`: which tokens want logits.
    Rows,
}
