mod faults;
mod packing;
mod slots;

use super::super::{InputAddresses, StateMemory, StepSize};
use super::*;
use crate::engine::{Engine, EngineOptions, Request, StepError, Want};
use crate::forks::in_child;
use crate::hosted::{Batch, Hosted, HostedOptions, Pages, Table};
use crate::toy::{self, BLOCK, PICK, VOCAB};
use atomc_artifact::manifest::{self, Call, DType, Extent, Place, Work};
use hip_sys::hipDeviceProp_tR0600;
use std::ffi::{CStr, c_char};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A stand-in for a driver, in a library of its own, so that each test has its own state.
struct Fake {
    vendor: Vendor,
    dir: tempfile::TempDir,
    library: libloading::Library,
}

fn cc(dir: &Path, source: &str, out: &str, defines: &[String]) -> PathBuf {
    let (file, out) = (dir.join(format!("{out}.c")), dir.join(out));
    std::fs::write(&file, source).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-shared", "-fPIC"]).args(defines).arg(&file).arg("-o").arg(&out);
    assert!(cc.status().unwrap().success());
    out
}

impl Fake {
    fn new(vendor: Vendor) -> Fake {
        let dir = tempfile::tempdir().unwrap();
        let (arch, memory, units) = (
            std::mem::offset_of!(hipDeviceProp_tR0600, gcnArchName),
            std::mem::offset_of!(hipDeviceProp_tR0600, totalGlobalMem),
            std::mem::offset_of!(hipDeviceProp_tR0600, multiProcessorCount),
        );
        let defines = match vendor {
            Vendor::Hip => {
                vec![format!("-DARCH_NAME={arch}"), format!("-DMEMORY={memory}"), format!("-DAT_UNITS={units}")]
            }
            Vendor::Cuda => vec!["-DCUDA".to_owned()],
        };
        let path = cc(dir.path(), include_str!("fake.c"), "driver.so", &defines);
        // SAFETY: the library is the one above.
        let library = unsafe { libloading::Library::new(path) }.unwrap();
        Fake { vendor, dir, library }
    }

    fn driver(&self) -> Result<Box<dyn Driver>, DeviceError> {
        self.vendor.load(self.dir.path().join("driver.so").to_str())
    }

    /// The name of the target that the first device takes.
    fn target(&self) -> &'static str {
        match self.vendor {
            Vendor::Hip => "gfx942",
            Vendor::Cuda => "sm_90a",
        }
    }

    fn devices(&self, count: i32) {
        // SAFETY: the function has this signature.
        unsafe { self.library.get::<unsafe extern "C" fn(i32)>(b"fake_devices\0").unwrap()(count) }
    }

    /// Whether devices reach each other's memory.
    fn peers(&self, can: bool) {
        // SAFETY: the function has this signature.
        unsafe { self.library.get::<unsafe extern "C" fn(i32)>(b"fake_peers\0").unwrap()(can.into()) }
    }

    /// The calls since the last time.
    fn log(&self) -> String {
        // SAFETY: the function has this signature and gives a C string.
        let text =
            unsafe { self.library.get::<unsafe extern "C" fn() -> *const c_char>(b"fake_take_log\0").unwrap()() };
        // SAFETY: the string lives until the next call, and is copied here.
        unsafe { CStr::from_ptr(text) }.to_str().unwrap().trim_end().replace('\n', "; ")
    }

    /// The toy compiled for a GPU.
    fn artifact(&self) -> Artifact {
        self.artifact_of(toy::manifest(), |_| ())
    }

    /// The artifact of a manifest, with other facts about its kernels.
    fn artifact_of(&self, mut manifest: Manifest, change: impl FnOnce(&mut [manifest::Kernel])) -> Artifact {
        let target = &mut manifest.targets[0];
        target.name = self.target().into();
        target.variants.remove(0);
        target.variants[0].name = target.name.clone();
        let defines = [format!("-DVOCAB={VOCAB}"), format!("-DBLOCK={BLOCK}"), format!("-DPICK={PICK}")];
        let object = cc(self.dir.path(), include_str!("kernels.c"), "kernels.so", &defines);
        let mut code = std::fs::read(&object).unwrap();
        let cubin = Extent { start: 0, bytes: code.len() };
        code.extend(object.to_str().unwrap().bytes().chain([0]));
        let ptx = Extent { start: cubin.bytes, bytes: code.len() - cubin.bytes };
        for (index, kernel) in target.variants[0].kernels.iter_mut().enumerate() {
            (kernel.threads, kernel.workspace, kernel.scratch) = (64, 64, 0);
            if self.vendor == Vendor::Cuda {
                kernel.module = Some(manifest::Module { ptx, cubin: (index != 1).then_some(cubin) });
                (kernel.shared, kernel.overlaps) = [(0, false), (96 << 10, true), (0, true)][index % 3];
            }
        }
        change(&mut target.variants[0].kernels);
        let kernel = target.variants[0].kernels[0].clone();
        let hosted = manifest::Kernel { tasks: Tasks::Fixed(1), ..kernel };
        (target.variants[0].prepare, target.variants[0].pack) = (Some(hosted.clone()), Some(hosted));
        let path = self.dir.path().join("toy.atomc");
        atomc_artifact::write(&path, &manifest, &[code]).unwrap();
        Artifact::open(path).unwrap()
    }

    fn device(&self, artifact: &Artifact, ordinal: usize) -> Result<Gpu, DeviceError> {
        Gpu::with_driver(self.driver()?, artifact, &artifact.manifest().targets[0], ordinal, None, 2)
    }

    fn engine(&self) -> Engine {
        self.engine_of(self.artifact(), &EngineOptions::default())
    }

    fn engine_of(&self, artifact: Artifact, options: &EngineOptions) -> Engine {
        let device = self.device(&artifact, 0).unwrap();
        let mut engine = Engine::with_device(artifact, self.target(), Box::new(device), options).unwrap();
        engine.load_weights(&toy::Bias(vec![0; VOCAB * 4]), &|_, _| ()).unwrap();
        engine
    }
}

