//! Continuous batching: which tokens of which requests are in the next step. Free of async, of
//! HTTP and of text.
//!
//! A step takes the next token of every running answer, and fills up with pieces of prompts: half
//! of the rest is for the earliest prompt, and the other half for the shortest. So no prompt waits
//! for the end of a long one, and of equal ones the first ends first. An answer is admitted when
//! the cache has room for its prompt and for the next tokens of the others. Requests take turns,
//! however many answers each has: the next answer is of the request with the fewest running ones,
//! and of equal ones of the earliest (`admit.rs`). When the cache is full, retained prefixes are
//! dropped first; then the latest request gives its pages back, and computes them again in its
//! turn. A step may verify guesses of the engine's draft after the last token of an answer
//! (`guess.rs`).
mod admit;
mod backend;
mod choose;
mod guess;
mod prefix;
mod task;
#[cfg(any(test, feature = "toy"))]
pub mod toy;

use std::collections::VecDeque;
use std::time::Duration;

use crate::offload::{self, Offload};
use crate::{DeviceError, KvError, Request, SeqId, StepError, Want};

pub use backend::{Backend, Limits, Row};
pub use choose::{ChoiceError, Chooser, Chosen, Guide, Likelihood, Penalties, Progress, Settings, likelihood};
pub use prefix::{Match, Owned, Prefixes, common};
pub use task::{End, Job, JobError, Output, Party, Salt, Why};

use task::{Event, Part, Seen, Task};

/// Options of the scheduler.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Most requests that run at once.
    pub running: usize,
    /// Most tokens of a step; 0 for those of the largest plan.
    pub step_tokens: usize,
    /// Whether the beginnings of prompts are looked up among computed ones.
    pub prefix_cache: bool,
    /// Most tokens that the draft guesses after an answer, for a step to verify; 0 for none.
    pub speculate: usize,
}

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Steps of the engine.
    pub steps: u64,
    /// Tokens of prompts that were admitted, each time one is.
    pub prompt_tokens: u64,
    /// Of these, those that were there already.
    pub cached_tokens: u64,
    /// Tokens of answers.
    pub new_tokens: u64,
    /// Tokens that the draft guessed, and that steps verified.
    pub guesses_made: u64,
    /// Of these, those that were right.
    pub guesses_right: u64,
    /// Requests that gave their pages back.
    pub preempted: u64,
    /// Steps that failed.
    pub faults: u64,
}

/// The state of the scheduler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gauges {
    /// Requests under way.
    pub running: usize,
    /// Requests that wait.
    pub waiting: usize,
    /// Blocks of the cache that nothing holds.
    pub free_blocks: usize,
    /// Sequences that are retained for their prefixes.
    pub retained: usize,
}

/// All requests of one engine.
pub struct Scheduler<B> {
    backend: B,
    limits: Limits,
    options: Options,
    /// Most sequences of which one plan verifies guesses.
    verified: usize,
    /// In the order of arrival; those that were preempted first.
    waiting: VecDeque<Task>,
    /// In the order of admission.
    running: Vec<Task>,
    prefixes: Prefixes,
    counts: Counts,
    arrivals: u64,
    requests: u64,
    /// The first that waits had no room, and nothing has ended since.
    is_full: bool,
    down: Option<String>,
    /// The error of the engine that came last.
    failed: Option<StepError>,
}

/// After this many steps a request that had no room is tried again although nothing has ended:
/// windows give pages back.
const PATIENCE: u64 = 16;

/// Time for which a scheduler that has nothing else to do waits for a guide.
const LOOK: Duration = Duration::from_millis(2);

/// Tokens of a running task in the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    task: usize,
    tokens: usize,
}

impl<B: Backend> Scheduler<B> {
    /// A scheduler over an engine that has its weights loaded.
    pub fn new(backend: B, options: Options) -> Scheduler<B> {
        let mut limits = backend.limits();
        if options.step_tokens > 0 {
            limits.step_tokens = limits.step_tokens.min(options.step_tokens);
        }
        let options = Options { running: options.running.max(1), ..options };
        // A retained sequence occupies slots that others need. Snapshots occupy free ones.
        let most = match (options.prefix_cache, limits.slots) {
            (false, _) => 0,
            (true, 0) => usize::MAX,
            (true, slots) => slots / 2,
        };
        Scheduler {
            verified: if options.speculate > 0 { backend.verifies(options.speculate) } else { 0 },
            backend,
            limits,
            options,
            waiting: VecDeque::new(),
            running: vec![],
            prefixes: Prefixes::new(limits.block_tokens, most),
            counts: Counts::default(),
            arrivals: 0,
            requests: 0,
            is_full: false,
            down: None,
            failed: None,
        }
    }

