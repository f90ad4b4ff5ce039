//! Loads weights from tensors that arrive one by one, in any order, as a reader of a checkpoint has
//! them.
//!
//! A weight is packed as soon as the last of its tensors is there. Until then the others are kept,
//! and no longer.
use super::on_device::OnStream;
use super::pack::Piece;
use super::parts::names;
use super::told::check_numbers;
use super::{Rank, Report, Sink, are_loaded, check_type, resolve, tasks};
use crate::checkpoint::{CheckpointError, Float, OnDevice, Source, Tensor, are_alike};
use crate::device::DeviceBuffer;
use crate::error::Error;
use crate::memory::Buffer;
use atomc_artifact::manifest::{TensorNames, Weight};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// A tensor as its owner gives it.
#[derive(Clone, Debug)]
pub struct Given<'a> {
    /// Type of the numbers.
    pub float: Float,
    /// As the model has it; ranks are given whole tensors.
    pub shape: &'a [usize],
    /// The values.
    pub numbers: Numbers<'a>,
}

/// Where a tensor's numbers are. What has to be kept is copied.
#[derive(Clone, Debug)]
pub enum Numbers<'a> {
    /// In the memory of the host: row by row, little-endian.
    Host(Cow<'a, [u8]>),
    /// In the memory of a device.
    Device(OnDevice),
}

impl<'a, T: Into<Cow<'a, [u8]>>> From<T> for Numbers<'a> {
    fn from(bytes: T) -> Numbers<'a> {
        Numbers::Host(bytes.into())
    }
}

/// A load under way. The weights and buffers are the same in all its calls.
#[derive(Debug)]
pub struct Loading {
    pub(super) tensors: BTreeMap<String, Wanted>,
    pub(super) weights: Vec<Made>,
    pub(super) kept: BTreeMap<String, Kept>,
    pub(super) names: TensorNames,
    twins: Twins,
    pub(super) on_device: OnStream,
    stage: Option<Buffer>,
}

/// The embedding and the head that have come, of a model that has the one in the place of the
/// other: types and hashes.
#[derive(Debug, Default)]
struct Twins {
    embedding: Option<(Float, blake3::Hash)>,
    head: Option<(Float, blake3::Hash)>,
}

impl Twins {
    /// Takes either; one that comes again is compared with what comes after it.
    fn feed(&mut self, stored: &TensorNames, name: &str, float: Float, bytes: &[u8]) -> Result<(), CheckpointError> {
        let (own, other) = match name {
            name if stored.is_tied_embedding(name) => (&mut self.embedding, &mut self.head),
            name if stored.is_tied_head(name) => (&mut self.head, &mut self.embedding),
            _ => return Ok(()),
        };
        let found = (float, blake3::hash(bytes));
        if own.is_none() && other.is_some_and(|other| other != found) {
            return Err(CheckpointError::Untied);
        }
        if own.replace(found).is_some_and(|before| before != found) {
            *other = None;
        }
        Ok(())
    }
}

/// What the weights want of a tensor.
#[derive(Debug)]
pub(super) struct Wanted {
    pub shape: Vec<usize>,
    /// The weights that are made of it.
    pub weights: Vec<usize>,
}

/// How far a weight is.
#[derive(Debug)]
pub(super) struct Made {
    needs: Vec<Need>,
    /// Whether it was packed since the last of its tensors came.
    done: bool,
    /// Whether it was packed since all were of one checkpoint.
    new: bool,
}

/// Tensors that a weight is made of, all of them or the one that may be in their place.
#[derive(Debug)]
struct Need {
    names: Vec<String>,
    whole: Option<String>,
    /// Which of the two has come, if one has.
    came: Option<Form>,
    /// One of the names that was missing when they were looked at last.
    missed: usize,
}

/// In which of the ways that a plan allows tensors come.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    Each,
    Whole,
}

impl Need {
    fn has(&self, name: &str) -> Option<Form> {
        match &self.whole {
            Some(whole) if whole == name => Some(Form::Whole),
            _ => self.names.iter().any(|other| other == name).then_some(Form::Each),
        }
    }

