//! Faults of the machine, with the built binary: what is in the way of a file, kills, and files that are none. Whatever happens, a
//! file is whole or not there, the exit code says so, and nothing is left over.
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A small model of the golden tests: two layers, vocabulary 96, 512 positions.
const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/llama2");
/// A compilation that takes a moment.
const COMPILE: [&str; 7] = ["compile", MODEL, "--context", "64", "--decode", "1", "--prefill=32"];

struct Bench {
    dir: TempDir,
}

impl Bench {
    fn new() -> Bench {
        Bench { dir: TempDir::new().expect("a temporary folder") }
    }

    /// With `m.atomc`, for sequences of up to 64 tokens.
    fn compiled() -> Bench {
        let bench = Bench::new();
        bench.succeed(&[&COMPILE[..], &["-o", "m.atomc"]].concat());
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        std::fs::create_dir_all(self.path(name).parent().expect("a folder")).expect("a folder");
        std::fs::write(self.path(name), bytes).expect("a writable file");
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_atomc"));
        command.args(args).current_dir(self.dir.path());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("the binary runs")
    }

    fn succeed(&self, args: &[&str]) -> String {
        let out = self.run(args);
        assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).expect("UTF-8")
    }

    /// The message of a failure.
    fn fail(&self, args: &[&str]) -> String {
        message(&self.run(args), args)
    }

    fn pipe(&self, name: &str) {
        assert!(Command::new("mkfifo").arg(self.path(name)).status().expect("mkfifo runs").success());
    }

    /// Names in a folder, sorted.
    fn names(&self, folder: &str) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.path(folder)) else { return Vec::new() };
        let name = |entry: std::io::Result<std::fs::DirEntry>| entry.expect("an entry").file_name();
        let mut names: Vec<String> = entries.map(|entry| name(entry).into_string().expect("UTF-8")).collect();
        names.sort();
        names
    }
}

/// What a run that ends with exit code 1 says of it.
fn message(out: &Output, args: &[&str]) -> String {
    let text = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{args:?}: {:?} {text}", out.status);
    assert!(!text.contains("panicked"), "{args:?}: {text}");
    let error = text.lines().skip_while(|line| !line.starts_with("error")).collect::<Vec<_>>();
    error.join("\n").trim_end().to_owned()
}

/// Writes `model/config.json`, and a checkpoint of 113 MB beside it, whose numbers are holes in the file; `large.atomc` is its artifact.
fn large() -> Bench {
    let (bench, hidden, inner, vocab) = (Bench::new(), 1024, 2048, 4096);
    let text = std::fs::read_to_string(Path::new(MODEL).join("config.json")).expect("a configuration");
    let mut config: Value = serde_json::from_str(&text).expect("JSON");
    for (field, value) in
        [("hidden_size", hidden), ("intermediate_size", inner), ("vocab_size", vocab), ("head_dim", 256)]
    {
        config[field] = json!(value);
    }
    bench.write("model/config.json", config.to_string());
    let mut tensors = vec![("model.embed_tokens.weight".to_owned(), vec![vocab, hidden])];
    tensors
        .extend([("lm_head.weight".to_owned(), vec![vocab, hidden]), ("model.norm.weight".to_owned(), vec![hidden])]);
    for layer in 0..2 {
        let mut add = |name: &str, shape| tensors.push((format!("model.layers.{layer}.{name}.weight"), shape));
        ["q", "k", "v", "o"].iter().for_each(|name| add(&format!("self_attn.{name}_proj"), vec![hidden, hidden]));
        ["gate", "up"].iter().for_each(|name| add(&format!("mlp.{name}_proj"), vec![inner, hidden]));
        add("mlp.down_proj", vec![hidden, inner]);
        ["input", "post_attention"].iter().for_each(|name| add(&format!("{name}_layernorm"), vec![hidden]));
    }
    holes(&bench.path("model/model.safetensors"), tensors);
    let fixed = ["compile", "model", "--context", "64", "--decode", "1", "--prefill", "32"];
    bench.succeed(&[&fixed[..], &["-o", "large.atomc"]].concat());
    bench
}

/// A checkpoint of zeros that takes no room on the disk.
fn holes(path: &Path, tensors: Vec<(String, Vec<usize>)>) {
    let mut end = 0;
    let of = |(name, shape): (String, Vec<usize>)| {
        let start = end;
        end += shape.iter().product::<usize>() * size_of::<f32>();
        (name, TensorInfo { dtype: Dtype::F32, shape, data_offsets: (start, end) })
    };
    let header = Metadata::new(None, tensors.into_iter().map(of).collect()).expect("sound tensors");
    let header = serde_json::to_vec(&header).expect("JSON");
    let bytes = [&(header.len() as u64).to_le_bytes(), &header[..]].concat();
    std::fs::write(path, &bytes).expect("a writable file");
    let file = std::fs::OpenOptions::new().write(true).open(path).expect("it is ours");
    file.set_len((bytes.len() + end) as u64).expect("a file system that has holes");
}

/// A device in a folder of ours, where the machine lets us make one: whoever may not make one cannot replace one either.
fn device(bench: &Bench) -> Option<&'static str> {
    let made = Command::new("mknod").arg(bench.path("device")).args(["c", "1", "7"]).output().expect("mknod runs");
    made.status.success().then_some("device")
}

