//! Weights of an artifact in a framework: all at once, or tensor by tensor as they come. Those of a
//! tower come in the model's checkpoint, and are there when the model's are.
use super::{Hosted, HostedError};
use crate::checkpoint::{CheckpointError, Source};
use crate::device::{DeviceBuffer, DeviceError, Stream};
use crate::error::Error;
use crate::session::Session;
use crate::tower::Tower;
use crate::weights::packed::Packed;
use crate::weights::{self, Given, Loading, Numbers, StoredScales};
use atomc_artifact::manifest::TensorNames;
use std::iter::once;

const NONE: HostedError = HostedError::Loading("none is under way; begin one");

impl Hosted {
    /// Begins to load weights, tensor by tensor, also over ones that are loaded: they keep their
    /// addresses. Until the load is finished there are none. This, like every change of weights,
    /// ends the current step.
    pub fn begin_loading(&mut self) {
        self.sessions_mut().for_each(|session| session.loaded = false);
        (self.unloaded, self.mixed, self.step) = (false, false, None);
        self.loading = Some(self.new_loading());
    }

    /// The model, and its tower if that is driven too.
    fn sessions(&self) -> impl Iterator<Item = &Session> {
        once(&self.session).chain(self.tower.as_ref().map(Tower::session))
    }

    fn sessions_mut(&mut self) -> impl Iterator<Item = &mut Session> {
        once(&mut self.session).chain(self.tower.as_mut().map(Tower::session_mut))
    }

    /// A load of each.
    fn new_loading(&self) -> Vec<Loading> {
        let of = |session: &Session| Loading::new(&session.target().weights, &session.manifest().tensors, session.rank);
        self.sessions().map(of).collect()
    }

    /// Begins to take any of the tensors, and continues earlier updates: a weight changes when the
    /// last of its tensors has come. If no weights were ever loaded, it is an ordinary load.
    pub fn begin_update(&mut self) {
        if !self.is_loaded() {
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
        if self.loading.is_none() {
            return Err(NONE.into());
        }
        if self.is_loaded() {
            return self.complete_update().inspect_err(|_| self.forget_mixed());
        }
        let waits = self.unloaded || self.waits_for_draft;
        match waits && !self.missing().is_empty() {
            true => Ok(()),
            false => self.finish_loading(),
        }
    }

    fn complete_update(&mut self) -> Result<(), Error> {
        let mut loading = self.loading.take().unwrap_or_default();
        let done = self.sessions_mut().zip(&mut loading).try_for_each(|(session, loading)| {
            loading.constants(session.sink())?;
            loading.check_heads()
        });
        self.loading = Some(loading);
        done
    }

    /// The tensors that are still to come.
    fn missing(&self) -> Vec<String> {
        self.loading.iter().flatten().flat_map(Loading::missing).collect()
    }

    /// Ends an update at a tensor that was at fault. If no weight has changed since all were of one
    /// checkpoint, in this update or those before it, the old ones stay. Else some are new, and all
    /// have to come again: until then nothing is computed.
    pub fn abandon_update(&mut self) {
        match &self.loading {
            Some(loading) if self.is_loaded() && loading.iter().any(Loading::is_mixed) => self.forget_mixed(),
            _ if !self.is_loaded() && !self.unloaded => self.loading = None,
            _ => {}
        }
    }

    pub(super) fn forget_mixed(&mut self) {
        self.sessions_mut().for_each(|session| session.loaded = false);
        (self.unloaded, self.mixed, self.step) = (true, true, None);
        self.loading = Some(self.new_loading());
    }

    /// Whether there were weights once, so that new tensors are an update.
    pub fn had_weights(&self) -> bool {
        self.is_loaded() || self.unloaded
    }

    /// The scales of a matrix of codes in the checkpoint, if the load in progress makes weights of
    /// such tensors.
    pub fn scales(&self, name: &str) -> Option<StoredScales> {
        let of = |(loading, session): (&Loading, &Session)| loading.scales(&session.target().weights, name);
        self.loading.as_ref()?.iter().zip(self.sessions()).find_map(of)
    }

    /// Why nothing can be computed, if there are no weights.
    pub(super) fn check_loaded(&self) -> Result<(), HostedError> {
        match &self.loading {
            _ if self.is_loaded() => Ok(()),
            Some(_) if self.mixed => Err(HostedError::Mixed { names: self.missing() }),
            Some(_) if self.unloaded || self.waits_for_draft => Err(HostedError::Waiting { names: self.missing() }),
            _ => Err(HostedError::NoWeights),
        }
    }

    /// Whether there are weights.
    pub fn is_loaded(&self) -> bool {
        self.sessions().all(|session| session.loaded)
    }

    /// Forgets the weights. Where they are in memory of the host that is not the caller's, it goes
    /// back to the system until others are loaded.
    pub fn unload(&mut self) {
        (self.unloaded, self.mixed, self.loading, self.step) = (true, false, None, None);
        for session in self.sessions_mut() {
            session.loaded = false;
            for buffer in &mut session.memory.weights {
                if let DeviceBuffer::Host(buffer) = buffer {
                    buffer.give_back();
                }
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
        Ok(self.part_of(name, shape)?.is_some())
    }

    /// The number of the load that wants a tensor: the model's, or its tower's.
    fn part_of(&self, name: &str, shape: &[usize]) -> Result<Option<usize>, Error> {
        for (part, loading) in self.loading.as_ref().ok_or(NONE)?.iter().enumerate() {
            if loading.wants(name, shape)? {
                return Ok(Some(part));
            }
        }
        Ok(None)
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
        let part = self.part_of(name, tensor.shape)?.unwrap_or(0);
        self.step = None;
        let Hosted { loading, session, tower, .. } = self;
        let session = if part == 0 { session } else { tower.as_mut().map_or(session, Tower::session_mut) };
        let loading = &mut loading.as_mut().ok_or(NONE)?[part];
        session.device.pool().check().map_err(DeviceError::from)?;
        match session.device.packs() {
            // SAFETY: passed on to the caller.
            true => unsafe { loading.feed_on(name, tensor, session.device_sink(stream)) },
            false => loading.feed(name, tensor, session.sink()),
        }
    }

    /// Ends the load, if all tensors have come.
    pub fn finish_loading(&mut self) -> Result<(), Error> {
        let mut loading = self.loading.take().ok_or(NONE)?.into_iter();
        self.fill_weights(|session| {
            let own = loading.next().ok_or(NONE)?;
            session.fill_weights(|_, _, sink| own.finish(sink))
        })
    }

    /// Ends a load that cannot be finished. There are no weights then.
    pub fn abandon_loading(&mut self) {
        self.loading = None;
    }

    /// Fills the weights from a source that has all tensors.
    pub fn load(&mut self, source: &dyn Source, progress: weights::Progress) -> Result<(), Error> {
        self.fill_weights(|session| session.load(source, progress))
    }

    /// Loads weights from a file of packed weights, which only has to be copied.
    pub fn load_packed(&mut self, packed: &Packed, progress: weights::Progress) -> Result<(), Error> {
        if self.tower.is_some() {
            return Err(HostedError::Loading("packed weights have none of a tower; give the checkpoint").into());
        }
        self.fill_weights(|session| session.fill_weights(|target, _, sink| packed.load(target, sink, progress)))
    }

    fn fill_weights(&mut self, load: impl FnMut(&mut Session) -> Result<(), Error>) -> Result<(), Error> {
        self.step = None;
        let done = self.sessions_mut().try_for_each(load);
        self.mixed &= !self.is_loaded();
        done
    }
}
