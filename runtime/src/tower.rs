//! A tower on a device: it makes rows of embeddings of images, for an engine to take in the place
//! of those of tokens. It is a value of its own, with weights, a cache for the step, and a device.
use crate::batch::TableRoom;
use crate::checkpoint::Source;
use crate::device::{Device, DeviceChoice, DeviceError, Launches, Memory, StateMemory, Stream};
use crate::engine::EngineOptions;
use crate::error::Error;
use crate::pool::threads;
use crate::session::{Outline, Session};
use crate::sight::{Grid, Patch, Rows, Tiling};
use crate::states::Unit;
use crate::weights::{self, Rank};
use atomc_artifact::Artifact;
use atomc_artifact::manifest::{Logits, Plan, Target};
use std::ptr::NonNull;
use std::sync::Arc;

/// Images of a step at most, beside what its patches say: each has a page that is not full.
const IMAGES: usize = 64;

/// An image as a tower takes it: the numbers of its patches, in the order of [`Grid::in_order`].
#[derive(Clone, Debug, PartialEq)]
pub struct Image {
    /// Its patches.
    pub grid: Grid,
    /// Patch after patch.
    pub numbers: Vec<f32>,
}

/// Reasons why an image was refused. Nothing has run then.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "a message says what its variant means, and shows the fields")]
pub enum TowerError {
    #[error("the tower's weights are not loaded")]
    NoWeights,
    #[error("image {image} has {rows} by {columns} patches, which must be multiples of {merge}, above zero")]
    Grid { image: usize, rows: usize, columns: usize, merge: usize },
    #[error("image {image} has {rows} by {columns} patches, where all have {only} by {only}")]
    Only { image: usize, rows: usize, columns: usize, only: usize },
    #[error("image {image} has {patches} patches, and the tower takes {most} at most")]
    TooLarge { image: usize, patches: usize, most: usize },
    #[error("image {image} has {has} numbers, where its patches have {want}")]
    Numbers { image: usize, has: usize, want: usize },
    #[error("image {image} makes rows with numbers that are not finite")]
    NotFinite { image: usize },
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// A tower on a device.
pub struct Tower {
    session: Session,
    tiling: Tiling,
    /// Whether a token without a row stands behind those of each row of an image.
    lines: bool,
    /// Whether the tokens of an image see each other.
    together: bool,
    /// Blocks of the cache.
    blocks: usize,
    /// The rows of the last step. Fresh memory for them would cost more than they do.
    downloaded: Vec<u8>,
}

impl Tower {
    /// The tower of an artifact, on the options' device.
    pub fn open(artifact: &Artifact, options: &EngineOptions) -> Result<Tower, Error> {
        let own = artifact.tower().ok_or(Error::NoTower)?;
        let target = options.device.target(own.manifest())?;
        let device = options.device.open(&own, threads(options.threads, 1))?;
        Tower::assemble(artifact, own, target, device)
    }

    /// As [`Tower::open`] does, on a stream of the caller's, if the device has streams.
    ///
    /// # Safety
    /// As for [`DeviceChoice::open_on`].
    pub unsafe fn open_on(
        artifact: &Artifact,
        device: &DeviceChoice,
        threads: usize,
        stream: Stream,
    ) -> Result<Tower, Error> {
        let own = artifact.tower().ok_or(Error::NoTower)?;
        let target = device.target(own.manifest())?;
        // SAFETY: passed on to the caller.
        let device = unsafe { device.open_on(&own, threads, stream) }?;
        Tower::assemble(artifact, own, target, device)
    }

    /// On a device that the caller opened with the code of [`Artifact::tower`] for a target.
    pub fn with_device(artifact: &Artifact, target: &str, device: Box<dyn Device>) -> Result<Tower, Error> {
        let own = artifact.tower().ok_or(Error::NoTower)?;
        let target = crate::device::target(own.manifest(), target)?;
        Tower::assemble(artifact, own, target, device)
    }

    fn assemble(whole: &Artifact, own: Artifact, target: usize, device: Box<dyn Device>) -> Result<Tower, Error> {
        let facts = whole.manifest().tower.as_ref().ok_or(Error::NoTower)?;
        let (tiling, lines, together) = (facts.tiling, facts.lines.is_some(), facts.together);
        let mut outline = Outline::new((Arc::new(own), target, 0), device, false, |_| true);
        let block_tokens = outline.target().layout.block_tokens;
        let blocks = outline.largest(|plan| plan.tokens).div_ceil(block_tokens) + IMAGES;
        let room = |unit: &Unit| TableRoom { blocks, block_stride: unit.bytes };
        let tables = outline.units.iter().map(room).collect();
        let inputs = outline.inputs(tables)?;
        let memory = allocate(&mut outline, blocks, inputs.addresses())?;
        let session = outline.bind(memory, inputs, Rank { number: 0, of: 1 })?;
        Ok(Tower { session, tiling, lines, together, blocks, downloaded: vec![] })
    }

