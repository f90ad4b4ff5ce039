//! GGUF files in place of folders: the same configuration, the same weights, the same answers, and
//! what is said of files at fault.
mod coded;
#[allow(dead_code, reason = "other tests need more of it")]
#[path = "../common/mod.rs"]
mod common;
mod written;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use atomc::driver::{self, Options};
use atomc::frontend;
use atomc::model::Model;
use atomc_gguf::{Gguf, origins};
use atomc_ir::DType;
use atomc_passes::BucketOptions;
use atomc_runtime::checkpoint::{Float, Tensor};
use atomc_runtime::weights::{Rank, packed};
use atomc_runtime::{Artifact, Checkpoint, CheckpointError, Engine, EngineOptions, Error, Pool, Request, Source, Want};
use common::Bench;
use serde_json::{Value, json};
use written::{Kind, Written};

/// A trained model that solves word problems.
const TRAINED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/models/qwen3");
const QUESTION: &str =
    "Q: Ana has 12 apples. Ana buys 7 more. Ana gives 4 to Ben. How many apples does Ana have now?\nA:";

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden").join(name)
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../gguf/tests/fixtures").join(format!("{name}.gguf"))
}

fn buckets() -> Options {
    Options { buckets: BucketOptions { decode: vec![1], each: 1, tokens: 16, rows: 16 }, ..Options::default() }
}

/// Logits of a few tokens with these weights, as bits.
fn logits(engine: &mut Engine, weights: &dyn Source) -> Vec<u32> {
    engine.load_weights(weights, &|_, _| ()).expect("weights");
    let sequence = engine.add_sequence();
    let tokens: Vec<u32> = (0..12).map(|at| at * 7 % 90).collect();
    let all = engine.step(&[Request { sequence, tokens: &tokens, logits: Want::All }]).expect("a step");
    let bits = all.get(0).expect("rows").flatten().map(|logit| logit.to_bits()).collect();
    engine.drop_sequence(sequence).expect("a live sequence");
    bits
}

#[test]
fn logits_are_those_of_the_folder() {
    let bench = Bench::empty();
    for (case, architecture) in [
        ("llama-f32", "llama"),
        ("llama-gqa-tied", "llama"),
        ("qwen2", "qwen2"),
        ("qwen3", "qwen3"),
        ("qwen3-tied", "qwen3"),
    ] {
        let folder = golden(case);
        bench.write("m.gguf", Written::of_folder(&folder, architecture, Kind::F32).bytes());
        let file = Model::at(&bench.path("m.gguf")).expect("a file");
        let mut config = frontend::read(&folder).expect("a configuration");
        config.dtype = DType::F32;
        assert_eq!(file.config().expect("a configuration").echo(), config.echo(), "{case}");
        let compiled = driver::compile(&config, &buckets(), &mut |_, _, _| ()).expect("it compiles");
        compiled.write(&bench.path("m.atomc")).expect("an artifact");
        let artifact = Artifact::open(bench.path("m.atomc")).expect("an artifact");
        let options = EngineOptions { cache_tokens: 64, threads: 1, ..EngineOptions::default() };
        let mut engine = Engine::new(artifact, &options).expect("it opens");
        let want = logits(&mut engine, &Checkpoint::open(&folder).expect("a checkpoint"));
        assert_eq!(logits(&mut engine, &*file.weights().expect("weights")), want, "{case}");
    }
}

/// The tensors that a file describes, by the crate's reference.
struct Reference(BTreeMap<String, Vec<u8>>);

impl Source for Reference {
    fn tensor(&self, name: &str, _: &[usize]) -> Result<Tensor<'_>, CheckpointError> {
        let missing = || CheckpointError::Missing { names: vec![name.to_owned()] };
        Ok(Tensor::Bytes { float: Float::F32, bytes: self.0.get(name).ok_or_else(missing)? })
    }

    fn names(&self) -> Vec<&str> {
        self.0.keys().map(String::as_str).collect()
    }
}

/// The files of every architecture that compiles, as the converter writes them: what the runtime
/// packs is what the reference makes of the whole tensors.
#[test]
fn weights_of_every_architecture_are_the_references() {
    let bench = Bench::empty();
    let mut pool = Pool::new(2).expect("threads");
    for case in [
        "llama",
        "llama3",
        "mixtral",
        "qwen2",
        "qwen3",
        "qwen3moe",
        "gemma3",
        "gpt-oss",
        "deepseek2",
        "deepseek2-v2",
        "glm4moe",
        "qwen3next",
        "phi3",
        "granite",
    ] {
        let file = Model::at(&fixture(case)).expect("a file");
        let gguf = Gguf::open(fixture(case)).expect("a file");
        let bytes = |floats: Vec<f32>| floats.into_iter().flat_map(f32::to_le_bytes).collect();
        let made = |origin: atomc_gguf::Origin| (origin.name.clone(), bytes(origin.floats(&gguf).expect("floats")));
        let reference = Reference(origins(&gguf).expect("tensors").into_iter().map(made).collect());
        let config = file.config().unwrap_or_else(|error| panic!("{case}: {error}"));
        let compiled =
            driver::compile(&config, &buckets(), &mut |_, _, _| ()).unwrap_or_else(|error| panic!("{case}: {error:?}"));
        let (target, names) = (&compiled.manifest.targets[0], &compiled.manifest.tensors);
        let mut packed = |name: &str, source: &dyn Source| {
            let path = bench.path(name);
            packed::write(&path, (target, names), Rank { number: 0, of: 1 }, source, &mut pool)
                .unwrap_or_else(|error| panic!("{case}: {error}"));
            std::fs::read(path).expect("packed weights")
        };
        let want = packed("want", &reference);
        assert!(packed("found", &*file.weights().expect("weights")) == want, "{case}");
    }
}

