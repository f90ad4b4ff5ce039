//! The built binary, in a folder of its own.
use std::path::PathBuf;
use std::process::{Command, Output};

use tempfile::TempDir;

/// A small model of the golden tests: two layers, vocabulary 96, 512 positions.
pub const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/llama2");

pub struct Bench {
    pub dir: TempDir,
}

impl Bench {
    pub fn empty() -> Bench {
        Bench { dir: TempDir::new().expect("a temporary folder") }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        std::fs::create_dir_all(self.path(name).parent().expect("a folder")).expect("a folder");
        std::fs::write(self.path(name), bytes).expect("a writable file");
    }

    pub fn command(&self, args: &[&str]) -> Command {
        self.wrapped(&[env!("CARGO_BIN_EXE_atomc")], args)
    }

    /// A command that ends in the binary's arguments. It must not change the trusted artifacts of
    /// the user that runs the tests, and the user's variables must change nothing.
    pub fn wrapped(&self, command: &[&str], args: &[&str]) -> Command {
        let (program, before) = command.split_first().expect("a program");
        let mut command = Command::new(program);
        command.args(before).args(args).current_dir(self.dir.path()).env("XDG_CONFIG_HOME", self.path("home"));
        command.env_remove(atomc_runtime::signature::VARIABLE);
        command
    }

    pub fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("the binary runs")
    }

    pub fn succeed(&self, args: &[&str]) -> String {
        let out = self.run(args);
        assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).expect("UTF-8")
    }
}
