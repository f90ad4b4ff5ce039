//! The path of AMD GPUs through HIP, on the emulator's library instead of HIP's: the same checks as
//! `tests/gpu.sh hip:0 TARGET` makes on a machine with a GPU.
mod common;

use std::path::PathBuf;

use common::{Bench, MODEL};

/// The library, which Cargo built because these tests depend on it. It is in the tests' own folder.
fn library() -> PathBuf {
    let beside = std::env::current_exe().expect("a path").with_file_name("libhip_on_emulator.so");
    assert!(beside.exists(), "{} was not built", beside.display());
    beside
}

/// A folder with the command line's arguments for a machine that has a chip.
struct Machine {
    bench: Bench,
    chip: &'static str,
}

impl Machine {
    fn with(chip: &'static str) -> Machine {
        let bench = Bench::empty();
        std::os::unix::fs::symlink(library(), bench.path("libamdhip64.so")).expect("a link");
        Machine { bench, chip }
    }

    /// Standard output, or standard error of a command that fails.
    fn run(&self, args: &[&str]) -> Result<String, String> {
        self.run_with("", args)
    }

    /// Runs on a machine that has a fault in its library.
    fn run_with(&self, fault: &str, args: &[&str]) -> Result<String, String> {
        let mut command = self.bench.command(args);
        command.env("LD_LIBRARY_PATH", self.bench.path(".")).env("HIP_EMULATED_CHIP", self.chip);
        if !fault.is_empty() {
            command.env("HIP_EMULATED_FAULT", fault);
        }
        let out = command.output().expect("the binary runs");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
        if out.status.success() { Ok(text(out.stdout)) } else { Err(text(out.stderr)) }
    }

    fn compile(&self, target: &str) {
        self.compile_model(MODEL, target);
    }

    fn compile_model(&self, model: &str, target: &str) {
        let few = ["--decode", "1,2", "--prefill", "16", "--context", "64"];
        self.bench.succeed(&[&["compile", model, "--target", target, "-o", "m.atomc"], &few[..]].concat());
    }
}

#[test]
fn doctor_finds_the_gpu_and_its_target() {
    let found = Machine::with("gfx1151").run(&["doctor", "--device", "hip:0"]).expect("nothing is bad");
    let line = found.lines().find(|line| line.contains("hip:0")).expect("a line for the GPU");
    assert!(line.starts_with("good") && line.ends_with("--target gfx1151"), "{line}");
    let refused = Machine::with("gfx803").run(&["doctor", "--device", "hip:0"]).expect_err("no such chip");
    assert!(refused.contains("what will fail: hip:0"), "{refused}");
}

#[test]
fn every_kernel_of_an_artifact_is_right_through_hip() {
    let machine = Machine::with("gfx942");
    machine.compile("gfx942");
    let said = machine.run(&["verify", "m.atomc", "--device", "hip:0"]).expect("all are right");
    assert!(said.contains("right on hip:0"), "{said}");
}

/// Token by token, so that decode steps are captured and replayed. A chip runs its family's code if
/// it has none of its own.
#[test]
fn logits_through_hip_are_those_of_the_emulator() {
    for target in ["gfx1151", "gfx11-generic"] {
        let machine = Machine::with("gfx1151");
        machine.compile(target);
        machine.bench.write("ids.json", "[[1, 2, 3, 4, 5, 6, 7], [8, 9]]");
        let logits = |device: &str| {
            let from = ["logits", "m.atomc", "--weights", MODEL, "--tokens", "ids.json", "--chunk", "1"];
            machine.run(&[&from[..], &["--device", device, "-o", "logits"]].concat()).expect("logits");
            std::fs::read(machine.bench.path("logits")).expect("a file")
        };
        assert!(logits("hip:0") == logits(&format!("emu:{target}")), "{target}");
    }
}

/// States are copied aside before the timing and back after it. A model with a diverging state
/// tests that steps go on as if nothing was timed: `runtime/src/device/gpu/tests/slots.rs`.
#[test]
fn kernels_of_a_recurrent_model_are_timed() {
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/hybrid-next");
    let machine = Machine::with("gfx942");
    machine.compile_model(model, "gfx942");
    let args = ["bench", "m.atomc", "--weights", model, "--device", "hip:0", "--prompt", "9", "--steps", "12"];
    let said = machine.run(&[&args[..], &["--repeat", "1", "--kernels"]].concat()).expect("times");
    assert!(said.contains("delta_rule"), "{said}");
}

#[test]
fn a_chip_without_code_is_refused() {
    let machine = Machine::with("gfx90a");
    machine.compile("gfx942");
    let refused = machine.run(&["verify", "m.atomc", "--device", "hip:0"]).expect_err("other code");
    assert!(refused.contains("no code for target `gfx90a`"), "{refused}");
}

/// Each fault ends a command with an error of its kind and without an output, and the next command
/// works.
#[test]
fn faults_of_the_device_are_errors_of_their_kind() {
    let machine = Machine::with("gfx942");
    machine.compile("gfx942");
    machine.bench.write("ids.json", "[[1, 2, 3]]");
    let args = ["logits", "m.atomc", "--weights", MODEL, "--tokens", "ids.json", "--device", "hip:0", "-o", "logits"];
    let faults = [
        ("hipMalloc:2:2", "hip:0 has no memory left: ", "hipErrorOutOfMemory"),
        ("hipModuleLoadData:0:2", "hip:0 has no memory left: ", "hipModuleLoadData"),
        ("hipMemcpyHtoDAsync:9:719", "a kernel on hip:0 had a fault: ", "hipErrorLaunchFailure"),
        ("hipModuleLaunchKernel:5:719", "a kernel on hip:0 had a fault: ", "hipModuleLaunchKernel"),
        ("hipModuleLaunchKernel:7:709!", "hip:0 is lost to this process: ", "hipErrorContextIsDestroyed"),
        ("hipStreamSynchronize:3:709!", "hip:0 is lost to this process: ", "hipStreamSynchronize"),
    ];
    for (fault, kind, call) in faults {
        let said = machine.run_with(fault, &args).expect_err(fault);
        assert!(said.contains(kind) && said.contains(call), "{fault}: {said}");
        assert!(!machine.bench.path("logits").exists(), "{fault} left an output");
    }
    machine.run(&args).expect("logits");
}