    /// Whether all is there, beginning with what was not.
    fn is_met(&mut self, have: &impl Fn(&str) -> bool) -> bool {
        if self.came == Some(Form::Whole) {
            return self.whole.as_deref().is_some_and(have);
        }
        let all = self.names.len();
        match (0..all).map(|i| (self.missed + i) % all).find(|&at| !have(&self.names[at])) {
            Some(at) => {
                self.missed = at;
                false
            }
            None => true,
        }
    }

    /// The names of what has come, or of what is taken to come.
    fn wanted(&self) -> impl Iterator<Item = &String> {
        let whole = self.whole.iter().filter(|_| self.came == Some(Form::Whole));
        let each = self.names.iter().filter(|_| self.came != Some(Form::Whole));
        whole.chain(each)
    }
}

impl Made {
    /// Whether this tensor and no other is what it is made of.
    pub fn is_of(&self, name: &str) -> bool {
        matches!(&self.needs[..], [Need { names, .. }] if names[..] == [name])
    }
}

/// A tensor that a weight waits with.
#[derive(Debug)]
pub(super) enum Kept {
    Host {
        float: Float,
        bytes: Vec<u8>,
    },
    Device {
        float: Float,
        numbers: OnDevice,
        /// Where they lie.
        memory: DeviceBuffer,
    },
}

impl Kept {
    pub(super) fn tensor(&self) -> Tensor<'_> {
        match *self {
            Kept::Host { float, ref bytes } => Tensor::Bytes { float, bytes },
            Kept::Device { float, numbers, .. } => Tensor::Device { float, numbers },
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Kept::Host { bytes, .. } => bytes.len(),
            Kept::Device { memory, .. } => memory.len(),
        }
    }
}

/// The tensors at hand while one arrives, which goes before those that were kept.
pub(super) struct AtHand<'a>(BTreeMap<&'a str, Tensor<'a>>);

impl<'a> AtHand<'a> {
    pub(super) fn new(kept: &'a BTreeMap<String, Kept>, arriving: Option<(&'a str, Tensor<'a>)>) -> AtHand<'a> {
        AtHand(kept.iter().map(|(name, kept)| (name.as_str(), kept.tensor())).chain(arriving).collect())
    }
}

impl Source for AtHand<'_> {
    fn tensor(&self, name: &str, _: &[usize]) -> Result<Tensor<'_>, CheckpointError> {
        let missing = || CheckpointError::Missing { names: vec![name.to_owned()] };
        self.0.get(name).copied().ok_or_else(missing)
    }

    fn names(&self) -> Vec<&str> {
        self.0.keys().copied().collect()
    }
}

impl Loading {
    /// A load of which nothing has come yet. A rank takes all tensors of the model, and waits for
    /// those alone that it has a part of.
    pub fn new(weights: &[Weight], stored: &TensorNames, rank: Rank) -> Loading {
        let used: Vec<BTreeSet<String>> = weights.iter().map(|weight| names(&weight.expr, rank)).collect();
        let made = |(weight, used): (&Weight, &BTreeSet<String>)| {
            let mut needs: Vec<Need> = Vec::new();
            for sources in weight.expr.sources() {
                let is_used = |name: &String| used.contains(name);
                let names: Vec<String> = sources.each().map(|(name, _)| name.into_owned()).filter(is_used).collect();
                let whole = sources.whole().map(|(name, _)| name.into_owned());
                if !names.is_empty() && !needs.iter().any(|need| need.names == names) {
                    needs.push(Need { names, whole, came: None, missed: 0 });
                }
            }
            Made { needs, done: false, new: false }
        };
        Loading {
            weights: weights.iter().zip(&used).map(made).collect(),
            tensors: wanted(weights, &used),
            kept: BTreeMap::new(),
            names: stored.clone(),
            twins: Twins::default(),
            on_device: OnStream::default(),
            stage: None,
        }
    }

