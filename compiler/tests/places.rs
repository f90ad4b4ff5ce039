//! Where a model is: its folder, a name of the hub in the hub's cache, or what is neither. GGUF
//! files are in `gguf/`.
#[allow(dead_code, reason = "other tests need more of it")]
mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::Bench;
use serde_json::Value;

/// A trained model, a question and its answer.
const TRAINED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/models/qwen3");
const QUESTION: &str =
    "Q: Omar has 51 cakes. Omar finds 28 more. Omar finds 55 more. How many cakes does Omar have now?\nA:";
const ANSWER: &str = " 51+28=79. 79+55=134. Omar has 134 cakes.\n";
const COMMIT: &str = "b968826d9c46dd6066d109eabc6255188de91218";

/// A folder with the model, but no artifact.
fn copied(to: &Path) {
    std::fs::create_dir_all(to).expect("a folder");
    for file in std::fs::read_dir(TRAINED).expect("the model") {
        let file = file.expect("a file").path();
        if file.extension().is_none_or(|ending| ending != "atomc") {
            std::fs::copy(&file, to.join(file.file_name().expect("a name"))).expect("a copy");
        }
    }
}

impl Bench {
    /// The hub's cache with the model, by the name of a small one.
    fn cached(&self) -> PathBuf {
        self.write("hub/models--ana--words/refs/main", COMMIT);
        let folder = self.path("hub/models--ana--words/snapshots").join(COMMIT);
        copied(&folder);
        folder
    }

    fn asked(&self, args: &[&str]) -> Command {
        let mut command = self.command(args);
        command.env("HF_HUB_CACHE", self.path("hub"));
        command
    }

    fn output(&self, args: &[&str]) -> Output {
        self.asked(args).output().expect("the binary runs")
    }

    fn done(&self, args: &[&str]) -> (String, String) {
        let Output { status, stdout, stderr } = self.output(args);
        let (out, told) = (String::from_utf8(stdout).expect("UTF-8"), String::from_utf8(stderr).expect("UTF-8"));
        assert!(status.success(), "{args:?}: {told}");
        (out, told)
    }

    fn refused(&self, args: &[&str]) -> String {
        let Output { status, stdout, stderr } = self.output(args);
        let told = String::from_utf8(stderr).expect("UTF-8");
        assert_eq!((status.code(), stdout.len()), (Some(1), 0), "{args:?}: {told}");
        told
    }
}

#[test]
fn a_folder_runs_without_an_artifact() {
    let bench = Bench::empty();
    copied(&bench.path("words"));
    let run = ["run", "words", "--prompt", QUESTION, "--max-tokens", "64"];
    // Nothing but the answer is in the output.
    let (answer, told) = bench.done(&run);
    assert_eq!(answer, ANSWER);
    assert!(told.starts_with("no artifact in words: compiling for host\n"), "{told}");
    assert!(told.contains("words/model.atomc: "), "{told}");
    let made = std::fs::read(bench.path("words/model.atomc")).expect("an artifact");
    let (answer, told) = bench.done(&run);
    assert_eq!(answer, ANSWER);
    assert!(!told.contains("compiling"), "{told}");
    // It is what `compile` makes.
    bench.done(&["compile", "words", "-o", "m.atomc"]);
    assert!(std::fs::read(bench.path("m.atomc")).expect("an artifact") == made);

    let told = bench.refused(&[&run[..], &["--target", "host"]].concat());
    assert!(told.starts_with("error[target]: --target host: there is an artifact"), "{told}");
    bench.done(&["trust", "--remove", "words/model.atomc"]);
    let told = bench.refused(&run);
    assert!(
        told.starts_with("error[trust]: words/model.atomc: lies beside the model, and is not on your list"),
        "{told}"
    );
    // One that is named is asked for.
    let named = ["run", "words/model.atomc", "--weights", "words", "--prompt", QUESTION];
    assert_eq!(bench.done(&named).0, ANSWER);
    let told = bench.refused(&["run", "words/model.atomc", "--prompt", QUESTION]);
    assert!(told.starts_with("error[weights]: an artifact has no weights"), "{told}");
}

