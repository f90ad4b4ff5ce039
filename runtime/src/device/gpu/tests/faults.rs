//! Faults of devices: no memory, a kernel that fails, a device that is lost. Each is an error of
//! its kind, nothing is left half done, and the next call works.
use super::*;
use crate::error::Error;

/// Codes of both drivers.
const NO_MEMORY: i32 = 2;
const LAUNCH_FAILED: i32 = 719;
const CONTEXT_IS_DESTROYED: i32 = 709;
const UNKNOWN: i32 = 999;

impl Fake {
    /// Lets `after` calls of a function pass and makes the next one fail; all calls from then on,
    /// if `always`.
    fn fail(&self, call: &str, after: usize, code: i32, always: bool) {
        let call = std::ffi::CString::new(call).unwrap();
        type Fail = unsafe extern "C" fn(*const c_char, i32, i32, i32);
        // SAFETY: the function has this signature.
        let fail = unsafe { self.library.get::<Fail>(b"fake_fail\0") }.unwrap();
        // SAFETY: the text is copied.
        unsafe { fail(call.as_ptr(), after as i32, code, always.into()) };
    }

    fn open(&self) -> Result<Engine, Error> {
        let artifact = self.artifact();
        let device = self.device(&artifact, 0)?;
        Engine::with_device(artifact, self.target(), Box::new(device), &EngineOptions::default())
    }
}

fn kind(error: &DeviceError) -> &'static str {
    match error {
        DeviceError::Full { .. } => "full",
        DeviceError::Kernel { .. } => "kernel",
        DeviceError::Lost { .. } => "lost",
        DeviceError::Failed { .. } => "failed",
        _ => "another",
    }
}

fn kind_of_step(error: &StepError) -> &'static str {
    match error {
        StepError::Device(error) => kind(error),
        _ => "no device's",
    }
}

/// Each allocation in turn finds no memory. Earlier ones are given back, and the same device can be
/// opened afterwards.
pub fn memory_that_is_exhausted_at_load(vendor: Vendor) {
    let fake = Fake::new(vendor);
    let mut tried = 0;
    loop {
        fake.fail("allocate", tried, NO_MEMORY, false);
        fake.log();
        let Err(error) = fake.open() else { break };
        let Error::Device(found) = &error else { panic!("{error}") };
        assert_eq!(kind(found), "full", "{error}");
        let text = error.to_string();
        assert!(
            text.contains("no memory left: ")
                && text.contains(" bytes: ")
                && text.contains("MEMORY") == (vendor == Vendor::Cuda),
            "{text}"
        );
        assert_eq!(fake.log().matches("free").count(), tried, "given back");
        tried += 1;
    }
    assert!(tried >= 6, "a weight, a cache, arena, hidden rows, workspace, inputs: {tried}");
    fake.fail("", 0, 0, false);
    let mut engine = fake.engine();
    let sequence = engine.add_sequence();
    assert_eq!(greedy(&mut engine, &[Request { sequence, tokens: &[5], logits: Want::Last }]), [toy::next(&[5])]);
}

/// Weights that could not be copied are not taken for loaded, and can be loaded again.
pub fn weights_that_do_not_arrive(vendor: Vendor) {
    let fake = Fake::new(vendor);
    let mut engine = fake.open().unwrap();
    let weights = toy::Bias(vec![0; VOCAB * 4]);
    fake.fail("copy in", 0, LAUNCH_FAILED, false);
    let error = engine.load_weights(&weights, &|_, _| ()).unwrap_err();
    assert!(matches!(&error, Error::Device(found) if kind(found) == "kernel"), "{error}");
    let sequence = engine.add_sequence();
    let request = [Request { sequence, tokens: &[5], logits: Want::Last }];
    assert!(matches!(engine.step(&request).unwrap_err(), StepError::NoWeights));
    engine.load_weights(&weights, &|_, _| ()).unwrap();
    assert_eq!(greedy(&mut engine, &request), [toy::next(&[5])]);
}

