//! The kernels of a target, each once: layers of one shape share theirs, and so do buckets where
//! their size does not matter.
use std::collections::HashMap;

use atomc_artifact::check::MAX_NAME;
use atomc_artifact::manifest::KernelDef;
use atomc_ir::{Arch, Diagnostic, Dim, Family, Graph, NodeId, Op};
use atomc_passes::{Bucket, Cx};
use atomc_targets::KernelSpec;

/// The kernels, in the order of their first use.
pub struct Kernels {
    /// Whether rows must not change each other's results.
    invariant: bool,
    all: Vec<Entry>,
    known: HashMap<Key, usize>,
}

/// The properties in which all uses of one kernel agree.
#[derive(PartialEq, Eq, Hash)]
struct Key {
    family: Family,
    /// Rows, and tokens of a sequence, if the kernel is made for given numbers of them.
    rows: Option<usize>,
    each: Option<usize>,
    /// Whether it is for steps of few tokens alone.
    is_few: bool,
    body: String,
}

struct Entry {
    symbol: String,
    family: Family,
    body: Graph,
    tokens: usize,
    each: Option<usize>,
    invariant: bool,
    /// Parts of the symbol other than number and schedule: rows, where kernels are for one bucket,
    /// and the first place of use.
    rows: String,
    place: String,
}

impl Kernels {
    /// None yet.
    pub fn new(invariant: bool) -> Kernels {
        Kernels { invariant, all: vec![], known: HashMap::new() }
    }

    /// The number of kernels.
    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// The number of a kernel node's kernel. Its symbol has the schedule of the context's arch, the
    /// first of the target.
    pub fn number(&mut self, graph: &Graph, id: NodeId, cx: &Cx) -> Result<usize, Diagnostic> {
        let Op::Kernel { family, body } = graph.op(id) else { unreachable!("plans are made of kernels") };
        let tokens = room(graph, id, cx.bucket);
        let own = match cx.invariant {
            false if atomc_targets::few_apart(*family, cx.arch) => cx.bucket.each(),
            _ => None,
        };
        let verified = atomc_targets::verifies_apart(*family, cx.arch).then(|| cx.verified()).flatten();
        let (each, one) = (own.or(verified), atomc_targets::is_for_one_bucket(*family, cx.arch) || verified.is_some());
        let rows = one.then_some(tokens);
        // Products of any number of rows are cut otherwise for few, with sums in the same order.
        let is_cut = || cx.arch.isa().is_some() && body.ids().any(|id| body.op(id).is_contraction());
        let is_few = cx.invariant && cx.bucket.is_few() && is_cut();
        let next = self.all.len();
        let key = Key { family: *family, rows, each, is_few, body: body.print() };
        let number = *self.known.entry(key).or_insert(next);
        if number == next {
            let (rows, place) = (rows.map(|n| format!("_x{n}")).unwrap_or_default(), place(graph.location(id)));
            let (body, invariant) = ((**body).clone(), self.invariant);
            let entry = Entry { symbol: String::new(), family: *family, body, tokens, each, invariant, rows, place };
            self.all.push(entry);
        }
        let entry = &mut self.all[number];
        entry.tokens = entry.tokens.max(tokens);
        entry.symbol = entry.symbol(number, cx.arch).map_err(|e| e.at(graph.location(id)))?;
        Ok(number)
    }

    /// The kernels to emit, by number.
    pub fn specs(&self) -> Vec<KernelSpec<'_>> {
        self.all.iter().map(Entry::spec).collect()
    }

    /// The manifest's entries for the kernels, the same for all variants.
    pub fn defs(&self) -> Vec<KernelDef> {
        let def = |entry: &Entry| KernelDef {
            symbol: entry.symbol.clone(),
            family: entry.family.name().into(),
            body: entry.body.print(),
            tokens: entry.tokens,
            each: entry.each,
        };
        self.all.iter().map(def).collect()
    }
}

impl Entry {
    fn spec(&self) -> KernelSpec<'_> {
        let Entry { family, tokens, each, invariant, .. } = *self;
        KernelSpec { symbol: self.symbol.clone(), family, body: &self.body, tokens, each, choice: None, invariant }
    }

    /// The text in a profiler: number, schedule, rows and place.
    fn symbol(&self, number: usize, arch: &Arch) -> Result<String, Diagnostic> {
        let (schedule, _) = atomc_targets::select(&self.spec(), arch)?;
        Ok(symbol(number, &format!("{}{}_{}", schedule.name, self.rows, self.place)))
    }
}

/// The symbol of the kernel of this number. The number alone makes it unique: the rest, in ASCII,
/// is cut to the length of a name.
fn symbol(number: usize, says: &str) -> String {
    let mut name = format!("k{number}_{says}");
    name.truncate(MAX_NAME);
    name.trim_end_matches('_').to_owned()
}

/// Most rows of a step that a kernel in the bucket has to do with: those that are wanted, if its
/// results have a row for each of them.
fn room(graph: &Graph, id: NodeId, bucket: Bucket) -> usize {
    let lead = graph.types(id).first().and_then(|ty| ty.as_tensor()?.shape.0.first().copied());
    lead.map_or(bucket.tokens(), |dim| match dim {
        Dim::Rows => bucket.rows(),
        Dim::Tokens | Dim::Choices(_) | Dim::Fixed(_) => bucket.tokens(),
    })
}

/// The place of a kernel's first use, without the number of its layer, as a part of a symbol.
fn place(location: &str) -> String {
    let counted = |part: &&str| !part.is_empty() && part.parse::<usize>().is_err();
    let parts: Vec<&str> = location.split('.').filter(counted).filter(|p| !["model", "layers"].contains(p)).collect();
    parts.join("_").chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_are_names() {
        let long = place("model.language_model.layers.3.mlp.experts.*.down_proj");
        let says = format!("gemm_warpgroup_grouped_{long}");
        let name = symbol(60, &says);
        assert_eq!(name, "k60_gemm_warpgroup_grouped_language_model_mlp_experts___down_pro");
        assert_eq!(name.len(), MAX_NAME);
        assert_eq!(symbol(7, "rowwise_"), "k7_rowwise");
    }
}
