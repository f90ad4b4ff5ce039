//! `atomc completions`: a script for a shell.
use std::io::Write;

use clap::CommandFactory;
use clap_complete::Shell;

use super::Cli;
use super::failure::Failure;

/// Print completions for a shell
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  source <(atomc completions bash)
  atomc completions fish > ~/.config/fish/completions/atomc.fish")]
pub struct Args {
    shell: Shell,
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "atomc", &mut script);
    Ok(std::io::stdout().write_all(&script)?)
}
