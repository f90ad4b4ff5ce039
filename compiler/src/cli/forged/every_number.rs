//! Every number of a manifest in turn becomes another one. What is accepted then must be fit to be
//! worked with: nothing panics, and nothing asks for more memory than a small model takes.
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use atomc_artifact::manifest::{Attention, Manifest, Model, Target, TensorNames};
use atomc_artifact::{Artifact, check};
use atomc_runtime::device::{DeviceBuffer, Stream};
use atomc_runtime::memory::Buffer;
use atomc_runtime::weights::{self, Rank, Sink};
use atomc_runtime::{DeviceChoice, Engine, EngineOptions, Hosted, HostedOptions, Pool, Random};
use proptest::prelude::*;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::super::verify::{self, cases::Case, launch::Bench, launch::Options};
use super::{inspect, sample, write};

/// Most bytes at once. The sample needs a hundredth of them. Pages that are only reserved do not
/// count.
const MOST: usize = 64 << 20;

thread_local! {
    /// The change of the manifest under test.
    static WHERE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// The system's allocator, which ends the test where more is asked for than there is reason to.
struct Bounded;

#[global_allocator]
static BOUNDED: Bounded = Bounded;

impl Bounded {
    fn check(layout: Layout) {
        if layout.size() > MOST {
            // The harness would keep what is printed for a test that never ends.
            let say = |place: &RefCell<String>| writeln!(std::io::stderr(), "{} bytes: {place:?}", layout.size());
            let _ = WHERE.try_with(say);
            std::process::abort();
        }
    }
}

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Bounded {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Bounded::check(layout);
        // SAFETY: passed on to the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Bounded::check(layout);
        // SAFETY: passed on to the caller.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: passed on to the caller.
        unsafe { System.dealloc(start, layout) }
    }
}

