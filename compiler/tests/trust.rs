//! Trust in code: signatures, the verbs that require them, and escaped output about an artifact
//! from elsewhere.
mod common;

use std::process::Command;

use atomc_artifact::{Artifact, Manifest, encode};
use atomc_runtime::signature;
use common::{Bench, MODEL};
use ed25519_dalek::SigningKey;
use ed25519_dalek::pkcs8::{EncodePrivateKey, EncodePublicKey};

impl Bench {
    /// A folder with `m.atomc` and two pairs of keys, `ours` and `theirs`.
    fn new() -> Bench {
        let bench = Bench::empty();
        bench.succeed(&["compile", MODEL, "--context", "64", "--decode", "1", "--prefill", "32", "-o", "m.atomc"]);
        for (name, seed) in [("ours", 7), ("theirs", 8)] {
            let key = SigningKey::from_bytes(&[seed; 32]);
            let private = key.to_pkcs8_pem(Default::default()).expect("a private key");
            let public = key.verifying_key().to_public_key_pem(Default::default()).expect("a public key");
            bench.write(&format!("{name}.key"), private.as_bytes());
            bench.write(&format!("{name}.pem"), public);
        }
        bench
    }

    fn openssl(&self, args: &[&str]) {
        let out = Command::new("openssl").args(args).current_dir(self.dir.path()).output().expect("openssl");
        assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    }

    fn fail(&self, args: &[&str]) -> String {
        let out = self.run(args);
        let text = String::from_utf8(out.stderr).expect("UTF-8");
        assert_eq!(out.status.code(), Some(1), "{args:?}: {text}");
        text
    }

    fn message(&self) -> String {
        signature::message(Artifact::open(self.path("m.atomc")).expect("an artifact").fingerprint())
    }

    /// Changes `m.atomc` as a forger would: all checksums are right again.
    fn forge(&self, change: impl FnOnce(&mut Manifest, &mut Vec<Vec<u8>>)) {
        let artifact = Artifact::open(self.path("m.atomc")).expect("an artifact");
        let mut manifest = artifact.manifest().clone();
        let mut code: Vec<Vec<u8>> =
            (1..artifact.sections().len()).map(|i| artifact.section(i).expect("code").to_vec()).collect();
        change(&mut manifest, &mut code);
        std::fs::remove_file(self.path("m.atomc")).expect("it is there");
        std::fs::write(self.path("m.atomc"), encode(&manifest, &code).expect("a sound manifest")).expect("a file");
    }

    /// A shared object that makes the file `ran` when it is loaded.
    fn hostile(&self) -> Vec<u8> {
        let ran = self.path("ran");
        let source = format!(
            "#include <fcntl.h>\n#include <unistd.h>\n\
             __attribute__((constructor)) static void run(void) {{ close(open(\"{}\", O_CREAT | O_WRONLY, 0600)); }}\n",
            ran.display()
        );
        std::fs::write(self.path("hostile.c"), source).expect("a file");
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "hostile.c", "-o", "hostile.so"]).current_dir(self.dir.path());
        assert!(cc.status().expect("cc").success());
        std::fs::read(self.path("hostile.so")).expect("a shared object")
    }
}

/// Every verb that reads an artifact to run it, or to make weights for it.
const VERBS: [&[&str]; 6] = [
    &["run", "m.atomc", "--weights", MODEL, "--prompt", "hi"],
    &["bench", "m.atomc", "--random-weights"],
    &["eval", "m.atomc", "--weights", MODEL, "problems.jsonl"],
    &["logits", "m.atomc", "--weights", MODEL, "--tokens", "ids.json", "-o", "out.safetensors"],
    &["verify", "m.atomc"],
    &["pack", "m.atomc", "--weights", MODEL, "-o", "packed"],
];

#[test]
fn no_verb_runs_what_is_not_signed() {
    let bench = Bench::new();
    let (hostile, ran) = (bench.hostile(), bench.path("ran"));
    bench.forge(|_, code| code.iter_mut().for_each(|section| section.clone_from(&hostile)));
    std::fs::write(bench.path("ids.json"), "[[1]]").expect("a file");
    std::fs::write(bench.path("problems.jsonl"), "{\"prompt\": \"a\", \"solution\": \"b\"}\n").expect("a file");
    for verb in VERBS {
        let by_option = bench.fail(&[verb, &["--require-signed-by", "ours.pem"]].concat());
        let by_variable = bench.command(verb).env(signature::VARIABLE, "ours.pem").output().expect("it runs");
        for said in [by_option, String::from_utf8(by_variable.stderr).expect("UTF-8")] {
            let expected =
                "error[signature]: m.atomc is not signed: there is no m.atomc.sig, and ours.pem must have signed it";
            assert_eq!(said.trim_end(), expected, "{verb:?}");
        }
        assert!(!ran.exists(), "{verb:?} ran code");
    }
    bench.fail(VERBS[1]);
    assert!(ran.exists(), "this code runs where nobody asks for a signature");
}

