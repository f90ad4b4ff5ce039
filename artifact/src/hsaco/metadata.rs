//! The metadata note, code object version 4 and later. Names are those of LLVM's guide.
use serde::Deserialize;

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Metadata {
    /// `amdgcn-amd-amdhsa--gfx942:xnack-`
    /// Hand-written files may lack it.
    #[serde(rename = "amdhsa.target", default)]
    pub target: Option<String>,
    #[serde(rename = "amdhsa.kernels", default)]
    pub kernels: Vec<KernelMetadata>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct KernelMetadata {
    #[serde(rename = ".name")]
    pub name: String,
    /// Symbol of the descriptor.
    #[serde(rename = ".symbol")]
    pub symbol: String,
    #[serde(rename = ".args", default)]
    pub args: Vec<Arg>,
    #[serde(rename = ".kernarg_segment_size")]
    pub kernarg_segment_size: u32,
    #[serde(rename = ".kernarg_segment_align")]
    pub kernarg_segment_align: u32,
    #[serde(rename = ".group_segment_fixed_size")]
    pub group_segment_fixed_size: u32,
    #[serde(rename = ".private_segment_fixed_size")]
    pub private_segment_fixed_size: u32,
    #[serde(rename = ".wavefront_size")]
    pub wavefront_size: u32,
    #[serde(rename = ".max_flat_workgroup_size")]
    pub max_flat_workgroup_size: u32,
    /// The size that the function was compiled for, if it was.
    #[serde(rename = ".reqd_workgroup_size", default)]
    pub reqd_workgroup_size: Option<[u32; 3]>,
    #[serde(rename = ".sgpr_count")]
    pub sgpr_count: u32,
    /// All vector registers: on chips with one file for both kinds, accumulation registers
    /// included.
    #[serde(rename = ".vgpr_count")]
    pub vgpr_count: u32,
    #[serde(rename = ".agpr_count", default)]
    pub agpr_count: u32,
    #[serde(rename = ".sgpr_spill_count", default)]
    pub sgpr_spill_count: u32,
    #[serde(rename = ".vgpr_spill_count", default)]
    pub vgpr_spill_count: u32,
    #[serde(rename = ".uses_dynamic_stack", default)]
    pub uses_dynamic_stack: bool,
    /// 1 where work-groups run in work-group processor mode (gfx10 and later).
    #[serde(rename = ".workgroup_processor_mode", default)]
    pub workgroup_processor_mode: u32,
}

/// One argument in the kernarg segment.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Arg {
    #[serde(rename = ".offset")]
    pub offset: u32,
    #[serde(rename = ".size")]
    pub size: u32,
    #[serde(rename = ".value_kind")]
    pub value_kind: ValueKind,
    #[serde(rename = ".name", default)]
    pub name: Option<String>,
}

/// The contents of an argument. The kinds `Hidden…` are not parameters of the source: the
/// dispatcher fills them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ValueKind {
    ByValue,
    GlobalBuffer,
    DynamicSharedPointer,
    Sampler,
    Image,
    Pipe,
    Queue,
    HiddenGlobalOffsetX,
    HiddenGlobalOffsetY,
    HiddenGlobalOffsetZ,
    HiddenNone,
    HiddenPrintfBuffer,
    HiddenHostcallBuffer,
    HiddenDefaultQueue,
    HiddenCompletionAction,
    HiddenMultigridSyncArg,
    HiddenBlockCountX,
    HiddenBlockCountY,
    HiddenBlockCountZ,
    HiddenGroupSizeX,
    HiddenGroupSizeY,
    HiddenGroupSizeZ,
    HiddenRemainderX,
    HiddenRemainderY,
    HiddenRemainderZ,
    HiddenGridDims,
    HiddenHeapV1,
    HiddenDynamicLdsSize,
    HiddenPrivateBase,
    HiddenSharedBase,
    HiddenQueuePtr,
    /// A kind that this version does not know.
    #[serde(other)]
    Unknown,
}

impl ValueKind {
    /// Whether the argument is a parameter of the source.
    pub fn explicit(self) -> bool {
        use ValueKind::*;
        matches!(self, ByValue | GlobalBuffer | DynamicSharedPointer | Sampler | Image | Pipe | Queue)
    }
}

impl KernelMetadata {
    /// The parameters of the source, without the hidden ones.
    pub fn explicit_args(&self) -> impl Iterator<Item = &Arg> {
        self.args.iter().filter(|a| a.value_kind.explicit())
    }
}
