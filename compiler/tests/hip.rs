//! The path of AMD GPUs through HIP, with HIP's library on the emulator in its place: what
//! `tests/gpu.sh hip:0 TARGET` asks of a machine with a GPU.
mod common;

use std::path::PathBuf;

use common::{Bench, MODEL};

/// The library, which Cargo built because these tests depend on it; it lies beside them.
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
        let out = self
            .bench
            .command(args)
            .env("LD_LIBRARY_PATH", self.bench.path("."))
            .env("HIP_EMULATED_CHIP", self.chip)
            .output()
            .expect("the binary runs");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
        if out.status.success() { Ok(text(out.stdout)) } else { Err(text(out.stderr)) }
    }

    fn compile(&self, target: &str) {
        let few = ["--decode", "1,2", "--prefill", "16", "--context", "64"];
        self.bench.succeed(&[&["compile", MODEL, "--target", target, "-o", "m.atomc"], &few[..]].concat());
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

/// Token by token, so that decode steps are captured and replayed. A chip runs its family's code
/// where it has none of its own.
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

#[test]
fn a_chip_without_code_is_refused() {
    let machine = Machine::with("gfx90a");
    machine.compile("gfx942");
    let refused = machine.run(&["verify", "m.atomc", "--device", "hip:0"]).expect_err("other code");
    assert!(refused.contains("no code for target `gfx90a`"), "{refused}");
}