    /// The same, with a place for retained beginnings that leave the engine's cache.
    pub fn with_offload(mut self, offload: Offload) -> Scheduler<B> {
        self.prefixes.leave_to(offload);
        self
    }

    /// Sizes that do not change.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Counts of what leaves the engine's cache, if it has a place to go.
    pub fn offloaded(&self) -> Option<offload::Counts> {
        self.prefixes.offloaded()
    }

    /// Counts since the start.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Where it stands.
    pub fn gauges(&self) -> Gauges {
        Gauges {
            running: self.running.len(),
            waiting: self.waiting.len(),
            free_blocks: self.backend.free_blocks(),
            retained: self.prefixes.len(),
        }
    }

    /// Why no request can be served any more, if that is so.
    pub fn down(&self) -> Option<&str> {
        self.down.as_deref()
    }

    /// Whether no request waits or runs.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// Takes the answers to one request. Those that cannot be served end at once.
    pub fn add(&mut self, request: Vec<Job>) {
        self.requests += 1;
        request.into_iter().for_each(|job| self.add_answer(job));
    }

    fn add_answer(&mut self, job: Job) {
        let fault = match &self.down {
            Some(why) => Some(JobError::Down(why.clone())),
            None => job.fault(&self.limits),
        };
        if let Some(error) = fault {
            job.output.end(Err(error));
            return;
        }
        self.arrivals += 1;
        self.waiting.push_back(Task::new(job, self.arrivals, self.requests, &self.limits));
    }

    /// Ends all requests with an error.
    pub fn fail_all(&mut self, error: &JobError) {
        self.is_full = false;
        let tasks = self.running.drain(..).chain(self.waiting.drain(..));
        let mut dropped = Ok(());
        for task in tasks {
            if let Some(sequence) = task.sequence {
                dropped = dropped.and(self.backend.drop_sequence(sequence));
            }
            task.end(Err(error.clone()));
        }
        self.settle(dropped);
    }

    /// Ends the answers under way as they are.
    pub fn stop(&mut self) {
        for index in (0..self.running.len()).rev() {
            let end = self.running[index].ended(Why::Output, 0);
            self.finish(index, Ok(end));
        }
    }

    /// Lets go of all sequences. Gives the engine back, and the error of its that came last.
    pub fn end(mut self) -> (B, Option<StepError>) {
        self.fail_all(&JobError::Ending);
        let cleared = self.prefixes.clear(&mut self.backend);
        self.settle(cleared);
        (self.backend, self.failed)
    }

    /// Leaves all retained beginnings to the place for them, if there is one, before the end.
    pub fn save(&mut self) {
        let saved = self.prefixes.save(&mut self.backend);
        self.settle(saved);
    }

    /// Continues after a panic in a step: every sequence is dropped.
    pub fn recover(&mut self, what: &str) {
        self.counts.faults += 1;
        self.fail_all(&JobError::Fault(what.to_owned()));
        let cleared = self.prefixes.clear(&mut self.backend);
        self.settle(cleared);
    }

    /// Admits requests and runs one step, if there is anything to run.
    pub fn step(&mut self) {
        self.sweep();
        self.look();
        self.admit();
        self.guess();
        if self.running.is_empty() {
            return;
        }
        let mut pieces = self.pieces();
        self.make_room(&mut pieces);
        if pieces.is_empty() {
            return;
        }
        self.counts.steps += 1;
        match self.run(&pieces) {
            Ok(events) => self.take(events),
            Err(error) => self.fault(&pieces, error),
        }
    }

    /// Ends the requests that were given up.
    fn sweep(&mut self) {
        let before = self.waiting.len();
        self.waiting.retain(|task| !task.output.is_gone());
        self.is_full &= self.waiting.len() == before;
        for index in (0..self.running.len()).rev() {
            if self.running[index].output.is_gone() {
                let task = self.running.remove(index);
                self.retain(&task);
            }
        }
    }

    /// Asks the guides that were busy for their progress. Waits for them if all are busy.
    fn look(&mut self) {
        let mut within = if self.running.iter().all(|task| task.is_held) { LOOK } else { Duration::ZERO };
        for index in (0..self.running.len()).rev() {
            let end = self.running[index].look(within);
            within = if self.running[index].is_held { within } else { Duration::ZERO };
            if let Some(end) = end {
                within = Duration::ZERO;
                self.finish(index, end);
            }
        }
    }

