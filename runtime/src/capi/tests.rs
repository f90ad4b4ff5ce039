use super::*;
use crate::toy;
use std::process::Command;
use std::ptr::{null, null_mut};

const HEADER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/include/atomc.h");

/// The header is generated; `UPDATE=1 cargo test -p atomc-runtime header` writes it anew.
#[test]
fn header_is_up_to_date() {
    let rename = ["Engine", "Options", "Request", "Status"]
        .map(|name| (format!("Atomc{name}"), format!("atomc_{}", name.to_lowercase())));
    let mut config = cbindgen::Config {
        language: cbindgen::Language::C,
        cpp_compat: true,
        usize_is_size_t: true,
        ..Default::default()
    };
    config.header =
        Some("// The C interface of the atomc runtime. Generated from runtime/src/capi.rs: do not edit.".into());
    config.include_guard = Some("ATOMC_H".into());
    config.no_includes = true;
    config.sys_includes = ["stddef.h", "stdint.h"].map(str::to_owned).into();
    config.documentation_style = cbindgen::DocumentationStyle::C99;
    config.export.rename = rename.into();
    config.enumeration.rename_variants = cbindgen::RenameRule::ScreamingSnakeCase;
    config.enumeration.prefix_with_name = true;
    let mut header = Vec::new();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/src/capi.rs");
    cbindgen::Builder::new().with_config(config).with_src(source).generate().unwrap().write(&mut header);
    let header = String::from_utf8(header).unwrap().replace("// # Safety\n", "// Requires:\n");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(HEADER, &header).unwrap();
    }
    assert_eq!(
        std::fs::read_to_string(HEADER).unwrap_or_default(),
        header,
        "run UPDATE=1 cargo test -p atomc-runtime header"
    );
}

#[test]
fn header_compiles_as_c() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("use.c");
    std::fs::write(&source, "#include \"atomc.h\"\natomc_status f(atomc_engine *e, const atomc_request *r) { return atomc_step(e, r, 1); }\n").unwrap();
    let include = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/include");
    let status = Command::new("cc")
        .args(["-std=c99", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", include])
        .arg(&source)
        .status();
    assert!(status.unwrap().success());
}

fn c(text: &str) -> CString {
    CString::new(text).unwrap()
}

unsafe fn message(engine: *const AtomcEngine) -> String {
    // SAFETY: the message is a C string while no call is made.
    unsafe { CStr::from_ptr(atomc_last_error(engine)) }.to_str().unwrap().to_owned()
}

fn open(path: &str, device: &str) -> (AtomcStatus, *mut AtomcEngine) {
    let (path, device) = (c(path), c(device));
    let options = AtomcOptions {
        device: device.as_ptr(),
        threads: 2,
        cache_tokens: 24,
        slots: 0,
        snapshots: 0,
        snapshot_tokens: 0,
        draft: 0,
    };
    let mut engine = null_mut();
    // SAFETY: all pointers are to live values.
    let status = unsafe { atomc_open(path.as_ptr(), &options, &mut engine) };
    (status, engine)
}

/// In a process of its own: the environment is everyone's.
fn opened_with_key(key: &Path, artifact: &Path) -> bool {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "capi::tests::opens_what_a_variable_names", "--ignored"]);
    child.env(crate::signature::VARIABLE, key).env(ARTIFACT, artifact).output().unwrap().status.success()
}

/// The variable that names the artifact of the test below.
const ARTIFACT: &str = "ATOMC_TEST_ARTIFACT";

#[test]
#[ignore = "a part of another test"]
fn opens_what_a_variable_names() {
    let (status, engine) = open(&std::env::var(ARTIFACT).unwrap(), "host");
    // SAFETY: the handle is open.
    let said = unsafe { message(engine) };
    // SAFETY: it is not used any more.
    unsafe { atomc_close(engine) };
    assert_eq!(status, AtomcStatus::Ok, "{said}");
}

#[test]
fn a_signature_is_asked_for() {
    use ed25519_dalek::pkcs8::EncodePublicKey;
    use ed25519_dalek::{Signer, SigningKey};
    let dir = tempfile::tempdir().unwrap();
    let (pem, artifact) = (dir.path().join("key.pem"), dir.path().join("m.atomc"));
    std::fs::copy(toy::path(), &artifact).unwrap();
    let key = SigningKey::from_bytes(&[7; 32]);
    std::fs::write(&pem, key.verifying_key().to_public_key_pem(Default::default()).unwrap()).unwrap();
    assert!(!opened_with_key(&pem, &artifact), "there is no signature");
    let message = signature::message(Artifact::open(&artifact).unwrap().fingerprint());
    std::fs::write(signature::path(&artifact), key.sign(message.as_bytes()).to_bytes()).unwrap();
    assert!(opened_with_key(&pem, &artifact));
    assert!(!opened_with_key(&dir.path().join("none.pem"), &artifact), "there is no key");
}

