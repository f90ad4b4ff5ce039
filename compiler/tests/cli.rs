//! The built binary: its output, and its refusals. Every fault ends with exit code 1 (2 for wrong
//! usage) and a message that names the field, without a panic, and leaves no file.
mod common;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use common::{Bench, MODEL};
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};

impl Bench {
    /// A folder with `m.atomc` in it, for sequences of up to 64 tokens.
    fn new() -> Bench {
        let bench = Bench::empty();
        bench.succeed(&["compile", MODEL, "--context", "64", "--decode", "1", "--prefill", "32", "-o", "m.atomc"]);
        bench
    }

    fn artifact(&self) -> Vec<u8> {
        std::fs::read(self.path("m.atomc")).expect("an artifact")
    }

    /// What standard error says of a failure, progress aside; no file may have appeared.
    fn fail(&self, code: i32, args: &[&str]) -> String {
        let before = files(self.dir.path());
        let out = self.run(args);
        let text = String::from_utf8(out.stderr).expect("UTF-8");
        assert_eq!(out.status.code(), Some(code), "{args:?}: {text}");
        assert!(!text.contains("panicked"), "{args:?}: {text}");
        assert_eq!(files(self.dir.path()), before, "{args:?} left something behind");
        let progress = ["loading weights:", "compiling:", "computing logits:", "measuring:"];
        let lines = text.lines().filter(|line| !progress.iter().any(|p| line.starts_with(p)));
        lines.map(str::trim_end).collect::<Vec<_>>().join("\n")
    }

    /// `atomc logits` of an artifact with a checkpoint, for some tokens.
    fn logits(&self, artifact: &str, weights: &str, tokens: &str) -> String {
        self.write("ids.json", tokens);
        self.fail(1, &["logits", artifact, "--weights", weights, "--tokens", "ids.json", "-o", "out.safetensors"])
    }
}

/// Names and sizes.
fn files(dir: &Path) -> Vec<(PathBuf, u64)> {
    let entries = std::fs::read_dir(dir).expect("a folder").map(|e| e.expect("an entry"));
    let mut all: Vec<_> = entries.map(|e| (e.path(), e.metadata().expect("metadata").len())).collect();
    all.sort();
    all
}

/// Shapes and bytes by name.
type Tensors = HashMap<String, (Vec<usize>, Vec<u8>)>;

/// The checkpoint, changed.
fn checkpoint(change: impl FnOnce(&mut Tensors)) -> Vec<u8> {
    let bytes = std::fs::read(Path::new(MODEL).join("model.safetensors")).expect("a checkpoint");
    let file = SafeTensors::deserialize(&bytes).expect("a sound checkpoint");
    let one = |(name, t): (String, TensorView)| (name, (t.shape().to_vec(), t.data().to_vec()));
    let mut all: Tensors = file.tensors().into_iter().map(one).collect();
    change(&mut all);
    let view = |(shape, data)| TensorView::new(safetensors::Dtype::BF16, shape, data).expect("a sound tensor");
    let views = all.iter().map(|(name, (shape, data))| (name.clone(), view((shape.clone(), &data[..]))));
    safetensors::serialize(views, None).expect("a checkpoint")
}

/// The configuration of the model, changed.
fn config(patch: Value) -> String {
    let text = std::fs::read_to_string(Path::new(MODEL).join("config.json")).expect("a configuration");
    let mut config: Value = serde_json::from_str(&text).expect("JSON");
    config.as_object_mut().expect("an object").extend(patch.as_object().expect("an object").clone());
    config.to_string()
}

#[test]
fn a_model_goes_through_every_verb() {
    let bench = Bench::new();
    let read = |text: &str| serde_json::from_str::<Value>(text).expect("JSON");
    let about = read(&bench.succeed(&["inspect", "m.atomc", "--json"]));
    assert_eq!(about["model"]["max_positions"], 64);
    assert!(about["targets"][0]["variants"].as_array().is_some_and(|v| !v.is_empty()));
    assert!(bench.succeed(&["inspect", "m.atomc", "--kernels"]).contains(about["key"].as_str().expect("a key")));
    assert!(bench.succeed(&["inspect", "m.atomc", "--why", "k1"]).contains(": matvec\n"));

    let devices = read(&bench.succeed(&["devices", "--json"]));
    assert!(devices["host"]["threads"].as_u64().is_some_and(|n| n > 0) && devices["hip"]["devices"].is_array());

    bench.write("ids.json", "[[1, 2, 3, 4, 5], [6]]");
    let logits = |out: &str, chunk: &str| {
        let output = bench.path(out);
        let fixed = ["logits", "m.atomc", "--weights", MODEL, "--tokens", "ids.json", "--threads", "1"];
        bench.succeed(&[&fixed[..], &["-o", output.to_str().expect("UTF-8"), "--chunk", chunk]].concat());
        std::fs::read(output).expect("the output")
    };
    let (whole, cut) = (logits("a.safetensors", "0"), logits("b.safetensors", "2"));
    let shapes = |bytes: &[u8]| {
        let file = SafeTensors::deserialize(bytes).expect("a sound file");
        [file.tensor("0").expect("0").shape().to_vec(), file.tensor("1").expect("1").shape().to_vec()]
    };
    assert_eq!(shapes(&whole), [[5, 96], [1, 96]]);
    assert_eq!(shapes(&cut), shapes(&whole));

    let args = ["bench", "m.atomc", "--random-weights", "7", "--steps", "2", "--repeat", "1", "--kernels", "--json"];
    let made_of_kernels = bench.succeed(&args);
    let bench_result = read(&made_of_kernels);
    assert_eq!(bench_result["prefill"]["tokens"], 60);
    assert!(bench_result["decode"][0]["bytes_per_second"].as_f64().is_some_and(|rate| rate > 0.0));

    let printed = bench.succeed(&["print", MODEL]);
    assert!(printed.starts_with("graph @LlamaForCausalLM("), "{printed}");
    assert!(bench.succeed(&["print", MODEL, "--after", "fuse", "--bucket", "any"]).contains("family = matmul"));
    assert!(bench.succeed(&["print", MODEL, "--emit", "llvm"]).contains("define"));
    let explained = bench.succeed(&["explain", MODEL, "--cause", "read elsewhere,step"]);
    assert!(
        explained.contains("self_attn: rope_table -> rope: not, read elsewhere: `rope` of model.layers.*."),
        "{explained}"
    );
    assert!(explained.starts_with("x86-64") && !explained.contains("matvec: "), "{explained}");
    let ranks = bench.succeed(&["explain", MODEL, "--tp", "2", "--cause", "boundary", "--quant", "fp8"]);
    assert!(ranks.contains("linear -> all_reduce: not, boundary: `all_reduce` is the caller's work (3)"), "{ranks}");
    let all: Value = serde_json::from_str(&bench.succeed(&["explain", MODEL, "--json"])).expect("JSON");
    let fused = |place: &&Value| place["what"] == "silu_mul" && place["fused"] == true && place["cause"].is_null();
    assert_eq!(all.as_array().map(|all| all.iter().filter(fused).count()), Some(2), "{all}");
    bench.write("bench.json", made_of_kernels.as_bytes());
    let page = ["report", "m.atomc", "-o", "report.html", "--bench", "bench.json", "--against", "m.atomc"];
    bench.succeed(&page);
    let page = std::fs::read_to_string(bench.path("report.html")).expect("a page");
    let data =
        page.split_once("type=\"application/json\" id=\"data\">").and_then(|(_, rest)| rest.split_once("</script>"));
    let data: Value = serde_json::from_str(data.expect("the page's data").0).expect("JSON");
    let plan = &data["steps"][0]["plans"][0];
    assert_eq!(
        plan["launches"].as_array().map(Vec::len),
        data["targets"][0]["plans"][0]["launches"].as_u64().map(|n| n as usize)
    );
    assert!(
        plan["peak"].as_u64() <= plan["arena"].as_u64() && plan["edges"].as_array().is_some_and(|all| all.len() > 10)
    );
    assert_eq!(data["bench"]["decode"][0]["plan"], plan["name"]);
    assert_eq!(data["against"]["all"], 0);
    bench.write("bench.json", "{}");
    assert!(
        bench
            .fail(1, &["report", "m.atomc", "-o", "r.html", "--bench", "bench.json"])
            .contains("bench --kernels --json")
    );

    let ledger =
        ["bench", "m.atomc", "--random-weights", "--steps", "2", "--repeat", "1", "--ledger", "--trace", "run.json"];
    assert!(bench.succeed(&ledger).contains("the whole step"));
    let events = |name: &str| read(&std::fs::read_to_string(bench.path(name)).expect("a trace"))["traceEvents"].clone();
    let kinds = |name: &str, kind: &str| {
        let events = events(name);
        events.as_array().map_or(0, |all| all.iter().filter(|event| event["cat"] == kind).count())
    };
    let launches = plan["launches"].as_array().map_or(0, Vec::len);
    assert!(kinds("run.json", "launch") > launches && kinds("run.json", "step") == 2);
    let same = ["compile", MODEL, "--context", "64", "--decode", "1", "--prefill", "32", "-o", "traced.atomc"];
    bench.succeed(&[&same[..], &["--trace", "compile.json"]].concat());
    assert!(kinds("compile.json", "kernel") > 20 && kinds("compile.json", "pass") > 20);
    assert!(
        std::fs::read(bench.path("traced.atomc")).expect("an artifact") == bench.artifact(),
        "a trace changes nothing"
    );
    let refused = bench.fail(2, &["explain", MODEL, "--cause", "mood"]);
    assert!(refused.contains("must be one of read elsewhere, type, boundary"), "{refused}");
    assert!(bench.succeed(&["completions", "bash"]).contains("atomc"));
}