/// The place of every number, as a JSON pointer.
fn numbers(value: &Value, at: String, all: &mut Vec<String>) {
    match value {
        Value::Number(_) => all.push(at),
        Value::Array(list) => list.iter().enumerate().for_each(|(i, v)| numbers(v, format!("{at}/{i}"), all)),
        Value::Object(map) => map.iter().for_each(|(key, v)| numbers(v, format!("{at}/{key}"), all)),
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

fn all_numbers() -> Vec<String> {
    let mut all = Vec::new();
    numbers(&sample().manifest, String::new(), &mut all);
    // An echo of the configuration, which nothing computes with.
    all.retain(|at| !at.starts_with("/config/"));
    all
}

/// The field without indices, e.g. of all launches.
fn kind(at: &str) -> String {
    let index = |part: &str| part.parse::<usize>().is_ok();
    at.split('/').map(|part| if index(part) { "*" } else { part }).collect::<Vec<_>>().join("/")
}

/// Tries a manifest with another number, and returns whether it is accepted.
fn is_harmless(dir: &TempDir, at: &str, value: u64) -> bool {
    let mut manifest = sample().manifest.clone();
    *manifest.pointer_mut(at).expect("a number") = json!(value);
    WHERE.set(format!("{at} = {value}"));
    let target = usize::from(at.starts_with("/targets/1/"));
    catch_unwind(AssertUnwindSafe(|| is_accepted(dir, &manifest, target))).unwrap_or_else(|_| panic!("{at} = {value}"))
}

/// Whether a manifest with a changed target is accepted.
fn is_accepted(dir: &TempDir, manifest: &Value, target: usize) -> bool {
    let sizes: Vec<usize> = std::iter::once(0).chain(sample().code.iter().map(Vec::len)).collect();
    let Ok(read) = serde_json::from_value::<Manifest>(manifest.clone()) else { return false };
    if check::manifest(&read, &sizes).is_err() {
        return false;
    }
    let file = write(dir, manifest);
    let artifact = Artifact::open(&file).expect("what the check accepts opens");
    inspect::show(&mut std::io::sink(), &file, &artifact, true).expect("a description");
    inspect::describe(&artifact);
    let (manifest, code) = (artifact.manifest(), &artifact.manifest().targets[target]);
    load(code, manifest.ranks());
    verify::launches(code, None).into_iter().for_each(|launch| try_kernel(&manifest.model, code, launch));
    open(&file);
    true
}

/// Makes the weights of the last rank.
fn load(target: &Target, ranks: usize) {
    let weights = &target.weights[..];
    let buffers: Result<Vec<_>, _> = weights.iter().map(|w| Buffer::new(w.bytes).map(DeviceBuffer::Host)).collect();
    let (mut buffers, mut pool) = (buffers.expect("small buffers"), Pool::new(1).expect("no threads"));
    let rank = Rank { number: ranks - 1, of: ranks };
    let sink = Sink { weights, rank, buffers: &mut buffers, pool: &mut pool };
    weights::load(sink, &TensorNames::default(), &Random { seed: 1 }, &|_, _| ()).expect("weights");
}

/// Makes and places the operands of a launch, if it fits its body.
fn try_kernel(model: &Model, target: &Target, (plan, launch): (usize, usize)) {
    let Ok(bench) = Bench::new(target, plan, launch, model.vocab) else { return };
    // The last case is the largest.
    let case =
        Case::all(&target.plans[plan], false, target.layout.block_tokens, model.max_positions).pop().expect("a case");
    let options = Options { seed: 1, whole: true, threads: 1, memory: MOST, on_host: true };
    if bench.check_room(target, &case, &options).is_ok() {
        let trial = bench.trial(&case, 1).expect("operands");
        assert_eq!(trial.operands().len(), bench.body().inputs().len());
    }
}

/// Loads the code and sets up everything that steps need, in an engine and in a framework.
fn open(file: &Path) {
    let artifact = || Artifact::open(file).expect("an artifact");
    let options = EngineOptions { threads: 1, cache_tokens: 64, ..EngineOptions::default() };
    let _ = Engine::new(artifact(), &options);
    let (device, attention, stream) = (DeviceChoice::default(), Attention::Own, Stream::default());
    for draft in [false, true] {
        let options = HostedOptions {
            device: device.clone(),
            threads: 1,
            rank: 0,
            attention,
            draft,
            images: Default::default(),
            stream,
        };
        let _ = Hosted::open(Arc::new(artifact()), &options, None);
    }
}

/// The first number of each kind with every value at an edge, and the last with those around its
/// own.
#[test]
fn at_the_edges() {
    let dir = TempDir::new().expect("a folder");
    let mut kinds: BTreeMap<String, Vec<String>> = BTreeMap::new();
    all_numbers().into_iter().for_each(|at| kinds.entry(kind(&at)).or_default().push(at));
    assert!(kinds.len() > 80, "{}", kinds.len());
    let (mut refused, mut accepted) = (0, 0);
    for places in kinds.values() {
        let ends = [(places.first(), &[0, 1, 2, 3, 7, 1 << 30, 1 << 31, 1 << 62, u64::MAX][..]), (places.last(), &[])];
        for (at, edges) in ends {
            let at = at.expect("a place");
            let old = sample().manifest.pointer(at).and_then(Value::as_u64).unwrap_or(0);
            let near = [old.wrapping_sub(1), old.wrapping_add(1), 2 * old];
            for value in edges.iter().copied().chain(near) {
                let count = if is_harmless(&dir, at, value) { &mut accepted } else { &mut refused };
                *count += 1;
            }
        }
    }
    assert!(refused > 400 && accepted > 100, "{refused} refused, {accepted} accepted");
}

/// The places of the numbers in a body.
fn digits(body: &str) -> Vec<std::ops::Range<usize>> {
    let digit = |at: usize| body.as_bytes()[at].is_ascii_digit();
    let starts = (0..body.len()).filter(|&at| digit(at) && (at == 0 || !digit(at - 1)));
    starts.map(|start| start..(start..body.len()).find(|&at| !digit(at)).unwrap_or(body.len())).collect()
}

/// Bodies are text, and the check does not see their numbers: `verify` reads them.
#[test]
fn in_bodies() {
    let mut manifest: Manifest = serde_json::from_value(sample().manifest.clone()).expect("a manifest");
    let mut tried = 0;
    for kernel in 0..manifest.targets[0].kernels.len() {
        let body = manifest.targets[0].kernels[kernel].body.clone();
        for place in digits(&body) {
            for value in [0, 1, 3, 1 << 30, 1 << 40, 1 << 62, u64::MAX] {
                let mut other = body.clone();
                other.replace_range(place.clone(), &value.to_string());
                WHERE.set(other.clone());
                let target = &mut manifest.targets[0];
                target.kernels[kernel].body = other.clone();
                let last = target.plans.iter().rposition(|plan| plan.launches.iter().any(|l| l.kernel == kernel));
                let plan = last.expect("every kernel is in a plan");
                let launch = target.plans[plan].launches.iter().position(|l| l.kernel == kernel).expect("a launch");
                let done = catch_unwind(AssertUnwindSafe(|| {
                    try_kernel(&manifest.model, &manifest.targets[0], (plan, launch))
                }));
                done.unwrap_or_else(|_| panic!("{other}"));
                tried += 1;
            }
        }
        manifest.targets[0].kernels[kernel].body = body;
    }
    assert!(tried > 1000, "{tried}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn anywhere(place in any::<prop::sample::Index>(), value: u64, shift in 0u32..64) {
        let dir = TempDir::new().expect("a folder");
        let all = all_numbers();
        let at: &String = place.get(&all);
        is_harmless(&dir, at, value >> shift);
    }
}
