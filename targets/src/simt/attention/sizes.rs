//! Sizes of attention before there is a kernel, and the registers that it will take.
use atomc_ir::arch::GpuArch;
use atomc_ir::{CacheType, Diagnostic, Graph, Op};

use crate::KernelSpec;
use crate::row::unsupported;
use crate::schedule::WhyNot;
use crate::simt::attention::kv_dequant::Stored;
use crate::tuning::Kind;

/// Sizes of the attention of a body, before there is a kernel.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub heads: usize,
    pub cache: CacheType,
    pub stored: Stored,
    /// The most keys that a token attends to, if these are gathered by their positions.
    pub listed: Option<usize>,
}

impl Sizes {
    pub fn of(body: &Graph) -> Result<Sizes, Diagnostic> {
        let node = body.ids().find(|&id| body.op(id).attends());
        let made = || {
            let operands = body.operands(node?);
            let query = body.ty(operands[0]).as_tensor()?;
            let listed = match body.op(node?) {
                Op::AttendListed { .. } => Some(body.ty(operands[3]).as_tensor()?.choices()),
                Op::AttendPart { window: 0, .. } => match operands.get(3) {
                    Some(&list) => Some(body.ty(list).as_tensor()?.choices()),
                    None => Some(usize::MAX),
                },
                Op::AttendPart { window, .. } => Some(*window),
                _ => None,
            };
            Some((query.dtype, query.shape.0.get(1)?.fixed()?, body.ty(operands[1]).as_cache()?, listed))
        };
        let (query, heads, cache, listed) =
            made().ok_or_else(|| unsupported("an attention family without attention"))?;
        Ok(Sizes { heads, cache, stored: Stored::new(cache, query)?, listed })
    }

    /// Whether values are as wide as keys, and stored separately.
    pub fn are_even(&self) -> bool {
        !self.cache.is_prefix && self.cache.head_dim == self.cache.value_dim
    }

    /// Checks that they are, for schedules that take no others.
    pub fn even(&self) -> Result<(), WhyNot> {
        WhyNot::unless(self.are_even(), || format!("{}: values must be as wide as keys, and beside them", self.cache))
    }

    /// Query heads that share a head of the cache.
    pub fn group(&self) -> usize {
        self.heads / self.cache.heads
    }

    /// Registers that a wave takes.
    pub fn registers(&self, arch: GpuArch) -> Registers {
        let simt = arch.simt;
        let (dim, span) = (arch.memory.padded(self.cache.head_dim), simt.matrix.span(simt.wave));
        let value_dim = arch.memory.padded(self.cache.value_dim);
        let size = self.stored.dtype.size();
        let query = dim / span * simt.matrix.depth * size / 4;
        let values = value_dim / 16 * simt.matrix.rows() * simt.matrix.depth * size / 4;
        let (results, held) = (value_dim / 16 * simt.matrix.results, span / 16 * simt.matrix.results);
        // Two waves fit a SIMD.
        let most = simt.unit.vgprs_wave.min(simt.unit.vgprs / 2);
        let converts = !simt.products.iter().any(|p| p.dtype == self.stored.dtype);
        Registers { query, keys: span / 16 * simt.matrix.rows() * query, values, results, scores: held, most, converts }
    }
}

/// Checks that a query sees all keys before it, or those that are gathered for its token, and
/// nothing else: for schedules that know neither windows nor sinks, nor lists of blocks.
pub fn sees_all(body: &Graph) -> Result<(), WhyNot> {
    let plain = |id| match body.op(id) {
        Op::Attention { window, .. } => *window == 0 && body.operands(id).len() == 3,
        Op::AttendListed { block, .. } => block.is_none(),
        Op::AttendUpTo { .. } => false,
        _ => true,
    };
    WhyNot::unless(body.ids().all(plain), || "a window, sinks, or lists of blocks".into())
}

/// Checks that a query sees nothing that comes after its token.
pub fn sees_what_was(body: &Graph) -> Result<(), WhyNot> {
    let whole = body.ids().any(|id| matches!(body.op(id), Op::AttendUpTo { .. }));
    WhyNot::unless(!whole, || "queries see what comes after their token".into())
}

/// Registers of a query, of a step's keys and values, of results and of a step's scores, the number
/// that there is, and whether products convert their operands.
#[derive(Clone, Copy, Debug)]
pub struct Registers {
    pub query: usize,
    pub keys: usize,
    pub values: usize,
    pub results: usize,
    pub scores: usize,
    pub most: usize,
    pub converts: bool,
}

/// The facts that the best numbers of a schedule depend on.
pub fn tuned_by(spec: &KernelSpec) -> Result<(Kind, Vec<usize>), Diagnostic> {
    let s = Sizes::of(spec.body)?;
    let kind = Kind::Attention { dtype: s.cache.dtype.name(), group: s.group(), head_dim: s.cache.head_dim };
    Ok((kind, vec![s.cache.heads, spec.tokens]))
}
