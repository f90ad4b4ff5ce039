//! `atomc sign`: signatures that prove who made an artifact.
use std::io::Write;
use std::path::{Path, PathBuf};

use atomc_artifact::files;
use atomc_runtime::signature;
use ed25519_dalek::pkcs8::DecodePrivateKey;
use ed25519_dalek::{Signer, SigningKey};

use super::failure::Failure;
use super::shown;
use super::{opened, output};

/// Sign artifacts, so that others know who made them
#[derive(clap::Args)]
#[command(after_help = "\
Writes the signature of each FILE to FILE.sig: 64 bytes of ed25519, of a text that names this purpose and the artifact's
fingerprint, which stands for every byte of it. Whoever has the public key can insist on it: `--require-signed-by` of the verbs that
run an artifact, and the variable ATOMC_REQUIRE_SIGNED_BY, which the Python package, vLLM and the C interface obey too.

Examples:
  openssl genpkey -algorithm ed25519 -out key.pem && openssl pkey -in key.pem -pubout -out public.pem
  atomc sign --key key.pem m.atomc
  atomc run m.atomc --require-signed-by public.pem --weights models/qwen3 --prompt 'Q: …'")]
pub struct Args {
    /// Artifacts to sign
    #[arg(required = true, value_name = "FILE")]
    artifacts: Vec<PathBuf>,
    /// The private key of ed25519, in PEM without a password
    #[arg(long, value_name = "PEM")]
    key: PathBuf,
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let key = private_key(&args.key)?;
    for file in &args.artifacts {
        let message = signature::message(opened::open("artifact", file)?.fingerprint());
        let path = signature::path(file);
        output::write_beside(&path, &key.sign(message.as_bytes()).to_bytes())?;
        writeln!(std::io::stdout(), "{}", shown::path(&path))?;
    }
    Ok(())
}

fn private_key(path: &Path) -> Result<SigningKey, Failure> {
    let text = files::read_to_string(path).map_err(|error| Failure::file("signature", path, error))?;
    SigningKey::from_pkcs8_pem(&text).map_err(|error| {
        Failure::file("signature", path, format!("holds no private key of ed25519 in PEM: {error}"))
            .help("`openssl genpkey -algorithm ed25519` makes one.")
    })
}
