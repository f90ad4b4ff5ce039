//! Ranks of one process: each has a device, its part of the weights, and a thread. The ranks of a
//! stage run the same plan at once, and between launches they meet for the work that a plan leaves
//! to its caller: sums over ranks, and logits that are gathered. Where there are several stages of
//! layers, each hands rows on to the next.
//!
//! Every rank makes a part of the result and gives it to all, in the memory of the host. Sums are
//! in the order of the ranks, so all ranks have the same bits. A rank that fails leaves the
//! meeting: the others end their step with an error instead of waiting.
mod meeting;

use crate::device::{DeviceBuffer, DeviceError, Launches, Part, Peer};
use crate::error::Error;
use crate::pool::Pool;
use crate::session::{Outline, Session};
use crate::weights::{Progress, Rank};
use atomc_artifact::manifest::{Call, Place, Work};
use meeting::Meeting;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

/// Several ranks, each with a thread.
#[derive(Debug)]
pub(crate) struct Ranks {
    crew: Pool,
    /// Where the ranks of each stage meet.
    stages: Vec<Meeting>,
    /// Whether the last step failed, after which ranks may have made different exchanges.
    begin_anew: bool,
}

/// Lets the devices of a stage's ranks exchange rows by themselves, if each can and reaches all
/// others. A rank alone has nothing to exchange.
pub(crate) fn join(outlines: &mut [Outline]) -> Result<bool, DeviceError> {
    let of = outlines.len();
    if of == 1 {
        return Ok(true);
    }
    let offer = |outline: &mut Outline| outline.device.offer(of, &outline.plans);
    let offers = outlines.iter_mut().map(offer).collect::<Result<Vec<Option<Peer>>, _>>()?;
    let peers: Option<Vec<Peer>> = offers.into_iter().collect();
    let mut reached = peers.is_some();
    for outline in &mut *outlines {
        for peer in peers.iter().flatten() {
            reached = reached && outline.device.reach(peer)?;
        }
    }
    let peers = peers.filter(|_| reached);
    for (number, outline) in outlines.iter_mut().enumerate() {
        outline.device.join(Rank { number, of }, peers.as_deref())?;
    }
    tracing::debug!(reached, ranks = of, "exchanges by kernels");
    Ok(reached)
}

impl Ranks {
    /// Of stages with this many ranks each.
    pub fn new(stages: usize, ranks: usize) -> Result<Ranks, DeviceError> {
        let threads = stages * ranks;
        let crew = Pool::new(threads).map_err(|source| DeviceError::Threads { threads, source })?;
        let stages = (0..stages).map(|_| Meeting::new(ranks)).collect();
        Ok(Ranks { crew, stages, begin_anew: false })
    }

    /// Runs a plan for the step that the first rank's inputs hold.
    pub fn run(
        &mut self,
        (first, others): (&mut Session, &mut [Session]),
        plan: usize,
        observe: Option<&mut Launches>,
    ) -> Result<(), DeviceError> {
        if self.begin_anew {
            self.missed((first, others))?;
        }
        others.iter_mut().for_each(|other| other.inputs.take_from(&first.inputs));
        self.stages.iter().for_each(Meeting::begin);
        let (stages, observe) = (&self.stages, Mutex::new(observe));
        each(&mut self.crew, std::iter::once(first).chain(others), |session| {
            let number = session.number();
            let observe = if number == 0 { lock(&observe).take() } else { None };
            // SAFETY: every session was bound when it was made, its inputs hold the step, which
            // fits the plan, and the sessions are borrowed for this call.
            let done = unsafe { session.step(plan, stages, observe) };
            done.inspect_err(|_| stages.iter().for_each(|stage| stage.leave(number)))
        })
        .map_err(cause)
        .inspect_err(|_| self.begin_anew = true)
    }

    /// The rank that others have waited for in vain. Exchanges begin anew.
    pub fn missed(&mut self, (first, others): (&mut Session, &mut [Session])) -> Result<Option<usize>, DeviceError> {
        self.begin_anew = false;
        let all: Vec<Option<usize>> =
            std::iter::once(first).chain(others).map(|session| session.device.missed()).collect::<Result<_, _>>()?;
        Ok(all.into_iter().flatten().next())
    }

    /// Fills the weights of all ranks at once; `load` reports to the progress that it is given.
    pub fn load(
        &mut self,
        (first, others): (&mut Session, &mut [Session]),
        progress: Progress,
        load: impl Fn(&mut Session, Progress) -> Result<(), Error> + Sync,
    ) -> Result<(), Error> {
        let counts: Vec<[AtomicU64; 2]> = (0..=others.len()).map(|_| Default::default()).collect();
        let sum = |which: usize| counts.iter().map(|count| count[which].load(Relaxed)).sum();
        each(&mut self.crew, std::iter::once(first).chain(others), |session| {
            let [own_done, own_total] = &counts[session.number()];
            load(session, &|done, total| {
                own_done.fetch_max(done, Relaxed);
                own_total.store(total, Relaxed);
                progress(sum(0), sum(1));
            })
        })
        .map_err(|mut errors| errors.swap_remove(0))
    }
}

