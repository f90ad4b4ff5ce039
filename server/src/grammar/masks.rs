//! Threads that find the tokens that a form allows next, during the steps of the engine: a form
//! that takes long delays its own answer and no other.
use std::collections::BinaryHeap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use llguidance::toktrie::SimpleVob;
use llguidance::{CancellationHandle, Matcher};

use super::choice::Choice;
use super::limits::FormLimits;
use crate::threads::{self, Clock, Worker};

/// What knows how an answer goes on.
pub enum Parser {
    /// One of some texts.
    Choice(Choice),
    /// A grammar.
    Grammar(Box<Matcher>),
}

impl Parser {
    /// What ends its work from another thread.
    fn cancellation(&self) -> Option<CancellationHandle> {
        match self {
            Parser::Choice(_) => None,
            Parser::Grammar(matcher) => matcher.cancellation_handle(),
        }
    }

    fn take(&mut self, token: u32) -> Result<bool, String> {
        match self {
            Parser::Choice(choice) => choice.take(token).map(|()| choice.is_complete()),
            Parser::Grammar(matcher) => {
                matcher.consume_token(token).map_err(|error| first_line(&error.to_string()))?;
                Ok(matcher.is_stopped())
            }
        }
    }

    fn mask(&mut self) -> Result<SimpleVob, String> {
        match self {
            Parser::Choice(choice) => Ok(choice.mask()),
            Parser::Grammar(matcher) => matcher.compute_mask_or_eos().map_err(|error| first_line(&error.to_string())),
        }
    }

    /// Takes a token, if there is one, and finds what may come next.
    pub fn go_on(&mut self, token: Option<u32>) -> Result<Next, String> {
        let work = || {
            let is_complete = token.map_or(Ok(false), |token| self.take(token))?;
            let mask = if is_complete { SimpleVob::new() } else { self.mask()? };
            Ok(Next { mask, is_complete })
        };
        catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err("the grammar's parser gave up".into()))
    }
}

/// The first line of a message: llguidance tells its whole state in what follows.
pub(super) fn first_line(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    line.chars().take(300).collect()
}

/// What may come next.
pub struct Next {
    /// A bit for each token.
    pub mask: SimpleVob,
    /// Nothing may: the answer is whole.
    pub is_complete: bool,
}

/// What became of the work on one answer.
enum State {
    Waiting,
    Running {
        since: Instant,
        cancel: Option<CancellationHandle>,
        /// What has the thread, until it stands back.
        worker: Option<Arc<Worker>>,
    },
    /// With the time of the processor that it took.
    Done(Box<Parser>, Result<Next, String>, Duration),
    /// The answer was given up, or the parser was handed out.
    Gone,
}

/// The work on one answer, seen from both sides.
struct Desk {
    state: Mutex<State>,
    done: Condvar,
    /// Whether another thread has the place of the one that works.
    is_replaced: AtomicBool,
}

impl Desk {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is asked of the threads.
struct Errand {
    parser: Box<Parser>,
    token: Option<u32>,
    desk: Arc<Desk>,
    /// Time that the answer has taken so far: those that took least come first.
    spent: Duration,
}

impl PartialEq for Errand {
    fn eq(&self, other: &Errand) -> bool {
        self.spent == other.spent
    }
}

impl Eq for Errand {}

impl PartialOrd for Errand {
    fn partial_cmp(&self, other: &Errand) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Errand {
    fn cmp(&self, other: &Errand) -> std::cmp::Ordering {
        other.spent.cmp(&self.spent)
    }
}

#[derive(Default)]
struct Queue {
    errands: BinaryHeap<Errand>,
    is_closed: bool,
}

/// Errands, with threads that wait for them.
#[derive(Default)]
struct Lane {
    queue: Mutex<Queue>,
    more: Condvar,
}

#[derive(Default)]
struct Shared {
    /// Those of answers that took little time.
    quick: Lane,
    /// Those of others.
    slow: Lane,
}

impl Lane {
    fn push(&self, errand: Errand) {
        self.queue().errands.push(errand);
        self.more.notify_one();
    }