#[test]
fn a_signature_is_of_one_content_by_one_key() {
    let bench = Bench::new();
    let bench_with = |key: &'static str| {
        ["bench", "m.atomc", "--random-weights", "--steps", "1", "--repeat", "1", "--require-signed-by", key]
    };
    assert_eq!(bench.succeed(&["sign", "--key", "ours.key", "m.atomc"]), "m.atomc.sig\n");
    bench.succeed(&bench_with("ours.pem"));
    let wrong = "is no signature of m.atomc by theirs.pem: another key made it, or one of the files has changed";
    assert!(bench.fail(&bench_with("theirs.pem")).contains(wrong));
    assert!(bench.fail(&bench_with("ours.key")).contains("ours.key holds no public key of ed25519 in PEM"));
    let no_key = bench.fail(&["sign", "--key", "ours.pem", "m.atomc"]);
    assert!(no_key.contains("ours.pem: holds no private key of ed25519 in PEM"), "{no_key}");
    bench.forge(|manifest, _| manifest.producer.push('!'));
    assert!(bench.fail(&bench_with("ours.pem")).contains("is no signature of m.atomc by ours.pem"));
}

#[test]
fn signatures_are_those_of_openssl() {
    if Command::new("openssl").arg("version").output().is_err() {
        return eprintln!("there is no openssl here to compare with");
    }
    let bench = Bench::new();
    bench.openssl(&["genpkey", "-algorithm", "ed25519", "-out", "ours.key"]);
    bench.openssl(&["pkey", "-in", "ours.key", "-pubout", "-out", "ours.pem"]);
    std::fs::write(bench.path("message"), bench.message()).expect("a file");
    bench.succeed(&["sign", "--key", "ours.key", "m.atomc"]);
    let theirs = ["pkeyutl", "-rawin", "-in", "message", "-inkey"];
    let signature = std::fs::read(bench.path("m.atomc.sig")).expect("a signature");
    bench.openssl(&[&theirs[..], &["ours.pem", "-pubin", "-verify", "-sigfile", "m.atomc.sig"]].concat());
    std::fs::remove_file(bench.path("m.atomc.sig")).expect("it is there");
    bench.openssl(&[&theirs[..], &["ours.key", "-sign", "-out", "m.atomc.sig"]].concat());
    assert_eq!(std::fs::read(bench.path("m.atomc.sig")).expect("a signature"), signature);
    bench.succeed(&["pack", "m.atomc", "--weights", MODEL, "-o", "packed", "--require-signed-by", "ours.pem"]);
}

/// Whether a terminal would take a part of this text for something else than text.
fn obeyed(text: &[u8]) -> bool {
    let text = std::str::from_utf8(text).expect("UTF-8");
    text.chars().any(|c| c.is_control() && c != '\n')
}

#[test]
fn no_text_of_an_artifact_reaches_a_terminal_as_it_is() {
    let bench = Bench::new();
    let evil = |text: &mut String| *text = format!("{text}\x1b]0;owned\x07\x1b[2J\r\u{9b}31m");
    bench.forge(|manifest, _| {
        evil(&mut manifest.producer);
        evil(&mut manifest.model.architecture);
        manifest.config["\x1b[2J"] = serde_json::json!("\x1b[2J\u{9b}31m");
        manifest.config["model"]["fields"]["\u{9b}31m"] = serde_json::json!("\x1b[2J");
        for target in &mut manifest.targets {
            target.kernels.iter_mut().for_each(|def| [&mut def.family, &mut def.body].map(evil).into_iter().collect());
            target.weights.iter_mut().for_each(|weight| evil(&mut weight.name));
            let launches = target.plans.iter_mut().flat_map(|plan| &mut plan.launches);
            launches.for_each(|launch| evil(&mut launch.location));
            target.variants.iter_mut().for_each(|variant| variant.features.iter_mut().for_each(evil));
        }
    });
    std::fs::create_dir(bench.path("model")).expect("a folder");
    std::fs::copy(format!("{MODEL}/config.json"), bench.path("model/config.json")).expect("a file");
    std::fs::copy(bench.path("m.atomc"), bench.path("model/model.atomc")).expect("a file");
    let shown: [&[&str]; 10] = [
        &["check", "model", "--trust-remote-code"],
        &["inspect", "m.atomc"],
        &["inspect", "m.atomc", "--kernels"],
        &["inspect", "m.atomc", "--json"],
        &["trust", "m.atomc"],
        &["trust", "m.atomc", "--json"],
        &["trust", "--list"],
        &["verify", "m.atomc"],
        &["bench", "m.atomc", "--random-weights", "--kernels"],
        &["pack", "m.atomc", "--weights", MODEL, "-o", "packed", "--target", "\x1b[2J"],
    ];
    for args in shown {
        let out = bench.run(args);
        assert!(!out.stdout.is_empty() || !out.stderr.is_empty());
        for text in [&out.stdout, &out.stderr] {
            assert!(!obeyed(text), "{args:?}: {}", String::from_utf8_lossy(text).escape_debug());
        }
    }
    assert!(
        bench.succeed(&["inspect", "m.atomc"]).contains(r"LlamaForCausalLM\u{1b}]0;owned\u{7}\u{1b}[2J\r\u{9b}31m")
    );
    let list = std::fs::read(bench.path("home/atomc/trusted")).expect("a list");
    assert!(!obeyed(&list));
}