    /// Fills the weights from a source that has those of the whole model.
    pub fn load_weights(&mut self, source: &dyn Source, progress: weights::Progress) -> Result<(), Error> {
        self.session.load(source, progress)
    }

    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    pub(crate) fn session_mut(&mut self) -> &mut Session {
        &mut self.session
    }

    /// How images become patches.
    pub fn tiling(&self) -> Tiling {
        self.tiling
    }

    /// Patches of the largest image.
    pub fn most(&self) -> usize {
        self.session.plans.iter().map(|plan| plan.tokens).max().unwrap_or(0)
    }

    /// The code that runs, and its plans.
    pub fn target(&self) -> &Target {
        self.session.target()
    }

    /// Its plans, by the number of their patches.
    pub fn plans(&self) -> &[Plan] {
        &self.session.plans
    }

    /// What the tower runs on.
    pub fn device_name(&self) -> &str {
        self.session.device.name()
    }

    /// Makes the rows of an image, and times each launch: the number of the plan that ran, and the
    /// times.
    pub fn timed(&mut self, image: &Image) -> Result<(usize, Launches), TowerError> {
        self.check(0, image)?;
        let mut times = Launches::default();
        Ok((self.run(&[image], Some(&mut times))?, times))
    }

    /// The rows of images, one for each of their tokens.
    pub fn rows(&mut self, images: &[&Image]) -> Result<Vec<Arc<Rows>>, TowerError> {
        images.iter().enumerate().try_for_each(|(number, image)| self.check(number, image))?;
        let mut made = Vec::with_capacity(images.len());
        while made.len() < images.len() {
            let first = made.len();
            let count = self.together(&images[first..]);
            made.extend(self.step(first, &images[first..first + count])?);
        }
        Ok(made)
    }

    fn check(&self, image: usize, of: &Image) -> Result<(), TowerError> {
        if !self.session.loaded {
            return Err(TowerError::NoWeights);
        }
        let (Grid { rows, columns }, Tiling { merge, .. }) = (of.grid, self.tiling);
        if rows == 0 || columns == 0 || !rows.is_multiple_of(merge) || !columns.is_multiple_of(merge) {
            return Err(TowerError::Grid { image, rows, columns, merge });
        }
        if let Some(only) = self.tiling.only.filter(|&only| [rows, columns] != [only; 2]) {
            return Err(TowerError::Only { image, rows, columns, only });
        }
        let (patches, most) = (rows.saturating_mul(columns), self.most());
        if patches > most {
            return Err(TowerError::TooLarge { image, patches, most });
        }
        let (has, want) = (of.numbers.len(), patches * self.tiling.numbers());
        if has != want { Err(TowerError::Numbers { image, has, want }) } else { Ok(()) }
    }

    /// How many of some images go into one step.
    fn together(&self, images: &[&Image]) -> usize {
        let (mut patches, most) = (0, self.most());
        let fits = |image: &&&Image| {
            patches += image.grid.patches();
            patches <= most
        };
        images.iter().take(IMAGES).take_while(fits).count()
    }

    /// The rows of images that fit one step. `first` is the number of the first one.
    fn step(&mut self, first: usize, images: &[&Image]) -> Result<Vec<Arc<Rows>>, TowerError> {
        let plan = self.run(images, None)?;
        let Plan { logits, .. } = self.session.plans[plan];
        self.download(logits)?;
        let (mut rest, each) = (&self.downloaded[..], self.tiling.merge * self.tiling.merge);
        let mut made = Vec::with_capacity(images.len());
        for (number, image) in images.iter().enumerate() {
            let (own, others) = rest.split_at(image.grid.patches() / each * logits.stride * size_of::<f32>());
            let numbers = numbers(own, logits);
            if !numbers.iter().all(|v| v.is_finite()) {
                return Err(TowerError::NotFinite { image: first + number });
            }
            let grid = image.grid.merged(self.tiling.merge);
            let Tower { lines, together, .. } = *self;
            made.push(Arc::new(Rows { grid, lines, together, width: logits.width, numbers }));
            rest = others;
        }
        Ok(made)
    }