#[test]
fn calls_on_several_threads_are_all_written_down() {
    const CALLS: usize = 2000;
    let fake = Fake::new(Vendor::Cuda);
    fake.log();
    // SAFETY: the function has this signature.
    let init = unsafe { fake.library.get::<unsafe extern "C" fn(u32) -> i32>(b"cuInit\0") }.unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            // SAFETY: any thread may call it.
            scope.spawn(|| (0..CALLS).for_each(|_| assert_eq!(unsafe { init(0) }, 0)));
        }
    });
    assert_eq!(fake.log(), vec!["init"; 4 * CALLS].join("; "));
}

#[test]
fn a_device_says_what_it_is_and_how_fast_it_copies() {
    for (vendor, name) in [(Vendor::Hip, "AMD Instinct Fake"), (Vendor::Cuda, "NVIDIA Fake")] {
        let fake = Fake::new(vendor);
        let artifact = fake.artifact();
        let mut device = fake.device(&artifact, 0).unwrap();
        assert_eq!(device.product(), Some(name));
        fake.log();
        // The stand-in's copies take a quarter of a millisecond, whatever their size.
        assert_eq!(device.copy_rate(1 << 20).unwrap(), Some(2.0 * f64::from(1 << 20) / 0.25e-3));
        assert!(fake.log().contains("record; copy within; record; wait"));
    }
}

fn greedy(engine: &mut Engine, requests: &[Request]) -> Vec<u32> {
    let logits = engine.step(requests).unwrap();
    (0..requests.len()).filter_map(|i| logits.last(i).map(crate::sample::greedy)).collect()
}