    /// The share of each task in the next step: running answers get a token and the guesses after
    /// it, prompts share the rest.
    fn pieces(&self) -> Vec<Piece> {
        let alone = self.running.iter().position(|task| task.alone && !task.is_held);
        let is_in = |index: &usize| !self.running[*index].is_held && alone.is_none_or(|alone| alone == *index);
        let (answers, prompts): (Vec<usize>, Vec<usize>) =
            (0..self.running.len()).filter(is_in).partition(|&index| self.running[index].left() == 1);
        let whole = |&task: &usize| Piece { task, tokens: self.running[task].coming() };
        let mut pieces: Vec<Piece> = answers.iter().map(whole).collect();
        let budget = self.limits.step_tokens.saturating_sub(pieces.iter().map(|piece| piece.tokens).sum());
        let want = |&task: &usize| (task, self.running[task].most(&self.limits));
        pieces.extend(shares(&prompts.iter().map(want).collect::<Vec<_>>(), budget));
        pieces.iter_mut().for_each(|piece| piece.tokens = self.running[piece.task].whole(piece.tokens));
        pieces.sort_unstable_by_key(|piece| piece.task);
        pieces
    }

    /// Makes room in the cache for the next step: drops prefixes, then preempts the latest
    /// requests.
    fn make_room(&mut self, pieces: &mut Vec<Piece>) {
        while let Err(error) = self.room_for(pieces) {
            match self.prefixes.evict(&mut self.backend) {
                Ok(true) => continue,
                Ok(false) => {}
                Err(error) => return self.fault(&std::mem::take(pieces), error),
            }
            let last = pieces.iter().max_by_key(|piece| self.running[piece.task].number).map(|piece| piece.task);
            let Some(last) = last else { return };
            let is_only = self.running.len() == 1;
            pieces.retain(|piece| piece.task != last);
            pieces.iter_mut().filter(|piece| piece.task > last).for_each(|piece| piece.task -= 1);
            let mut task = self.running.remove(last);
            self.drop_sequence(task.sequence.take());
            if is_only {
                task.end(Err(JobError::NoRoom(error.to_string())));
                return;
            }
            self.counts.preempted += 1;
            task.start_over();
            self.wait_again(task);
        }
    }

    /// Puts a task back into the queue, at the place of its arrival.
    fn wait_again(&mut self, task: Task) {
        let place = self.waiting.iter().position(|other| other.number > task.number).unwrap_or(self.waiting.len());
        self.waiting.insert(place, task);
    }

    fn room_for(&self, pieces: &[Piece]) -> Result<(), KvError> {
        let growing = pieces.iter().map(|piece| {
            let task = &self.running[piece.task];
            (task.sequence, task.fed + piece.tokens)
        });
        self.backend.has_room(&growing.collect::<Vec<_>>())
    }

    /// Runs a step, and returns its results for each task.
    fn run(&mut self, pieces: &[Piece]) -> Result<Vec<Event>, StepError> {
        let Scheduler { backend, running, .. } = self;
        let wants: Vec<Want> = pieces.iter().map(|piece| running[piece.task].wants(piece.tokens)).collect();
        let is_plain = pieces.iter().all(|piece| running[piece.task].is_plain(piece.tokens));
        let mut parts = parts(running, pieces);
        let requests = parts.iter().zip(pieces).zip(&wants).map(|((part, piece), &logits)| {
            let tokens = part.next(piece.tokens);
            Request { sequence: part.sequence, tokens, logits }
        });
        let requests: Vec<Request> = requests.collect();
        let mut seen: Vec<Seen> = requests.iter().map(|_| Seen::default()).collect();
        // The token of its request that a row follows.
        let token = |request: usize, row: usize| match wants[request] {
            Want::All => row,
            _ => pieces[request].tokens - 1,
        };
        if is_plain {
            for (request, picks) in backend.step_picks(&requests)?.into_iter().enumerate() {
                let (part, seen) = (&mut parts[request], &mut seen[request]);
                picks.into_iter().enumerate().for_each(|(row, pick)| seen.pick(part, token(request, row), pick));
            }
        } else {
            backend.step(&requests, &mut |Row { request, index }, logits| {
                seen[request].see(&mut parts[request], token(request, index), logits);
            })?;
        }
        Ok(pieces.iter().zip(seen).map(|(piece, seen)| Event { piece: *piece, seen }).collect())
    }

    /// Gives each task its results of the step.
    fn take(&mut self, events: Vec<Event>) {
        let (mut ended, mut back) = (vec![], vec![]);
        for Event { piece, seen } in events {
            let task = &mut self.running[piece.task];
            let (was_new, were_guesses, reached) = (task.new_tokens(), task.guesses, task.fed + piece.tokens);
            let end = task.advance(piece.tokens, seen, &self.limits);
            self.counts.new_tokens += (task.new_tokens() - was_new) as u64;
            self.counts.guesses_made += (task.guesses.made - were_guesses.made) as u64;
            self.counts.guesses_right += (task.guesses.right - were_guesses.right) as u64;
            if task.fed < reached && !matches!(end, Some(Err(_))) {
                back.push(piece.task);
            }
            ended.extend(end.map(|end| (piece.task, end)));
        }
        let taken_back = back.into_iter().try_for_each(|task| self.go_back(task));
        self.settle(taken_back);
        ended.sort_unstable_by_key(|(task, _)| *task);
        for (index, end) in ended.into_iter().rev() {
            self.finish(index, end);
        }
    }