/// Zeros take a thousandth of their size in a file. Verbs that look are run with little memory.
#[test]
fn looking_at_an_artifact_unpacks_no_code() {
    let bench = Bench::new();
    let looks = |verb: &str| {
        // 200 MB of addresses are the program itself.
        let limited = ["sh", "-c", "ulimit -v 300000; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_atomc")];
        let out = bench.wrapped(&limited, &[verb, "m.atomc"]).output().expect("it runs");
        let text = [out.stdout, out.stderr].map(|text| String::from_utf8(text).expect("UTF-8")).concat();
        (out.status.success(), text)
    };
    let forge = |code: usize, further: usize| {
        let artifact = Artifact::open(bench.path("m.atomc")).expect("an artifact");
        let mut sections = vec![serde_json::to_vec(artifact.manifest()).expect("JSON")];
        sections.extend((1..artifact.sections().len()).map(|i| artifact.section(i).expect("code").to_vec()));
        if code > 0 {
            sections[1] = vec![0; code];
        }
        if further > 0 {
            sections.push(vec![0; further]);
        }
        let sections: Vec<&[u8]> = sections.iter().map(Vec::as_slice).collect();
        atomc_artifact::lay_out(&sections)
    };
    let sound = std::fs::read(bench.path("m.atomc")).expect("a file");
    let cases = [
        (240 << 20, 0, ""),
        (240 << 20, 1 << 20, "artifact manifest: targets: no variant names section 5 of the file"),
        (300 << 20, 0, "artifact is too large: section 1 (code) would bring it to 314572800 unpacked bytes"),
        (0, 300 << 20, "artifact is too large: section 5 (code) would bring it to "),
    ];
    for (code, further, refused) in cases {
        bench.write("m.atomc", forge(code, further));
        for verb in ["inspect", "trust"] {
            let (done, said) = looks(verb);
            assert_eq!(done, refused.is_empty(), "{verb}: {said}");
            assert!(said.contains(refused), "{verb}: {said}");
        }
        bench.write("m.atomc", &sound);
    }
}

/// A folder from elsewhere, with links in place of the files that verbs write next to others.
#[test]
fn links_that_came_with_an_artifact_are_not_followed() {
    let bench = Bench::new();
    bench.write("mine", "mine");
    let artifact = Artifact::open(bench.path("m.atomc")).expect("an artifact");
    let variant = &artifact.manifest().targets[0].variants[0].name;
    let written = ["m.atomc.sig".to_owned(), format!("out/host-{variant}.so"), "out/weights.host.safetensors".into()];
    std::fs::create_dir(bench.path("out")).expect("a folder");
    for name in &written {
        std::os::unix::fs::symlink(bench.path("mine"), bench.path(name)).expect("a link");
    }
    let verbs: [&[&str]; 3] = [
        &["sign", "--key", "ours.key", "m.atomc"],
        &["inspect", "m.atomc", "--extract", "out"],
        &["pack", "m.atomc", "--weights", MODEL, "-o", "out"],
    ];
    for (verb, name) in verbs.into_iter().zip(&written) {
        let said = bench.fail(verb);
        assert!(said.contains(name.as_str()) && said.contains("a link, which is not followed"), "{verb:?}: {said}");
    }
    assert_eq!(std::fs::read(bench.path("mine")).expect("a file"), b"mine");
    written.iter().for_each(|name| std::fs::remove_file(bench.path(name)).expect("a link"));
    verbs.into_iter().for_each(|verb| drop(bench.succeed(verb)));
}