#[test]
fn the_type_to_compute_with_is_the_files() {
    let bench = Bench::empty();
    for (kind, want) in
        [(Kind::F32, DType::F32), (Kind::F16, DType::F16), (Kind::BF16, DType::BF16), (Kind::Q8, DType::BF16)]
    {
        // A file is known by how it begins: caches give it other names.
        bench.write("blob", Written::of_folder(Path::new(TRAINED), "qwen3", kind).bytes());
        let config = Model::at(&bench.path("blob")).and_then(|file| file.config()).expect("a configuration");
        assert_eq!(config.dtype, want, "{kind:?}");
    }
}

/// The tokens of an answer, and its text.
fn answer(bench: &Bench, artifact: &str, weights: &str) -> (Value, Value) {
    let args = ["run", artifact, "--weights", weights, "--prompt", QUESTION, "--max-tokens", "40", "--json"];
    let said: Value = serde_json::from_str(&bench.succeed(&args)).expect("JSON");
    (said["tokens"].clone(), said["text"].clone())
}

#[test]
fn a_trained_model_answers_as_its_folder_does() {
    let bench = Bench::empty();
    let compile = |model: &str, artifact: &str| {
        bench.succeed(&["compile", model, "--decode", "1", "--prefill", "64", "--context", "256", "-o", artifact]);
    };
    compile(TRAINED, "folder.atomc");
    let want = answer(&bench, "folder.atomc", TRAINED);
    for (kind, name) in [(Kind::BF16, "bf16"), (Kind::Q8, "q8_0")] {
        let (file, artifact) = (format!("{name}.gguf"), format!("{name}.atomc"));
        bench.write(&file, Written::of_folder(Path::new(TRAINED), "qwen3", kind).bytes());
        compile(&file, &artifact);
        assert_eq!(answer(&bench, &artifact, &file), want, "{name}");
        assert!(bench.succeed(&["inspect", &artifact, "--weights", &file]).contains("tensors are read"));
    }
    // Either file fits either artifact, and so do the packed weights of one.
    assert_eq!(answer(&bench, "bf16.atomc", TRAINED), want);
    bench.succeed(&["pack", "folder.atomc", "--weights", "bf16.gguf", "-o", "packed"]);
    bench.succeed(&["pack", "folder.atomc", "--weights", TRAINED, "-o", "of-folder"]);
    let packed = |folder: &str| std::fs::read(bench.path(folder).join("weights.host.safetensors")).expect("weights");
    assert!(packed("packed") == packed("of-folder"));
}

#[test]
fn a_file_runs_without_an_artifact() {
    let bench = Bench::empty();
    bench.write("small.gguf", Written::of_folder(Path::new(TRAINED), "qwen3", Kind::Q8).bytes());
    let said = bench.succeed(&["run", "small.gguf", "--prompt", QUESTION, "--max-tokens", "40"]);
    assert!(bench.path("small.atomc").exists());
    let (_, want) = answer(&bench, "small.atomc", "small.gguf");
    assert_eq!(said.trim(), want.as_str().expect("a text").trim());
}

/// A server that ends with this.
struct Served(Child);