#[test]
fn a_target_of_a_device_that_is_elsewhere_is_made() {
    let bench = Bench::empty();
    copied(&bench.path("words"));
    let run = ["run", "words", "--device", "emu:gfx1201:fast", "--tokens", "1,2,3", "--max-tokens", "1"];
    let (_, told) = bench.done(&run);
    assert!(told.starts_with("no artifact in words: compiling for gfx1201\n"), "{told}");
}

#[test]
fn names_of_the_hub_are_the_models_of_its_cache() {
    let bench = Bench::empty();
    let folder = bench.cached();
    let (answer, told) = bench.done(&["run", "ana/words", "--prompt", QUESTION]);
    assert_eq!(answer, ANSWER);
    let place = folder.strip_prefix(bench.dir.path()).expect("within it").display().to_string();
    assert!(told.contains(&format!("{place}: compiling for host\n")), "{told}");
    assert!(folder.join("model.atomc").exists());
    bench.done(&["compile", "ana/words", "-o", "m.atomc"]);
    assert_eq!(bench.done(&["run", "m.atomc", "--weights", "ana/words", "--prompt", QUESTION]).0, ANSWER);
    let random = ["run", "m.atomc", "--random-weights", "--tokenizer", "ana/words", "--prompt", QUESTION, "--json"];
    bench.done(&random);
    let (found, _) = bench.done(&["bench", "ana/words", "--prompt", "16", "--steps", "2", "--repeat", "1", "--json"]);
    assert!(serde_json::from_str::<Value>(&found).is_ok(), "{found}");
    let (found, _) = bench.done(&["check", "ana/words"]);
    assert!(found.contains("would run Qwen3ForCausalLM"), "{found}");
}

#[test]
fn a_name_that_is_not_in_the_cache_is_told_in_a_line() {
    let bench = Bench::empty();
    let told = format!(
        "error[hub]: ana/words is no path here, and the hub's cache has no such model ({}): `hf download ana/words` fetches it\n",
        bench.path("hub/models--ana--words").display()
    );
    bench.write("m.atomc", "x");
    for args in [
        &["compile", "ana/words", "-o", "n.atomc"][..],
        &["run", "ana/words", "--prompt", "Q"],
        &["run", "m.atomc", "--random-weights", "--tokenizer", "ana/words", "--prompt", "Q"],
        &["bench", "ana/words"],
        &["check", "ana/words"],
        &["explain", "ana/words"],
        #[cfg(feature = "server")]
        &["serve", "ana/words"],
    ] {
        if args[1] == "m.atomc" {
            bench
                .write("tiny/config.json", std::fs::read(Path::new(TRAINED).join("config.json")).expect("it is there"));
            bench.done(&["compile", "tiny", "-o", "m.atomc"]);
        }
        assert_eq!(bench.refused(args), told, "{args:?}");
    }
    // A file's path is no name.
    let told = bench.refused(&["run", "ana/words.atomc", "--random-weights", "--tokens", "1"]);
    assert!(told.starts_with("error[artifact]: cannot open ana/words.atomc: No such file"), "{told}");
}

/// The name that a server has for its clients is the one that it was asked for.
#[test]
#[cfg(feature = "server")]
fn a_served_model_has_its_name_of_the_hub() {
    use std::io::{BufRead, BufReader};
    use std::process::Stdio;
    let bench = Bench::empty();
    bench.cached();
    let mut command = bench.asked(&["serve", "ana/words", "--port", "0", "--threads", "1", "--cache-tokens", "512"]);
    let mut served = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().expect("the binary runs");
    let mut lines = BufReader::new(served.stderr.take().expect("it was asked for")).lines().map_while(Result::ok);
    let line = lines.find(|line| line.contains("http://")).unwrap_or_default();
    served.kill().expect("it runs");
    served.wait().expect("it ends");
    assert!(line.starts_with("`ana/words` on host:"), "{line}");
}