#[test]
fn packed_weights_are_the_checkpoint() {
    let bench = Bench::new();
    let compiled = |name: &str, more: &[&str]| {
        let args = ["compile", MODEL, "--context", "64", "--prefill", "32", "-o", name];
        bench.succeed(&[&args[..], more].concat());
    };
    bench.write("ids.json", "[[1, 2, 3, 4, 5], [6]]");
    let logits = |artifact: &str, weights: &str| {
        bench.succeed(&["logits", artifact, "--weights", weights, "--tokens", "ids.json", "-o", "out.safetensors"]);
        std::fs::read(bench.path("out.safetensors")).expect("logits")
    };
    bench.succeed(&["pack", "m.atomc", "--weights", MODEL, "-o", "packed"]);
    let file = "packed/weights.host.safetensors";
    assert!(logits("m.atomc", file) == logits("m.atomc", MODEL));
    // The kernels may be others, but not the plan of weights.
    compiled("other.atomc", &["--decode", "2"]);
    assert!(logits("other.atomc", file) == logits("other.atomc", MODEL));
    compiled("f32.atomc", &["--dtype", "f32"]);
    let refused = bench.logits("f32.atomc", file, "[[1]]");
    assert!(refused.contains("holds weights packed for plan of weights"), "{refused}");
    let checkpoint = format!("{MODEL}/model.safetensors");
    let refused = bench.logits("m.atomc", &checkpoint, "[[1]]");
    assert!(refused.contains("it holds no packed weights, but maybe a checkpoint"), "{refused}");
    compiled("ranks.atomc", &["--tp", "2"]);
    bench.succeed(&["pack", "ranks.atomc", "--weights", MODEL, "-o", "packed"]);
    let sizes = |name: &str| std::fs::metadata(bench.path(name)).expect("a file").len();
    let part = sizes("packed/weights.host.1-of-2.safetensors");
    assert_eq!(part, sizes("packed/weights.host.2-of-2.safetensors"));
    assert!(part < sizes(file));
}

#[test]
fn compiling_twice_gives_the_same_bytes() {
    let bench = Bench::new();
    let first = bench.artifact();
    bench.succeed(&["compile", MODEL, "--context", "64", "--decode", "1", "--prefill", "32", "-o", "m.atomc"]);
    assert!(first == bench.artifact());
}

/// Neither the folder, nor the name of the model's, nor the number of processors leaves a trace in
/// an artifact. Processors are those that the process may run on.
#[test]
fn another_folder_and_one_thread_give_the_same_bytes() {
    let bench = Bench::new();
    let (first, other) = (bench.artifact(), Bench::empty());
    std::fs::create_dir(other.path("somewhere else")).expect("a folder");
    for file in ["config.json", "generation_config.json"] {
        let from = Path::new(MODEL).join(file);
        if from.exists() {
            std::fs::copy(from, other.path("somewhere else").join(file)).expect("a copy");
        }
    }
    let args = ["compile", "somewhere else", "--context", "64", "--decode", "1", "--prefill", "32", "-o", "m.atomc"];
    let out = other.wrapped(&["taskset", "--cpu-list", "0", env!("CARGO_BIN_EXE_atomc")], &args).output();
    let out = out.expect("taskset of util-linux");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert!(first == other.artifact());
}

#[test]
fn what_changed_from_one_artifact_to_another() {
    let bench = Bench::new();
    let compiled = |name: &str, more: &[&str]| {
        let args = ["compile", MODEL, "--context", "64", "--prefill", "32", "-o", name];
        bench.succeed(&[&args[..], more].concat());
    };
    compiled("other.atomc", &["--decode", "1,2", "--cache-dtype", "fp8", "--target", "host,gfx942"]);
    assert_eq!(bench.succeed(&["diff", "m.atomc", "m.atomc"]), "no difference\n");
    let text = bench.succeed(&["diff", "m.atomc", "other.atomc"]);
    let told = |part: &str| assert!(text.contains(part), "{part:?} is not in {text}");
    told("config.model.cache_dtype\n  - \"bf16\"\n  + \"f8e4m3\"\n");
    told("host plan decode 2\n  + ");
    told("target gfx942\n  + 4 plans\n");
    told("host states 0\n  - 2 layers of pages of ");
    assert!(!text.contains("weight "), "the weights are the same: {text}");
}