#[test]
fn generates() {
    let prompt = [5u32, 6, 7];
    let (status, engine) = open(toy::path().to_str().unwrap(), "host");
    assert_eq!(status, AtomcStatus::Ok);
    // SAFETY: the engine is open and every pointer is to a live value.
    unsafe {
        assert_eq!(CStr::from_ptr(atomc_device(engine)).to_str().unwrap(), "host:plain");
        assert_eq!((atomc_vocab(engine), atomc_max_positions(engine)), (toy::VOCAB, toy::MAX_POSITIONS));
        let mut count = 0;
        assert_eq!((*atomc_stop_tokens(engine, &mut count), count), (96, 1));
        (*engine).load(&toy::Bias(vec![0; toy::VOCAB * 4])).ok().unwrap();
        let (mut sequence, mut len) = (0, 0);
        assert_eq!(atomc_sequence_new(engine, &mut sequence), AtomcStatus::Ok);
        let mut tokens = prompt.to_vec();
        for expect in toy::answer(&prompt, 5) {
            let request =
                AtomcRequest { sequence, tokens: tokens.as_ptr(), token_count: tokens.len(), logits: ATOMC_LOGITS_ALL };
            assert_eq!(atomc_step(engine, &request, 1), AtomcStatus::Ok, "{}", message(engine));
            let (mut rows, mut count, mut stride, mut token) = (null(), 0, 0, 0);
            assert_eq!(atomc_logits(engine, 0, &mut rows, &mut count, &mut stride), AtomcStatus::Ok);
            assert_eq!(atomc_greedy(engine, 0, &mut token), AtomcStatus::Ok);
            assert_eq!((count, token), (tokens.len(), expect));
            let last = std::slice::from_raw_parts(rows.add((count - 1) * stride), toy::VOCAB);
            assert_eq!(greedy(last), expect);
            tokens = vec![token];
        }
        assert_eq!(atomc_sequence_length(engine, sequence, &mut len), AtomcStatus::Ok);
        assert_eq!(len, 7);
        let (mut fork, mut shared) = (0, 0);
        assert_eq!(atomc_sequence_fork(engine, sequence, 6, &mut fork, &mut shared), AtomcStatus::Ok);
        assert_eq!(shared, 4);
        let mut left = 0;
        for (back, expect) in [(5, 5), (3, 0)] {
            assert_eq!(atomc_sequence_rewind(engine, sequence, back, &mut left), AtomcStatus::Ok);
            assert_eq!(left, expect, "the first block is the other's too");
        }
        assert_eq!(atomc_sequence_rewind(engine, sequence, 1, &mut left), AtomcStatus::Step);
        assert_eq!(atomc_sequence_free(engine, sequence), AtomcStatus::Ok);
        assert_eq!(atomc_sequence_free(engine, sequence), AtomcStatus::Step);
        assert_eq!(message(engine), "there is no sequence #0.0: it was dropped, or belongs to another engine");
        atomc_close(engine);
    }
}

#[test]
fn tells_what_is_wrong() {
    let toy = toy::path().to_str().unwrap();
    let failed = |path: &str, device: &str| {
        let (status, engine) = open(path, device);
        // SAFETY: the handle is valid although the artifact did not open.
        unsafe {
            let message = message(engine);
            assert_eq!(atomc_vocab(engine), 0);
            assert_eq!(atomc_random_weights(engine, 1), AtomcStatus::InvalidArgument);
            atomc_close(engine);
            (status, message)
        }
    };
    assert_eq!(failed("/no/file", "host").0, AtomcStatus::Artifact);
    assert_eq!(
        failed(toy, "tpu:0"),
        (
            AtomcStatus::Device,
            "unknown device `tpu:0`; this build has: host, host:<variant>, hip, hip:<number>, cuda, cuda:<number>"
                .to_owned()
        )
    );
    let (_, engine) = open(toy, "host");
    // SAFETY: the engine is open. The test is about null pointers.
    unsafe {
        assert_eq!(atomc_load_weights(engine, null()), AtomcStatus::InvalidArgument);
        assert_eq!(message(engine), "directory is null");
        assert_eq!(atomc_load_weights(engine, c"/no/dir".as_ptr()), AtomcStatus::Checkpoint);
        assert_eq!(atomc_step(engine, null(), 1), AtomcStatus::InvalidArgument);
        assert_eq!(atomc_random_weights(engine, 1), AtomcStatus::Ok);
        let mut sequence = 0;
        atomc_sequence_new(engine, &mut sequence);
        let tokens = [1; 25];
        let mut request =
            AtomcRequest { sequence, tokens: tokens.as_ptr(), token_count: 25, logits: ATOMC_LOGITS_LAST };
        assert_eq!(atomc_step(engine, &request, 1), AtomcStatus::CacheFull);
        request.logits = 9;
        assert_eq!(atomc_step(engine, &request, 1), AtomcStatus::InvalidArgument);
        let mut token = 0;
        assert_eq!(atomc_greedy(engine, 0, &mut token), AtomcStatus::InvalidArgument);
        assert_eq!(message(engine), "the last step has no logits for request 0");
        request.logits = ATOMC_LOGITS_LAST;
        request.token_count = 2;
        assert_eq!(atomc_step(engine, &request, 1), AtomcStatus::Ok);
        for count in [usize::MAX, usize::MAX - 1, isize::MAX as usize / 4 + 1] {
            request.token_count = count;
            assert_eq!(atomc_step(engine, &request, 1), AtomcStatus::InvalidArgument);
            let most = isize::MAX / 4;
            assert_eq!(message(engine), format!("tokens: {count} of them, but memory has room for {most}"));
        }
        request.token_count = isize::MAX as usize / 4;
        assert_eq!(atomc_step(engine, &request, 1), AtomcStatus::Step);
        assert!(message(engine).starts_with("the prompt is longer than the model"), "{}", message(engine));
        assert_eq!(atomc_step(engine, &request, usize::MAX), AtomcStatus::InvalidArgument);
        assert_eq!(guard(engine, |_| panic!("on purpose")), AtomcStatus::Bug);
        atomc_close(engine);
        assert_eq!(atomc_step(null_mut(), null(), 0), AtomcStatus::InvalidArgument);
        assert_eq!(atomc_open(c"x".as_ptr(), null(), null_mut()), AtomcStatus::InvalidArgument);
        atomc_close(null_mut());
    }
}
