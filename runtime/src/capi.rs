//! The C interface, declared in `include/atomc.h`, which a test generates from this file.
//!
//! Every call takes the engine it is about; nothing is global. A panic ends at the boundary as
//! `ATOMC_STATUS_BUG`.
use crate::checkpoint::{Checkpoint, Random, Source};
use crate::engine::{Chosen, Engine, EngineOptions, Request, StepError, Want};
use crate::error::Error;
use crate::kv::{KvError, SeqId};
use crate::sample::greedy;
use crate::signature;
use atomc_artifact::{Artifact, escaped};
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// How a call went. Everything but ATOMC_STATUS_OK leaves a message for atomc_last_error.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomcStatus {
    /// The call did what it was asked for.
    Ok = 0,
    /// A null pointer, text that is not UTF-8, or an engine that did not open.
    InvalidArgument = 1,
    /// The file is not an artifact that this version can use.
    Artifact = 2,
    /// The device cannot run the artifact.
    Device = 3,
    /// The checkpoint is not one for this model.
    Checkpoint = 4,
    /// The step was refused, and no sequence has changed; or its logits are not finite, and the
    /// message says where that began.
    Step = 5,
    /// The cache has no block left: free a sequence or open with a larger cache.
    CacheFull = 6,
    /// A fault of atomc itself. Close the engine.
    Bug = 7,
}

/// No logits: there are more tokens to come.
pub const ATOMC_LOGITS_NONE: u32 = 0;
/// Logits after the last token.
pub const ATOMC_LOGITS_LAST: u32 = 1;
/// Logits after every token.
pub const ATOMC_LOGITS_ALL: u32 = 2;

/// An artifact on a device, with its weights, its cache and its sequences. One thread may use it at
/// a time. A process that was forked from the one that opened it gets ATOMC_STATUS_DEVICE from
/// whatever computes, and may close it; on the host an engine of one thread works in both.
pub struct AtomcEngine {
    engine: Option<Engine>,
    error: CString,
    device: CString,
    /// The requests of the current step; empty between steps.
    requests: Vec<Request<'static>>,
}

/// How to open an artifact. All zero is the default.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AtomcOptions {
    /// "host", or "host:" and a variant of the artifact, or "hip" or "hip:" and a number for an AMD
    /// GPU, "cuda" likewise for NVIDIA; null is "host".
    pub device: *const c_char,
    /// Threads, the caller's among them, up to 1024; 0 takes all.
    pub threads: usize,
    /// Tokens that the KV cache holds over all sequences, no more than the device has memory for; 0
    /// makes it as large as the longest sequence of the model.
    pub cache_tokens: usize,
    /// Sequences that a model with a recurrent state has room for at once; 0 for 64 at most. Other
    /// models have no slots.
    pub slots: usize,
    /// Most snapshots of recurrent states, from which atomc_sequence_fork and atomc_sequence_rewind
    /// resume; they lie in slots that no sequence has. 0 for as many as there are slots.
    pub snapshots: usize,
    /// Tokens from one snapshot of a sequence to the next, rounded up to whole blocks; 0 for as
    /// many as the largest plan takes. With SIZE_MAX there are none.
    pub snapshot_tokens: usize,
    /// Not 0 if the artifact's draft is to see every step, for atomc_draft.
    pub draft: u32,
}

/// New tokens of one sequence.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AtomcRequest {
    /// As atomc_sequence_new or atomc_sequence_fork gave it.
    pub sequence: u64,
    /// Token ids, which are read before the call returns.
    pub tokens: *const u32,
    /// The number of tokens: at least one.
    pub token_count: usize,
    /// ATOMC_LOGITS_NONE, ATOMC_LOGITS_LAST or ATOMC_LOGITS_ALL.
    pub logits: u32,
}