    fn close(&self) {
        self.queue().is_closed = true;
        self.more.notify_all();
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The threads. They end when this is dropped.
pub struct Masks {
    shared: Arc<Shared>,
}

/// Cores for one thread.
const CORES: usize = 4;
/// Most threads.
const MOST: usize = 8;

impl Masks {
    /// Starts them: one of each kind, and more where there are many cores.
    pub fn start() -> io::Result<Masks> {
        let masks = Masks { shared: Arc::default() };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        for _ in 0..(cores / CORES).clamp(1, MOST) {
            start_quick(&masks.shared)?;
            let shared = masks.shared.clone();
            threads::start("atomc-slow-mask", threads::SLOW_MASKS, move || run(&shared.slow, serve))?;
        }
        Ok(masks)
    }
}

impl Drop for Masks {
    fn drop(&mut self) {
        self.shared.quick.close();
        self.shared.slow.close();
    }
}

/// Starts a thread for short work. It ends after work that took long.
fn start_quick(shared: &Arc<Shared>) -> io::Result<()> {
    let shared = shared.clone();
    threads::start("atomc-mask", threads::MASKS, move || run(&shared.quick, serve)).map(drop)
}

/// Serves errands for as long as they are served on this thread.
fn run(lane: &Lane, serve: impl Fn(Errand) -> Thread) {
    let mut queue = lane.queue();
    loop {
        match queue.errands.pop() {
            Some(errand) => {
                drop(queue);
                if serve(errand) == Thread::Ends {
                    return;
                }
                queue = lane.queue();
            }
            None if queue.is_closed => return,
            None => queue = lane.more.wait(queue).unwrap_or_else(PoisonError::into_inner),
        }
    }
}

/// The state of a thread after an errand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Thread {
    Stays,
    /// It has stood back, and another has its place.
    Ends,
}

fn serve(Errand { mut parser, token, desk, .. }: Errand) -> Thread {
    let worker = Arc::new(Worker::default());
    {
        let mut state = desk.state();
        if matches!(*state, State::Gone) {
            return Thread::Stays;
        }
        let (since, cancel) = (Instant::now(), parser.cancellation());
        *state = State::Running { since, cancel, worker: Some(worker.clone()) };
    }
    let clock = Clock::own();
    let next = worker.work(|| parser.go_on(token));
    let taken = clock.read().unwrap_or_default();
    let mut state = desk.state();
    if !matches!(*state, State::Gone) {
        *state = State::Done(parser, next, taken);
        desk.done.notify_all();
    }
    if desk.is_replaced.swap(false, Relaxed) { Thread::Ends } else { Thread::Stays }
}

/// How the work on an answer stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// What may come next is known.
    Known,
    /// It is being found.
    Busy,
    /// The answer is whole.
    Complete,
}

/// Time for each token that an answer takes without being slow.
const EASY: Duration = Duration::from_millis(2);
/// Work that took so short a time is waited for.
const SHORT: Duration = Duration::from_micros(200);

/// A form on its way through one answer.
pub struct Follow {
    shared: Arc<Shared>,
    limits: FormLimits,
    desk: Arc<Desk>,
    parser: Option<Box<Parser>>,
    next: Option<Result<Next, String>>,
    began: Instant,
    /// Time until the last work was seen to be done.
    last: Duration,
    /// Time of the processor that all of it took.
    spent: Duration,
    tokens: u32,
}

impl Follow {
    /// With a parser and what may come first.
    pub fn new(masks: &Masks, limits: FormLimits, parser: Parser, first: Next) -> Follow {
        Follow {
            shared: masks.shared.clone(),
            limits,
            desk: Arc::new(Desk {
                state: Mutex::new(State::Gone),
                done: Condvar::new(),
                is_replaced: AtomicBool::new(false),
            }),
            parser: Some(Box::new(parser)),
            next: Some(Ok(first)),
            began: Instant::now(),
            last: Duration::ZERO,
            spent: Duration::ZERO,
            tokens: 0,
        }
    }