fn a_prompt_is_launched_and_decode_steps_are_replayed(vendor: Vendor) {
    let fake = Fake::new(vendor);
    let mut engine = fake.engine();
    let (name, began, early) = match vendor {
        Vendor::Hip => ("hip:0:gfx942", "init; stream; load; copy in; synchronise", false),
        Vendor::Cuda => ("cuda:0:sm_90a", "init; retain; stream; load", true),
    };
    assert_eq!(engine.device_name(), name);
    let opened = fake.log();
    assert!(opened.starts_with(began), "{opened}");
    // The arguments of NVIDIA's launches other than the grid.
    let called = |found: &str, wanted: &str| {
        let early = |line: &str| match early {
            true if line.contains(" attend ") => format!("{line} sharing early"),
            true if line.contains(" head ") => format!("{line} early"),
            _ => line.to_owned(),
        };
        assert_eq!(found, wanted.split("; ").map(early).collect::<Vec<_>>().join("; "));
    };
    let (sequence, other) = (engine.add_sequence(), engine.add_sequence());
    let mut tokens: Vec<u32> = (1..8).collect();
    let first = greedy(&mut engine, &[Request { sequence, tokens: &tokens, logits: Want::Last }]);
    assert_eq!(first, [toy::next(&tokens)]);
    called(
        &fake.log(),
        "copy in; record; launch scatter 2x64; launch attend 1x64; launch head 1x64; wait; copy out; synchronise",
    );
    tokens.push(first[0]);
    let second = greedy(&mut engine, &[Request { sequence, tokens: &first, logits: Want::Last }]);
    assert_eq!(second, [toy::next(&tokens)]);
    called(
        &fake.log(),
        "copy in; record; begin capture; capture scatter 1x64; capture attend 1x64; capture head 1x64; end capture; \
         instantiate; replay of 3; wait; copy out; synchronise",
    );
    tokens.push(second[0]);
    let third = greedy(&mut engine, &[Request { sequence, tokens: &second, logits: Want::Last }]);
    assert_eq!(third, [toy::next(&tokens)]);
    called(&fake.log(), "copy in; record; replay of 3; wait; copy out; synchronise");
    tokens.push(third[0]);
    // A step smaller than its plan: the grid is the plan's.
    let two = [
        Request { sequence, tokens: &third, logits: Want::Last },
        Request { sequence: other, tokens: &[5], logits: Want::Last },
    ];
    assert_eq!(greedy(&mut engine, &two), [toy::next(&tokens), toy::next(&[5])]);
    called(
        &fake.log(),
        "copy in; record; begin capture; capture scatter 1x64; capture attend 4x64; capture head 4x64; end capture; \
         instantiate; replay of 3; wait; copy out; synchronise",
    );
}

fn prompts_of_a_size_that_comes_again_are_replayed(vendor: Vendor) {
    let fake = Fake::new(vendor);
    let mut engine = fake.engine();
    let mut counts = |tokens: &[u32]| {
        fake.log();
        let sequence = engine.add_sequence();
        assert_eq!(greedy(&mut engine, &[Request { sequence, tokens, logits: Want::Last }]), [toy::next(tokens)]);
        engine.drop_sequence(sequence).unwrap();
        let log = fake.log();
        ["launch", "; capture", "replay"].map(|call| log.matches(call).count())
    };
    let (one, other) = ([5, 6, 7, 8, 9, 1, 2], [1, 2, 3, 4, 5, 6]);
    assert_eq!(counts(&one), [3, 0, 0]);
    assert_eq!(counts(&other), [3, 0, 0]);
    assert_eq!(counts(&one), [0, 3, 1]);
    assert_eq!(counts(&one), [0, 0, 1]);
    assert_eq!(counts(&other), [0, 3, 1]);
}

fn long_prompts_recycled_blocks_and_new_weights(vendor: Vendor) {
    let fake = Fake::new(vendor);
    let mut engine = fake.engine();
    let tokens: Vec<u32> = (0..60).map(|i| (i * 31 + 7) % VOCAB as u32).collect();
    for _ in 0..2 {
        let sequence = engine.add_sequence();
        let logits = engine.step(&[Request { sequence, tokens: &tokens, logits: Want::All }]).unwrap();
        let found: Vec<u32> = logits.of(0).map(crate::sample::greedy).collect();
        let wanted: Vec<u32> = (1..=60).map(|end| toy::next(&tokens[..end])).collect();
        assert_eq!(found, wanted);
        engine.drop_sequence(sequence).unwrap();
    }
    let mut bias = vec![0u8; VOCAB * 4];
    bias[3 * 4..4 * 4].copy_from_slice(&1000f32.to_le_bytes());
    engine.load_weights(&toy::Bias(bias), &|_, _| ()).unwrap();
    let sequence = engine.add_sequence();
    assert_eq!(greedy(&mut engine, &[Request { sequence, tokens: &[50], logits: Want::Last }]), [3]);
}

