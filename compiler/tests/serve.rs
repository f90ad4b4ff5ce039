//! The refusals of `atomc serve` before it serves, and its addresses.
#[allow(dead_code, reason = "other tests need more of it")]
mod common;
#[path = "serve/offload.rs"]
mod offload;

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use common::Bench;

/// A model with a tokenizer and weights.
const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/models/qwen3");
const KEY: &str = "ATOMC_API_KEY";

impl Bench {
    fn serve(&self, args: &[&str]) -> Command {
        let mut command = self.command(&["serve"]);
        command.args(args).env_remove(KEY);
        command
    }

    /// A copy of the model's folder, with this instead of a file of it.
    fn model(&self, name: &OsStr, change: Option<(&str, &str)>) -> PathBuf {
        let folder = self.dir.path().join(name);
        std::fs::create_dir(&folder).expect("a folder");
        for file in std::fs::read_dir(MODEL).expect("the model") {
            let file = file.expect("a file");
            if !file.file_name().as_bytes().ends_with(b".atomc") {
                std::fs::copy(file.path(), folder.join(file.file_name())).expect("a copy");
            }
        }
        change.into_iter().for_each(|(file, text)| std::fs::write(folder.join(file), text).expect("a file"));
        folder
    }
}

/// The message of a command that fails.
fn said(command: &mut Command, code: i32) -> String {
    let out = command.output().expect("the binary runs");
    let text = String::from_utf8(out.stderr).expect("UTF-8");
    assert_eq!(out.status.code(), Some(code), "{text}");
    assert!(!text.contains("panicked"), "{text}");
    text
}

#[test]
fn switches_that_mean_nothing_are_refused() {
    let bench = Bench::empty();
    for (args, told) in [
        (["--parallel", "0"], "from 1 on"),
        (["--connections", "0"], "from 1 on"),
        (["--address-connections", "0"], "from 1 on"),
        (["--patience", "0"], "1..=3600"),
        (["--max-choices", "0"], "from 1 on"),
        (["--max-body", "0"], "from 1 on"),
        (["--step-tokens", "0"], "from 1 on"),
        (["--cache-tokens", "0"], "from 1 on"),
        (["--served-model-name", ","], "--served-model-name"),
        (["--cors", "nonsense"], "an origin is"),
        (["--allowed-host", "a:80"], "without a port"),
    ] {
        let text = said(bench.serve(&[MODEL]).args(args), 2);
        assert!(text.contains(told), "{args:?}: {text}");
    }
    let text = said(&mut bench.serve(&[MODEL, "--host", "no.such.host.invalid"]), 1);
    assert!(text.contains("--host no.such.host.invalid"), "{text}");
    bench.write("m.atomc", "x");
    let text = said(&mut bench.serve(&["m.atomc", "--weights", MODEL, "--target", "host"]), 1);
    assert!(text.contains("error[target]: --target host: there is an artifact"), "{text}");
}

#[test]
fn keys_at_fault_are_refused() {
    let bench = Bench::empty();
    for (key, told) in [
        (OsString::from(""), "is set and empty"),
        ("\n".into(), "is set and empty"),
        (OsString::from_vec(b"a\xff".to_vec()), "is not UTF-8"),
        ("a b".into(), "no header"),
    ] {
        let text = said(bench.serve(&[MODEL]).env(KEY, &key), 1);
        assert!(text.contains(&format!("error[api_key]: {KEY} ")) && text.contains(told), "{key:?}: {text}");
    }
    for (keys, mode, told) in [
        ("secret\n", 0o666, "others may write to it (mode 666)"),
        ("secret\n", 0o620, "others may write to it (mode 620)"),
        ("secret\ngeheim é\n", 0o600, "line 2"),
        ("\n", 0o600, "there is no key in it"),
    ] {
        bench.write("keys", keys);
        std::fs::set_permissions(bench.path("keys"), std::fs::Permissions::from_mode(mode)).expect("a mode");
        let text = said(&mut bench.serve(&[MODEL, "--api-key-file", "keys"]), 1);
        assert!(text.starts_with("error[api_key_file]: keys: ") && text.contains(told), "{text}");
    }
}

#[test]
fn generation_configs_at_fault_are_refused() {
    let bench = Bench::empty();
    for (index, (text, field)) in
        [(r#"{"temperature": -1}"#, "temperature"), (r#"{"top_p": 0}"#, "top_p"), (r#"{"top_k": "x"}"#, "top_k")]
            .into_iter()
            .enumerate()
    {
        let folder = bench.model(format!("m{index}").as_ref(), Some(("generation_config.json", text)));
        let text = said(bench.serve(&[]).arg(&folder), 1);
        let start = format!("error[generation_config]: {}: {field}: ", folder.join("generation_config.json").display());
        assert!(text.starts_with(&start), "{text}");
    }
}

#[test]
fn too_few_files_are_told_at_the_start() {
    let bench = Bench::empty();
    for files in [4, 8, 12, 40] {
        let script = format!("ulimit -n {files}; exec \"$0\" serve \"$1\" --port 0");
        let mut command = bench.wrapped(&["sh", "-c", &script, env!("CARGO_BIN_EXE_atomc")], &[MODEL]);
        let text = said(command.env_remove(KEY), 1);
        assert!(text.starts_with(&format!("error[files]: this process may have {files} files open")), "{text}");
    }
}

/// A server that was started, and ends with this.
struct Served {
    child: Child,
    /// The line with the server's address, and those before.
    lines: Vec<String>,
}

impl Served {
    fn start(command: &mut Command) -> Served {
        let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().expect("the binary runs");
        let mut lines = vec![];
        for line in BufReader::new(child.stderr.take().expect("it was asked for")).lines() {
            lines.push(line.expect("UTF-8"));
            if lines.last().is_some_and(|line| line.contains(" at http://")) {
                return Served { child, lines };
            }
        }
        _ = child.wait();
        panic!("it does not serve: {lines:?}");
    }

    fn last(&self) -> &str {
        self.lines.last().expect("it serves")
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// A folder is served whatever it is called, and whether or not its artifact can be put on a list.
#[test]
fn a_folder_is_served_without_a_home() {
    let bench = Bench::empty();
    let folder = bench.model(&OsString::from_vec(b"m\xff".to_vec()), None);
    let nowhere = Path::new("/proc/nowhere");
    let start = |key: &str| {
        let mut command = bench.serve(&["--port", "0", "--host", "localhost", "--threads", "1"]);
        command.arg(&folder).env_remove("HOME").env("XDG_CONFIG_HOME", nowhere);
        if !key.is_empty() {
            command.env(KEY, key);
        }
        command
    };
    let served = Served::start(&mut start(""));
    assert!(
        served.lines.iter().any(|line| line.contains("is not on the list of trusted artifacts")),
        "{:?}",
        served.lines
    );
    assert!(served.last().contains(", without keys, at http://127.0.0.1:"), "{}", served.last());
    drop(served);
    // The next start finds an artifact that was not made by it.
    let text = said(&mut start(""), 1);
    assert!(text.contains("is not on your list") && text.contains("--weights"), "{text}");
    let mut named = bench.serve(&["--port", "0", "--threads", "1", "--weights"]);
    named.arg(&folder).arg(folder.join("model.atomc")).env(KEY, "secret\n");
    assert!(Served::start(&mut named).last().contains(", with a key, at http://"));
}