    /// Whether weights are made of a tensor of this name, which must have this shape, or it is the
    /// copy of one that they are made of. What models do not compute with is not wanted; other
    /// strangers are refused.
    pub fn wants(&self, name: &str, shape: &[usize]) -> Result<bool, CheckpointError> {
        let (stored, name) = (name, &*self.names.name(name));
        let twin = || self.embedding().filter(|_| self.names.is_tied_head(name)).map(|(_, wanted)| wanted);
        match self.tensors.get(name).or_else(twin) {
            Some(wanted) if are_alike(shape, &wanted.shape) => Ok(true),
            Some(Wanted { shape: want, .. }) => {
                Err(CheckpointError::Shape { name: stored.to_owned(), found: shape.to_vec(), want: want.clone() })
            }
            None if self.names.ignored(name).is_some() => Ok(false),
            None => Err(CheckpointError::Unused { names: vec![stored.to_owned()] }),
        }
    }

    /// The embedding of a model that takes it for its head, if weights of the rank are made of it.
    pub(super) fn embedding(&self) -> Option<(&String, &Wanted)> {
        self.tensors.get_key_value(&self.names.tied.as_ref()?.embedding)
    }

    /// Takes a tensor, and makes the weights that lacked nothing else. One that comes again begins
    /// its weights anew: they want all their tensors again. If it is at fault nothing has changed.
    pub fn feed(&mut self, name: &str, tensor: Given, mut sink: Sink) -> Result<(), Error> {
        if !self.wants(name, tensor.shape)? {
            return Ok(());
        }
        let name = &*self.names.name(name).into_owned();
        tensor.check_size(name)?;
        let Numbers::Host(bytes) = tensor.numbers else {
            return Err(CheckpointError::Place { name: name.to_owned() }.into());
        };
        self.twins.feed(&self.names, name, tensor.float, &bytes)?;
        if !self.tensors.contains_key(name) {
            return Ok(());
        }
        let (float, arriving) = (tensor.float, Tensor::Bytes { float: tensor.float, bytes: &bytes });
        self.check_types(name, arriving, sink.weights)?;
        check_numbers(name, float, &bytes)?;
        self.note_form(name)?;
        if !self.place(name, arriving, |index, source, stage| make(index, source, &mut sink, stage))? {
            self.kept.insert(name.to_owned(), Kept::Host { float, bytes: bytes.into_owned() });
        }
        self.drop_kept(name);
        Ok(())
    }

    /// That its weights can be made of a tensor of this type.
    pub(super) fn check_types(&self, name: &str, tensor: Tensor, weights: &[Weight]) -> Result<(), CheckpointError> {
        self.tensors[name].weights.iter().try_for_each(|&index| check_type(&weights[index], name, tensor))
    }

    /// Notes in which form the tensors come that this one is of, of which there is one in a
    /// checkpoint.
    pub(super) fn note_form(&mut self, name: &str) -> Result<(), CheckpointError> {
        let Loading { tensors, weights, kept, .. } = self;
        for &index in &tensors[name].weights {
            for need in weights[index].needs.iter_mut().filter(|need| need.whole.is_some()) {
                let Some(form) = need.has(name) else { continue };
                if need.came.is_some_and(|came| came != form) {
                    let other = need.names.iter().find(|other| *other == name || kept.contains_key(*other));
                    let one = other.unwrap_or(&need.names[0]).clone();
                    return Err(CheckpointError::Twice { whole: need.whole.clone().unwrap_or_default(), one });
                }
                need.came = Some(form);
            }
        }
        Ok(())
    }

    /// Makes the weights of a tensor that lack nothing else. Whether these are all: otherwise it
    /// has to be kept.
    pub(super) fn place(
        &mut self,
        name: &str,
        tensor: Tensor,
        mut make: impl FnMut(usize, &AtHand, &mut Option<Buffer>) -> Result<(), Error>,
    ) -> Result<bool, Error> {
        let Loading { tensors, weights, kept, stage, .. } = self;
        let have = |other: &str| other == name || kept.contains_key(other);
        let mut all = true;
        for &index in &tensors[name].weights {
            weights[index].done = false;
            if weights[index].needs.iter_mut().all(|need| need.is_met(&have)) {
                let made = make(index, &AtHand::new(kept, Some((name, tensor))), stage);
                weights[index].new |= are_loaded(false, &made) || !are_loaded(true, &made);
                made?;
                weights[index].done = true;
            }
            all &= weights[index].done;
        }
        if weights.iter().all(|weight| weight.new || weight.needs.is_empty()) {
            weights.iter_mut().for_each(|weight| weight.new = false);
        }
        Ok(all)
    }