/// On a stream that the caller captures.
fn a_plan_is_put_on_the_stream_and_nothing_else(vendor: Vendor) {
    let fake = Fake::new(vendor);
    let artifact = fake.artifact();
    let target = &artifact.manifest().targets[0];
    let stream = std::ptr::without_provenance_mut(0x52);
    let mut device = Gpu::with_driver(fake.driver().unwrap(), &artifact, target, 0, Some(stream), 1).unwrap();
    let memory = |device: &mut Gpu, bytes| device.allocate(bytes).unwrap();
    let block = memory(&mut device, 4096).address();
    let inputs = InputAddresses {
        block,
        ids: block,
        positions: block,
        lengths: block,
        rows: block,
        sources: block,
        adapters: block,
        times: block,
        heights: block,
        widths: block,
        ends: block,
        taps: block,
        shares: block,
        given: block,
        batches: block,
        step: block,
    };
    let memory = Memory {
        weights: vec![memory(&mut device, 4096)],
        states: vec![StateMemory {
            pages: memory(&mut device, 4096),
            streams: vec![0, 2048],
            table: 0,
            advances: false,
        }],
        arena: memory(&mut device, 4096),
        hidden: memory(&mut device, 4096),
        head_input: None,
        workspace: memory(&mut device, 4096),
        inputs,
    };
    fake.log();
    let driver = fake.driver().unwrap();
    fake.log();
    // SAFETY: the memory is the device's, and nothing runs: it is only captured.
    unsafe {
        device.bind(&target.plans, &memory).unwrap();
        driver.begin_capture(stream).unwrap();
        let size = StepSize::largest(&target.plans[1]);
        device.launch(Part { plan: 1, launches: 0..3, size, step: inputs.step, stream: Stream(0x52) }).unwrap();
    }
    let log = fake.log();
    assert!(log.split("; ").all(|call| call.contains("capture")) && log.matches("; capture").count() == 3, "{log}");
}

/// A framework's memory on the device.
struct Tensors<'a> {
    driver: &'a dyn Driver,
    stream: Handle,
}

impl Tensors<'_> {
    fn zeroed(&self, bytes: usize) -> *mut c_void {
        let start = self.driver.allocate(bytes).unwrap();
        // SAFETY: just allocated.
        unsafe { self.driver.fill(start, 0, bytes, self.stream) }.unwrap();
        start
    }

    fn set<T: Copy>(&self, to: *mut c_void, values: &[T]) {
        // SAFETY: the tests' own memory, and values without padding.
        unsafe {
            let bytes = std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), size_of_val(values));
            self.driver.copy_in(to, bytes, self.stream).unwrap();
        }
    }

    fn get(&self, from: *mut u8, bytes: usize) -> Vec<u8> {
        let mut to = vec![0; bytes];
        // SAFETY: the tests' own memory.
        unsafe { self.driver.copy_out(&mut to, from.cast(), self.stream) }.unwrap();
        to
    }
}