/// Opens an artifact. `engine` receives a handle whatever the status, so that atomc_last_error can
/// tell why it failed; close it with atomc_close. Naming an artifact asks for its code to run. If
/// the variable ATOMC_REQUIRE_SIGNED_BY names a public key, an artifact without a valid signature
/// by it is refused as ATOMC_STATUS_ARTIFACT before any of its code is mapped.
///
/// # Safety
/// `path` is a C string, `options` null or valid, `engine` valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn atomc_open(
    path: *const c_char,
    options: *const AtomcOptions,
    engine: *mut *mut AtomcEngine,
) -> AtomcStatus {
    if engine.is_null() {
        return AtomcStatus::InvalidArgument;
    }
    let empty =
        AtomcEngine { engine: None, error: CString::default(), device: CString::default(), requests: Vec::new() };
    let handle = Box::into_raw(Box::new(empty));
    // SAFETY: not null, and valid by the contract.
    unsafe { *engine = handle };
    guard(handle, |handle| {
        // SAFETY: passed on to the caller.
        let (path, options) = unsafe { (text(path, "path")?, options.as_ref()) };
        let mut chosen = EngineOptions::default();
        if let Some(options) = options {
            if !options.device.is_null() {
                // SAFETY: passed on to the caller.
                chosen.device = unsafe { text(options.device, "device") }?.parse().map_err(Error::Device)?;
            }
            (chosen.threads, chosen.cache_tokens, chosen.slots) =
                (options.threads, options.cache_tokens, options.slots);
            (chosen.snapshots, chosen.snapshot_tokens) = (options.snapshots, options.snapshot_tokens);
            chosen.draft = options.draft != 0;
        }
        let artifact = Artifact::open(path).map_err(Error::Artifact)?;
        signature::require(std::env::var_os(signature::VARIABLE), Path::new(path), artifact.fingerprint())
            .map_err(Error::Signature)?;
        let engine = Engine::new(artifact, &chosen)?;
        handle.device = c_text(engine.device_name());
        handle.engine = Some(engine);
        Ok(())
    })
}

/// Closes an engine and frees all that it has. Null is allowed.
///
/// # Safety
/// `engine` came from atomc_open and was not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn atomc_close(engine: *mut AtomcEngine) {
    if !engine.is_null() {
        // SAFETY: made by `Box::into_raw` in `atomc_open`.
        let engine = unsafe { Box::from_raw(engine) };
        // The engine has nothing to say any more, whatever happens.
        let _ = catch_unwind(AssertUnwindSafe(move || drop(engine)));
    }
}

/// The message of the last call that failed, valid until the next call on this engine.
///
/// # Safety
/// `engine` is null or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn atomc_last_error(engine: *const AtomcEngine) -> *const c_char {
    // SAFETY: passed on to the caller.
    unsafe { engine.as_ref() }.map_or(c"no engine".as_ptr(), |engine| engine.error.as_ptr())
}

/// The device and the variant of the code on it, e.g. "host:x86-64-v4"; empty if the engine did not
/// open.
///
/// # Safety
/// `engine` is null or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn atomc_device(engine: *const AtomcEngine) -> *const c_char {
    // SAFETY: passed on to the caller.
    unsafe { engine.as_ref() }.map_or(c"".as_ptr(), |engine| engine.device.as_ptr())
}

/// Loads the weights from a directory of safetensors, also anew over loaded ones.
///
/// # Safety
/// `engine` is open, `directory` a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn atomc_load_weights(engine: *mut AtomcEngine, directory: *const c_char) -> AtomcStatus {
    guard(engine, |handle| {
        // SAFETY: passed on to the caller.
        let directory = unsafe { text(directory, "directory") }?;
        let checkpoint = Checkpoint::open(Path::new(directory)).map_err(Error::Checkpoint)?;
        handle.load(&checkpoint)
    })
}

/// Loads weights, with those of the artifact's draft from a directory of its own.
///
/// # Safety
/// `engine` is open, `directory` and `draft` are C strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn atomc_load_weights_with(
    engine: *mut AtomcEngine,
    directory: *const c_char,
    draft: *const c_char,
) -> AtomcStatus {
    guard(engine, |handle| {
        // SAFETY: passed on to the caller.
        let (directory, draft) = unsafe { (text(directory, "directory")?, text(draft, "draft")?) };
        let open = |directory| Checkpoint::open(Path::new(directory)).map_err(Error::Checkpoint);
        let (model, draft) = (open(directory)?, open(draft)?);
        Ok(handle.open()?.load_weights_with(&model, &draft, &|_, _| ())?)
    })
}

/// Makes weights up, to measure speed without a checkpoint.
///
/// # Safety
/// `engine` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn atomc_random_weights(engine: *mut AtomcEngine, seed: u64) -> AtomcStatus {
    guard(engine, |handle| handle.load(&Random { seed }))
}

