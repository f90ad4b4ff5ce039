use super::*;
use crate::engine::{Engine, EngineOptions, Request, Want};
use crate::toy::{self, BLOCK, PICK, VOCAB};
use std::ffi::c_char;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A stand-in for HIP, in a library of its own, so that tests do not see each other's state.
struct Fake {
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
    fn new() -> Fake {
        let dir = tempfile::tempdir().unwrap();
        let (arch, memory) = (
            std::mem::offset_of!(hipDeviceProp_tR0600, gcnArchName),
            std::mem::offset_of!(hipDeviceProp_tR0600, totalGlobalMem),
        );
        let defines = [format!("-DARCH_NAME={arch}"), format!("-DMEMORY={memory}")];
        let path = cc(dir.path(), include_str!("fake.c"), "libamdhip64.so", &defines);
        // SAFETY: the library is the one above.
        let library = unsafe { libloading::Library::new(path) }.unwrap();
        Fake { dir, library }
    }

    fn api(&self) -> Result<Api, DeviceError> {
        Api::load(self.dir.path().join("libamdhip64.so").to_str())
    }

    fn devices(&self, count: i32) {
        // SAFETY: the function has this signature.
        unsafe { self.library.get::<unsafe extern "C" fn(i32)>(b"fake_devices\0").unwrap()(count) }
    }

    /// The calls since the last time.
    fn log(&self) -> String {
        // SAFETY: the function has this signature and gives a C string.
        let text =
            unsafe { self.library.get::<unsafe extern "C" fn() -> *const c_char>(b"fake_take_log\0").unwrap()() };
        unsafe { CStr::from_ptr(text) }.to_str().unwrap().trim_end().replace('\n', "; ")
    }

    /// The toy compiled for a GPU.
    fn artifact(&self) -> Artifact {
        let mut manifest = toy::manifest();
        let target = &mut manifest.targets[0];
        target.name = "gfx942".into();
        target.variants.remove(0);
        target.variants[0].name = "gfx942".into();
        for kernel in &mut target.variants[0].kernels {
            (kernel.threads, kernel.workspace, kernel.scratch) = (64, 64, 0);
        }
        let defines = [format!("-DVOCAB={VOCAB}"), format!("-DBLOCK={BLOCK}"), format!("-DPICK={PICK}")];
        let code = cc(self.dir.path(), include_str!("kernels.c"), "kernels.so", &defines);
        let path = self.dir.path().join("toy.atomc");
        atomc_artifact::write(&path, &manifest, &[std::fs::read(code).unwrap()]).unwrap();
        Artifact::open(path).unwrap()
    }

    fn device(&self, artifact: &Artifact, ordinal: usize) -> Result<Hip, DeviceError> {
        Hip::with_api(self.api()?, artifact, &artifact.manifest().targets[0], ordinal, None, 2)
    }

    fn engine(&self) -> Engine {
        let artifact = self.artifact();
        let device = self.device(&artifact, 0).unwrap();
        let mut engine = Engine::with_device(artifact, "gfx942", Box::new(device), &EngineOptions::default()).unwrap();
        engine.load_weights(&toy::Bias(vec![0; VOCAB * 4]), &|_, _| ()).unwrap();
        engine
    }
}

fn greedy(engine: &mut Engine, requests: &[Request]) -> Vec<u32> {
    let logits = engine.step(requests).unwrap();
    (0..requests.len()).filter_map(|i| logits.last(i).map(crate::sample::greedy)).collect()
}

#[test]
fn a_prompt_is_launched_and_decode_steps_are_replayed() {
    let fake = Fake::new();
    let mut engine = fake.engine();
    assert_eq!(engine.device_name(), "hip:0:gfx942");
    let opened = fake.log();
    assert!(opened.starts_with("init; stream; load; copy in; synchronise"), "{opened}");
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

#[track_caller]
fn called(found: &str, wanted: &str) {
    assert_eq!(found, wanted);
}

#[test]
fn long_prompts_recycled_blocks_and_new_weights() {
    let fake = Fake::new();
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

#[test]
fn greedy_steps_bring_back_picks() {
    let fake = Fake::new();
    let mut engine = fake.engine();
    let (sequence, other) = (engine.add_sequence(), engine.add_sequence());
    let requests = [
        Request { sequence, tokens: &[4, 5, 6], logits: Want::Last },
        Request { sequence: other, tokens: &[8], logits: Want::Nothing },
    ];
    assert_eq!(engine.step_greedy(&requests).unwrap(), [Some(toy::next(&[4, 5, 6])), None]);
    assert!(engine.logits().is_empty());
}

#[test]
fn times_launches_with_events() {
    let fake = Fake::new();
    let mut engine = fake.engine();
    let sequence = engine.add_sequence();
    engine.time_launches();
    greedy(&mut engine, &[Request { sequence, tokens: &[1], logits: Want::Last }]);
    let times = engine.take_launch_times();
    assert_eq!((times[0].steps, &times[0].nanoseconds[..]), (1, &[250_000; 3][..]));
}

#[test]
fn everything_is_given_back_in_order() {
    let fake = Fake::new();
    let engine = fake.engine();
    fake.log();
    drop(engine);
    let log = fake.log();
    // One weight, two caches, arena, workspace and inputs; the stream goes last.
    assert_eq!((log.matches("free").count(), log.matches("unload").count()), (6, 1));
    assert!(log.ends_with("destroy stream"), "{log}");
}

#[test]
fn lists_and_refuses_devices() {
    let fake = Fake::new();
    let found = list(&fake.api().unwrap()).unwrap();
    assert_eq!(found[0].arch, "gfx942");
    assert_eq!((found[0].full(), &found[0].name[..]), ("gfx942:sramecc+:xnack-".into(), "AMD Instinct Fake"));
    assert_eq!((found[1].arch.as_str(), found[1].modes.len()), ("gfx1100", 0));
    let artifact = fake.artifact();
    let message = |ordinal| fake.device(&artifact, ordinal).unwrap_err().to_string();
    assert_eq!(message(1), "the artifact has no code for target `gfx1100`; it has: gfx942");
    assert_eq!(message(2), "there is no device hip:2; HIP finds 2 on this machine");
    fake.devices(-1);
    assert_eq!(
        fake.api().unwrap_err().to_string(),
        "HIP cannot be used on this machine: hipInit: hipErrorNoDevice (no ROCm-capable device is detected)"
    );
}

#[test]
fn says_which_kernel_is_missing() {
    let fake = Fake::new();
    let artifact = fake.artifact();
    let mut target = artifact.manifest().targets[0].clone();
    target.kernels[2].symbol = "tail".into();
    let error = Hip::with_api(fake.api().unwrap(), &artifact, &target, 0, None, 1).unwrap_err().to_string();
    assert_eq!(error, "hip:0: hipModuleGetFunction of `tail`: hipErrorNotFound (named symbol not found)");
}

#[test]
fn no_hip_here() {
    let message = |path: &str| Api::load(Some(path)).unwrap_err().to_string();
    assert_eq!(
        message("/none/libamdhip64.so"),
        "HIP cannot be used on this machine: none of /none/libamdhip64.so can be loaded"
    );
    let dir = tempfile::tempdir().unwrap();
    let old = cc(dir.path(), "int hipInit(unsigned flags) { return 0; }", "old.so", &[]);
    assert_eq!(
        message(old.to_str().unwrap()),
        "HIP cannot be used on this machine: it has no hipGetDeviceCount: ROCm 6 or later is needed"
    );
}
