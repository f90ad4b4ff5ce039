//! Threads that find which tokens a form lets come next, beside the steps of the engine: a form
//! that takes long keeps its own answer waiting and no other.
use std::collections::BinaryHeap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use llguidance::toktrie::SimpleVob;
use llguidance::{CancellationHandle, Matcher};

use super::choice::Choice;
use super::limits::FormLimits;
use crate::threads;

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
    },
    Done(Box<Parser>, Result<Next, String>),
    /// Nobody wants it any more, or it was given away.
    Gone,
}

/// The work on one answer, seen from both sides.
struct Desk {
    state: Mutex<State>,
    done: Condvar,
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

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    more: Condvar,
}

impl Shared {
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
    /// Starts them: one, and more where there are many cores.
    pub fn start() -> io::Result<Masks> {
        let shared = Arc::new(Shared::default());
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        for index in 0..(cores / CORES).clamp(1, MOST) {
            let shared = shared.clone();
            threads::start(&format!("atomc-mask-{index}"), threads::MASKS, move || run(&shared))?;
        }
        Ok(Masks { shared })
    }
}

impl Drop for Masks {
    fn drop(&mut self) {
        self.shared.queue().is_closed = true;
        self.shared.more.notify_all();
    }
}

fn run(shared: &Shared) {
    let mut queue = shared.queue();
    loop {
        match queue.errands.pop() {
            Some(errand) => {
                drop(queue);
                serve(errand);
                queue = shared.queue();
            }
            None if queue.is_closed => return,
            None => queue = shared.more.wait(queue).unwrap_or_else(PoisonError::into_inner),
        }
    }
}

fn serve(Errand { mut parser, token, desk, .. }: Errand) {
    {
        let mut state = desk.state();
        if matches!(*state, State::Gone) {
            return;
        }
        *state = State::Running { since: Instant::now(), cancel: parser.cancellation() };
    }
    let next = parser.go_on(token);
    let mut state = desk.state();
    if !matches!(*state, State::Gone) {
        *state = State::Done(parser, next);
        desk.done.notify_all();
    }
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
    /// Time that the last work took, and all of it.
    last: Duration,
    spent: Duration,
    tokens: u32,
}

impl Follow {
    /// With a parser and what may come first.
    pub fn new(masks: &Masks, limits: FormLimits, parser: Parser, first: Next) -> Follow {
        Follow {
            shared: masks.shared.clone(),
            limits,
            desk: Arc::new(Desk { state: Mutex::new(State::Gone), done: Condvar::new() }),
            parser: Some(Box::new(parser)),
            next: Some(Ok(first)),
            began: Instant::now(),
            last: Duration::ZERO,
            spent: Duration::ZERO,
            tokens: 0,
        }
    }

    /// Goes on behind a token. What may come next is known later, unless it is known at once.
    pub fn take(&mut self, token: u32) -> Result<Standing, String> {
        self.standing(Duration::MAX)?;
        let Some(parser) = self.parser.take() else { return Err("the grammar's parser is gone".into()) };
        (self.next, self.began) = (None, Instant::now());
        self.tokens += 1;
        *self.desk.state() = State::Waiting;
        let errand = Errand { parser, token: Some(token), desk: self.desk.clone(), spent: self.spent };
        self.shared.queue().errands.push(errand);
        self.shared.more.notify_one();
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

    fn look(&mut self, within: Duration) -> Result<(), String> {
        let until = Instant::now() + within.min(self.limits.mask.saturating_mul(2));
        let mut state = self.desk.state();
        loop {
            match &*state {
                State::Done(..) => break,
                State::Gone => return Err("the grammar's parser is gone".into()),
                State::Running { since, cancel } => {
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
        if let State::Done(parser, next) = std::mem::replace(&mut *state, State::Gone) {
            self.last = self.began.elapsed();
            self.spent += self.last;
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
