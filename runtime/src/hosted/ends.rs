//! Both ends of a step by themselves: embeddings of tokens, and logits of hidden rows. They go by a
//! number of rows, and know nothing of sequences.
use super::{Hosted, HostedError, Rows};
use crate::device::{Device, DeviceBuffer, DeviceError, Part, StepSize, Stream};
use atomc_artifact::abi::Step;
use atomc_artifact::manifest::{DType, Logits, Place, Plan, Work};
use std::ops::Range;

impl Hosted {
    /// The tokens that [`Hosted::embed`] looks up, one in a row.
    pub fn embed_input(&self) -> Rows {
        let address = self.session.inputs.addresses().ids;
        Rows { address, rows: self.max_tokens(), width: 1, stride: 1, dtype: DType::I32 }
    }

    /// Looks up the embeddings of the first tokens of [`Hosted::embed_input`], which stay until the
    /// next step, embedding or head.
    ///
    /// # Safety
    /// The tokens are there, for the stream, and are of the vocabulary.
    pub unsafe fn embed(&mut self, tokens: usize, stream: Stream) -> Result<Rows, HostedError> {
        self.check_loaded()?;
        self.step = None;
        let vocab = self.session.artifact.manifest().model.vocab;
        if self.session.inputs.in_place() {
            let known = |&id: &i32| usize::try_from(id).is_ok_and(|id| id < vocab);
            let stranger =
                self.session.inputs.take_ids(tokens.min(self.max_tokens())).iter().find(|id| !known(id)).copied();
            if let Some(id) = stranger {
                let detail = format!("{id}, but the vocabulary ends at {}", vocab - 1);
                return Err(HostedError::Field { field: "ids", detail });
            }
        }
        let found = smallest(self.plans(), |plan| plan.tokens, tokens);
        let (index, plan) = found.ok_or_else(|| HostedError::Tokens { tokens, max: self.max_tokens() })?;
        let (place, launches) = embedding(plan)?;
        let part = self.rows_alone(index, 0..launches, tokens, stream);
        // SAFETY: the launches read the tokens, which are there, and nothing else of a step.
        unsafe { self.session.device.launch(part) }?;
        Ok(self.rows_at(place, tokens))
    }

    /// Launches that go by their number of rows and not by a step.
    fn rows_alone(&self, plan: usize, launches: Range<usize>, rows: usize, stream: Stream) -> Part {
        let size = StepSize { step: rows_alone(rows), tiles: 0 };
        let steps = self.steps.as_ref().map_or(std::ptr::null(), |steps| steps.address().cast_const());
        Part { plan, launches, size, step: steps.wrapping_add(rows * size_of::<Step>()), stream }
    }

    /// Makes logits of the first rows of [`Hosted::head_input`], which stay until the next step or
    /// head. Of ranks that share the model out each may have a part of the vocabulary.
    ///
    /// # Safety
    /// The rows are there, for the stream.
    pub unsafe fn head(&mut self, rows: usize, stream: Stream) -> Result<Rows, HostedError> {
        // SAFETY: passed on to the caller.
        unsafe { self.logits(false, rows, stream) }
    }

    /// Makes logits of rows that steps of the draft have left, over its vocabulary.
    ///
    /// # Safety
    /// As for [`Hosted::head`].
    pub unsafe fn draft_head(&mut self, rows: usize, stream: Stream) -> Result<Rows, HostedError> {
        // SAFETY: passed on to the caller.
        unsafe { self.logits(true, rows, stream) }
    }

    /// # Safety
    /// As for [`Hosted::head`].
    unsafe fn logits(&mut self, draft: bool, rows: usize, stream: Stream) -> Result<Rows, HostedError> {
        self.check_loaded()?;
        self.step = None;
        let plans = self.session.plans_of(draft);
        let found = smallest(&self.session.plans[plans.clone()], |plan| plan.rows, rows);
        let (index, plan) = found.ok_or_else(|| HostedError::Rows { rows, max: self.max_rows() })?;
        let index = plans.start + index;
        if self.session.inputs.in_place() {
            self.session.inputs.clear();
            self.session.inputs.want_first(rows);
        }
        let launches = plan.head();
        let part = self.rows_alone(index, launches, rows, stream);
        let Logits { offset, width, stride } = plan.logits;
        // SAFETY: heads read the rows, which are there, and nothing of a step.
        unsafe { self.session.device.launch(part) }?;
        let address = self.session.memory.arena.address().wrapping_add(offset);
        Ok(Rows { address, rows, width, stride, dtype: DType::F32 })
    }
}

/// The smallest plan that has room for `wanted`.
fn smallest(plans: &[Plan], room: fn(&Plan) -> usize, wanted: usize) -> Option<(usize, &Plan)> {
    plans.iter().enumerate().filter(|(_, plan)| room(plan) >= wanted).min_by_key(|(_, plan)| room(plan))
}

/// The step of an embedding or a head of `rows` rows.
fn rows_alone(rows: usize) -> Step {
    Step { tokens: rows as i64, rows: rows as i64 }
}

/// Such steps in the device's memory, so that their launches can be captured.
pub(super) fn steps(device: &mut dyn Device, most: usize) -> Result<DeviceBuffer, DeviceError> {
    let bytes = |rows| {
        let Step { tokens, rows } = rows_alone(rows);
        [tokens.to_le_bytes(), rows.to_le_bytes()].concat()
    };
    let steps: Vec<u8> = (0..=most).flat_map(bytes).collect();
    let mut memory = device.allocate(steps.len())?;
    memory.upload(0, &steps)?;
    Ok(memory)
}

/// The place of the tokens' embeddings in a plan, and the number of launches that make them.
pub(super) fn embedding(plan: &Plan) -> Result<(Place, usize), HostedError> {
    let found = plan.calls.iter().find_map(|call| match call.work {
        Work::Embedding { value } => Some((value, call.before)),
        _ => None,
    });
    found.ok_or(HostedError::NoEmbedding)
}
