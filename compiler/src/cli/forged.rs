//! Artifacts with a changed manifest and matching checksums: each is refused by a typed error, or
//! its use is harmless.
mod every_number;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use atomc::driver::{self, Options};
use atomc::frontend;
use atomc_artifact::{Artifact, lay_out};
use clap::Parser;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Cli, Failure, Verb, inspect, pack, report, verify};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/llama2");

/// A sound artifact for the host and a GPU, made once.
struct Sample {
    manifest: Value,
    code: Vec<Vec<u8>>,
}

fn sample() -> &'static Sample {
    static SAMPLE: OnceLock<Sample> = OnceLock::new();
    SAMPLE.get_or_init(|| {
        let mut config = frontend::read(Path::new(MODEL)).expect("a model");
        config.context = 96;
        let mut options = Options { targets: vec!["host".into(), "gfx942".into()], ..Options::default() };
        (options.buckets.decode, options.buckets.tokens, options.buckets.rows) = (vec![2], 32, 8);
        let compiled = driver::compile(&config, &options, &mut |_, _, _| ()).expect("an artifact");
        Sample { manifest: serde_json::to_value(&compiled.manifest).expect("JSON"), code: compiled.code }
    })
}

/// The bytes of a file that holds whatever it is given, laid out as the format says, with checksums
/// that are right.
fn forge(manifest: &Value, code: &[Vec<u8>]) -> Vec<u8> {
    let json = serde_json::to_vec(manifest).expect("JSON");
    let sections: Vec<&[u8]> = std::iter::once(&json[..]).chain(code.iter().map(Vec::as_slice)).collect();
    lay_out(&sections)
}

/// What a verb says of a file.
fn run(verb: &str, file: &Path) -> Result<(), String> {
    let dir = file.parent().expect("a folder").join("packed");
    let mut words = vec!["atomc".into(), verb.into(), file.as_os_str().to_owned()];
    if verb == "pack" {
        words.extend(["--target".into(), "host".into(), "--weights".into(), MODEL.into(), "-o".into(), dir.into()]);
    }
    if verb == "report" {
        words.extend(["-o".into(), file.with_extension("html").into(), "--against".into(), file.into()]);
    }
    let done = match Cli::try_parse_from(words).expect("a command").verb {
        Verb::Verify(args) => verify::run(&args),
        Verb::Pack(args) => pack::run(&args),
        Verb::Inspect(args) => inspect::run(&args),
        Verb::Report(args) => report::run(&args),
        _ => unreachable!("no test runs another verb"),
    };
    done.map_err(|failure| match failure {
        Failure::Report(report) => report.to_string(),
        Failure::Closed => "closed".into(),
    })
}

fn write(dir: &TempDir, manifest: &Value) -> PathBuf {
    let path = dir.path().join("m.atomc");
    std::fs::write(&path, forge(manifest, &sample().code)).expect("a file");
    path
}

#[test]
fn what_is_unchanged_is_sound() {
    let dir = TempDir::new().expect("a folder");
    let artifact = Artifact::open(write(&dir, &sample().manifest)).expect("an artifact");
    assert_eq!(serde_json::to_value(artifact.manifest()).expect("JSON"), sample().manifest);
}

/// Numbers in place of others, and what is said of them.
#[test]
fn manifests_are_refused_as_a_whole() {
    let cases: &[(&str, u64, &str)] = &[
        ("/targets/0/layout/block_tokens", 1, "tokens are not whole panels of layout.panel, 16"),
        ("/targets/0/layout/block_tokens", 2, "tokens are not whole panels of layout.panel, 16"),
        ("/targets/0/layout/block_tokens", 3, "is not a power of two between 1 and 1024"),
        ("/targets/0/layout/panel", 3, "is not a power of two between 1 and 1024"),
        ("/targets/0/layout/panel", 7, "is not a power of two between 1 and 1024"),
        ("/targets/0/layout/panel", 15, "is not a power of two between 1 and 1024"),
        ("/targets/0/layout/panel", 17, "is not a power of two between 1 and 1024"),
        ("/targets/0/layout/panel", 33, "is not a power of two between 1 and 1024"),
        ("/targets/0/layout/panel", 1 << 30, "is not a power of two between 1 and 1024"),
        ("/targets/0/layout/group_bytes", 1 << 30, "is not a power of two between 4 and 1024"),
        ("/targets/0/layout/group_bytes", 1 << 62, "is not a power of two between 4 and 1024"),
        ("/targets/0/layout/row", 1 << 30, "is not a power of two between 1 and 1024"),
        ("/targets/0/weights/0/bytes", 1 << 40, "bytes, but the layout"),
        ("/targets/0/plans/0/rows", 1 << 30, "is not between 1 and 65536"),
        ("/tensor_parallel", 1 << 30, "is not between 1 and 64"),
        ("/tensor_parallel", 64, "cut for 1 ranks, but there are 64"),
    ];
    let dir = TempDir::new().expect("a folder");
    for &(field, value, says) in cases {
        let mut manifest = sample().manifest.clone();
        *manifest.pointer_mut(field).expect("a field") = json!(value);
        let file = write(&dir, &manifest);
        for verb in ["verify", "pack", "inspect"] {
            let error = run(verb, &file).expect_err(field);
            assert!(error.contains("m.atomc: artifact manifest: ") && error.contains(says), "{verb}, {field}: {error}");
        }
    }
    assert!(!dir.path().join("packed").exists(), "something was packed");
}