/// A prompt of two plans and a decode step, which is captured, fail at each of their calls in turn.
/// Sequences keep the tokens that they had, blocks are free again, and a second try of the same
/// step works.
pub fn steps_that_fail_are_taken_back(vendor: Vendor) {
    for call in ["copy in", "launch", "wait", "instantiate", "replay", "copy out", "synchronise"] {
        for (code, wanted) in [(NO_MEMORY, "full"), (LAUNCH_FAILED, "kernel"), (UNKNOWN, "failed")] {
            let fake = Fake::new(vendor);
            let mut engine = fake.engine();
            let (sequence, other) = (engine.add_sequence(), engine.add_sequence());
            greedy(&mut engine, &[Request { sequence: other, tokens: &[9, 8], logits: Want::Last }]);
            let free = engine.cache().free_blocks();
            let tokens: Vec<u32> = (0..46).map(|i| (i * 7 + 3) % VOCAB as u32).collect();
            let mut failures = 0;
            for new in [0..45, 45..46] {
                let blocks = engine.cache().free_blocks();
                let request = [Request { sequence, tokens: &tokens[new.clone()], logits: Want::Last }];
                for after in 0.. {
                    fake.fail(call, after, code, false);
                    let Err(error) = engine.step(&request).map(drop) else { break };
                    assert_eq!(kind_of_step(&error), wanted, "{call}: {error}");
                    let found = (engine.sequence_len(sequence).unwrap(), engine.cache().free_blocks());
                    assert_eq!(found, (new.start, blocks), "{call}");
                    assert!(engine.logits().is_empty());
                    failures += 1;
                }
                fake.fail("", 0, 0, false);
                let found = engine.logits().last(0).map(crate::sample::greedy);
                assert_eq!(found, Some(toy::next(&tokens[..new.end])), "behind {call}");
            }
            assert!(failures > 0, "nothing asks for {call}");
            let request = [Request { sequence: other, tokens: &[4], logits: Want::Last }];
            assert_eq!(greedy(&mut engine, &request), [toy::next(&[9, 8, 4])], "a sequence that was not part of it");
            engine.drop_sequence(sequence).unwrap();
            assert_eq!(engine.cache().free_blocks(), free);
        }
    }
}

/// A lost device says so in each call. Dropping its values calls nothing, and another engine works.
pub fn a_lost_device(vendor: Vendor) {
    let fake = Fake::new(vendor);
    let mut engine = fake.engine();
    let sequence = engine.add_sequence();
    let request = [Request { sequence, tokens: &[5], logits: Want::Last }];
    fake.fail("launch", 1, CONTEXT_IS_DESTROYED, true);
    for _ in 0..2 {
        let error = engine.step(&request).unwrap_err();
        assert_eq!(kind_of_step(&error), "lost");
        assert!(error.to_string().contains(":0 is lost to this process: "), "{error}");
        assert_eq!(engine.sequence_len(sequence).unwrap(), 0);
    }
    let error = engine.load_weights(&toy::Bias(vec![0; VOCAB * 4]), &|_, _| ()).unwrap_err();
    assert!(matches!(&error, Error::Device(found) if kind(found) == "lost"), "{error}");
    assert!(matches!(engine.step(&request).unwrap_err(), StepError::NoWeights));
    drop(engine);
    fake.fail("", 0, 0, false);
    let mut engine = fake.engine();
    let sequence = engine.add_sequence();
    assert_eq!(greedy(&mut engine, &[Request { sequence, tokens: &[5], logits: Want::Last }]), [toy::next(&[5])]);
}

/// Code that cannot be loaded leaves no allocation.
pub fn code_that_does_not_load(vendor: Vendor) {
    let fake = Fake::new(vendor);
    fake.fail("load", 0, NO_MEMORY, false);
    let error = fake.open().unwrap_err();
    assert!(matches!(&error, Error::Device(found) if kind(found) == "full"), "{error}");
    let log = fake.log();
    assert_eq!(log.matches("load").count(), 2 * log.matches("unload").count(), "{log}");
    fake.fail("", 0, 0, false);
    fake.engine();
}