#[test]
fn parts_of_a_model() {
    let bench = Bench::new();
    let part = ["--context", "64", "--decode", "1", "--prefill", "32", "-o", "part.atomc"];
    let compile = |more: &[&'static str]| [&["compile", MODEL][..], &part, more].concat();
    bench.succeed(&compile(&["--tp", "2", "--attention", "own,caller"]));
    assert!(bench.succeed(&["inspect", "part.atomc"]).contains("ranks     for each of 2 that share the model out"));
    bench.write("ids.json", "[[1, 2]]");
    let run = ["logits", "part.atomc", "--weights", MODEL, "--tokens", "ids.json", "-o", "out.safetensors"];
    insta::assert_snapshot!(bench.fail(1, &run), @"error[artifact]: device: the artifact is for 2 ranks, and each needs a device, but 1 are named; --tp, --ep and --pp of `atomc compile` say how many ranks there are");
    bench.succeed(&["verify", "part.atomc", "--kernel", "rows"]);
    bench.succeed(&compile(&["--attention", "caller"]));
    insta::assert_snapshot!(bench.fail(1, &run), @"error[artifact]: attention: every plan for target `host` leaves attention to a framework; an engine needs an artifact that was compiled with --attention own");
    insta::assert_snapshot!(bench.fail(1, &compile(&["--tp", "3", "--json"])), @"error[config::ranks]: --tp: 4 attention heads cannot be shared out among 3 ranks");
    insta::assert_snapshot!(bench.fail(1, &compile(&["--ep", "2"])), @"error[config::ranks]: --ep: the model has no experts");
    let experts = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/moe-glm");
    let compile = |more: &[&'static str]| [&["compile", experts][..], &part, more].concat();
    insta::assert_snapshot!(bench.fail(1, &compile(&["--ep", "7"])), @"error[config::ranks]: --ep: 6 experts cannot be shared out among 7 ranks");
    insta::assert_snapshot!(bench.fail(1, &compile(&["--tp", "3", "--ep", "2"])), @"error[config::ranks]: --ep: 2 ranks hold experts, but --tp has 3: as many, or 1");
    insta::assert_snapshot!(bench.fail(1, &compile(&["--ep", "65"])), @"error[config::ranks]: --ep: 65 ranks, but 64 are the most that share a model out");
    bench.succeed(&compile(&["--ep", "4"]));
    let about = bench.succeed(&["inspect", "part.atomc"]);
    assert!(about.contains("ranks     for each of 4 that share the experts out, and have all else"), "{about}");
    bench.succeed(&["verify", "part.atomc", "--kernel", "rows"]);
}

/// Fingerprints on the list of trusted artifacts.
fn trusted(bench: &Bench) -> Vec<String> {
    let list: Vec<Value> = serde_json::from_str(&bench.succeed(&["trust", "--list", "--json"])).expect("JSON");
    list.iter().map(|entry| entry["fingerprint"].as_str().expect("text").to_owned()).collect()
}

#[test]
fn what_is_compiled_is_trusted() {
    let bench = Bench::new();
    let about: Value = serde_json::from_str(&bench.succeed(&["inspect", "m.atomc", "--json"])).expect("JSON");
    let made = about["fingerprint"].as_str().expect("a fingerprint").to_owned();
    assert_eq!(trusted(&bench), [made.as_str()]);
    let compile = ["compile", MODEL, "--context", "96", "--decode", "1", "--prefill", "32", "-o", "other.atomc"];
    bench.succeed(&[&compile[..], &["--no-trust"]].concat());
    assert_eq!(trusted(&bench), [made.as_str()]);
    let list = bench.path("home/atomc/trusted");
    let line = std::fs::read_to_string(&list).expect("a list");
    assert_eq!(line, format!("{made} LlamaForCausalLM {}\n", bench.path("m.atomc").display()));

    let shown = bench.succeed(&["trust", "other.atomc", "m.atomc"]);
    assert!(shown.contains("model        LlamaForCausalLM\ntargets      host\nproducer     atomc "), "{shown}");
    assert_eq!(trusted(&bench).len(), 2);
    bench.succeed(&["trust", "--remove", "other.atomc"]);
    bench.succeed(&["trust", "--remove", &made]);
    assert!(trusted(&bench).is_empty());
    let again = bench.fail(1, &["trust", "--remove", "m.atomc"]);
    assert!(again.starts_with("error[trust]: ") && again.ends_with("m.atomc is not on the list"), "{again}");
    bench.fail(1, &["trust", "none.atomc"]);
    bench.fail(2, &["trust"]);
    bench.fail(2, &["trust", "m.atomc", "--list"]);
}

#[test]
fn a_list_that_cannot_be_written_is_a_warning() {
    let bench = Bench::new();
    bench.write("file", "");
    let compile = |name: &str, config: &Path| {
        let args = ["compile", MODEL, "--context", "64", "--decode", "1", "--prefill", "32", "-o", name];
        let out = bench.command(&args).env("XDG_CONFIG_HOME", config).env_remove("HOME").output().expect("it runs");
        let said = String::from_utf8(out.stderr).expect("UTF-8");
        assert!(out.status.success() && bench.path(name).exists(), "{said}");
        let warnings: Vec<&str> = said.lines().filter(|line| line.starts_with("warning: ")).collect();
        assert_eq!(warnings.len(), 1, "{said}");
        warnings[0].to_owned()
    };
    let no_folder = compile("a.atomc", &bench.path("file"));
    let expected = format!(
        "a.atomc is not on the list of trusted artifacts: cannot create {}/atomc: ",
        bench.path("file").display()
    );
    assert!(no_folder.contains(&expected), "{no_folder}");
    let no_home = compile("b.atomc", Path::new(""));
    assert!(no_home.contains("neither XDG_CONFIG_HOME nor HOME is set"), "{no_home}");
    let listed = bench.command(&["trust", "b.atomc"]).env_remove("XDG_CONFIG_HOME").env_remove("HOME").output();
    let said = String::from_utf8(listed.expect("it runs").stderr).expect("UTF-8");
    assert_eq!(
        said.trim_end(),
        "error[trust]: the list of trusted artifacts has no place: neither XDG_CONFIG_HOME nor HOME is set"
    );
}

#[test]
fn damaged_artifacts() {
    let bench = Bench::new();
    let whole = bench.artifact();
    let open = |bytes: &[u8]| {
        bench.write("bad.atomc", bytes);
        let message = bench.fail(1, &["inspect", "bad.atomc"]);
        assert_eq!(bench.fail(1, &["bench", "bad.atomc", "--random-weights"]), message);
        message
    };
    let sizes = |text: String| {
        text.replace(&whole.len().to_string(), "<all>").replace(&(whole.len() - 1).to_string(), "<fewer>")
    };
    let edited = |at: usize, byte: u8| {
        let mut bytes = whole.clone();
        bytes[at] = byte;
        bytes
    };
    insta::assert_snapshot!(open(b""), @"error[artifact]: bad.atomc: not an atomc artifact: the file does not begin with the artifact signature");
    insta::assert_snapshot!(open(b"{}"), @"error[artifact]: bad.atomc: not an atomc artifact: the file does not begin with the artifact signature");
    insta::assert_snapshot!(open(&whole[..40]), @"error[artifact]: bad.atomc: artifact is cut short: the header needs 288 bytes and the file has 40");
    insta::assert_snapshot!(sizes(open(&whole[..whole.len() - 1])), @"error[artifact]: bad.atomc: artifact is cut short: section 4 (code) needs <all> bytes and the file has <fewer>");
    insta::assert_snapshot!(open(&edited(8, 99)), @"error[artifact]: bad.atomc: artifact format version 99, but this atomc reads version 14: compile the model again");
    insta::assert_snapshot!(open(&edited(30, whole[30] ^ 1)), @"error[artifact]: bad.atomc: artifact is damaged: the checksum of the header does not match");
    insta::assert_snapshot!(open(&edited(2000, whole[2000] ^ 1)), @"error[artifact]: bad.atomc: artifact is damaged: the checksum of section 0 (manifest) does not match");
    insta::assert_snapshot!(open(&edited(whole.len() - 9, whole[whole.len() - 9] ^ 1)), @"error[artifact]: bad.atomc: artifact is damaged: the checksum of section 4 (code) does not match");
    insta::assert_snapshot!(bench.fail(1, &["inspect", "none.atomc"]), @"error[artifact]: cannot open none.atomc: No such file or directory (os error 2)");
}

#[test]
fn wrong_checkpoints() {
    let bench = Bench::new();
    let load = |change: &dyn Fn(&mut Tensors)| {
        bench.write("w/model.safetensors", checkpoint(change));
        bench.logits("m.atomc", "w", "[[1]]")
    };
    insta::assert_snapshot!(load(&|all| _ = all.remove("model.layers.1.mlp.up_proj.weight")), @"
    error[checkpoint]: the checkpoint lacks a tensor that the model needs: model.layers.1.mlp.up_proj.weight
      help: Is this the checkpoint of the model that the artifact was compiled from?
    ");
    insta::assert_snapshot!(load(&|all| _ = all.insert("model.layers.2.bonus".into(), (vec![2], vec![0; 4]))), @"
    error[checkpoint]: the checkpoint has a tensor that the model does not use: model.layers.2.bonus
      help: Is this the checkpoint of the model that the artifact was compiled from?
    ");
    insta::assert_snapshot!(load(&|all| all.get_mut("model.norm.weight").expect("a norm").0 = vec![32, 2]), @"
    error[checkpoint]: tensor `model.norm.weight` has shape [32, 2], but the model needs [64]
      help: Is this the checkpoint of the model that the artifact was compiled from?
    ");
    bench.write("w/model.safetensors", &checkpoint(|_| ())[..2000]);
    insta::assert_snapshot!(bench.logits("m.atomc", "w", "[[1]]"), @"error[checkpoint]: w/model.safetensors is not a sound safetensors file: it is cut short inside its header");
    bench.write("empty/readme", "");
    insta::assert_snapshot!(bench.logits("m.atomc", "empty", "[[1]]"), @"
    error[checkpoint]: no checkpoint in empty: neither model.safetensors nor model.safetensors.index.json is there
      help: Give a folder with weights, or --random-weights to do without.
    ");
    insta::assert_snapshot!(bench.fail(1, &["bench", "m.atomc"]), @"
    error[weights]: an artifact has no weights
      help: Name them with --weights, or give a model instead of an artifact; --random-weights measures without.
    ");
}

#[test]
fn weights_that_are_not_finite() {
    /// The first element of a tensor, in bf16.
    fn spoiled(name: &str, value: u16) -> Vec<u8> {
        checkpoint(|all| all.get_mut(name).expect("a tensor").1[..2].copy_from_slice(&value.to_le_bytes()))
    }
    const NAN: u16 = 0x7fc0;
    const INFINITY: u16 = 0x7f80;
    let bench = Bench::new();
    let mut names = vec![];
    checkpoint(|all| names = all.keys().cloned().collect());
    names.sort();
    for name in &names {
        for (value, odd) in [(NAN, "NaN"), (INFINITY, "an infinite number")] {
            bench.write("w/model.safetensors", spoiled(name, value));
            let message = bench.logits("m.atomc", "w", "[[0, 1, 2], [5]]");
            let (_, reads) = message.split_once("weight `").unwrap_or_else(|| panic!("{name}: {message}"));
            assert!(reads.contains(name.as_str()), "{name}: {message}");
            assert!(reads.ends_with(&format!("` that it reads holds {odd}")), "{name}: {message}");
        }
    }
    let down = "model.layers.1.mlp.down_proj.weight";
    bench.write("w/model.safetensors", spoiled(down, NAN));
    insta::assert_snapshot!(bench.logits("m.atomc", "w", "[[1, 2]]"), @"error[step]: the logits are not finite: kernel `k22_matmul_mlp_down_proj` (launch 19, from 0 on, of plan `whole 32`, model.layers.1.mlp.down_proj) is the first that makes NaN; weight `model.layers.1.mlp.down_proj.weight` that it reads holds NaN");
    bench.succeed(&[
        "compile",
        MODEL,
        "--target",
        "gfx942",
        "--context",
        "64",
        "--decode",
        "1",
        "--prefill",
        "32",
        "-o",
        "gpu.atomc",
    ]);
    for (artifact, device) in [("m.atomc", "host"), ("gpu.atomc", "emu:gfx942:fast")] {
        let message = bench.fail(1, &["bench", artifact, "--weights", "w", "--device", device, "--prompt", "4"]);
        assert!(message.contains(&format!("weight `{down}` that it reads holds NaN")), "{message}");
    }
}

#[test]
fn wrong_tokens_and_devices() {
    let bench = Bench::new();
    let long = format!("[{:?}]", vec![1; 65]);
    insta::assert_snapshot!(bench.logits("m.atomc", MODEL, &long), @"error[tokens]: ids.json: sequence 0 has 65 tokens, more than the artifact's 64");
    // Before any other is computed.
    let second = format!("[[1], {}", &long[1..]);
    insta::assert_snapshot!(bench.logits("m.atomc", MODEL, &second), @"error[tokens]: ids.json: sequence 1 has 65 tokens, more than the artifact's 64");
    insta::assert_snapshot!(bench.logits("m.atomc", MODEL, "[[1, 96]]"), @"error[step]: token 1 of request 0 is 96, but the vocabulary ends at 95");
    insta::assert_snapshot!(bench.logits("m.atomc", MODEL, "[[1], []]"), @"error[tokens]: ids.json: sequence 1 has no tokens");
    insta::assert_snapshot!(bench.logits("m.atomc", MODEL, "[1, 2]"), @"
    error[tokens]: ids.json: invalid type: integer `1`, expected a sequence at line 1 column 2
      help: It must hold a list of lists of token ids: [[1, 2, 3], [4, 5]].
    ");
    insta::assert_snapshot!(bench.fail(1, &["bench", "m.atomc", "--random-weights", "--prompt", "64"]), @"
    error[bench]: a prompt of 64 tokens, or 32 steps from position 64 on, is more than the model's 64 positions
      help: Choose smaller --prompt, --position and --steps.
    ");
    insta::assert_snapshot!(bench.fail(1, &["bench", "m.atomc", "--random-weights", "--device", "host:gfx942"]), @"error[device]: the artifact has no variant `gfx942` for the host; it has: x86-64-v4-amx, x86-64-v4-bf16, x86-64-v4, x86-64-v3");
    insta::assert_snapshot!(bench.fail(2, &["bench", "m.atomc", "--random-weights", "--device", "tpu:0"]), @"
    error: invalid value 'tpu:0' for '--device <DEVICE,…>': unknown device `tpu:0`; this build has: host, host:<variant>, hip, hip:<number>, cuda, cuda:<number>, emu:<chip>, emu:<chip>:fast

    For more information, try '--help'.
    ");
    insta::assert_snapshot!(bench.fail(1, &["run", "m.atomc", "--weights", MODEL, "--prompt", "hi"]).replace(MODEL, "<model>"), @"error[tokenizer]: <model>/tokenizer.json: No such file or directory (os error 2)");
}

/// A prompt is not cut up if no tokens of the context are as long, and the compiler needs room.
#[test]
fn what_would_take_all_memory_is_refused() {
    let bench = Bench::empty();
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/models/llama");
    bench.succeed(&["compile", model, "--target", "host", "--context", "64", "-o", "m.atomc", "--no-trust"]);
    bench.write("long.txt", "a ".repeat(10 << 20));
    let run = ["sh", "-c", "exec \"$0\" \"$@\" < long.txt", env!("CARGO_BIN_EXE_atomc")];
    let out = bench.wrapped(&run, &["run", "m.atomc", "--weights", model, "--prompt", "-"]).output().expect("it runs");
    let text = String::from_utf8(out.stderr).expect("UTF-8");
    assert!(text.starts_with("error[prompt]: a prompt of 20971520 bytes is longer than any of 64 tokens"), "{text}");
    let limited = ["sh", "-c", "ulimit -v 300000; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_atomc")];
    let out = bench.wrapped(&limited, &["compile", model, "-o", "n.atomc"]).output().expect("it runs");
    let text = String::from_utf8(out.stderr).expect("UTF-8");
    let want = "error[memory]: a limit leaves this process 292 MiB of address space; compiling takes at least 512";
    assert!(out.status.code() == Some(1) && text.starts_with(want), "{text}");
}

/// Numbers of tokens for a model without a tokenizer. Greedy answers continue prompts.
#[test]
fn tokens_in_and_out() {
    let bench = Bench::new();
    let run = |tokens: &str, more: &[&str]| {
        [&["run", "m.atomc", "--weights", MODEL, "--max-tokens", "4", "--tokens", tokens], more].concat().join(" ")
    };
    let succeed = |line: String| bench.succeed(&line.split(' ').collect::<Vec<_>>());
    let answer = succeed(run("3,17,5", &[]));
    let numbers: Vec<u32> = answer.trim_end().split(',').map(|n| n.parse().expect("a number")).collect();
    let described: serde_json::Value = serde_json::from_str(&succeed(run("3,17,5", &["--json"]))).expect("JSON");
    assert_eq!(described["tokens"], serde_json::json!(numbers));
    assert_eq!((&described["prompt_tokens"], described.get("text")), (&serde_json::json!(3), None));
    let longer = succeed(run(&format!("3,17,5,{}", numbers[0]), &[]));
    assert_eq!(longer.split(',').next(), Some(&*numbers[1].to_string()));
    let fail = |code, more: &[&str]| bench.fail(code, &[&["run", "m.atomc", "--weights", MODEL], more].concat());
    insta::assert_snapshot!(fail(1, &["--tokens", "1,x"]), @r#"error[tokens]: "x" is not the number of a token"#);
    insta::assert_snapshot!(fail(1, &["--tokens", " ,"]), @"error[tokens]: a prompt needs at least one");
    assert!(fail(2, &["--tokens", "1", "--prompt", "hi"]).contains("cannot be used with"));
    assert!(fail(2, &["--tokens", "1", "--tokenizer", "t"]).contains("cannot be used with"));
}

#[test]
fn wrong_numbers() {
    let bench = Bench::new();
    let most = usize::MAX.to_string();
    let measure = |code, more: &[&str]| bench.fail(code, &[&["bench", "m.atomc", "--random-weights"], more].concat());
    for (option, prompt, steps, position) in [("--position", 32, 32, &most[..]), ("--steps", 1, usize::MAX, "1")] {
        let message = measure(1, &[option, &most]);
        let wanted = format!(
            "error[bench]: a prompt of {prompt} tokens, or {steps} steps from position {position} on, is more than the model's \
             64 positions"
        );
        assert!(message.starts_with(&wanted), "{message}");
    }
    insta::assert_snapshot!(measure(2, &["--batch", "1,1000000000000"]), @"
    error: invalid value '1000000000000' for '--batch <N,…>': must be a whole number from 1 to 65536

    For more information, try '--help'.
    ");
    insta::assert_snapshot!(measure(2, &["--repeat", &most]), @"
    error: invalid value '18446744073709551615' for '--repeat <N>': must be a whole number from 1 to 65536

    For more information, try '--help'.
    ");
    for threads in ["1025", &most] {
        let refused = format!("error[device]: threads: cannot start {threads}: there may be 1 to 1024");
        assert_eq!(measure(1, &["--threads", threads]), refused);
        assert_eq!(bench.fail(1, &["verify", "m.atomc", "--threads", threads]), refused);
        let pack = ["pack", "m.atomc", "--weights", MODEL, "-o", "packed", "--threads", threads];
        assert_eq!(bench.fail(1, &pack), refused.replace("device]: threads: ", "threads]: "));
    }
    let run = |option, value| bench.fail(2, &["run", "m.atomc", "--weights", MODEL, "--prompt", "hi", option, value]);
    insta::assert_snapshot!(run("--temperature", "NaN"), @"
    error: invalid value 'NaN' for '--temperature <T>': temperature: NaN is not a finite number of at least 0

    For more information, try '--help'.
    ");
    insta::assert_snapshot!(run("--top-p", "0"), @"
    error: invalid value '0' for '--top-p <P>': top_p: 0 is not a number above 0 and at most 1

    For more information, try '--help'.
    ");
}

#[test]
fn what_cannot_be_compiled() {
    let bench = Bench::new();
    let kept = bench.artifact();
    let compile = |patch: Value| {
        bench.write("config.json", config(patch));
        let text = bench.fail(1, &["compile", "config.json", "-o", "m.atomc"]);
        // A new architecture changes no test of faults.
        text.split_once("LlamaForCausalLM, ").map_or(text.clone(), |(before, _)| format!("{before}LlamaForCausalLM, …"))
    };
    insta::assert_snapshot!(compile(json!({ "num_attention_heads": 0 })), @"error[config::value]: config.json: num_attention_heads: must be a whole number from 1 to 1073741824, not 0");
    insta::assert_snapshot!(compile(json!({ "hidden_size": 66, "head_dim": null })), @"error[config::value]: config.json: hidden_size: 66 is no multiple of num_attention_heads, 4, and there is no head_dim");
    insta::assert_snapshot!(compile(json!({ "vocab_size": 1 << 30 })), @"
    error[config::too-large]: config.json: vocab_size: makes a weight of 1073741824 by 64 elements, 128 GiB
      help: A weight may have 64 GiB at most.
    ");
    insta::assert_snapshot!(compile(json!({ "architectures": ["GPT2LMHeadModel"] })), @r#"
    error[config::unknown-architecture]: config.json: architectures: unknown architecture "GPT2LMHeadModel"
      help: Known architectures: LlamaForCausalLM, …
    "#);
    insta::assert_snapshot!(compile(json!({ "rope_parameters": { "rope_type": "spiral" } })), @r#"
    error[config::unknown-rope-type]: config.json: rope_parameters.rope_type: unknown rope type "spiral" in `rope_parameters`
      help: Known rope types: default, linear, dynamic, llama3, yarn, longrope, proportional.
    "#);
    insta::assert_snapshot!(bench.fail(1, &["compile", MODEL, "--target", "gfx000", "-o", "m.atomc"]), @"
    error[target::unknown]: unknown target `gfx000`
      help: known targets: host, gfx90a, gfx942, gfx9-4-generic, gfx950, gfx1100, gfx1101, gfx1102, gfx1150, gfx1151, gfx1152, gfx11-generic, gfx1200, gfx1201, gfx12-generic, gfx1250, sm_80, sm_90a, sm_100a
    ");
    insta::assert_snapshot!(bench.fail(1, &["compile", MODEL, "--decode", "4,2", "-o", "m.atomc"]), @"error[passes::buckets]: decode buckets [4, 2] must ascend and begin above zero");
    insta::assert_snapshot!(bench.fail(1, &["compile", MODEL, "-o", "no/such/folder/m.atomc"]), @"error[output]: no/such/folder/m.atomc: the folder does not exist");
    insta::assert_snapshot!(bench.fail(1, &["compile", ".", "-o", "x.atomc"]).replace(MODEL, "<model>"), @r#"
    error[config::unknown-rope-type]: config.json: rope_parameters.rope_type: unknown rope type "spiral" in `rope_parameters`
      help: Known rope types: default, linear, dynamic, llama3, yarn, longrope, proportional.
    "#);
    insta::assert_snapshot!(bench.fail(1, &["print", MODEL, "--after", "polish"]), @"
    error[passes::unknown-pass]: there is no pass `polish`
      help: the passes are dce, canonicalise, narrow, cse, merge_weights, rewrite, mx_codes, pack, group, repeat, split, fuse
    ");
    insta::assert_snapshot!(bench.fail(1, &["print", MODEL, "--target", "host:z80"]), @"
    error[target::unknown-variant]: target `host` has no variant `z80`
      help: Known variants: x86-64-v4-amx, x86-64-v4-bf16, x86-64-v4, x86-64-v3.
    ");
    assert!(bench.artifact() == kept, "a failure replaced the output");
}

/// A stand-in for NVIDIA's assembler, which says what that says.
const PTXAS: &str = "#!/bin/sh
[ \"$1\" = --version ] && echo 'Cuda compilation tools, release 1.2, V1.2.3' && exit
cp /proc/self/exe \"$4\"
echo '    8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers' >&2
";

#[test]
fn modules_for_nvidia() {
    let bench = Bench::new();
    let compile = |ptxas: &str, file: &str| {
        let mut command = bench.command(&["compile", MODEL, "--decode", "1", "--target", "sm_90a", "-o", file]);
        command.env("ATOMC_PTXAS", ptxas).output().expect("it runs")
    };
    let text = compile("", "text.atomc");
    assert!(text.status.success(), "{}", String::from_utf8_lossy(&text.stderr));
    let about = |file: &str| serde_json::from_str::<Value>(&bench.succeed(&["inspect", file, "--json"])).expect("JSON");
    let kernel = |about: &Value| about["targets"][0]["variants"][0]["kernels"][0].clone();
    let found = kernel(&about("text.atomc"));
    assert!(found["module"]["cubin"].is_null() && found["resources"].is_null() && found["module"]["ptx"].is_object());
    let files = bench.succeed(&["inspect", "text.atomc", "--extract", "code"]);
    let first = files.lines().next().expect("a file");
    assert!(files.lines().all(|file| file.ends_with(".ptx")), "{files}");
    assert!(std::fs::read_to_string(bench.path(first)).expect("text").contains(".target sm_90a"));

    bench.write("ptxas", PTXAS);
    let script = bench.path("ptxas");
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o777)).expect("it is ours");
    let both = compile(script.to_str().expect("a path"), "both.atomc");
    assert!(both.status.success(), "{}", String::from_utf8_lossy(&both.stderr));
    let about = about("both.atomc");
    let found = kernel(&about);
    assert!(found["module"]["cubin"].is_object() && about["config"]["ptxas"] == "1.2, V1.2.3");
    let resources = &found["resources"];
    assert_eq!(
        (&resources["vgprs"], &resources["scratch"], &resources["vgpr_spills"]),
        (&json!(40), &json!(8), &json!(1))
    );

    let none = compile("/none/ptxas", "none.atomc");
    let said = String::from_utf8_lossy(&none.stderr);
    assert!(said.contains("ATOMC_PTXAS names /none/ptxas, which is no file"), "{said}");
}

/// What the plugin would refuse is said without vLLM, in a second, by the same rules.
#[test]
fn whether_vllm_would_run_an_artifact() {
    let bench = Bench::new();
    std::fs::create_dir(bench.path("model")).expect("a folder");
    std::fs::copy(Path::new(MODEL).join("config.json"), bench.path("model/config.json")).expect("a configuration");
    std::fs::remove_file(bench.path("model/config.json")).expect("it is there");
    let missing = bench.fail(1, &["check", "model"]);
    assert_eq!(missing, "error[check]: there is no model/model.atomc: vLLM's own model would run");
    std::fs::copy(Path::new(MODEL).join("config.json"), bench.path("model/config.json")).expect("a configuration");
    bench.write("model/model.atomc", bench.artifact());
    let short = ["check", "model", "--max-model-len", "64"];
    let began = std::time::Instant::now();
    let said = bench.succeed(&[&short[..], &["--dtype", "auto", "-tp", "1", "--port", "8000"]].concat());
    assert!(began.elapsed().as_secs() < 2, "{:?}", began.elapsed());
    assert_eq!(said, "vLLM would run LlamaForCausalLM of model/model.atomc with target host\n");
    let overrides = r#"{"rms_norm_eps": 0.5}"#;
    let refused: [(&[&str], &str); 9] = [
        (&[], "model/model.atomc: --max-model-len: vLLM has 512, the artifact at most 64"),
        (
            &["--hf-overrides", overrides],
            "model/model.atomc: config.json: rms_norm_eps: vLLM has 0.5, the artifact 0.00001",
        ),
        (
            &["--enable-lora"],
            "model/model.atomc: --enable-lora: vLLM has true, the artifact none: weights are packed, without adapters",
        ),
        (&["-tp=2"], "model/model.atomc: --tensor-parallel-size: vLLM has 2, the artifact 1"),
        (
            &["--cpu-offload-gb", "1"],
            "model/model.atomc: --cpu-offload-gb: vLLM has 1, the artifact none: weights stay on the device",
        ),
        (&["--block-size", "7"], "model/model.atomc: --block-size: vLLM has 7, the artifact multiples of 32"),
        (
            &["--enable-lroa"],
            "--enable-lroa: there is no such option of vLLM's; known are --enable-lora, those in docs/vllm.md",
        ),
        (
            &["--additional-config", r#"{"artefact": "m"}"#],
            "--additional-config: artefact: there is no such key; known are artifact; keys of other plugins may stand beside an object `atomc` with ours",
        ),
        (&["--additional-config.artifact", "/nowhere"], "cannot open /nowhere: No such file or directory (os error 2)"),
    ];
    for (options, line) in refused {
        assert_eq!(bench.fail(1, &[&["check", "model"], options].concat()), format!("error[check]: {line}"));
    }
    bench.succeed(&["trust", "--remove", "model/model.atomc"]);
    let text = bench.fail(1, &short);
    assert!(
        text.starts_with("error[check]: model/model.atomc is code that nobody trusts: vLLM's own model would run"),
        "{text}"
    );
    bench.succeed(&[&short[..], &["--trust-remote-code"]].concat());
    let out = bench.command(&short).env("ATOMC_STRIKT", "1").output().expect("the binary runs");
    let text = String::from_utf8(out.stderr).expect("UTF-8");
    assert!(
        text.starts_with("error[check]: ATOMC_STRIKT: there is no such variable; known are ATOMC_STRICT"),
        "{text}"
    );
}

/// Where there is no artifact, one is planned for what was asked for.
#[test]
fn whether_an_artifact_would_fit() {
    let bench = Bench::empty();
    for name in ["mla-kimi", "llama3", "hybrid-next", "hybrid-3.5", "moe-gpt-oss", "q-gptq"] {
        let config = Path::new(MODEL).with_file_name(name).join("config.json");
        let config = std::fs::read_to_string(config).expect("a configuration");
        std::fs::create_dir(bench.path(name)).expect("a folder");
        std::fs::write(bench.path(name).join("config.json"), &config).expect("a folder to write to");
        // As makers of such models write it, and not transformers 5.
        let interval = config.replacen(r#""layer_types""#, r#""full_attention_interval": 2, "layer_types""#, 1);
        let regular = format!("{name}-regular");
        std::fs::create_dir(bench.path(&regular)).expect("a folder");
        std::fs::write(bench.path(&regular).join("config.json"), interval).expect("a folder to write to");
    }
    let ranks = "--tensor-parallel-size 2 --enable-expert-parallel --kv-cache-dtype fp8";
    let large = format!("mla-kimi {ranks}");
    let good = [
        large.as_str(),
        "mla-kimi --for sglang --tp 2 --ep 2 --kv-cache-dtype fp8_e4m3",
        "llama3 --enable-deterministic-inference --device cuda --for sglang",
        "hybrid-next",
        r#"hybrid-next --for sglang --json-model-override-args {"full_attention_interval":2}"#,
        "hybrid-next-regular --mamba-track-interval 512 --for=sglang",
        "hybrid-3.5 --language-model-only",
        r#"hybrid-3.5-regular --for sglang --disable-radix-cache --json-model-override-args {"language_model_only":true}"#,
        r#"llama3 -O3 --hf-overrides {"rms_norm_eps":0.5}"#,
    ];
    fn check(line: &str) -> Vec<&str> {
        ["check"].into_iter().chain(line.split(' ')).collect()
    }
    let told: String = good.iter().map(|line| bench.succeed(&check(line))).collect();
    insta::assert_snapshot!(told, @"
    vLLM would run DeepseekV3ForCausalLM as `atomc compile mla-kimi --dtype bfloat16 --tp 2 --ep 2 --cache-dtype fp8 --target host -o mla-kimi/model.atomc` makes it, and its own model until then
    SGLang would run DeepseekV3ForCausalLM as `atomc compile mla-kimi --tp 2 --ep 2 --cache-dtype fp8 --target host -o mla-kimi/model.atomc` makes it, and its own model until then
    SGLang would run LlamaForCausalLM as `atomc compile llama3 --invariant --target host -o llama3/model.atomc` makes it, and its own model until then
    vLLM would run Qwen3NextForCausalLM as `atomc compile hybrid-next --dtype bfloat16 --target host -o hybrid-next/model.atomc` makes it, and its own model until then
    SGLang would run Qwen3NextForCausalLM as `atomc compile hybrid-next --target host -o hybrid-next/model.atomc` makes it, and its own model until then
    SGLang would run Qwen3NextForCausalLM as `atomc compile hybrid-next-regular --target host -o hybrid-next-regular/model.atomc` makes it, and its own model until then
    vLLM would run Qwen3_5ForConditionalGeneration as `atomc compile hybrid-3.5 --dtype bfloat16 --target host -o hybrid-3.5/model.atomc` makes it, and its own model until then
    SGLang would run Qwen3_5ForConditionalGeneration as `atomc compile hybrid-3.5-regular --target host -o hybrid-3.5-regular/model.atomc` makes it, and its own model until then
    vLLM would run LlamaForCausalLM as `atomc compile llama3 --dtype bfloat16 --target host -o llama3/model.atomc`, of a config.json with these overrides, makes it, and its own model until then
    ");
    let bad = [
        "llama3 --enable-expert-parallel",
        "llama3 --for sglang --enable-torch-compile",
        "hybrid-next --for sglang",
        "hybrid-3.5 --for sglang",
        "hybrid-next-regular --for sglang --mamba-track-interval 256 --device cuda",
        "hybrid-3.5-regular --for sglang",
        "hybrid-3.5 --language-model-only --enable-mm-embeds",
        "llama3 --for sglang --enable-deterministic-inference",
        "llama3 --for sglang --enable-deterministic-inference --attention-backend torch_native",
        "moe-gpt-oss --for sglang --attention-backend atomc",
        "q-gptq --for sglang",
        "llama3 --tp-size 2 --for sgl",
    ];
    let told = bad.map(|line| bench.fail(1, &check(line)).trim().to_owned());
    insta::assert_snapshot!(told.join("\n"), @r#"
    error[vllm]: --enable-expert-parallel: vLLM takes it for models with experts alone, of which this one has none
    error[check]: what `atomc compile llama3 --target host -o llama3/model.atomc` makes: --enable-torch-compile: SGLang has true, the artifact none: kernels are the artifact's
    error[sglang]: config.json: full_attention_interval: SGLang makes of it which layers attend, and transformers 5 leaves it out
      help: Pass --json-model-override-args '{"full_attention_interval":2}'.
    error[sglang]: config.json: full_attention_interval: SGLang makes of it which layers attend, and transformers 5 leaves it out
      help: Add "full_attention_interval": 2 to text_config in config.json.
    error[check]: what `atomc compile hybrid-next-regular --target host -o hybrid-next-regular/model.atomc` makes: --disable-radix-cache: SGLang has false, the artifact states behind prompts alone, which `--mamba-track-interval` asks for with the longest sequence
    error[check]: an artifact is of a part of Qwen3_5ForConditionalGeneration: SGLang's own model would run without --json-model-override-args '{"language_model_only": true}'
    error[check]: what `atomc compile hybrid-3.5 --dtype bfloat16 --target host -o hybrid-3.5/model.atomc` makes: --enable-mm-embeds: vLLM has true, the artifact one position for each token, and embeddings of images have three
    error[sglang]: --enable-deterministic-inference: SGLang has it on GPUs alone, where it replaces operations of torch's
    error[sglang]: --enable-deterministic-inference: with --attention-backend SGLang takes one of atomc, ascend, fa3, fa4, flashinfer, intel_xpu, triton, and not torch_native
    error[sglang]: --attention-backend: SGLang takes one of triton, trtllm_mha, fa3, fa4, ascend, intel_amx, intel_xpu, aiter for GptOssForCausalLM, and not atomc
    error[sglang]: --quantization: SGLang has gptq for GPUs alone
    error[check]: --for: `sgl` is neither vllm nor sglang
    "#);
    let strict = bench.command(&check("llama3")).env("ATOMC_STRICT", "1").output().expect("the binary runs");
    let told = String::from_utf8(strict.stderr).expect("UTF-8");
    assert_eq!(
        told.trim(),
        "error[check]: there is no llama3/model.atomc: vLLM's own model would run, but ATOMC_STRICT is set"
    );
    let mut made = bench.command(&check("llama3"));
    let made = made.env("ATOMC_STRICT", "1").env("ATOMC_AUTOCOMPILE", "1").output().expect("the binary runs");
    assert!(made.status.success());
}

/// Variables of others, with bytes that are no text, and those that other parts of atomc read.
#[test]
fn variables_of_others_do_not_matter() {
    use std::os::unix::ffi::OsStrExt;
    let bench = Bench::empty();
    let out = |args: &[&str]| {
        let mut command = bench.command(args);
        command.env("FOO", std::ffi::OsStr::from_bytes(b"\xff")).env("ATOMC_SYSROOT", "/sysroot");
        let out = command.env("ATOMC_TEST_DEVICE", "host").output().expect("the binary runs");
        String::from_utf8([out.stdout, out.stderr].concat()).expect("UTF-8")
    };
    let checked = out(&["check", "model"]);
    assert!(checked.starts_with("error[check]: there is no model/model.atomc"), "{checked}");
    let told = out(&["doctor"]);
    assert!(told.contains("ATOMC_SYSROOT=/sysroot\n") && !told.contains("bad   settings"), "{told}");
}

/// A model that keeps states of sequences, not only pages: its kernels, and the verbs that run it.
#[test]
fn a_recurrent_state() {
    let bench = Bench::empty();
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/hybrid-3.5");
    bench.succeed(&["compile", model, "--decode", "1,2", "--prefill", "64", "-o", "m.atomc"]);
    let verified = bench.succeed(&["verify", "m.atomc"]);
    let recurrent = verified.lines().filter(|line| line.contains(" recur ") && line.ends_with("ok"));
    assert!(recurrent.count() >= 4, "{verified}");
    let args = ["bench", "m.atomc", "--random-weights", "--prompt", "70", "--batch", "1,3", "--steps", "2"];
    let made: Value = serde_json::from_str(&bench.succeed(&[&args[..], &["--json"]].concat())).expect("JSON");
    assert_eq!(made["decode"].as_array().map(Vec::len), Some(2), "{made}");
    bench.write("ids.json", "[[1, 2, 3, 4, 5, 6, 7, 8, 9], [4, 5]]");
    for (chunk, out) in [("0", "whole"), ("2", "parts")] {
        let args = ["logits", "m.atomc", "--weights", model, "--tokens", "ids.json", "--chunk", chunk, "-o", out];
        bench.succeed(&args);
    }
    let values = |name: &str| -> Vec<f32> {
        let bytes = std::fs::read(bench.path(name)).expect("logits");
        let file = SafeTensors::deserialize(&bytes).expect("a sound file");
        let numbers = file.tensor("0").expect("the first sequence").data().to_vec();
        numbers.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
    };
    let apart = values("whole").iter().zip(values("parts")).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(apart < 0.2, "{apart}");
}

/// Logits of a checkpoint of floats by an artifact that makes codes of it.
#[test]
fn weights_are_quantised_while_they_are_loaded() {
    let bench = Bench::new();
    bench.write("ids.json", "[[1, 2, 3, 4, 5, 6, 7, 8]]");
    let logits = |artifact: &str| {
        bench.succeed(&["logits", artifact, "--weights", MODEL, "--tokens", "ids.json", "-o", "out.safetensors"]);
        let bytes = std::fs::read(bench.path("out.safetensors")).expect("logits");
        let file = SafeTensors::deserialize(&bytes).expect("tensors");
        let all = file.tensors().into_iter().flat_map(|(_, t)| t.data().to_vec()).collect::<Vec<u8>>();
        all.as_chunks().0.iter().map(|&b| f64::from(f32::from_le_bytes(b))).collect::<Vec<f64>>()
    };
    let compile = |quant: &str| {
        let args = ["compile", MODEL, "--context", "64", "--decode", "1", "--prefill", "32", "--quant", quant];
        bench.succeed(&[&args[..], &["-o", "q.atomc"]].concat());
    };
    let squares = |all: &mut dyn Iterator<Item = f64>| all.map(|v| v * v).sum::<f64>().sqrt();
    let want = logits("m.atomc");
    for (quant, budget) in [("fp8", 0.3), ("int8", 0.1), ("int4-g32", 0.6), ("*.o_proj=mxfp4,fp8-block", 0.5)] {
        compile(quant);
        let off = squares(&mut logits("q.atomc").iter().zip(&want).map(|(a, b)| a - b));
        let off = off / squares(&mut want.iter().copied());
        println!("{quant}: off by {off:.3}");
        assert!(off > 1e-4 && off < budget, "{quant}: off by {off}");
    }
    let args = |quant: &'static str| ["compile", MODEL, "--quant", quant, "-o", "x.atomc"];
    let refused = bench.fail(1, &args("fp9"));
    assert!(refused.contains("--quant fp9: unknown scheme \"fp9\""), "{refused}");
    let refused = bench.fail(1, &args("*.down_proj=int4-g128"));
    assert!(refused.contains("groups of 128 columns do not divide rows of"), "{refused}");
    // A scheme alone leaves what it does not fit, and says so.
    let left = bench.run(&args("int4-g128"));
    let said = String::from_utf8_lossy(&left.stderr);
    let told =
        "--quant leaves model.layers.*.mlp.down_proj as they are: groups of 128 columns do not divide rows of 96";
    assert!(left.status.success() && said.contains(told), "{said}");
    bench.write("c/config.json", config(json!({ "quantization_config": { "quant_method": "fp8" } })));
    let refused = bench.fail(1, &["compile", "c", "--quant", "fp8", "-o", "x.atomc"]);
    assert!(refused.contains("--quant: the checkpoint is quantised already"), "{refused}");
    compile("fp8");
    let name = "model.layers.1.mlp.down_proj.weight";
    let spoiled = checkpoint(|all| all.get_mut(name).expect("a tensor").1[..2].copy_from_slice(&[0xc0, 0x7f]));
    bench.write("w/model.safetensors", spoiled);
    let refused = bench.logits("q.atomc", "w", "[[1, 2]]");
    assert!(refused.contains(&format!("tensor `{name}` has numbers that are not finite")), "{refused}");
}

/// The README names the verbs that write JSON, and no others do.
#[test]
fn the_readme_names_the_verbs_with_json() {
    let bench = Bench::empty();
    let help = bench.succeed(&["help"]);
    let (_, verbs) = help.split_once("Commands:\n").expect("a list of verbs");
    let (verbs, _) = verbs.split_once("\n\n").expect("something after the list");
    let verbs = verbs.lines().filter_map(|line| line.split_whitespace().next()).filter(|verb| *verb != "help");
    let writes_json =
        |verb: &&str| bench.succeed(&["help", verb]).lines().any(|line| line.trim_start().starts_with("--json"));
    let mut have: Vec<&str> = verbs.filter(writes_json).collect();
    let readme = concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md");
    let readme = std::fs::read_to_string(readme).expect("a document");
    let (_, named) = readme.split_once("`--json` has what a\nprogram reads: ").expect("a sentence about --json");
    let (named, _) = named.split_once("take it").expect("the end of the sentence");
    let mut named: Vec<&str> = named.split('`').skip(1).step_by(2).collect();
    have.sort_unstable();
    named.sort_unstable();
    assert_eq!(named, have);
}

#[test]
fn what_is_logged_is_chosen_or_refused() {
    let bench = Bench::empty();
    let devices = |log: &str| bench.command(&["devices"]).env("ATOMC_LOG", log).output().expect("the binary runs");
    for right in ["", "debug", "off", "atomc_passes=debug,atomc_targets=trace"] {
        assert!(devices(right).status.success(), "{right:?}");
    }
    let out = devices("atomc_passes=loud");
    assert_eq!(out.status.code(), Some(1));
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(said.starts_with("error[log]: ATOMC_LOG: \"atomc_passes=loud\": "), "{said}");
}