    /// Runs the smallest plan that takes some images together, and returns its number.
    fn run(&mut self, images: &[&Image], times: Option<&mut Launches>) -> Result<usize, TowerError> {
        let patches: usize = images.iter().map(|image| image.grid.patches()).sum();
        let plans = self.session.plans.iter().enumerate().filter(|(_, plan)| plan.tokens >= patches);
        let (plan, _) = plans.min_by_key(|(_, plan)| plan.tokens).expect("the images were counted");
        self.fill(images)?;
        // SAFETY: bound when the tower was made; the images fit the plan; the borrow is unique.
        unsafe { self.session.device.run(plan, self.session.inputs.step(), times) }?;
        Ok(plan)
    }

    /// Puts images into the inputs: each is a sequence with pages of its own.
    fn fill(&mut self, images: &[&Image]) -> Result<(), TowerError> {
        let block_tokens = self.session.target().layout.block_tokens;
        let each = self.tiling.merge * self.tiling.merge;
        let (mut next, mut numbers) = (0, Vec::new());
        self.session.inputs.clear();
        for image in images {
            let patches: Vec<Patch> = image.grid.in_order(self.tiling).collect();
            let blocks = patches.len().div_ceil(block_tokens);
            let table: Vec<i32> = (next..next + blocks).map(|block| block as i32).collect();
            debug_assert!(next + blocks <= self.blocks);
            self.clear_end(next + blocks - 1)?;
            next += blocks;
            let tables = std::iter::repeat_n(&table[..], self.session.units.len());
            self.session.inputs.push(&vec![0; patches.len()], 0, patches.len(), tables);
            self.session.inputs.lay_out(&patches);
            self.session.inputs.want_groups(patches.len(), each);
            numbers.extend_from_slice(&image.numbers);
        }
        Ok(self.session.inputs.give(&numbers)?)
    }

    /// Clears the values of an image's last page, which it may not fill: what an earlier one left
    /// there has a weight of zero, but zero times NaN is NaN.
    fn clear_end(&mut self, block: usize) -> Result<(), DeviceError> {
        // The first one's memory is that of all.
        for state in self.session.memory.states.iter_mut().take(1) {
            let Unit { bytes, ref cleared, .. } = self.session.units[state.table];
            state.pages.fill(block * bytes + cleared.start..block * bytes + cleared.end, 0)?;
        }
        Ok(())
    }

    /// Brings the rows of the last step to the host.
    fn download(&mut self, Logits { offset, stride, .. }: Logits) -> Result<(), DeviceError> {
        let rows = self.session.inputs.counts().rows;
        self.downloaded.resize(rows * stride * size_of::<f32>(), 0);
        self.session.memory.arena.download(offset, &mut self.downloaded)
    }
}

/// Rows as they lie in memory, side by side.
fn numbers(rows: &[u8], Logits { width, stride, .. }: Logits) -> Vec<f32> {
    let (words, _) = rows.as_chunks::<4>();
    let mut numbers = Vec::with_capacity(words.len() / stride * width);
    for row in words.chunks(stride) {
        numbers.extend(row[..width].iter().map(|&word| f32::from_le_bytes(word)));
    }
    numbers
}

impl std::fmt::Debug for Tower {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tower({} on {})", self.session.model().architecture, self.session.device.name())
    }
}

/// Where a state's pages begin.
fn address(state: &StateMemory) -> Result<NonNull<u8>, DeviceError> {
    let none = || DeviceError::Failed { device: "the tower's".into(), detail: "its memory has no address".into() };
    NonNull::new(state.pages.address()).ok_or_else(none)
}

fn allocate(
    outline: &mut Outline,
    blocks: usize,
    inputs: crate::device::InputAddresses,
) -> Result<Memory, DeviceError> {
    let Outline { code: target, device, units, .. } = &mut *outline;
    let mut states: Vec<StateMemory> = Vec::with_capacity(target.states.len());
    for state in &target.states {
        let unit = &units[state.group];
        let bytes = unit.count(blocks, 0).saturating_mul(unit.bytes);
        // Blocks take turns with one memory: the keys of each are read before the next one's are
        // made, and nothing is kept between steps.
        let pages = match states.iter().find(|other| other.table == state.group) {
            // SAFETY: memory of this device, of as many bytes with slack behind them, which is
            // dropped with the states, all at once.
            Some(first) => unsafe { device.adopt(address(first)?, bytes) },
            None => device.allocate(bytes)?,
        };
        states.push(unit.memory(pages, state.group));
    }
    outline.memory(states, inputs)
}