/// Steps on a framework's stream, of tensors that only the device reads: captured once and
/// replayed, with rows and sequences that are padding, and one by one.
fn a_framework_captures_and_replays_steps(vendor: Vendor) {
    const STREAM: usize = 0x52;
    const TABLE: usize = 16;
    let fake = Fake::new(vendor);
    let artifact = Arc::new(fake.artifact());
    let target = &artifact.manifest().targets[0];
    let (driver, stream) = (fake.driver().unwrap(), std::ptr::without_provenance_mut(STREAM));
    let device = Gpu::with_driver(fake.driver().unwrap(), &artifact, target, 0, Some(stream), 1).unwrap();
    let tensors = Tensors { driver: &*driver, stream };
    let mut give = |bytes| Ok(NonNull::new(tensors.zeroed(bytes).cast()).unwrap());
    let options = HostedOptions {
        device: crate::DeviceChoice::default(),
        threads: 1,
        rank: 0,
        attention: manifest::Attention::Own,
        draft: false,
        images: Default::default(),
        stream: Stream(STREAM),
    };
    let mut hosted =
        Hosted::with_device(artifact.clone(), fake.target(), Box::new(device), &options, Some(&mut give)).unwrap();
    hosted.load(&toy::Bias(vec![0; VOCAB * 4]), &|_, _| ()).unwrap();
    let pages = NonNull::new(tensors.zeroed(40 * 512).cast()).unwrap();
    // SAFETY: these pages exist, and they stay.
    unsafe { hosted.bind_cache(&[Pages { states: vec![(0, pages)], block_stride: 512, blocks: 40 }]) }.unwrap();
    let [ids, positions, starts, lengths, pages] =
        [40 * 4, 40 * 8, 41 * 4, 40 * 4, 40 * TABLE * 4].map(|n| tensors.zeroed(n));
    let tables = [Table { pages: pages.cast(), stride: TABLE }];
    let batch = |sequences, tokens, decode| Batch {
        ids: ids.cast(),
        positions: positions.cast(),
        starts: starts.cast(),
        lengths: lengths.cast(),
        tables: &tables,
        sequences,
        tokens,
        each: usize::from(decode),
        draft: false,
        embedded: false,
    };
    fake.log();
    let mut graph = std::ptr::null_mut();
    // SAFETY: the tensors are the device's and stay.
    let replay = unsafe {
        driver.begin_capture(stream).unwrap();
        hosted.begin(&batch(4, 4, true), Stream(STREAM)).unwrap();
        assert!(hosted.run().unwrap().is_none());
        driver.end_capture(stream, &mut graph).unwrap();
        driver.instantiate(graph).unwrap()
    };
    let log = fake.log();
    let calls: Vec<&str> = log.split("; ").map(|call| call.split(" sharing").next().unwrap()).collect();
    let wanted = ["begin capture", "capture atomc_prepare 12x64", "capture scatter 1x64", "capture attend 4x64"];
    assert_eq!(calls, [&wanted[..], &["end capture", "instantiate"]].concat());

    // Sequence q has the pages from 8 q on.
    let mut all: Vec<Vec<u32>> = vec![vec![]; 4];
    let new: [&[(usize, &[u32])]; 6] = [
        &[(0, &[5, 6, 7, 8, 9, 1]), (2, &[4])],
        &[(2, &[8]), (0, &[3])],
        &[(0, &[9]), (1, &[2]), (2, &[90])],
        &[(3, &[7; 20]), (1, &[1, 2, 3])],
        &[(3, &[5])],
        &[(0, &[1]), (1, &[2]), (2, &[3]), (3, &[4])],
    ];
    for step in new {
        let count: usize = step.iter().map(|(_, tokens)| tokens.len()).sum();
        let mut end = 0;
        let mut ends: Vec<i32> = vec![0];
        for (index, (sequence, tokens)) in step.iter().enumerate() {
            let from = all[*sequence].len() as i64;
            all[*sequence].extend(*tokens);
            tensors.set(ids.wrapping_byte_add(end * 4), tokens);
            tensors.set(positions.wrapping_byte_add(end * 8), &(from..from + tokens.len() as i64).collect::<Vec<_>>());
            tensors.set(lengths.wrapping_byte_add(index * 4), &[all[*sequence].len() as i32]);
            let table: Vec<i32> = (0..8).map(|page| (8 * sequence + page) as i32).collect();
            tensors.set(pages.wrapping_byte_add(index * TABLE * 4), &table);
            end += tokens.len();
            ends.push(end as i32);
        }
        ends.resize(41, end as i32);
        tensors.set(starts, &ends);
        let decode = count == step.len();
        // SAFETY: as above.
        unsafe {
            if decode {
                driver.replay(replay, stream).unwrap();
            } else {
                // One sequence and two tokens more than there are.
                hosted.begin(&batch(step.len() + 1, count + 2, false), Stream(STREAM)).unwrap();
                assert!(hosted.run().unwrap().is_none());
            }
            let (hidden, input) = (hosted.hidden(), hosted.head_input());
            for (row, &last) in ends[1..=step.len()].iter().enumerate() {
                let bytes = tensors.get(hidden.address.wrapping_add((last as usize - 1) * 8), 8);
                tensors.set(input.address.wrapping_add(row * 8).cast(), &bytes);
            }
            for rows in [step.len().min(2), step.len()] {
                let logits = hosted.head(rows, Stream(STREAM)).unwrap();
                let bytes = tensors.get(logits.address, (rows * logits.stride - 3) * 4);
                let values: Vec<f32> = bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
                let found: Vec<u32> =
                    values.chunks(logits.stride).map(|row| crate::sample::greedy(&row[..VOCAB])).collect();
                let wanted: Vec<u32> = step[..rows].iter().map(|(sequence, _)| toy::next(&all[*sequence])).collect();
                assert_eq!(found, wanted);
            }
        }
    }
    // SAFETY: nothing is there to be read.
    let refused = |step: &Batch, hosted: &mut Hosted| unsafe { hosted.begin(step, Stream(STREAM)) }.unwrap_err();
    assert_eq!(refused(&batch(0, 4, true), &mut hosted).to_string(), "sequences: 0 in a step of 4 tokens");
    assert_eq!(refused(&batch(200, 4, true), &mut hosted).to_string(), "sequences: 200 in a step of 4 tokens");
    assert!(!fake.log().contains("synchronise"));
}

fn greedy_steps_bring_back_picks(vendor: Vendor) {
    let fake = Fake::new(vendor);
    let mut engine = fake.engine();
    let (sequence, other) = (engine.add_sequence(), engine.add_sequence());
    let requests = [
        Request { sequence, tokens: &[4, 5, 6], logits: Want::Last },
        Request { sequence: other, tokens: &[8], logits: Want::Nothing },
    ];
    assert_eq!(engine.step_greedy(&requests).unwrap(), [Some(toy::next(&[4, 5, 6])), None]);
    assert!(engine.logits().is_empty());
}

