//! `atomc devices`: the devices of this machine that can run artifacts.
use std::io::Write;

use atomc_runtime::device::{GpuDevice, Vendor};
use serde_json::json;

use super::failure::Failure;

/// List what `--device` can name on this machine
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  atomc devices
  atomc devices --json | jq .cuda.devices")]
pub struct Args {
    /// The list as a JSON object
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get());
    let found = Vendor::ALL.map(|vendor| (vendor.prefix(), vendor.devices()));
    #[cfg(feature = "emulator")]
    let emulated: Vec<&str> = atomc_emulator::isa::Isa::names().collect();
    #[cfg(not(feature = "emulator"))]
    let emulated: Vec<&str> = Vec::new();
    if args.json {
        let device = |d: &GpuDevice| json!({ "device": d.to_string(), "name": d.name, "arch": d.arch, "modes": d.modes, "memory": d.memory });
        let mut all = json!({ "host": { "threads": threads }, "emu": emulated });
        for (prefix, devices) in &found {
            all[prefix] = match devices {
                Ok(devices) => json!({ "devices": devices.iter().map(device).collect::<Vec<_>>() }),
                Err(error) => json!({ "devices": [], "error": error.to_string() }),
            };
        }
        serde_json::to_writer_pretty(&mut out, &all)?;
        return Ok(writeln!(out)?);
    }
    writeln!(out, "host   {threads} threads")?;
    for (prefix, devices) in found {
        match devices {
            Ok(devices) if devices.is_empty() => writeln!(out, "{prefix:<6} no device")?,
            Ok(devices) => devices.iter().try_for_each(|d| {
                let arch = std::iter::once(&d.arch).chain(&d.modes).cloned().collect::<Vec<_>>().join(" ");
                writeln!(out, "{d:<6} {arch}, {}, {:.1} GB", d.name, d.memory as f64 / 1e9)
            })?,
            Err(error) => writeln!(out, "{prefix:<6} {error}")?,
        }
    }
    emulated.iter().try_for_each(|chip| writeln!(out, "emu:{chip}"))?;
    Ok(())
}