/// Size of the vocabulary: numbers in a row of logits. 0 if the engine did not open.
///
/// # Safety
/// `engine` is null or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn atomc_vocab(engine: *const AtomcEngine) -> usize {
    // SAFETY: passed on to the caller.
    unsafe { opened(engine) }.map_or(0, |engine| engine.model().vocab)
}

/// Tokens of the longest sequence. 0 if the engine did not open.
///
/// # Safety
/// `engine` is null or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn atomc_max_positions(engine: *const AtomcEngine) -> usize {
    // SAFETY: passed on to the caller.
    unsafe { opened(engine) }.map_or(0, |engine| engine.model().max_positions)
}

/// The tokens that end an answer: `count` receives their number. Null if the engine did not open.
///
/// # Safety
/// `engine` is null or open, `count` null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn atomc_stop_tokens(engine: *const AtomcEngine, count: *mut usize) -> *const u32 {
    // SAFETY: passed on to the caller.
    let stop = unsafe { opened(engine) }.map(|engine| &engine.model().stop[..]);
    if !count.is_null() {
        // SAFETY: not null, and valid by the contract.
        unsafe { *count = stop.map_or(0, <[u32]>::len) };
    }
    stop.map_or(std::ptr::null(), <[u32]>::as_ptr)
}

/// Adds an empty sequence.
///
/// # Safety
/// `engine` is open, `sequence` valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn atomc_sequence_new(engine: *mut AtomcEngine, sequence: *mut u64) -> AtomcStatus {
    guard(engine, |handle| {
        let added = handle.open()?.add_sequence().to_bits();
        // SAFETY: passed on to the caller.
        unsafe { put(sequence, added, "sequence") }
    })
}

/// Adds a sequence that shares the first tokens of another, without a copy. Only whole blocks of
/// the cache can be shared: `shared` receives the number of tokens that the new sequence has; give
/// it the later ones again. In a model with recurrent states these are the tokens before a
/// snapshot, or all of the other sequence's if all are asked for; then its states are copied.
///
/// # Safety
/// `engine` is open, `sequence` and `shared` valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn atomc_sequence_fork(
    engine: *mut AtomcEngine,
    from: u64,
    tokens: usize,
    sequence: *mut u64,
    shared: *mut usize,
) -> AtomcStatus {
    guard(engine, |handle| {
        if sequence.is_null() || shared.is_null() {
            return Err(null("sequence or shared"));
        }
        let fork = handle.open()?.fork(SeqId::from_bits(from), tokens).map_err(Error::Step)?;
        // SAFETY: passed on to the caller.
        unsafe { put(sequence, fork.sequence.to_bits(), "sequence").and(put(shared, fork.tokens, "shared")) }
    })
}

/// Takes a sequence back to its first `tokens`, or to the most before them that it can resume from:
/// `left` receives the number that it has then; give it the later ones again. In a model with
/// recurrent states these are the tokens before a snapshot. A sequence that a failed step has
/// broken is whole again.
///
/// # Safety
/// `engine` is open, `left` valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn atomc_sequence_rewind(
    engine: *mut AtomcEngine,
    sequence: u64,
    tokens: usize,
    left: *mut usize,
) -> AtomcStatus {
    guard(engine, |handle| {
        if left.is_null() {
            return Err(null("left"));
        }
        let tokens = handle.open()?.rewind(SeqId::from_bits(sequence), tokens).map_err(Error::Step)?;
        // SAFETY: passed on to the caller.
        unsafe { put(left, tokens, "left") }
    })
}

/// Forgets a sequence and frees its part of the cache.
///
/// # Safety
/// `engine` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn atomc_sequence_free(engine: *mut AtomcEngine, sequence: u64) -> AtomcStatus {
    guard(engine, |handle| Ok(handle.open()?.drop_sequence(SeqId::from_bits(sequence)).map_err(Error::Step)?))
}

/// Tokens that a sequence has.
///
/// # Safety
/// `engine` is open, `tokens` valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn atomc_sequence_length(
    engine: *mut AtomcEngine,
    sequence: u64,
    tokens: *mut usize,
) -> AtomcStatus {
    guard(engine, |handle| {
        let len = handle.open()?.sequence_len(SeqId::from_bits(sequence)).map_err(Error::Step)?;
        // SAFETY: passed on to the caller.
        unsafe { put(tokens, len, "tokens") }
    })
}