fn logits_that_are_not_finite_are_traced(vendor: Vendor) {
    let fake = Fake::new(vendor);
    let mut engine = fake.engine();
    for tokens in [&[4][..], &[4, 5, 6]] {
        let sequence = engine.add_sequence();
        let request = [Request { sequence, tokens, logits: Want::Last }];
        engine.load_weights(&toy::Bias(f32::NAN.to_le_bytes().repeat(VOCAB)), &|_, _| ()).unwrap();
        let message = engine.step_greedy(&request).unwrap_err().to_string();
        assert!(message.contains("kernel `head` (launch 2, from 0 on"), "{message}");
        assert!(message.ends_with("weight `head.bias` that it reads holds NaN"), "{message}");
        engine.drop_sequence(sequence).unwrap();
        engine.load_weights(&toy::Bias(vec![0; VOCAB * 4]), &|_, _| ()).unwrap();
        let sequence = engine.add_sequence();
        let request = [Request { sequence, tokens, logits: Want::Last }];
        assert_eq!(engine.step_greedy(&request).unwrap(), [Some(toy::next(tokens))]);
    }
}

fn children_ask_nothing_of_the_driver(vendor: Vendor) {
    let fake = Fake::new(vendor);
    let mut engine = fake.engine();
    let sequence = engine.add_sequence();
    fake.log();
    let said = in_child(|| {
        let request = [Request { sequence, tokens: &[4], logits: Want::Last }];
        let step = engine.step_greedy(&request);
        drop(engine);
        matches!(step, Err(StepError::Device(DeviceError::Forked(_)))) && fake.log().is_empty()
    });
    assert!(said);
}

fn times_launches_with_events(vendor: Vendor) {
    let fake = Fake::new(vendor);
    let mut engine = fake.engine();
    let sequence = engine.add_sequence();
    engine.time_launches();
    greedy(&mut engine, &[Request { sequence, tokens: &[1], logits: Want::Last }]);
    let times = engine.take_launch_times();
    assert_eq!((times[0].steps, &times[0].nanoseconds[..]), (1, &[250_000; 3][..]));
}

use faults::{
    a_lost_device, code_that_does_not_load, memory_that_is_exhausted_at_load, steps_that_fail_are_taken_back,
    weights_that_do_not_arrive,
};
use slots::{sequences_go_on_from_copies_of_slots, timing_leaves_slots_as_they_are};

use packing::{
    an_update_waits_for_nothing, raised_weights_stay_there, tensors_come_from_anywhere, tensors_of_a_device_stay_there,
};

fn everything_is_given_back_in_order(vendor: Vendor) {
    let fake = Fake::new(vendor);
    let engine = fake.engine();
    fake.log();
    drop(engine);
    let log = fake.log();
    let (modules, last) = match vendor {
        Vendor::Hip => (1, "destroy stream"),
        Vendor::Cuda => (5, "destroy stream; release"),
    };
    // One weight, one cache, arena, hidden rows, workspace and inputs; the stream goes last.
    assert_eq!((log.matches("free").count(), log.matches("unload").count()), (6, modules));
    assert!(log.ends_with(last), "{log}");
}