/// Names that a terminal would obey, or that are no text.
#[test]
fn names_of_files_are_shown_as_text() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let bench = Bench::new();
    let evil = "evil\x1b[2J\u{202e}.atomc";
    std::fs::copy(bench.path("m.atomc"), bench.path(evil)).expect("a file");
    let verbs: [&[&str]; 6] = [
        &["trust", evil],
        &["inspect", evil],
        &["sign", "--key", "ours.key", evil],
        &["report", evil, "-o", "evil\x1b[2J.html"],
        &["compile", MODEL, "--decode", "1", "--prefill", "32", "-o", evil],
        &["inspect", "none\x1b[2J.atomc"],
    ];
    for verb in verbs {
        let out = bench.run(verb);
        let text = [out.stdout, out.stderr].concat();
        assert!(!obeyed(&text) && String::from_utf8_lossy(&text).contains(r"\u{1b}[2J"), "{verb:?}");
        assert!(!String::from_utf8_lossy(&text).contains('\u{202e}'), "{verb:?}");
    }
    // JSON has no bytes: that is said before anything is done.
    let bytes = OsStr::from_bytes(b"caf\xe9.atomc");
    std::fs::copy(bench.path("m.atomc"), bench.dir.path().join(bytes)).expect("a file");
    bench.succeed(&["trust", "--remove", "m.atomc"]);
    let made: [(&[&str], &[&str]); 2] =
        [(&["trust", "--json"], &[]), (&["compile", MODEL, "--json", "-o"], &["--no-trust"])];
    for (before, after) in made {
        let out = bench.command(before).arg(bytes).args(after).output().expect("it runs");
        let said = String::from_utf8(out.stderr).expect("UTF-8");
        assert_eq!(out.status.code(), Some(1), "{said}");
        assert!(said.contains("its name is not UTF-8, as text in JSON has to be"), "{said}");
    }
    assert!(!bench.succeed(&["trust", "--list"]).contains("caf"));
    bench.command(&["trust"]).arg(bytes).status().expect("it runs");
    assert!(bench.succeed(&["trust", "--list"]).contains("caf\u{fffd}.atomc"));
}

/// A fault in the name of an output is found before anything is made.
#[test]
fn outputs_that_are_folders_are_refused_at_once() {
    let bench = Bench::empty();
    let said = bench.fail(&["compile", "no such model", "-o", "made/"]);
    assert_eq!(said.trim_end(), "error[output]: made/: the name of a folder, not of a file");
}

/// A list that others may write is not obeyed.
#[test]
fn lists_that_others_may_write_are_not_obeyed() {
    use std::os::unix::fs::PermissionsExt;
    let bench = Bench::new();
    let list = bench.path("home/atomc/trusted");
    std::fs::set_permissions(&list, PermissionsExt::from_mode(0o666)).expect("our file");
    for verb in [&["trust", "--list"][..], &["trust", "m.atomc"]] {
        let said = bench.fail(verb);
        assert!(said.starts_with("error[trust]: ") && said.contains("others may write to"), "{said}");
    }
}

#[test]
fn no_verb_runs_what_is_not_expected() {
    let bench = Bench::new();
    bench.write("expected.json", bench.succeed(&["inspect", "m.atomc", "--json"]));
    let key = Artifact::open(bench.path("m.atomc")).expect("an artifact").manifest().key();
    for expected in ["expected.json", &key] {
        bench.succeed(&["verify", "m.atomc", "--kernel", "lm_head", "--expect", expected]);
    }
    bench.succeed(&["compile", MODEL, "--context", "32", "--decode", "1", "--prefill", "32", "-o", "m.atomc"]);
    std::fs::write(bench.path("ids.json"), "[[1]]").expect("a file");
    std::fs::write(bench.path("problems.jsonl"), "{\"prompt\": \"a\", \"solution\": \"b\"}\n").expect("a file");
    let refused = "error[artifact]: the artifact is not the one expected:";
    for verb in VERBS {
        let said = bench.fail(&[verb, &["--expect", "expected.json"]].concat());
        assert_eq!(said.trim_end(), format!("{refused} config.model.context is 32, and 64 was expected"), "{verb:?}");
    }
    let said = bench.fail(&[VERBS[0], &["--expect", &key]].concat());
    assert!(said.starts_with(&format!("{refused} key is ")) && said.contains(&key), "{said}");
    let said = bench.fail(&[VERBS[0], &["--expect", "none.json"]].concat());
    assert!(said.contains("error[expect]: none.json: "), "{said}");
}