/// Gives sequences their new tokens and computes the logits that the requests want. Prompts of any
/// length the model has, single tokens and both at once are fine; each sequence may appear once.
///
/// # Safety
/// `engine` is open; `requests` points to `count` requests, and each of their `tokens` to
/// `token_count` tokens.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn atomc_step(
    engine: *mut AtomcEngine,
    requests: *const AtomcRequest,
    count: usize,
) -> AtomcStatus {
    guard(engine, |handle| {
        // SAFETY: passed on to the caller.
        let requests = unsafe { slice(requests, count, "requests") }?;
        handle.requests.clear();
        for request in requests {
            // SAFETY: passed on to the caller; the reference is dropped before this call returns.
            handle.requests.push(unsafe { request.read() }?);
        }
        let engine = handle.engine.as_mut().ok_or_else(not_open)?;
        let result = engine.step(&handle.requests).map(|_| ()).map_err(Error::Step);
        handle.requests.clear();
        Ok(result?)
    })
}

/// Lets the artifact's draft guess up to `count` tokens after a sequence. `tokens` are those that
/// were chosen since the last call: one after each of its last computed tokens, the last of them
/// new to the engine. `guesses` has room for `count`. `made` receives the number of guesses, which
/// is smaller where there is no room, or where the draft lacks a row to go on from. The next step
/// of the sequence takes the last token and its guesses with ATOMC_LOGITS_ALL;
/// atomc_sequence_rewind takes the wrong ones back.
///
/// # Safety
/// `engine` is open; `tokens` is valid for `token_count` reads, `guesses` for `count` writes and
/// `made` for one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn atomc_draft(
    engine: *mut AtomcEngine,
    sequence: u64,
    tokens: *const u32,
    token_count: usize,
    guesses: *mut u32,
    count: usize,
    made: *mut usize,
) -> AtomcStatus {
    guard(engine, |handle| {
        // SAFETY: passed on to the caller.
        let tokens = unsafe { slice(tokens, token_count, "tokens") }?;
        if made.is_null() || guesses.is_null() && count > 0 {
            return Err(invalid("guesses and made must not be null".into()));
        }
        let chosen = Chosen { sequence: SeqId::from_bits(sequence), tokens };
        let found = handle.open()?.draft(&[chosen], count).map_err(Error::Step)?.remove(0);
        // SAFETY: there is room for as many as were wanted, by the contract.
        unsafe {
            std::ptr::copy_nonoverlapping(found.as_ptr(), guesses, found.len());
            made.write(found.len());
        }
        Ok(())
    })
}

/// The logits of one request of the last step, valid until the next call of atomc_step: `rows`
/// receives the first row, `count` the number of rows, `stride` the numbers from one row to the
/// next.
///
/// # Safety
/// `engine` is open; `rows`, `count` and `stride` are valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn atomc_logits(
    engine: *mut AtomcEngine,
    request: usize,
    rows: *mut *const f32,
    count: *mut usize,
    stride: *mut usize,
) -> AtomcStatus {
    guard(engine, |handle| {
        let logits = handle.open()?.logits();
        let mut found =
            logits.get(request).ok_or_else(|| invalid(format!("the last step has no request {request}")))?;
        let len = found.len();
        let first = found.next().map_or(std::ptr::null(), <[f32]>::as_ptr);
        // SAFETY: passed on to the caller.
        unsafe { put(rows, first, "rows").and(put(count, len, "count")).and(put(stride, logits.stride(), "stride")) }
    })
}

/// The likeliest token in the last row of one request of the last step.
///
/// # Safety
/// `engine` is open, `token` valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn atomc_greedy(engine: *mut AtomcEngine, request: usize, token: *mut u32) -> AtomcStatus {
    guard(engine, |handle| {
        let row = handle.open()?.logits().get(request).and_then(|mut rows| rows.next_back());
        let row = row.ok_or_else(|| invalid(format!("the last step has no logits for request {request}")))?;
        // SAFETY: passed on to the caller.
        unsafe { put(token, greedy(row), "token") }
    })
}

/// A status and its message.
struct Failure(AtomcStatus, String);

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let status = match &error {
            Error::Artifact(_) | Error::Hosted(_) | Error::Signature(_) | Error::Trust(_) => AtomcStatus::Artifact,
            Error::NoDraftCheckpoint | Error::Ranks { .. } | Error::CallerAttends { .. } | Error::NoTower => {
                AtomcStatus::Artifact
            }
            Error::Device(_) | Error::Step(StepError::Device(_)) => AtomcStatus::Device,
            Error::Checkpoint(_) | Error::Adapter(_) => AtomcStatus::Checkpoint,
            Error::Step(StepError::Kv(KvError::OutOfBlocks { .. } | KvError::OutOfSlots { .. })) => {
                AtomcStatus::CacheFull
            }
            Error::Step(_) => AtomcStatus::Step,
        };
        Failure(status, error.to_string())
    }
}