    /// Moves on by a token. The tokens that may follow are known at once, or later.
    pub fn take(&mut self, token: u32) -> Result<Standing, String> {
        self.standing(Duration::MAX)?;
        let Some(parser) = self.parser.take() else { return Err("the grammar's parser is gone".into()) };
        (self.next, self.began) = (None, Instant::now());
        self.tokens += 1;
        *self.desk.state() = State::Waiting;
        let errand = Errand { parser, token: Some(token), desk: self.desk.clone(), spent: self.spent };
        let lane = if self.is_slow() { &self.shared.slow } else { &self.shared.quick };
        lane.push(errand);
        self.standing(if self.last <= SHORT { SHORT } else { Duration::ZERO })
    }

    /// How it stands, at the latest in so long.
    pub fn standing(&mut self, within: Duration) -> Result<Standing, String> {
        if self.next.is_none() {
            self.look(within)?;
        }
        match &self.next {
            None => Ok(Standing::Busy),
            Some(Ok(next)) if next.is_complete => Ok(Standing::Complete),
            Some(Ok(_)) => Ok(Standing::Known),
            Some(Err(why)) => Err(why.clone()),
        }
    }

    /// The tokens that may come next. Waits where they are not known.
    pub fn mask(&mut self) -> Result<&SimpleVob, String> {
        self.standing(Duration::MAX)?;
        match &self.next {
            Some(Ok(next)) => Ok(&next.mask),
            Some(Err(why)) => Err(why.clone()),
            None => Err("the grammar's parser is gone".into()),
        }
    }

    /// Whether it has taken so long that it waits for others of its kind.
    fn is_slow(&self) -> bool {
        self.spent > threads::QUICK + EASY.saturating_mul(self.tokens)
    }

    fn look(&mut self, within: Duration) -> Result<(), String> {
        let until = Instant::now() + within.min(self.limits.mask.saturating_mul(2));
        let is_slow = self.is_slow();
        let mut state = self.desk.state();
        loop {
            match &mut *state {
                State::Done(..) => break,
                State::Gone => return Err("the grammar's parser is gone".into()),
                State::Running { since, cancel, worker } => {
                    if !is_slow && since.elapsed() >= threads::QUICK {
                        let still_works = worker.take().is_some_and(|worker| worker.stand_back(threads::SLOW));
                        // Where there is no thread for the others they wait.
                        if still_works && start_quick(&self.shared).is_ok() {
                            self.desk.is_replaced.store(true, Relaxed);
                        }
                    }
                    let left = self.limits.left(self.tokens, self.spent);
                    if since.elapsed() >= left {
                        cancel.iter().for_each(CancellationHandle::cancel);
                        *state = State::Gone;
                        let (what, most) =
                            if left < self.limits.mask { ("tokens", self.limits.answer) } else { ("a token", left) };
                        return Err(format!(
                            "finding {what} that it allows takes longer than {} s",
                            most.as_secs_f64()
                        ));
                    }
                }
                State::Waiting => {}
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            let wait = left.min(Duration::from_millis(10));
            state = self.desk.done.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
        if let State::Done(parser, next, taken) = std::mem::replace(&mut *state, State::Gone) {
            self.last = self.began.elapsed();
            self.spent += taken;
            (self.parser, self.next) = (Some(parser), Some(next));
        }
        Ok(())
    }
}

impl Drop for Follow {
    fn drop(&mut self) {
        let mut state = self.desk.state();
        if let State::Running { cancel, .. } = &*state {
            cancel.iter().for_each(CancellationHandle::cancel);
        }
        *state = State::Gone;
    }
}

impl FormLimits {
    /// Time that the next token of an answer may take.
    fn left(&self, tokens: u32, spent: Duration) -> Duration {
        (self.answer + self.token.saturating_mul(tokens)).saturating_sub(spent).min(self.mask)
    }
}
