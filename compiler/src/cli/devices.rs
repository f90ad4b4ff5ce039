//! `atomc devices`: what this machine can run artifacts on.
use std::io::Write;

use atomc_runtime::device::hip;
use serde_json::json;

use super::failure::Failure;

/// List what `--device` can name on this machine
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  atomc devices
  atomc devices --json | jq .hip.devices")]
pub struct Args {
    /// The list as a JSON object
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get());
    let found = hip::devices();
    #[cfg(feature = "emulator")]
    let emulated: Vec<&str> = atomc_emulator::isa::Isa::names().collect();
    #[cfg(not(feature = "emulator"))]
    let emulated: Vec<&str> = Vec::new();
    if args.json {
        let device = |d: &hip::HipDevice| json!({ "device": format!("hip:{}", d.ordinal), "name": d.name, "arch": d.arch, "modes": d.modes, "memory": d.memory });
        let hip = match &found {
            Ok(devices) => json!({ "devices": devices.iter().map(device).collect::<Vec<_>>() }),
            Err(error) => json!({ "devices": [], "error": error.to_string() }),
        };
        serde_json::to_writer_pretty(
            &mut out,
            &json!({ "host": { "threads": threads }, "hip": hip, "emu": emulated }),
        )?;
        return Ok(writeln!(out)?);
    }
    writeln!(out, "host   {threads} threads")?;
    match found {
        Ok(devices) if devices.is_empty() => writeln!(out, "hip    no device")?,
        Ok(devices) => devices.iter().try_for_each(|d| {
            let modes = d.modes.join(" ");
            writeln!(out, "hip:{}  {} {modes}, {}, {:.1} GB", d.ordinal, d.arch, d.name, d.memory as f64 / 1e9)
        })?,
        Err(error) => writeln!(out, "hip    {error}")?,
    }
    emulated.iter().try_for_each(|chip| writeln!(out, "emu:{chip}"))?;
    Ok(())
}