impl Drop for Served {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// Chats go through the template of the file.
#[test]
#[cfg(feature = "server")]
fn a_file_is_served() {
    let bench = Bench::empty();
    let mut file = Written::of_folder(Path::new(TRAINED), "qwen3", Kind::Q8);
    file.text("tokenizer.chat_template", "{{ messages[0].content }}");
    bench.write("small.gguf", file.bytes());
    let mut command = bench.command(&["serve", "small.gguf", "--port", "0", "--threads", "1"]);
    let mut served = Served(command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().expect("the binary runs"));
    let mut said: Vec<String> = Vec::new();
    for line in BufReader::new(served.0.stderr.take().expect("it was asked for")).lines() {
        said.push(line.expect("UTF-8"));
        if said.last().is_some_and(|line| line.starts_with("`small` on ")) {
            break;
        }
    }
    assert!(said[0].starts_with("no artifact beside small.gguf: compiling for host"), "{said:?}");
    assert!(bench.path("small.atomc").exists());
    let address = said.last().and_then(|line| line.split_once("http://")?.1.strip_suffix("/v1")).expect("an address");
    let asked = json!({ "messages": [{ "role": "user", "content": QUESTION }], "temperature": 0, "max_tokens": 40 });
    let asked = asked.to_string();
    let mut stream = TcpStream::connect(address).expect("it listens");
    let head = "POST /v1/chat/completions HTTP/1.1\r\nconnection: close\r\ncontent-type: application/json";
    write!(stream, "{head}\r\nhost: {address}\r\ncontent-length: {}\r\n\r\n{asked}", asked.len()).expect("it reads");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("it answers");
    let body: Value = serde_json::from_str(text.split_once("\r\n\r\n").expect("a body").1).expect("JSON");
    let want = answer(&bench, "small.atomc", "small.gguf").1;
    assert_eq!(body["choices"][0]["message"]["content"], want, "{text}");
}

#[test]
fn files_at_fault_are_told_in_a_line() {
    let bench = Bench::empty();
    let sound = || Written::of_folder(Path::new(TRAINED), "qwen3", Kind::Q8);
    bench.write("m.gguf", sound().bytes());
    bench.succeed(&["compile", "m.gguf", "--decode", "1", "--prefill", "64", "--context", "256", "-o", "m.atomc"]);
    let fault = |bytes: &[u8], args: &[&str]| {
        bench.write("bad.gguf", bytes);
        let out = bench.run(args);
        let text = String::from_utf8(out.stderr).expect("UTF-8");
        assert_eq!(out.status.code(), Some(1), "{text}");
        text.lines().find(|line| line.starts_with("error")).unwrap_or_else(|| panic!("{text}")).to_owned()
    };
    let compile = ["compile", "bad.gguf", "-o", "bad.atomc"];
    let run = ["run", "m.atomc", "--weights", "bad.gguf", "--prompt", "Q"];
    let mut other = Written::default();
    other.text("general.architecture", "mamba");
    for args in [&compile[..], &run] {
        let text = fault(&sound().with_type("blk.1.ffn_up.weight", 99).bytes(), args);
        let begin = "error[gguf]: bad.gguf is not a sound GGUF file: tensor `blk.1.ffn_up.weight` is of type number 99";
        assert!(text.starts_with(begin), "{text}");
        let text = fault(b"GGML", args);
        assert_eq!(text, "error[gguf]: bad.gguf is not a sound GGUF file: it does not begin with `GGUF`");
    }
    let text = fault(&other.bytes(), &compile);
    let begin =
        "error[gguf]: bad.gguf: `general.architecture` is \"mamba\", which is not supported; supported are llama, ";
    assert!(text.starts_with(begin), "{text}");
    let text = fault(&sound().without("blk.1.ffn_up.weight").bytes(), &run);
    let name = "model.layers.1.mlp.up_proj.weight";
    assert_eq!(text, format!("error[checkpoint]: the checkpoint lacks a tensor that the model needs: {name}"));
    let text = fault(&sound().without("token_embd.weight").bytes(), &compile);
    assert_eq!(text, "error[gguf]: bad.gguf: the file has no tensor `token_embd.weight`");
    // A file without a tokenizer answers in numbers of tokens.
    let silent = Written::of_folder(&golden("qwen3"), "qwen3", Kind::F32).bytes();
    assert_eq!(fault(&silent, &run), "error[gguf]: bad.gguf: the file has no `tokenizer.ggml.model`");
    bench.succeed(&["compile", "bad.gguf", "--decode", "1", "--prefill", "16", "--context", "64", "-o", "n.atomc"]);
    bench.succeed(&["run", "n.atomc", "--weights", "bad.gguf", "--tokens", "1,2,3", "--max-tokens", "4"]);
    let gone = bench.run(&["compile", "gone.gguf", "-o", "bad.atomc"]);
    assert!(String::from_utf8_lossy(&gone.stderr).starts_with("error[gguf]: cannot read gone.gguf: "));
}

/// A file that is written to while it is open is not loaded.
#[test]
fn a_file_that_changes_is_refused() {
    let bench = Bench::empty();
    let bytes = Written::of_folder(&golden("qwen3"), "qwen3", Kind::F32).bytes();
    bench.write("m.gguf", &bytes);
    let file = Model::at(&bench.path("m.gguf")).expect("a file");
    let compiled = driver::compile(&file.config().expect("one"), &buckets(), &mut |_, _, _| ()).expect("it compiles");
    compiled.write(&bench.path("m.atomc")).expect("an artifact");
    let artifact = Artifact::open(bench.path("m.atomc")).expect("an artifact");
    let mut engine = Engine::new(artifact, &EngineOptions::default()).expect("it opens");
    bench.write("m.gguf", &bytes[..bytes.len() / 2]);
    let done = engine.load_weights(&*file.weights().expect("weights"), &|_, _| ());
    assert!(matches!(done, Err(Error::Checkpoint(CheckpointError::Changed { .. }))), "{done:?}");
}
