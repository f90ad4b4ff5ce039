//! `atomc verify`: what is right passes, and what is not fails.
use std::path::PathBuf;
use std::process::{Command, Output};

use atomc_artifact::manifest::{Arg, DType, StateGroup};
use atomc_artifact::{Artifact, Manifest, encode};
use serde_json::Value;
use tempfile::TempDir;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/llama2");

const SMALL: [&str; 6] = ["--context", "96", "--decode", "2", "--prefill", "32"];

struct Bench(TempDir);

impl Bench {
    /// A folder with `m.atomc` in it.
    fn new() -> Bench {
        Bench::of(MODEL)
    }

    fn of(model: &str) -> Bench {
        let bench = Bench(TempDir::new().expect("a temporary folder"));
        let compiled = bench.run(&[&["compile", model, "-o", "m.atomc"], &SMALL[..]].concat());
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn run(&self, args: &[&str]) -> Output {
        let atomc = env!("CARGO_BIN_EXE_atomc");
        let mut command = Command::new(atomc);
        // The trusted artifacts of the user that runs the tests must not change.
        command.env("XDG_CONFIG_HOME", self.path("config"));
        command.args(args).current_dir(self.0.path()).output().expect("the binary runs")
    }

    /// The configuration of a model with room for longer sequences.
    fn longer_model(&self, positions: usize) -> String {
        let config = std::fs::read(format!("{MODEL}/config.json")).expect("a configuration");
        let mut config: Value = serde_json::from_slice(&config).expect("JSON");
        config["max_position_embeddings"] = positions.into();
        std::fs::write(self.path("config.json"), config.to_string()).expect("a file");
        self.path("config.json").display().to_string()
    }

    /// The exit code and the table.
    fn verify(&self, args: &[&str]) -> (i32, Value) {
        let out = self.run(&[&["verify", "--json"], args].concat());
        let code = out.status.code().unwrap_or_else(|| panic!("{}", String::from_utf8_lossy(&out.stderr)));
        (code, serde_json::from_slice(&out.stdout).expect("JSON"))
    }

    /// Writes `broken.atomc`: the artifact after a change, with sound checksums.
    fn break_it(&self, change: impl FnOnce(&mut Manifest, &mut Vec<Vec<u8>>)) {
        let artifact = Artifact::open(self.path("m.atomc")).expect("an artifact");
        let mut manifest = artifact.manifest().clone();
        let mut code: Vec<Vec<u8>> =
            (1..artifact.sections().len()).map(|i| artifact.section(i).expect("code").to_vec()).collect();
        change(&mut manifest, &mut code);
        std::fs::write(self.path("broken.atomc"), encode(&manifest, &code).expect("a sound manifest")).expect("a file");
    }
}

fn kernels(table: &Value) -> &[Value] {
    table["kernels"].as_array().expect("a list")
}

/// Rows of codes lie between kernels with their scales.
#[test]
fn kernels_of_codes_are_right() {
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/q-int8");
    let (code, table) = Bench::of(model).verify(&["m.atomc"]);
    assert_eq!(code, 0, "{table:#}");
    assert!(kernels(&table).iter().all(|kernel| kernel["right"] == true));
}

/// On a rank, the biases of experts are added after the sum over all ranks, by kernels that gather
/// them.
#[test]
fn kernels_of_a_rank_with_biases_of_experts_are_right() {
    let bench = Bench(TempDir::new().expect("a temporary folder"));
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/moe-gpt-oss");
    let compiled = bench.run(&[&["compile", model, "--tp", "2", "-o", "m.atomc"], &SMALL[..]].concat());
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let (code, table) = bench.verify(&["m.atomc"]);
    assert_eq!(code, 0, "{table:#}");
}

#[test]
fn every_kernel_of_the_host_is_right() {
    let bench = Bench::new();
    let (code, table) = bench.verify(&["m.atomc"]);
    assert_eq!(code, 0, "{table:#}");
    assert!(kernels(&table).len() > 10);
    for kernel in kernels(&table) {
        let worst = kernel["worst"].as_f64().expect("a number");
        assert!(worst <= 1.0 && kernel["right"] == true && kernel["elements"].as_u64() > Some(0), "{kernel:#}");
    }
    // Budgets that are far too large would let faults pass.
    assert!(kernels(&table).iter().any(|k| k["worst"].as_f64() > Some(0.1)));
    let (code, some) = bench.verify(&["m.atomc", "--kernel", "attend", "--device", "host:x86-64-v3"]);
    assert_eq!(code, 0, "{some:#}");
    assert!(kernels(&some).iter().all(|k| k["family"].as_str().is_some_and(|f| f.starts_with("attend"))));
    let none = bench.run(&["verify", "m.atomc", "--kernel", "no such kernel"]);
    assert_eq!(none.status.code(), Some(1));
}

#[test]
fn a_cache_of_bytes_is_half_as_large() {
    let bench = Bench::new();
    let compiled = bench.run(&[&["compile", MODEL, "--cache-dtype", "fp8", "-o", "f8.atomc"], &SMALL[..]].concat());
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let pages =
        |file: &str| match &Artifact::open(bench.path(file)).expect("an artifact").manifest().targets[0].groups[..] {
            [StateGroup::Paged(pages)] => pages.clone(),
            other => panic!("{other:?}"),
        };
    let (plain, bytes) = (pages("m.atomc"), pages("f8.atomc"));
    assert_eq!((bytes.streams[0].dtype, 2 * bytes.block_bytes), (DType::F8E4M3, plain.block_bytes));
    let (code, table) = bench.verify(&["f8.atomc"]);
    assert_eq!(code, 0, "{table:#}");
    assert!(kernels(&table).iter().all(|k| k["right"] == true), "{table:#}");
}

/// Work-groups that share a sequence are tried in every bucket: code without its write-backs
/// (`buffer_wbl2 sc1`) is wrong in each, though it computes the same where all stores are seen at
/// once.
#[test]
fn sequences_that_work_groups_share_are_tried_in_every_bucket() {
    let bench = Bench(TempDir::new().expect("a temporary folder"));
    let shape = ["--context", "1100", "--decode", "1,2,4", "--prefill", "16", "--target", "gfx942"];
    let model = bench.longer_model(1100);
    let compiled = bench.run(&[&["compile", &model, "-o", "m.atomc"], &shape[..]].concat());
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let args = ["--device", "emu:gfx942", "--kernel", "attend_one"];
    let (code, table) = bench.verify(&[&["m.atomc"], &args[..]].concat());
    assert_eq!(code, 0, "{table:#}");
    bench.break_it(|_, code| {
        let (write_back, nothing) = ([0, 0x80, 0xa0, 0xe0, 0, 0, 0, 0], [0, 0, 0x80, 0xbf, 0, 0, 0x80, 0xbf]);
        for code in code {
            for at in (0..code.len() - 8).step_by(4) {
                if code[at..at + 8] == write_back {
                    code[at..at + 8].copy_from_slice(&nothing);
                }
            }
        }
    });
    let (code, table) = bench.verify(&[&["broken.atomc"], &args[..]].concat());
    assert_eq!((code, kernels(&table).len()), (1, 3), "{table:#}");
    for kernel in kernels(&table) {
        let fault = &kernel["fault"];
        assert!(fault["what"].as_str().is_some_and(|what| what.contains("nothing was written back")), "{kernel:#}");
        assert_eq!(fault["case"], "a long sequence with random");
    }
}

#[test]
fn other_code_than_the_file_says_is_wrong() {
    let bench = Bench::new();
    // The file says that norms have another eps than their code.
    bench.break_it(|manifest, _| {
        let target = &mut manifest.targets[0];
        let rows: Vec<usize> =
            (0..target.kernels.len()).filter(|&k| target.kernels[k].body.contains("rms_norm")).collect();
        for kernel in rows {
            let body = &mut target.kernels[kernel].body;
            let at = body.find("eps = ").expect("a norm has an eps") + "eps = ".len();
            let end = at + body[at..].find(['}', ',']).expect("attributes end");
            body.replace_range(at..end, "0.25");
        }
    });
    let (code, table) = bench.verify(&["broken.atomc"]);
    assert_eq!(code, 1);
    let norms = kernels(&table).iter().filter(|k| k["right"] == false);
    assert!(norms.count() >= 3, "{table:#}");
    assert!(kernels(&table).iter().any(|k| k["right"] == true));
}

#[test]
fn changed_code_is_wrong() {
    let bench = Bench::new();
    bench.break_it(|_, code| {
        let eps = 1e-5f32.to_le_bytes();
        let mut found = 0;
        for code in code {
            for at in 0..code.len() - 4 {
                if code[at..at + 4] == eps {
                    // One bit of the exponent.
                    code[at + 3] ^= 4;
                    found += 1;
                }
            }
        }
        assert!(found > 0, "no norm in the code");
    });
    let out = bench.run(&["verify", "broken.atomc"]);
    let (table, error) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert_eq!(out.status.code(), Some(1), "{table}{error}");
    assert!(
        table.contains("WRONG") && table.contains("should be") && error.contains("kernels are wrong"),
        "{table}{error}"
    );
}

/// The artifact path of hardware, for the chips that the emulator knows.
#[test]
#[cfg(feature = "emulator")]
fn every_kernel_of_emulated_gpus_is_right() {
    let bench = Bench(TempDir::new().expect("a temporary folder"));
    for chip in ["gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201"] {
        let compiled = bench.run(&[&["compile", MODEL, "--target", chip, "-o", "m.atomc"], &SMALL[..]].concat());
        assert!(compiled.status.success(), "{chip}: {}", String::from_utf8_lossy(&compiled.stderr));
        let (code, table) = bench.verify(&["m.atomc", "--device", &format!("emu:{chip}")]);
        assert_eq!(code, 0, "{table:#}");
        assert!(kernels(&table).len() > 10);
        let about = bench.run(&["inspect", "m.atomc", "--json"]);
        let about: Value = serde_json::from_slice(&about.stdout).expect("JSON");
        for kernel in about["targets"][0]["variants"][0]["kernels"].as_array().expect("a list") {
            let taken = &kernel["resources"];
            assert!(taken["vgprs"].as_u64() > Some(0) && taken["occupancy"].as_f64() > Some(0.), "{kernel:#}");
        }
    }
}

#[test]
fn code_is_extracted() {
    let bench = Bench::new();
    assert!(bench.run(&["inspect", "m.atomc", "--extract", "code"]).status.success());
    let artifact = Artifact::open(bench.path("m.atomc")).expect("an artifact");
    for variant in &artifact.manifest().targets[0].variants {
        let file = std::fs::read(bench.path("code").join(format!("host-{}.so", variant.name))).expect("a file");
        assert!(file == artifact.section(variant.section).expect("code"));
    }
}

/// Places in the arena that launches of a plan take or leave, one after the other.
fn places(manifest: &Manifest) -> Vec<(usize, usize, usize)> {
    let plans = manifest.targets[0].plans.iter().enumerate();
    let launches =
        plans.flat_map(|(plan, item)| item.launches.iter().enumerate().map(move |(launch, item)| (plan, launch, item)));
    launches
        .flat_map(|(plan, launch, item)| {
            let is_arena = |arg: &Arg| matches!(arg, Arg::Arena { .. });
            let args = item.args.iter().enumerate().filter(move |(_, arg)| is_arena(arg));
            args.map(move |(arg, _)| (plan, launch, arg))
        })
        .collect()
}

/// Every place in the arena that a launch of a plan takes or leaves, moved by some bytes.
#[test]
fn launches_that_are_wired_wrong_are_refused() {
    let bench = Bench::new();
    let sound = Artifact::open(bench.path("m.atomc")).expect("an artifact").manifest().clone();
    let refused = |what: &str, change: &dyn Fn(&mut Manifest)| {
        bench.break_it(|manifest, _| change(manifest));
        let out = bench.run(&["verify", "broken.atomc", "--kernel", "lm_head"]);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(1), "{what}: {said}");
        assert!(said.contains("plans["), "{what}: {said}");
    };
    for (plan, launch, arg) in places(&sound) {
        refused(&format!("plan {plan}, launch {launch}, argument {arg}"), &|manifest| {
            let arg = &mut manifest.targets[0].plans[plan].launches[launch].args[arg];
            let Arg::Arena { offset } = arg else { unreachable!() };
            *offset = if *offset >= 64 { *offset - 64 } else { *offset + 64 };
        });
    }
}