#[test]
fn a_row_alone_with_an_endless_stride() {
    let dir = TempDir::new().expect("a folder");
    let mut manifest = sample().manifest.clone();
    let weights = manifest["targets"][0]["weights"].as_array_mut().expect("a list");
    let row = weights.iter_mut().find(|weight| weight["shape"].as_array().is_some_and(|shape| shape.len() == 1));
    row.expect("a weight of one row")["layout"]["rows"]["stride"] = json!(1u64 << 63);
    let error = run("pack", &write(&dir, &manifest)).expect_err("a stride");
    assert!(error.contains("layout: {\"rows\":{\"stride\":9223372036854775808}}, but the target's layout"), "{error}");
}

#[test]
fn bodies_that_nothing_can_be_tried_with() {
    let dir = TempDir::new().expect("a folder");
    let body = sample().manifest["targets"][0]["kernels"][0]["body"].as_str().expect("a body").to_owned();
    let head = body.lines().next().expect("a line").to_owned();
    let nested = format!("{head}\n%0 = kernel %a0 {{family = rows}} : f32[T, 4]\n").repeat(20_000);
    let wide = |dims: &str| {
        format!("graph @k(%a0: f32[{dims}], %a1: i32[T]) {{\n  %0 = silu %a0 : f32[{dims}]\n  return %0\n}}\n")
    };
    let cases = [
        (nested.clone(), "no graph with operands and results"),
        (nested + "return %a0\n", "bodies are nested more than 8 deep"),
        (wide("18446744073709551615"), "unknown type `f32[18446744073709551615]`"),
        (wide("8, 1099511627776, 1099511627776"), "of its launch is"),
        (wide("8, 1099511627776"), "of its launch is"),
        (wide("8, 64"), "of its launch is"),
    ];
    for (body, says) in cases {
        let mut manifest = sample().manifest.clone();
        manifest["targets"][0]["kernels"][0]["body"] = json!(body);
        let file = write(&dir, &manifest);
        let error = run("verify", &file).expect_err("a body");
        assert!(error.contains(says), "{says}: {error}");
        // A page is made of them or not; nothing panics, and nothing is computed with such sizes.
        let told = run("report", &file).err();
        let refused = ["its body cannot be read", "is more than any chip has", "no graph with operands and results"];
        let sound = told.as_ref().is_none_or(|error| refused.iter().any(|why| error.contains(why)));
        assert!(sound && (told.is_some() || says == "of its launch is"), "{says}: {told:?}");
    }
}

/// Strings by which an artifact's maker tries to take over a page.
#[test]
fn a_page_of_hostile_strings() {
    let dir = TempDir::new().expect("a folder");
    let mut manifest = sample().manifest.clone();
    let hostile = "</script><script>alert(1)</script>";
    manifest["producer"] = json!(hostile);
    manifest["targets"][0]["plans"][0]["launches"][0]["location"] = json!(hostile);
    let file = write(&dir, &manifest);
    run("report", &file).expect("a page");
    let page = std::fs::read_to_string(file.with_extension("html")).expect("a page");
    assert!(!page.contains(hostile) && page.contains("\\u003c/script>\\u003cscript>alert(1)"));
}

/// An arena, or rows between body and head, that no machine has: nothing is allocated.
#[test]
fn memory_that_no_machine_has() {
    let dir = TempDir::new().expect("a folder");
    for field in ["/targets/0/plans/0/arena_bytes", "/targets/0/hidden/bytes"] {
        let mut manifest = sample().manifest.clone();
        *manifest.pointer_mut(field).expect("a field") = json!(1u64 << 47);
        let error = run("verify", &write(&dir, &manifest)).expect_err(field);
        assert!(error.contains("bytes; this machine has "), "{field}: {error}");
    }
}

/// A plan that would fill the disk: rows of zeros after a small tensor.
#[test]
fn weights_are_bound_by_the_checkpoint() {
    let dir = TempDir::new().expect("a folder");
    let mut manifest = sample().manifest.clone();
    let weights = manifest["targets"][0]["weights"].as_array_mut().expect("a list");
    let in_rows = |weight: &&mut Value| {
        weight["shape"].as_array().is_some_and(|shape| shape.len() == 2) && !weight["layout"]["rows"].is_null()
    };
    let weight = weights.iter_mut().find(in_rows).expect("a matrix in rows");
    let (rows, stride) = (1u64 << 22, weight["layout"]["rows"]["stride"].as_u64().expect("a number"));
    weight["expr"] = json!({ "pad": { "axis": 0, "len": rows, "of": weight["expr"] } });
    weight["shape"][0] = json!(rows);
    weight["bytes"] = json!(rows * stride * 4);
    if weight["dtype"] != "f32" {
        weight["bytes"] = json!(rows * stride * 2);
    }
    let error = run("pack", &write(&dir, &manifest)).expect_err("a plan");
    assert!(error.starts_with("the artifact makes ") && error.ends_with("are the most that a model needs"), "{error}");
    assert_eq!(std::fs::read_dir(dir.path().join("packed")).expect("a folder").count(), 0);
}