    /// Ends a task.
    fn finish(&mut self, index: usize, end: Result<End, JobError>) {
        let task = self.running.remove(index);
        match end {
            Ok(_) => self.retain(&task),
            // Its entries in the cache may be as wrong as its logits.
            Err(_) => self.drop_sequence(task.sequence),
        }
        task.end(end);
    }

    /// Keeps the computed tokens of a task, for others that begin like it.
    fn retain(&mut self, task: &Task) {
        self.is_full = false;
        let Some(sequence) = task.sequence else { return };
        let kept = self.prefixes.insert(
            &mut self.backend,
            sequence,
            Owned { party: &task.party, tokens: &task.tokens[..task.fed] },
        );
        self.settle(kept);
    }

    /// Ends or repeats the requests of a step that has failed. If logits are not finite each
    /// request of it is tried alone, to find the one at fault; with any other fault all of them
    /// end, and their entries in the cache are not used again.
    fn fault(&mut self, pieces: &[Piece], error: StepError) {
        tracing::error!(%error, requests = pieces.len(), "a step failed");
        self.counts.faults += 1;
        // A wrong guess may be the reason: a request that is tried alone has no guesses.
        let has_guesses = pieces.iter().any(|piece| !self.running[piece.task].ahead.is_empty());
        let retry = matches!(error, StepError::NotFinite(_)) && (pieces.len() > 1 || has_guesses);
        let message = error.to_string();
        let mut tasks: Vec<usize> = pieces.iter().map(|piece| piece.task).collect();
        tasks.sort_unstable();
        for index in tasks.into_iter().rev() {
            let mut task = self.running.remove(index);
            self.drop_sequence(task.sequence.take());
            if retry {
                task.start_over();
                task.alone = true;
                self.wait_again(task);
            } else {
                task.end(Err(JobError::Fault(message.clone())));
            }
        }
        if !retry {
            let cleared = self.prefixes.clear(&mut self.backend);
            self.settle(cleared);
        }
        let is_fatal = matches!(
            error,
            StepError::Device(DeviceError::Lost { .. } | DeviceError::Kernel { .. } | DeviceError::Forked(_))
        );
        self.failed = Some(error);
        if is_fatal {
            self.give_up(message);
        }
    }

    fn drop_sequence(&mut self, sequence: Option<SeqId>) {
        self.is_full = false;
        let dropped = sequence.map_or(Ok(()), |sequence| self.backend.drop_sequence(sequence));
        self.settle(dropped);
    }

    /// An engine that cannot even let go of a sequence cannot be trusted with another.
    fn settle(&mut self, done: Result<(), StepError>) {
        if let Err(error) = done {
            self.give_up(error.to_string());
            self.failed = Some(error);
        }
    }

    fn give_up(&mut self, why: String) {
        if self.down.is_none() {
            tracing::error!(why, "no more requests can be served");
            self.down = Some(why.clone());
            self.fail_all(&JobError::Down(why));
        }
    }
}

/// The running tasks of pieces, which are in the order of the tasks.
fn parts<'a>(running: &'a mut [Task], pieces: &[Piece]) -> Vec<Part<'a>> {
    let is_in = |index: usize| pieces.binary_search_by_key(&index, |piece| piece.task).is_ok();
    let tasks = running.iter_mut().enumerate().filter(|(index, _)| is_in(*index));
    tasks.filter_map(|(_, task)| task.part()).collect()
}

/// Shares the tokens of a step for prompts out to tasks, given in the order of admission with the
/// number of tokens that each wants. Half is for the first task, so that each prompt is the first
/// at some time, and makes progress. The shortest have the rest: the fewer tokens a prompt has
/// left, the sooner its answer begins.
fn shares(wants: &[(usize, usize)], budget: usize) -> Vec<Piece> {
    let Some(&(first, most)) = wants.first() else { return vec![] };
    let reserved = most.min(budget.div_ceil(2));
    let mut left = budget - reserved;
    let mut order = wants.to_vec();
    order.sort_by_key(|&(_, tokens)| tokens);
    let piece = |(task, most): (usize, usize)| {
        let before = if task == first { reserved } else { 0 };
        let more = (most - before).min(left);
        left -= more;
        Piece { task, tokens: before + more }
    };
    order.into_iter().map(piece).filter(|piece| piece.tokens > 0).collect()
}

#[cfg(test)]
mod tests;