fn invalid(message: String) -> Failure {
    Failure(AtomcStatus::InvalidArgument, message)
}

fn null(name: &str) -> Failure {
    invalid(format!("{name} is null"))
}

fn not_open() -> Failure {
    invalid("the engine did not open".to_owned())
}

impl AtomcEngine {
    fn open(&mut self) -> Result<&mut Engine, Failure> {
        self.engine.as_mut().ok_or_else(not_open)
    }

    fn load(&mut self, source: &dyn Source) -> Result<(), Failure> {
        Ok(self.open()?.load_weights(source, &|_, _| ())?)
    }
}

impl AtomcRequest {
    /// # Safety
    /// `tokens` points to `token_count` tokens, for as long as the result is used.
    unsafe fn read(&self) -> Result<Request<'static>, Failure> {
        let logits = match self.logits {
            ATOMC_LOGITS_NONE => Want::Nothing,
            ATOMC_LOGITS_LAST => Want::Last,
            ATOMC_LOGITS_ALL => Want::All,
            other => return Err(invalid(format!("logits is {other}, not one of ATOMC_LOGITS_NONE, _LAST and _ALL"))),
        };
        // SAFETY: passed on to the caller.
        let tokens = unsafe { slice(self.tokens, self.token_count, "tokens") }?;
        Ok(Request { sequence: SeqId::from_bits(self.sequence), tokens, logits })
    }
}

/// Runs a call on a handle and turns its errors and panics into a status.
fn guard(engine: *mut AtomcEngine, call: impl FnOnce(&mut AtomcEngine) -> Result<(), Failure>) -> AtomcStatus {
    // SAFETY: every caller's contract says that the handle is open, and that one thread uses it.
    let Some(handle) = (unsafe { engine.as_mut() }) else { return AtomcStatus::InvalidArgument };
    let bug = |_| {
        Err(Failure(AtomcStatus::Bug, "a fault inside atomc; its message went to the standard error stream".to_owned()))
    };
    match catch_unwind(AssertUnwindSafe(|| call(handle))).unwrap_or_else(bug) {
        Ok(()) => AtomcStatus::Ok,
        Err(Failure(status, message)) => {
            handle.error = c_text(&escaped(&message));
            status
        }
    }
}

fn c_text(text: &str) -> CString {
    CString::new(text.replace('\0', " ")).unwrap_or_default()
}

/// # Safety
/// `engine` is null or open.
unsafe fn opened<'a>(engine: *const AtomcEngine) -> Option<&'a Engine> {
    // SAFETY: passed on to the caller.
    unsafe { engine.as_ref() }.and_then(|engine| engine.engine.as_ref())
}

/// # Safety
/// `pointer` is null or a C string that lives as long as the result.
unsafe fn text<'a>(pointer: *const c_char, name: &str) -> Result<&'a str, Failure> {
    if pointer.is_null() {
        return Err(null(name));
    }
    // SAFETY: passed on to the caller.
    unsafe { CStr::from_ptr(pointer) }.to_str().map_err(|_| invalid(format!("{name} is not UTF-8")))
}

/// # Safety
/// `pointer` is null or points to `len` values that live as long as the result.
unsafe fn slice<'a, T>(pointer: *const T, len: usize, name: &str) -> Result<&'a [T], Failure> {
    // No array is larger, in any language.
    let most = isize::MAX as usize / size_of::<T>();
    match (pointer.is_null(), len) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(null(name)),
        (false, len) if len > most => Err(invalid(format!("{name}: {len} of them, but memory has room for {most}"))),
        // SAFETY: passed on to the caller.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts(pointer, len) }),
    }
}

/// # Safety
/// `pointer` is null or valid for a write.
unsafe fn put<T>(pointer: *mut T, value: T, name: &str) -> Result<(), Failure> {
    if pointer.is_null() {
        return Err(null(name));
    }
    // SAFETY: not null, and valid by the contract.
    unsafe { pointer.write(value) };
    Ok(())
}

#[cfg(test)]
mod tests;
