//! Faults of the machine, with the built binary: obstacles to writing a file, kills, and paths that
//! are no files. In every case a file is whole or absent, the exit code says so, and nothing else
//! remains.
mod common;

use std::fs::File;
use std::os::unix::fs::{FileExt, FileTypeExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use common::{Bench, MODEL};
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use serde_json::{Value, json};

/// A compilation that takes a moment.
const COMPILE: [&str; 7] = ["compile", MODEL, "--context", "64", "--decode", "1", "--prefill=32"];

impl Bench {
    /// With `m.atomc`, for sequences of up to 64 tokens.
    fn compiled() -> Bench {
        static MADE: OnceLock<Vec<u8>> = OnceLock::new();
        Bench::empty().with("m.atomc", &COMPILE, &MADE)
    }

    /// With an artifact, which is compiled once for all tests.
    fn with(self, name: &str, compile: &[&str], made: &OnceLock<Vec<u8>>) -> Bench {
        let bytes = made.get_or_init(|| {
            self.succeed(&[compile, &["-o", name]].concat());
            std::fs::read(self.path(name)).expect("an artifact")
        });
        self.write(name, bytes);
        self
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

/// The message of a run that ends with exit code 1.
fn message(out: &Output, args: &[&str]) -> String {
    let text = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{args:?}: {:?} {text}", out.status);
    assert!(!text.contains("panicked"), "{args:?}: {text}");
    let error = text.lines().skip_while(|line| !line.starts_with("error")).collect::<Vec<_>>();
    error.join("\n").trim_end().to_owned()
}

/// Writes `model/config.json` and next to it a checkpoint of 113 MB, stored as holes in the file;
/// `large.atomc` is its artifact.
fn large() -> Bench {
    let (bench, hidden, inner, vocab) = (Bench::empty(), 1024, 2048, 4096);
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
    static MADE: OnceLock<Vec<u8>> = OnceLock::new();
    bench.with("large.atomc", &["compile", "model", "--context", "64", "--decode", "1", "--prefill", "32"], &MADE)
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

/// A device file in a folder of ours, if the machine lets us make one: a user that may not make one
/// cannot replace one either.
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
        "error[output]: cannot write packed/weights.host.safetensors: a link, which is not followed where the name was \
         not chosen: remove it"
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
        let mut command = bench.wrapped(&["sh", "-c", script, env!("CARGO_BIN_EXE_atomc")], args);
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

/// Kills a verb at several moments of its run, in all three ways. `file` is whole afterwards, or
/// not there.
fn killed(bench: &Bench, args: &[&str], folder: &str, file: &str, rounds: u32) {
    let start = Instant::now();
    bench.succeed(args);
    let whole = std::fs::read(bench.path(folder).join(file)).expect("the output");
    let took = start.elapsed();
    for round in 0..rounds {
        let _ = std::fs::remove_file(bench.path(folder).join(file));
        let mut child =
            bench.command(args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the binary runs");
        std::thread::sleep(took.mul_f64(1.1 * f64::from(round + 1) / f64::from(rounds)));
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
    killed(&bench, &compile, "made", "m.atomc", 3);
    assert_eq!(bench.names("made"), ["m.atomc"]);
    let pack = ["pack", "large.atomc", "--weights", "model", "-o", "packed"];
    killed(&bench, &pack, "packed", "weights.host.safetensors", 9);
    assert_eq!(bench.names("packed"), ["weights.host.safetensors"]);
}

/// Two writers of one file, with two artifacts: a reader sees one of these at any time, whole. Each
/// writer succeeds, and their user trusts both.
#[test]
fn two_writers_of_one_file() {
    let bench = Bench::empty();
    let other = COMPILE.map(|arg| if arg == "64" { "48" } else { arg });
    let wanted = [COMPILE, other].map(|compile| {
        bench.succeed(&[&compile[..], &["--no-trust", "-o", "alone"]].concat());
        std::fs::read(bench.path("alone")).expect("an artifact")
    });
    assert!(wanted[0] != wanted[1]);
    std::fs::create_dir(bench.path("made")).expect("a folder");
    for _ in 0..3 {
        let write = |compile: [&str; 7]| {
            let args = [&compile[..], &["-o", "made/m.atomc"]].concat();
            bench.command(&args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the binary runs")
        };
        let mut writers = [COMPILE, other, COMPILE, other].map(write);
        while writers.iter_mut().any(|writer| writer.try_wait().expect("a status").is_none()) {
            if let Ok(found) = std::fs::read(bench.path("made/m.atomc")) {
                assert!(wanted.contains(&found), "a file of {} bytes is neither artifact", found.len());
            }
        }
        for writer in writers {
            let out = writer.wait_with_output().expect("it ends");
            assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        }
        assert!(wanted.contains(&std::fs::read(bench.path("made/m.atomc")).expect("an artifact")));
        assert_eq!(bench.names("made"), ["m.atomc"]);
    }
    assert_eq!(bench.succeed(&["trust", "--list"]).lines().count(), 2);
}

#[test]
fn pipes_are_no_input() {
    let bench = Bench::compiled();
    bench.pipe("pipe");
    bench.write("ids.json", "[[1]]");
    for name in
        ["model/model.safetensors", "shards/model.safetensors.index.json", "config/config.json", "text/tokenizer.json"]
    {
        std::fs::create_dir_all(bench.path(name).parent().expect("a folder")).expect("a folder");
        bench.pipe(name);
    }
    let refused = |args: &[&str], want: &str| {
        let mut command = bench.wrapped(&["timeout", "20", env!("CARGO_BIN_EXE_atomc")], args);
        let said = message(&command.output().expect("timeout runs"), args);
        assert!(said.starts_with(want), "{args:?}: {said}");
    };
    refused(&["inspect", "pipe"], "error[artifact]: cannot open pipe: a pipe, not a regular file");
    refused(&["inspect", "/dev/null"], "error[artifact]: cannot open /dev/null: a device, not a regular file");
    let logits = |weights: &str, tokens: &str, want: &str| {
        refused(&["logits", "m.atomc", "--weights", weights, "--tokens", tokens, "-o", "out"], want);
    };
    logits(MODEL, "pipe", "error[tokens]: pipe: a pipe, not a regular file");
    logits("pipe", "ids.json", "error[checkpoint]: cannot read pipe: a pipe, not a regular file");
    logits("model", "ids.json", "error[checkpoint]: cannot read model/model.safetensors: a pipe, not a regular file");
    let index = "error[checkpoint]: cannot read shards/model.safetensors.index.json: a pipe, not a regular file";
    logits("shards", "ids.json", index);
    for config in ["pipe", "config"] {
        let args = ["compile", config, "-o", "out"];
        refused(&args, "error[config::read]: ");
    }
    let eval = |problems: &str, want: &str| {
        refused(&["eval", "m.atomc", "--weights", MODEL, "--tokenizer", "text", problems], want);
    };
    eval("pipe", "error[problems]: pipe: a pipe, not a regular file");
    eval("ids.json", "error[problems]: ids.json: ");
    let prompt = ["run", "m.atomc", "--weights", MODEL, "--prompt", "hi", "--tokenizer", "text"];
    refused(&prompt, "error[tokenizer]: text/tokenizer.json: a pipe, not a regular file");
}

/// Where every write fails.
fn full() -> File {
    File::options().write(true).open("/dev/full").expect("Linux has it")
}

#[test]
fn a_full_standard_error_changes_nothing() {
    let bench = Bench::compiled();
    bench.write("ids.json", "[[1, 2]]");
    let logits = ["logits", "m.atomc", "--weights", MODEL, "--tokens", "ids.json", "-o", "out"];
    let runs: [&[&str]; 6] = [
        &[&COMPILE[..], &["-o", "out"]].concat(),
        &logits,
        &["bench", "m.atomc", "--random-weights", "--steps", "1", "--repeat", "1"],
        &["inspect", "m.atomc"],
        &["inspect", "none.atomc"],
        &["inspect"],
    ];
    for args in runs {
        let of = |stderr: Stdio| {
            let _ = std::fs::remove_file(bench.path("out"));
            let out = bench.command(args).env("ATOMC_LOG", "debug").stderr(stderr).output().expect("the binary runs");
            (out, std::fs::read(bench.path("out")).ok())
        };
        let ((with, file), (without, file_without)) = (of(full().into()), of(Stdio::piped()));
        assert_eq!(with.status, without.status, "{args:?}");
        assert!(file == file_without, "{args:?}");
        // Printed times differ from run to run.
        if args[0] == "inspect" {
            assert_eq!(with.stdout, without.stdout);
        }
        assert_eq!(with.stdout.is_empty(), without.stdout.is_empty(), "{args:?}");
    }
}

#[test]
fn a_full_standard_output_is_an_error() {
    let bench = Bench::compiled();
    let runs: [&[&str]; 8] = [
        &[&COMPILE[..], &["-o", "out.atomc"]].concat(),
        &["inspect", "m.atomc", "--json"],
        &["print", MODEL],
        &["targets"],
        &["completions", "bash"],
        &["bench", "m.atomc", "--random-weights", "--steps", "1", "--repeat", "1"],
        &["--help"],
        &["--version"],
    ];
    for args in runs {
        let out = bench.command(args).stdout(full()).stderr(Stdio::piped()).output().expect("the binary runs");
        assert_eq!(message(&out, args), "error[output]: No space left on device (os error 28)");
    }
}

/// A change of a file, and the expected message.
type Change<'a> = (&'a dyn Fn(&Path), &'a str);

/// Starts a verb, changes a file as soon as it has opened it, and returns its output.
fn while_it_reads(bench: &Bench, args: &[&str], file: &Path, change: impl Fn(&Path)) -> Output {
    let child = bench.command(args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the binary runs");
    let opened = || {
        let files = std::fs::read_dir(format!("/proc/{}/fd", child.id())).into_iter().flatten().flatten();
        files.into_iter().any(|entry| std::fs::read_link(entry.path()).is_ok_and(|open| open == file))
    };
    let end = Instant::now() + Duration::from_secs(60);
    while !opened() && Instant::now() < end {
        std::thread::sleep(Duration::from_micros(200));
    }
    change(file);
    child.wait_with_output().expect("it ends")
}

#[test]
fn a_file_that_changes_while_it_is_read_is_an_error() {
    let bench = large();
    bench.write("ids.json", "[[1]]");
    bench.succeed(&["pack", "large.atomc", "--weights", "model", "-o", "packed"]);
    let logits = |weights: &'static str| {
        ["logits", "large.atomc", "--weights", weights, "--tokens", "ids.json", "-o", "out", "--threads", "1"]
    };
    let pack = ["pack", "large.atomc", "--weights", "model", "-o", "other", "--threads", "1"];
    let (checkpoint, packed) = ("model/model.safetensors", "packed/weights.host.safetensors");
    let runs: [(&[&str], &str); 3] = [(&logits("model"), checkpoint), (&pack, checkpoint), (&logits(packed), packed)];
    let open = |path: &Path| File::options().write(true).open(path).expect("it is ours");
    /// Bytes that a file loses.
    const CUT: usize = 1 << 20;
    let shrink = |path: &Path| {
        let file = open(path);
        let len = file.metadata().expect("a file").len();
        file.set_len(len - CUT as u64).expect("it shrinks");
    };
    let overwrite = |path: &Path| open(path).write_all_at(&[1; 100], 2 << 20).expect("it is written");
    for (args, file) in runs {
        let file = std::fs::canonicalize(bench.path(file)).expect("a file");
        let whole = std::fs::read(&file).expect("a file");
        let restore = || {
            let _ = (std::fs::remove_file(bench.path("out")), std::fs::remove_dir_all(bench.path("other")));
            for part in [2 << 20..3 << 20, whole.len() - CUT..whole.len()] {
                open(&file).write_all_at(&whole[part.clone()], part.start as u64).expect("it is written");
            }
        };
        let changes: [Change; 2] = [(&shrink, ", and had "), (&overwrite, "it was written to")];
        for (change, want) in changes {
            // Work before the change is right, and work before a first look is of another file.
            let early = |out: &Output| {
                let said = String::from_utf8_lossy(&out.stderr);
                out.status.success() || said.contains("is not a sound safetensors file") || said.contains("is damaged")
            };
            let failed = (0..10).find_map(|_| {
                restore();
                let out = while_it_reads(&bench, args, &file, change);
                (!early(&out)).then_some(out)
            });
            let said = message(&failed.expect("a change that comes in time"), args);
            assert!(
                said.contains("safetensors changed while it was read: ") && said.contains(want),
                "{args:?}: {said}"
            );
            assert!(!bench.path("out").exists() && bench.names("other").is_empty(), "{args:?}");
        }
        restore();
        bench.succeed(args);
    }
}

#[test]
fn a_flipped_bit_of_packed_weights_is_noticed() {
    let bench = Bench::compiled();
    bench.write("ids.json", "[[1, 2]]");
    bench.succeed(&["pack", "m.atomc", "--weights", MODEL, "-o", "."]);
    let file = bench.path("weights.host.safetensors");
    let whole = std::fs::read(&file).expect("packed weights");
    let header = 8 + u64::from_le_bytes(std::array::from_fn(|i| whole[i])) as usize;
    let weights = "weights.host.safetensors";
    let logits = ["logits", "m.atomc", "--weights", weights, "--tokens", "ids.json", "-o", "out"];
    for at in [header, header + (whole.len() - header) / 2, whole.len() - 1] {
        let mut bytes = whole.clone();
        bytes[at] ^= 4;
        std::fs::write(&file, bytes).expect("it is ours");
        let said = bench.fail(&logits);
        assert!(said.starts_with("error[checkpoint]: weights.host.safetensors is damaged: bytes 0 to "), "{said}");
        bench.succeed(&[&logits[..], &["--no-verify"]].concat());
    }
}

/// Outputs on a disk that is too small for them, in the folder `full`, and the files that are there
/// afterwards. One wrapper is for a compilation, in which the linker writes files too, the other
/// for the rest.
fn on_a_full_disk(bench: &Bench, wrappers: [&[&str]; 2], fault: &str) {
    let logits = ["logits", "m.atomc", "--weights", MODEL, "--tokens", "ids.json", "-o", "full/out"];
    let compile = [&COMPILE[..], &["-o", "full/m.atomc"]].concat();
    let runs: [&[&str]; 3] = [&compile, &["pack", "m.atomc", "--weights", MODEL, "-o", "full"], &logits];
    for args in runs {
        let wrapper = wrappers[usize::from(args[0] != "compile")];
        let out = bench.wrapped(wrapper, args).output().expect("a shell");
        let said = message(&out, args);
        assert!(said.starts_with("error[") && said.contains(fault), "{args:?}: {said}");
        assert_eq!(String::from_utf8_lossy(&out.stdout), "", "what is left over");
    }
}

#[test]
fn a_full_disk_is_an_error_and_leaves_nothing() {
    let bench = Bench::compiled();
    bench.write("ids.json", format!("[{:?}]", vec![1; 60]));
    std::fs::create_dir(bench.path("full")).expect("a folder");
    // A limit of blocks of 512 bytes for each file: enough for a linker's output, or for nothing.
    let limited =
        |blocks: usize| format!("trap '' XFSZ; ulimit -f {blocks}; \"$0\" \"$@\"; code=$?; ls -A full; exit $code");
    let limits = [limited(96), limited(32)];
    let wrapper = |limit: usize| ["sh", "-c", &limits[limit], env!("CARGO_BIN_EXE_atomc")];
    on_a_full_disk(&bench, [&wrapper(0), &wrapper(1)], "File too large (os error 27)");
    let mounted = "mount -t tmpfs -o size=16k none full && \"$0\" \"$@\"; code=$?; ls -A full; exit $code";
    let space = ["unshare", "--map-root-user", "--mount", "sh", "-c", mounted];
    // A disk of its own needs rights that not every machine gives; the limit above needs none.
    if bench.wrapped(&space, &["true"]).output().is_ok_and(|out| out.status.success()) {
        let wrapper = [&space[..], &[env!("CARGO_BIN_EXE_atomc")]].concat();
        on_a_full_disk(&bench, [&wrapper, &wrapper], "No space left on device (os error 28)");
    }
}
