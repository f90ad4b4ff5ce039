//! Links objects with the `lld` of the Rust toolchain.
use std::path::PathBuf;
use std::process::Command;

use atomc_ir::Diagnostic;

/// The linker of the toolchain that `ATOMC_SYSROOT` names; else the one that an archive of
/// `dist/build.sh` has next to the binary; else that of the toolchain atomc was built with.
fn lld() -> PathBuf {
    let of = |sysroot: PathBuf| sysroot.join("lib/rustlib").join(env!("ATOMC_HOST")).join("bin/rust-lld");
    if let Some(sysroot) = std::env::var_os("ATOMC_SYSROOT") {
        return of(sysroot.into());
    }
    beside_the_binary().unwrap_or_else(|| of(env!("ATOMC_SYSROOT").into()))
}

fn beside_the_binary() -> Option<PathBuf> {
    let found = std::env::current_exe().ok()?.parent()?.parent()?.join("libexec/rust-lld");
    found.is_file().then_some(found)
}

fn fail(what: impl std::fmt::Display) -> Diagnostic {
    Diagnostic::new("target::link", format!("linking failed: {what}")).help(
        "the linker is libexec/rust-lld beside the folder of atomc, or that of the Rust toolchain that atomc was built \
         with; ATOMC_SYSROOT names another toolchain",
    )
}

/// One shared object of these relocatable ones. It must need no symbol from outside.
pub fn shared(objects: &[Vec<u8>]) -> Result<Vec<u8>, Diagnostic> {
    let dir = tempfile::tempdir().map_err(fail)?;
    let out = dir.path().join("code.so");
    let mut command = Command::new(lld());
    command.current_dir(dir.path());
    command.args(["-flavor", "gnu", "-shared", "-nostdlib", "--no-undefined", "--strip-all", "--build-id=none"]);
    command.args(["-z", "max-page-size=4096", "-o", "code.so"]);
    for (i, object) in objects.iter().enumerate() {
        let name = format!("{i}.o");
        std::fs::write(dir.path().join(&name), object).map_err(fail)?;
        command.arg(name);
    }
    let done = command.output().map_err(|e| fail(format!("{}: {e}", lld().display())))?;
    if !done.status.success() {
        return Err(fail(String::from_utf8_lossy(&done.stderr).trim()));
    }
    std::fs::read(out).map_err(fail)
}