/// Calls `work` for each session, on a thread of its own, and returns the errors in the order of
/// the ranks.
fn each<'s, E: Send>(
    crew: &mut Pool,
    sessions: impl Iterator<Item = &'s mut Session>,
    work: impl Fn(&mut Session) -> Result<(), E> + Sync,
) -> Result<(), Vec<E>> {
    let places: Vec<Mutex<(&mut Session, Option<E>)>> = sessions.map(|session| Mutex::new((session, None))).collect();
    crew.run(&|worker| {
        let (session, error) = &mut *lock(&places[worker.index()]);
        *error = work(session).err();
    });
    let errors: Vec<E> =
        places.into_iter().filter_map(|place| place.into_inner().unwrap_or_else(PoisonError::into_inner).1).collect();
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

fn lock<T>(shared: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The error that made a step end: not that of a rank that another one left alone.
fn cause(mut errors: Vec<DeviceError>) -> DeviceError {
    let found = errors.iter().position(|error| !matches!(error, DeviceError::Left { .. }));
    errors.swap_remove(found.unwrap_or(0))
}

impl Session {
    /// Runs a plan for the step that the inputs hold: takes what the stage before hands on, does
    /// the work that ranks do together, and hands on what the next stage takes.
    ///
    /// # Safety
    /// As for [`crate::device::Device::run`]; the other ranks run the same.
    unsafe fn step(
        &mut self,
        plan: usize,
        stages: &[Meeting],
        observe: Option<&mut Launches>,
    ) -> Result<(), DeviceError> {
        let calls = &self.plans[plan].calls;
        let handed = |is: fn(usize, usize) -> bool| -> Vec<Work> {
            let handed = |work: &Work| matches!(work, Work::HandOn { stage, .. } if is(*stage, self.stage));
            calls.iter().map(|call| call.work).filter(handed).collect()
        };
        let (taken, left) = (handed(|stage, own| stage == own), handed(|stage, own| stage > own));
        let alone = self.joined || !calls.iter().any(|call| is_met(&call.work));
        taken.iter().try_for_each(|work| self.meet(work, stages))?;
        match alone {
            // SAFETY: passed on to the caller.
            true => unsafe { self.device.run(plan, self.inputs.step(), observe) }?,
            // SAFETY: passed on to the caller.
            false => unsafe { self.run_between(plan, stages) }?,
        }
        left.iter().try_for_each(|work| self.meet(work, stages))
    }

    /// Runs the launches of a plan, and between them the calls of one stage.
    ///
    /// # Safety
    /// As for [`Session::step`].
    unsafe fn run_between(&mut self, plan: usize, stages: &[Meeting]) -> Result<(), DeviceError> {
        let calls: Vec<Call> = self.plans[plan].calls.iter().filter(|call| is_met(&call.work)).copied().collect();
        self.inputs.upload()?;
        let mut next = 0;
        for Call { before, work } in calls {
            // SAFETY: passed on to the caller.
            unsafe { self.launch(plan, next..before) }?;
            self.meet(&work, stages)?;
            next = before;
        }
        let end = self.plans[plan].launches.len();
        // SAFETY: passed on to the caller.
        unsafe { self.launch(plan, next..end) }
    }

    /// # Safety
    /// As for [`crate::device::Device::run`].
    unsafe fn launch(&mut self, plan: usize, launches: Range<usize>) -> Result<(), DeviceError> {
        let (size, step, stream) = (self.inputs.step().size, self.inputs.addresses().step, self.device.stream());
        // SAFETY: passed on to the caller; the stream is the device's own.
        unsafe { self.device.launch(Part { plan, launches, size, step, stream }) }
    }

    /// Does a call with the other ranks.
    fn meet(&mut self, work: &Work, stages: &[Meeting]) -> Result<(), DeviceError> {
        let counts = self.inputs.counts();
        let (rank, meeting, arena) = (self.rank.number, &stages[self.stage], &mut self.memory.arena);
        match *work {
            Work::Embedding { .. } | Work::Attention { .. } => Ok(()),
            Work::AllReduce { value, added } => {
                let added = added.map(|added| taken(arena, added, counts.tokens)).transpose()?;
                let mut sum = taken(arena, value, counts.tokens)?;
                meeting.sum(rank, &mut sum, value.dtype)?;
                if let Some(added) = added {
                    meeting::add(&mut sum, &added, value.dtype);
                }
                arena.upload(value.offset, &sum)
            }
            Work::AllGather { part, whole } => {
                let own = taken(arena, part, counts.rows)?;
                let all = meeting.gather(rank, &own)?;
                let mut rows = vec![0; bytes(whole, counts.rows)];
                side_by_side(&all, &mut rows, (part, whole));
                arena.upload(whole.offset, &rows)
            }
            Work::HandOn { stage, taken: place, .. } if stage == self.stage => {
                arena.upload(place.offset, &meeting.take(rank)?)
            }
            Work::HandOn { stage, made, .. } => {
                stages[stage].hand(rank, taken(arena, made, counts.tokens)?);
                Ok(())
            }
        }
    }
}

/// Whether the ranks of a stage do a call together.
fn is_met(work: &Work) -> bool {
    matches!(work, Work::AllReduce { .. } | Work::AllGather { .. })
}

/// Bytes of the rows of a value.
fn bytes(place: Place, rows: usize) -> usize {
    rows * place.stride * place.dtype.size()
}

/// The rows of a value.
fn taken(arena: &DeviceBuffer, place: Place, rows: usize) -> Result<Vec<u8>, DeviceError> {
    let mut to = vec![0; bytes(place, rows)];
    arena.download(place.offset, &mut to)?;
    Ok(to)
}

/// Puts rows of all ranks side by side.
fn side_by_side(parts: &[Vec<u8>], whole: &mut [u8], (part, to): (Place, Place)) {
    let [width, from, stride] = [part.width, part.stride, to.stride].map(|numbers| numbers * part.dtype.size());
    for (rank, rows) in parts.iter().enumerate() {
        for (row, to) in rows.chunks_exact(from).zip(whole.chunks_exact_mut(stride)) {
            to[rank * width..][..width].copy_from_slice(&row[..width]);
        }
    }
}
