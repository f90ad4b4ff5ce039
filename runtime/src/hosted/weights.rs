//! Weights of an artifact in a framework: all at once, or tensor by tensor as they come.
use super::{Hosted, HostedError};
use crate::checkpoint::{CheckpointError, Source};
use crate::device::{DeviceBuffer, DeviceError, Stream};
use crate::error::Error;
use crate::weights::packed::Packed;
use crate::weights::{self, Given, Loading, Numbers, Sink, StoredScales};
use atomc_artifact::manifest::{Target, TensorNames};

impl Hosted {
    /// Begins to load weights, tensor by tensor, also over ones that are loaded: they keep their
    /// addresses. Until the load is finished there are none. This, like every change of weights,
    /// ends the current step.
    pub fn begin_loading(&mut self) {
        (self.session.loaded, self.unloaded, self.mixed, self.step) = (false, false, false, None);
        self.loading = Some(self.new_loading());
    }

    fn new_loading(&self) -> Loading {
        Loading::new(&self.target().weights, &self.session.artifact.manifest().tensors, self.session.rank)
    }

    /// Begins to take any of the tensors, and continues earlier updates: a weight changes when the
    /// last of its tensors has come. If no weights were ever loaded, it is an ordinary load.
    pub fn begin_update(&mut self) {
        if !self.session.loaded {
            self.step = None;
        }
        if self.loading.is_none() {
            self.loading = Some(self.new_loading());
        }
    }

    /// Ends an update. Where weights were unloaded there are some again with the update that brings
    /// the last tensor; until then updates gather them, and so do those of a first load where the
    /// draft's weights lie in a checkpoint of their own. What is made of no tensor is made anew, as
    /// its memory may have been taken away with the weights'. If it fails the weights are
    /// forgotten.
    pub fn end_update(&mut self) -> Result<(), Error> {
        let Some(loading) = &mut self.loading else {
            return Err(HostedError::Loading("none is under way; begin one").into());
        };
        if self.session.loaded {
            let done = loading.constants(self.session.sink());
            return done.and_then(|()| loading.check_heads()).inspect_err(|_| self.forget_mixed());
        }
        let waits = self.unloaded || self.waits_for_draft;
        match waits && !loading.missing().is_empty() {
            true => Ok(()),
            false => self.finish_loading(),
        }
    }

    /// Ends an update at a tensor that was at fault. If no weight has changed since all were of one
    /// checkpoint, in this update or those before it, the old ones stay. Else some are new, and all
    /// have to come again: until then nothing is computed.
    pub fn abandon_update(&mut self) {
        match &self.loading {
            Some(loading) if self.session.loaded && loading.is_mixed() => self.forget_mixed(),
            _ if !self.session.loaded && !self.unloaded => self.loading = None,
            _ => {}
        }
    }

    pub(super) fn forget_mixed(&mut self) {
        (self.session.loaded, self.unloaded, self.mixed, self.step) = (false, true, true, None);
        self.loading = Some(self.new_loading());
    }

    /// Whether there were weights once, so that new tensors are an update.
    pub fn had_weights(&self) -> bool {
        self.session.loaded || self.unloaded
    }

    /// The scales of a matrix of codes in the checkpoint, if the load in progress makes weights of
    /// such tensors.
    pub fn scales(&self, name: &str) -> Option<StoredScales> {
        self.loading.as_ref()?.scales(&self.target().weights, name)
    }

    /// Why nothing can be computed, if there are no weights.
    pub(super) fn check_loaded(&self) -> Result<(), HostedError> {
        match &self.loading {
            _ if self.session.loaded => Ok(()),
            Some(loading) if self.mixed => Err(HostedError::Mixed { names: loading.missing() }),
            Some(loading) if self.unloaded || self.waits_for_draft => {
                Err(HostedError::Waiting { names: loading.missing() })
            }
            _ => Err(HostedError::NoWeights),
        }
    }

    /// Whether there are weights.
    pub fn is_loaded(&self) -> bool {
        self.session.loaded
    }

    /// Forgets the weights. Where they are in memory of the host that is not the caller's, it goes
    /// back to the system until others are loaded.
    pub fn unload(&mut self) {
        (self.session.loaded, self.unloaded, self.mixed, self.loading, self.step) = (false, true, false, None, None);
        for buffer in &mut self.session.memory.weights {
            if let DeviceBuffer::Host(buffer) = buffer {
                buffer.give_back();
            }
        }
    }

    /// What weights are made of calls a tensor of a checkpoint that has the draft alone.
    pub fn draft_name(&self, name: &str) -> String {
        let renamed = self.target().draft.as_ref().and_then(|draft| draft.renamed.clone());
        TensorNames { renamed: renamed.unwrap_or_default(), ..TensorNames::default() }.name(name).into_owned()
    }

    /// Whether the load under way wants a tensor of this name, which must have this shape: to be
    /// asked before its numbers are put in order for [`Hosted::feed`].
    pub fn wants(&self, name: &str, shape: &[usize]) -> Result<bool, Error> {
        let loading = self.loading.as_ref().ok_or(HostedError::Loading("none is under way; begin one"))?;
        Ok(loading.wants(name, shape)?)
    }

    /// Takes a tensor of the checkpoint, in the memory of the host.
    pub fn feed(&mut self, name: &str, tensor: Given) -> Result<(), Error> {
        if let Numbers::Device(_) = tensor.numbers {
            return Err(CheckpointError::Place { name: name.to_owned() }.into());
        }
        // SAFETY: the stream is the one that the device was opened with.
        unsafe { self.feed_on(name, tensor, self.stream) }
    }

    /// Takes a tensor of the checkpoint, in any memory. A tensor in the device's memory is packed
    /// there in the order of the stream, and this call does not wait for it: steps on the same
    /// stream find the new weights.
    ///
    /// # Safety
    /// A tensor on the device has the given shape and type, and stays until the stream has packed
    /// it. The stream is one of the device's, and stays until the model is dropped.
    pub unsafe fn feed_on(&mut self, name: &str, tensor: Given, stream: Stream) -> Result<(), Error> {
        let loading = self.loading.as_mut().ok_or(HostedError::Loading("none is under way; begin one"))?;
        self.step = None;
        self.session.device.pool().check().map_err(DeviceError::from)?;
        match self.session.device.packs() {
            // SAFETY: passed on to the caller.
            true => unsafe { loading.feed_on(name, tensor, self.session.device_sink(stream)) },
            false => loading.feed(name, tensor, self.session.sink()),
        }
    }

    /// Ends the load, if all tensors have come.
    pub fn finish_loading(&mut self) -> Result<(), Error> {
        let loading = self.loading.take().ok_or(HostedError::Loading("none is under way; begin one"))?;
        self.fill_weights(|_, _, sink| loading.finish(sink))
    }

    /// Ends a load that cannot be finished. There are no weights then.
    pub fn abandon_loading(&mut self) {
        self.loading = None;
    }

    /// Fills the weights from a source that has all tensors.
    pub fn load(&mut self, source: &dyn Source, progress: weights::Progress) -> Result<(), Error> {
        self.fill_weights(|_, names, sink| weights::load(sink, names, source, progress))
    }

    /// Loads weights from a file of packed weights, which only has to be copied.
    pub fn load_packed(&mut self, packed: &Packed, progress: weights::Progress) -> Result<(), Error> {
        self.fill_weights(|target, _, sink| packed.load(target, sink, progress))
    }

    fn fill_weights(
        &mut self,
        load: impl FnOnce(&Target, &TensorNames, Sink) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.step = None;
        let done = self.session.fill_weights(load);
        self.mixed &= !self.session.loaded;
        done
    }
}
