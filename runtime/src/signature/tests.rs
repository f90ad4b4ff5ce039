use super::*;
use crate::toy;
use atomc_artifact::Artifact;
use ed25519_dalek::pkcs8::EncodePublicKey;
use ed25519_dalek::{Signer, SigningKey};
use tempfile::TempDir;

/// A folder with a signed artifact, and the public halves of two keys.
struct Bench {
    dir: TempDir,
    key: SigningKey,
}

impl Bench {
    fn new() -> Bench {
        let bench = Bench { dir: tempfile::tempdir().unwrap(), key: SigningKey::from_bytes(&[7; 32]) };
        std::fs::copy(toy::path(), bench.at("m.atomc")).unwrap();
        for (name, key) in [("ours.pem", &bench.key), ("theirs.pem", &SigningKey::from_bytes(&[8; 32]))] {
            let pem = key.verifying_key().to_public_key_pem(Default::default()).unwrap();
            std::fs::write(bench.at(name), pem).unwrap();
        }
        bench.sign(message(bench.artifact().fingerprint()).as_bytes());
        bench
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn artifact(&self) -> Artifact {
        Artifact::open(self.at("m.atomc")).unwrap()
    }

    fn sign(&self, message: &[u8]) {
        std::fs::write(self.at("m.atomc.sig"), self.key.sign(message).to_bytes()).unwrap();
    }

    fn require(&self, key: &str) -> Result<(), SignatureError> {
        require(Some(self.at(key)), &self.at("m.atomc"), self.artifact().fingerprint())
    }
}

#[test]
fn only_a_signature_by_the_key_will_do() {
    let bench = Bench::new();
    bench.require("ours.pem").unwrap();
    let other = bench.require("theirs.pem").unwrap_err();
    assert!(matches!(other, SignatureError::Wrong { .. }), "{other}");
    std::fs::remove_file(bench.at("m.atomc.sig")).unwrap();
    let missing = bench.require("ours.pem").unwrap_err();
    assert!(matches!(missing, SignatureError::Missing { .. }), "{missing}");
    require(None::<&Path>, &bench.at("m.atomc"), bench.artifact().fingerprint()).unwrap();
}

#[test]
fn every_byte_is_signed() {
    let bench = Bench::new();
    let artifact = bench.artifact();
    let code: Vec<Vec<u8>> =
        (1..artifact.sections().len()).map(|index| artifact.section(index).unwrap().to_vec()).collect();
    let mut changed = code.clone();
    *changed[0].last_mut().unwrap() ^= 1;
    let mut manifest = artifact.manifest().clone();
    manifest.model.stop.clear();
    drop(artifact);
    let write = |manifest: &_, code: &[Vec<u8>]| atomc_artifact::write(bench.at("m.atomc"), manifest, code).unwrap();
    write(&manifest, &code);
    assert!(matches!(bench.require("ours.pem"), Err(SignatureError::Wrong { .. })));
    write(&toy::manifest(), &changed);
    assert!(matches!(bench.require("ours.pem"), Err(SignatureError::Wrong { .. })));
    write(&toy::manifest(), &code);
    bench.require("ours.pem").unwrap();
}

#[test]
fn what_is_signed_for_another_purpose_is_none() {
    let bench = Bench::new();
    let fingerprint = bench.artifact().fingerprint().to_string();
    for message in
        [fingerprint.clone(), format!("{fingerprint}\n"), format!("atomc artifact signature 2\n{fingerprint}\n")]
    {
        bench.sign(message.as_bytes());
        assert!(matches!(bench.require("ours.pem"), Err(SignatureError::Wrong { .. })), "{message}");
    }
}

#[test]
fn files_that_are_none() {
    let bench = Bench::new();
    let signature = bench.at("m.atomc.sig");
    for bytes in [&[][..], &[1; 63], &[1; 65]] {
        std::fs::write(&signature, bytes).unwrap();
        assert!(matches!(bench.require("ours.pem"), Err(SignatureError::NoSignature { .. })));
    }
    std::fs::write(&signature, [1; 64]).unwrap();
    bench.require("ours.pem").unwrap_err();
    std::fs::remove_file(&signature).unwrap();
    std::fs::create_dir(&signature).unwrap();
    assert!(matches!(bench.require("ours.pem"), Err(SignatureError::Io { .. })));
    std::fs::write(bench.at("ours.pem"), "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n").unwrap();
    assert!(matches!(bench.require("ours.pem"), Err(SignatureError::Key { .. })));
    assert!(matches!(bench.require("none.pem"), Err(SignatureError::Io { .. })));
    assert!(matches!(bench.require(""), Err(SignatureError::Io { .. })));
}

#[test]
fn keys_that_sign_everything_are_refused() {
    let bench = Bench::new();
    // The neutral element of the curve, for which this signature fits every message unless the
    // check is strict.
    let neutral: [u8; 32] = std::array::from_fn(|byte| u8::from(byte == 0));
    let weak = VerifyingKey::from_bytes(&neutral).unwrap();
    std::fs::write(bench.at("weak.pem"), weak.to_public_key_pem(Default::default()).unwrap()).unwrap();
    let signature = [&neutral[..], &[0; 32]].concat();
    std::fs::write(bench.at("m.atomc.sig"), signature).unwrap();
    assert!(matches!(bench.require("weak.pem"), Err(SignatureError::Wrong { .. })));
}