#[test]
fn what_is_no_regular_file_is_not_replaced() {
    let bench = Bench::compiled();
    bench.pipe("pipe");
    let _socket = UnixListener::bind(bench.path("socket")).expect("a socket");
    symlink("pipe", bench.path("link")).expect("a link");
    std::fs::create_dir(bench.path("folder")).expect("a folder");
    bench.write("ids.json", "[[1]]");
    let device = device(&bench);
    let before = bench.names(".");
    let kinds = [("pipe", "a pipe"), ("link", "a pipe"), ("socket", "a socket"), ("folder", "a folder")];
    for (name, what) in kinds.into_iter().chain(device.map(|name| (name, "a device"))) {
        let want = format!("error[output]: {name}: {what}, not a regular file");
        assert_eq!(bench.fail(&[&COMPILE[..], &["-o", name]].concat()), want);
        let logits = ["logits", "m.atomc", "--weights", MODEL, "--tokens", "ids.json", "-o", name];
        assert_eq!(bench.fail(&logits), want);
    }
    std::fs::create_dir(bench.path("packed")).expect("a folder");
    symlink("../pipe", bench.path("packed/weights.host.safetensors")).expect("a link");
    assert_eq!(
        bench.fail(&["pack", "m.atomc", "--weights", MODEL, "-o", "packed"]),
        "error[output]: cannot write packed/weights.host.safetensors: a pipe, not a regular file"
    );
    std::fs::remove_dir_all(bench.path("packed")).expect("it is ours");
    assert_eq!(bench.names("."), before);
    assert!(std::fs::metadata(bench.path("pipe")).expect("it is there").file_type().is_fifo());
}

#[test]
fn a_link_stays_and_its_target_is_replaced() {
    let bench = Bench::compiled();
    std::fs::create_dir(bench.path("there")).expect("a folder");
    symlink("there/real.atomc", bench.path("link")).expect("a link");
    for _ in 0..2 {
        bench.succeed(&[&COMPILE[..], &["-o", "link"]].concat());
        assert_eq!(std::fs::read_link(bench.path("link")).expect("a link"), Path::new("there/real.atomc"));
        let read = |name: &str| std::fs::read(bench.path(name)).expect("a file");
        assert!(read("there/real.atomc") == read("m.atomc"));
    }
    assert_eq!(bench.names("there"), ["real.atomc"]);
}

#[test]
fn outputs_have_the_mode_of_any_other_file() {
    let bench = Bench::compiled();
    bench.write("ids.json", "[[1]]");
    let masked = |args: &[&str]| {
        let script = "umask 027; exec \"$0\" \"$@\"";
        let mut command = Command::new("sh");
        command.args(["-c", script, env!("CARGO_BIN_EXE_atomc")]).args(args).current_dir(bench.dir.path());
        assert!(command.output().expect("a shell").status.success(), "{args:?}");
    };
    masked(&[&COMPILE[..], &["-o", "out.atomc"]].concat());
    masked(&["pack", "m.atomc", "--weights", MODEL, "-o", "."]);
    masked(&["logits", "m.atomc", "--weights", MODEL, "--tokens", "ids.json", "-o", "logits.safetensors"]);
    for name in ["out.atomc", "weights.host.safetensors", "logits.safetensors"] {
        let mode = std::fs::metadata(bench.path(name)).expect("an output").permissions().mode();
        assert_eq!(mode & 0o777, 0o640, "{name}");
    }
}

#[test]
fn a_folder_that_cannot_be_written_is_refused_at_once() {
    let bench = Bench::compiled();
    std::fs::create_dir(bench.path("closed")).expect("a folder");
    std::fs::set_permissions(bench.path("closed"), PermissionsExt::from_mode(0o555)).expect("it is ours");
    // Root may write everywhere but into folders of the kernel's.
    let closed = std::fs::write(bench.path("closed/probe"), "").is_err();
    for folder in ["/proc"].into_iter().chain(closed.then_some("closed")) {
        let output = format!("{folder}/m.atomc");
        let args = [&COMPILE[..], &["-o", &output]].concat();
        let out = bench.run(&args);
        let said = message(&out, &args);
        assert!(said.starts_with(&format!("error[output]: {output}: ")), "{said}");
        assert!(!String::from_utf8_lossy(&out.stderr).contains("compiling"), "hours went into it");
    }
}

/// Kills a verb at several moments of its run, in all three ways. `file` is whole afterwards, or not there.
fn killed(bench: &Bench, args: &[&str], folder: &str, file: &str) {
    let start = Instant::now();
    bench.succeed(args);
    let whole = std::fs::read(bench.path(folder).join(file)).expect("the output");
    let took = start.elapsed();
    for round in 0..9 {
        let _ = std::fs::remove_file(bench.path(folder).join(file));
        let mut child =
            bench.command(args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the binary runs");
        // Later kills lie closer together: files appear at the end.
        std::thread::sleep(took.mul_f64(1.1 - 0.12 * f64::from(round)));
        let signal = ["-KILL", "-INT", "-TERM"][round as usize % 3];
        let _ = Command::new("kill").args([signal, &child.id().to_string()]).stderr(Stdio::null()).status();
        let status = child.wait().expect("it ends");
        assert!(status.success() || status.signal().is_some(), "{status:?}");
        if let Ok(found) = std::fs::read(bench.path(folder).join(file)) {
            assert!(found == whole, "killed by {signal}, it left a part of {file}");
        }
    }
    bench.succeed(args);
    assert!(std::fs::read(bench.path(folder).join(file)).expect("the output") == whole);
}

#[test]
fn a_kill_leaves_a_whole_file_or_none() {
    let bench = large();
    let compile = [&COMPILE[..], &["-o", "made/m.atomc"]].concat();
    std::fs::create_dir(bench.path("made")).expect("a folder");
    killed(&bench, &compile, "made", "m.atomc");
    assert_eq!(bench.names("made"), ["m.atomc"]);
    let pack = ["pack", "large.atomc", "--weights", "model", "-o", "packed"];
    killed(&bench, &pack, "packed", "weights.host.safetensors");
    assert_eq!(bench.names("packed"), ["weights.host.safetensors"]);
}
