//! Rows that a model leaves for its draft, and the draft for itself. They follow the hidden rows in
//! one buffer, so that a step of the draft finds each of them by a number.
use atomc_artifact::manifest::{Draft, DraftRows, Hidden, Renamed};
use atomc_config::Fusion;
use atomc_ir::results::DRAFTED;
use atomc_ir::{Arch, Diagnostic, Graph, TensorType};
use atomc_passes::{Bucket, Cx, result_bytes};

use super::{Model, Options};

/// Rows that an engine keeps between steps: the last one of each of this many sequences.
const KEEPS: usize = 64;

/// The places of rows for a draft, in bytes from the buffer's beginning.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    /// Bytes of the hidden rows. Row 0 follows them.
    hidden: usize,
    stride: usize,
    /// Rows that the draft's own plans leave, and that the model's do, with all that their kernels
    /// may write.
    own: usize,
    model: usize,
}

impl Places {
    /// None without a draft.
    pub fn of(
        models: &[Model],
        buckets: &[Bucket],
        (arch, options): (&Arch, &Options),
    ) -> Result<Option<Places>, Diagnostic> {
        let Some(draft) = models.iter().find(|model| model.is_draft) else { return Ok(None) };
        let model = models.iter().find(|model| !model.is_draft).expect("a draft is of a model");
        let (own, rows) = (drafted(&draft.graph)?, drafted(&model.graph)?);
        let stride = rows.dtype.bytes(arch.memory.result_stride(rows));
        let room = |ty: &TensorType| {
            let bytes = |&bucket: &Bucket| result_bytes(ty, &Cx { arch, bucket, invariant: options.invariant });
            buckets.iter().map(bytes).max().unwrap_or(0).next_multiple_of(stride)
        };
        // The hidden rows are of the same type.
        Ok(Some(Places { hidden: room(rows), stride, own: room(own), model: room(rows) }))
    }

    /// Where row 0 begins.
    pub fn rows(self) -> usize {
        self.hidden
    }

    /// Where plans leave their rows.
    pub fn left_by(self, draft: bool) -> usize {
        if draft { self.hidden } else { self.hidden + self.own }
    }
}

/// The type of the rows that a step leaves for a draft.
fn drafted(graph: &Graph) -> Result<&TensorType, Diagnostic> {
    let found = graph.result(DRAFTED).and_then(|v| graph.ty(v).as_tensor());
    found.ok_or_else(|| Diagnostic::new("driver::draft", format!("a step without a result `{DRAFTED}`")))
}

/// The buffer of the hidden rows with those for a draft, and its entry in the manifest.
pub fn rows(hidden: Hidden, places: Option<Places>, options: &Options) -> Result<(Hidden, Option<Draft>), Diagnostic> {
    let (Some(places), Some(draft)) = (places, &options.draft) else { return Ok((hidden, None)) };
    if hidden.bytes > places.hidden {
        let message = format!("{} bytes of hidden rows, where {} were expected", hidden.bytes, places.hidden);
        return Err(Diagnostic::new("driver::draft", message));
    }
    let Places { hidden: offset, stride, own, model } = places;
    let kept = (own + model) / stride;
    let rows = DraftRows { offset, stride, model: own / stride, kept, keeps: KEEPS };
    let draft = Draft { rows, vocab: draft.model.vocab, map: draft.map.clone(), renamed: own_names(draft) };
    // Kernels may read a little past the last row.
    let bytes = offset + (kept + KEEPS) * stride + SLACK;
    Ok((Hidden { bytes, ..hidden }, Some(draft)))
}

/// How names begin in a checkpoint that has the draft alone.
fn own_names(draft: &atomc_config::Draft) -> Option<Vec<Renamed>> {
    let renamed = draft.model.spellings.iter().map(|&(from, to)| Renamed { from: from.into(), to: to.into() });
    matches!(draft.fusion, Fusion::Eagle3(_)).then(|| renamed.collect())
}

/// Bytes that kernels may read past a buffer's last row.
const SLACK: usize = 256;