    /// Whether some of the weights are of another checkpoint than the rest.
    pub fn is_mixed(&self) -> bool {
        self.weights.iter().any(|weight| weight.new)
    }

    /// Drops the tensors that no weight waits with, which this one may have brought about.
    pub(super) fn drop_kept(&mut self, name: &str) {
        let Loading { tensors, weights, kept, .. } = self;
        if !tensors[name].weights.iter().any(|&index| weights[index].done) {
            return;
        }
        kept.retain(|name, _| !tensors[name].weights.iter().all(|&index| weights[index].done));
    }

    /// Ends the load: makes what needs no tensors, and says which ones never came.
    pub fn finish(mut self, sink: Sink) -> Result<(), Error> {
        self.check_heads()?;
        let missing = self.missing();
        if !missing.is_empty() {
            return Err(CheckpointError::Missing { names: missing }.into());
        }
        self.constants(sink)
    }

    /// Makes the weights that need no tensors.
    pub fn constants(&mut self, mut sink: Sink) -> Result<(), Error> {
        let nothing = AtHand::new(&self.kept, None);
        let constants = self.weights.iter().enumerate().filter(|(_, made)| made.needs.is_empty());
        constants.map(|(index, _)| index).try_for_each(|index| make(index, &nothing, &mut sink, &mut self.stage))
    }

    /// The tensors that weights still wait for.
    pub fn missing(&self) -> Vec<String> {
        let open = self.weights.iter().filter(|weight| !weight.done).flat_map(|weight| &weight.needs);
        let open = open.flat_map(Need::wanted);
        let missing: BTreeSet<&String> = open.filter(|&name| !self.kept.contains_key(name)).collect();
        missing.into_iter().cloned().collect()
    }

    /// Bytes of the tensors that wait for others.
    pub fn kept_bytes(&self) -> usize {
        self.kept.values().map(Kept::bytes).sum()
    }
}

fn make(index: usize, source: &AtHand, sink: &mut Sink, stage: &mut Option<Buffer>) -> Result<(), Error> {
    let pieces = resolve(&sink.weights[index..=index], sink.rank, source)?;
    put(index, &pieces, sink, stage)
}

/// Packs a weight of its pieces.
pub(super) fn put(
    index: usize,
    pieces: &[Vec<Piece>],
    sink: &mut Sink,
    stage: &mut Option<Buffer>,
) -> Result<(), Error> {
    let mut sink = sink.only(index);
    let tasks = tasks(0, &sink.weights[0]);
    sink.pack(pieces, &tasks, stage, &Report::new(&|_, _| (), &tasks))?;
    Ok(())
}

impl Given<'_> {
    /// That there are as many bytes as a shape that is wanted has.
    pub(super) fn check_size(&self, name: &str) -> Result<(), CheckpointError> {
        let Numbers::Host(bytes) = &self.numbers else { return Ok(()) };
        let (bytes, want) = (bytes.len(), self.shape.iter().product::<usize>() * self.float.size());
        match bytes == want {
            true => Ok(()),
            false => Err(CheckpointError::Size { name: name.to_owned(), bytes, want }),
        }
    }
}

/// The tensors that weights are made of: what shape is wanted of each, and by which weights of the
/// rank.
fn wanted(weights: &[Weight], used: &[BTreeSet<String>]) -> BTreeMap<String, Wanted> {
    let mut tensors = BTreeMap::new();
    for (index, weight) in weights.iter().enumerate() {
        for (name, shape) in weight.expr.tensors() {
            let is_used = used[index].contains(&*name);
            let new = || Wanted { shape: shape.to_vec(), weights: vec![] };
            let wanted = tensors.entry(name.into_owned()).or_insert_with(new);
            if is_used && wanted.weights.last() != Some(&index) {
                wanted.weights.push(index);
            }
        }
    }
    tensors
}