/// Each of these tests on both drivers.
macro_rules! on_both {
    ($($test:ident),* $(,)?) => {
        mod on_hip { $(#[test] fn $test() { super::$test(super::Vendor::Hip) })* }
        mod on_cuda { $(#[test] fn $test() { super::$test(super::Vendor::Cuda) })* }
    };
}

on_both! {
    a_prompt_is_launched_and_decode_steps_are_replayed,
    prompts_of_a_size_that_comes_again_are_replayed,
    long_prompts_recycled_blocks_and_new_weights,
    a_plan_is_put_on_the_stream_and_nothing_else,
    a_framework_captures_and_replays_steps,
    greedy_steps_bring_back_picks,
    logits_that_are_not_finite_are_traced,
    children_ask_nothing_of_the_driver,
    times_launches_with_events,
    timing_leaves_slots_as_they_are,
    sequences_go_on_from_copies_of_slots,
    everything_is_given_back_in_order,
    tensors_of_a_device_stay_there,
    tensors_come_from_anywhere,
    an_update_waits_for_nothing,
    raised_weights_stay_there,
    memory_that_is_exhausted_at_load,
    weights_that_do_not_arrive,
    steps_that_fail_are_taken_back,
    a_lost_device,
    code_that_does_not_load,
}

#[test]
fn lists_and_refuses_amd_devices() {
    let fake = Fake::new(Vendor::Hip);
    let found = list(&*fake.driver().unwrap()).unwrap();
    assert_eq!(found[0].arch, "gfx942");
    assert_eq!((found[0].full(), &found[0].name[..]), ("gfx942:sramecc+:xnack-".into(), "AMD Instinct Fake"));
    assert_eq!((found[1].arch.as_str(), found[1].modes.len()), ("gfx1100", 0));
    let artifact = fake.artifact();
    let message = |ordinal| fake.device(&artifact, ordinal).unwrap_err().to_string();
    assert_eq!(message(1), "the artifact has no code for target `gfx1100`; it has: gfx942");
    assert_eq!(message(2), "there is no device hip:2; HIP finds 2 on this machine");
    fake.devices(-1);
    assert_eq!(
        fake.driver().unwrap_err().to_string(),
        "HIP cannot be used on this machine: hipInit: hipErrorNoDevice (no device is detected)"
    );
}

#[test]
fn lists_and_refuses_nvidia_devices() {
    let fake = Fake::new(Vendor::Cuda);
    let found = list(&*fake.driver().unwrap()).unwrap();
    assert_eq!((&found[0].arch[..], &found[0].name[..], found[0].memory), ("sm_90", "NVIDIA Fake", 64 << 20));
    assert_eq!(found[1].arch, "sm_103");
    let artifact = fake.artifact();
    let message = |ordinal| fake.device(&artifact, ordinal).unwrap_err().to_string();
    assert_eq!(message(1), "the artifact has no code for target `sm_103`; it has: sm_90a");
    assert_eq!(message(2), "there is no device cuda:2; CUDA finds 2 on this machine");
    fake.devices(-1);
    assert_eq!(
        fake.driver().unwrap_err().to_string(),
        "CUDA cannot be used on this machine: cuInit: CUDA_ERROR_NO_DEVICE (no device is detected)"
    );
}

/// Work-groups that wait for others that do not run would do so for ever.
#[test]
fn refuses_a_device_with_fewer_units_than_wait_for_each_other() {
    for vendor in Vendor::ALL {
        let fake = Fake::new(vendor);
        let open = |together| {
            let artifact = fake.artifact_of(toy::manifest(), |kernels| kernels[1].together = together);
            fake.device(&artifact, 0).map(drop).map_err(|error| error.to_string())
        };
        assert_eq!(open(16), Ok(()));
        let says = "has 16 units, but 17 work-groups of `toy` wait for each other";
        assert_eq!(open(17), Err(format!("{}:0 {says}", vendor.prefix())));
    }
}

#[test]
fn takes_the_target_that_suits_best() {
    let mut manifest = toy::manifest();
    let mut choose = |arch: &str, names: &[&str]| {
        let target = |name: &&str| manifest::Target { name: name.to_string(), ..manifest.targets[0].clone() };
        manifest = Manifest { targets: names.iter().map(target).collect(), ..manifest.clone() };
        let device = GpuDevice { arch: arch.into(), ..nvidia() };
        device.target(&manifest).map(|index| names[index].to_owned()).map_err(|error| error.to_string())
    };
    assert_eq!(choose("sm_90", &["host", "sm_80", "sm_90a", "sm_100a"]), Ok("sm_90a".into()));
    assert_eq!(choose("sm_86", &["sm_90a", "sm_80", "sm_75"]), Ok("sm_80".into()));
    assert_eq!(choose("sm_120", &["sm_100a", "sm_80", "gfx942"]), Ok("sm_80".into()));
    assert_eq!(
        choose("sm_75", &["sm_80", "gfx942"]),
        Err("the artifact has no code for target `sm_75`; it has: sm_80, gfx942".into())
    );
}

#[test]
fn takes_its_own_code_before_that_of_its_family() {
    let fits = |arch: &str, target: &str| GpuDevice { vendor: Vendor::Hip, arch: arch.into(), ..nvidia() }.fit(target);
    assert!(fits("gfx1151", "gfx1151") > fits("gfx1151", "gfx11-generic"));
    assert!(fits("gfx1151", "gfx11-generic").is_some() && fits("gfx950", "gfx9-4-generic").is_some());
    assert_eq!((fits("gfx1201", "gfx11-generic"), fits("gfx90a", "gfx9-4-generic")), (None, None));
}

fn nvidia() -> GpuDevice {
    let (name, arch, modes) = ("NVIDIA Fake".into(), "sm_90".into(), Vec::new());
    GpuDevice { vendor: Vendor::Cuda, ordinal: 0, name, arch, modes, memory: 0, units: 0 }
}

/// Assembled code is loaded if there is some and the chip is of its generation, text otherwise.
#[test]
fn chooses_between_assembled_code_and_text() {
    let fake = Fake::new(Vendor::Cuda);
    let artifact = fake.artifact();
    fake.device(&artifact, 0).unwrap();
    let log = fake.log();
    // The second kernel has text only.
    assert_eq!((log.matches("load text").count(), log.matches("; load").count()), (1, 5), "{log}");
    let mut target = artifact.manifest().targets[0].clone();
    (target.name, target.variants[0].features) = ("sm_80".into(), vec!["sm_80".into()]);
    let device = Gpu::with_driver(fake.driver().unwrap(), &artifact, &target, 1, None, 2).unwrap();
    drop(device);
    assert_eq!(fake.log().matches("load text").count(), 5);
}

#[test]
fn says_which_kernel_is_missing() {
    let fake = Fake::new(Vendor::Hip);
    let artifact = fake.artifact();
    let mut target = artifact.manifest().targets[0].clone();
    target.kernels[2].symbol = "tail".into();
    let error = Gpu::with_driver(fake.driver().unwrap(), &artifact, &target, 0, None, 1).unwrap_err().to_string();
    assert_eq!(error, "hip:0: kernel `tail`: hipModuleGetFunction: hipErrorNotFound (named symbol not found)");
}

#[test]
fn no_driver_here() {
    let message = |vendor: Vendor, path: &str| vendor.load(Some(path)).unwrap_err().to_string();
    assert_eq!(
        message(Vendor::Hip, "/none/libamdhip64.so"),
        "HIP cannot be used on this machine: none of /none/libamdhip64.so can be loaded"
    );
    assert_eq!(
        message(Vendor::Cuda, "/none/libcuda.so.1"),
        "CUDA cannot be used on this machine: none of /none/libcuda.so.1 can be loaded"
    );
    let dir = tempfile::tempdir().unwrap();
    let old = cc(dir.path(), "int hipInit(unsigned flags) { return 0; }", "old.so", &[]);
    assert_eq!(
        message(Vendor::Hip, old.to_str().unwrap()),
        "HIP cannot be used on this machine: it has no hipGetDeviceCount: ROCm 6 or later is needed"
    );
    assert_eq!(
        message(Vendor::Cuda, old.to_str().unwrap()),
        "CUDA cannot be used on this machine: it has no cuGetErrorName: a driver for CUDA 12 or later is needed"
    );
}

#[test]
fn devices_that_reach_each_other_exchange_by_a_kernel() {
    for vendor in Vendor::ALL {
        let fake = Fake::new(vendor);
        let mut manifest = toy::manifest();
        for variant in &mut manifest.targets[0].variants {
            variant.exchange = Some(manifest::Kernel { tasks: Tasks::Fixed(1), ..variant.kernels[0].clone() });
        }
        let artifact = fake.artifact_of(manifest, |_| ());
        let mut devices = [0, 0].map(|ordinal| fake.device(&artifact, ordinal).unwrap());
        let plans = artifact.manifest().targets[0].plans.clone();
        let mut offers = devices.each_mut().map(|device| device.offer(2, &plans).unwrap().expect("a kernel"));
        assert_eq!(fake.log().contains("uncached"), vendor == Vendor::Hip);
        // The second one is of another number, and the driver is asked.
        offers[1].gpu.as_mut().unwrap().ordinal = 1;
        assert!(!devices[0].reach(&offers[1]).unwrap());
        fake.peers(true);
        for _ in 0..2 {
            assert!(offers.iter().all(|offer| devices[0].reach(offer).unwrap()));
        }
        assert_eq!(fake.log().matches("reach 1").count(), 1);
        let emulated = Peer::emulated(offers[0].slots, offers[0].bytes);
        assert!(!devices[0].reach(&emulated).unwrap());
        let place = Place { offset: 0, width: 4, stride: 4, dtype: DType::F32 };
        let (q, k, v, out) = (place, place, place, place);
        let attends = Work::Attention { layer: 0, heads: 1, q, k, v, out, scale: 1.0, window: 0 };
        let mut plans = plans;
        plans[0].calls.push(Call { before: 0, work: attends });
        assert!(devices[0].offer(2, &plans).unwrap().is_none());
    }
}
