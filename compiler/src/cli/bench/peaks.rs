//! The peaks that the times of a run are compared with: those of the product itself, or the
//! bandwidth of its memory in the run.
use atomc_artifact::escaped;
use atomc_runtime::manifest::{Chip, Target, Variant};
use atomc_runtime::{Engine, bandwidth};
use serde_json::{Value, json};

use crate::cli::failure::Failure;

/// Much more than the caches of a host hold.
const HOST_BYTES: usize = 1 << 30;
const HOST_ROUNDS: usize = 5;
/// More than the caches of a GPU hold: an MI300X has 256 MiB.
const DEVICE_BYTES: usize = 512 << 20;

/// The limits of a device.
pub enum Peaks {
    /// Bytes a second that the host reads, measured.
    Host(f64),
    /// The data sheet of this product.
    Sheet(Chip),
    /// Bytes a second that this device copies, measured: no row has it.
    Copies(f64),
    /// Unknown: an artifact that has no peaks in its row, on a device that does not copy by itself.
    Unknown,
}

impl Peaks {
    /// The peaks of the engine's device. Measured ones are measured now.
    pub fn of(engine: &mut Engine) -> Result<Peaks, Failure> {
        if engine.is_host() {
            let measured = bandwidth::measure(engine.pool(), HOST_BYTES, HOST_ROUNDS);
            return measured.map(Peaks::Host).map_err(|e| Failure::new("bandwidth", e));
        }
        let product = engine.product().unwrap_or_default();
        if let Some(chip) = row(engine).filter(|chip| names(product, &chip.name)) {
            return Ok(Peaks::Sheet(chip));
        }
        let copies = engine.copy_rate(DEVICE_BYTES).map_err(atomc_runtime::Error::from)?;
        Ok(copies.map_or(Peaks::Unknown, Peaks::Copies))
    }

    /// The better of two measurements.
    pub fn better(self, other: Peaks) -> Peaks {
        if self.bandwidth() > other.bandwidth() { self } else { other }
    }

    /// Bytes a second.
    pub fn bandwidth(&self) -> Option<f64> {
        match self {
            Peaks::Host(rate) | Peaks::Copies(rate) => Some(*rate),
            Peaks::Sheet(chip) => Some(chip.bandwidth),
            Peaks::Unknown => None,
        }
    }

    /// The least seconds for these bytes and operations; bytes alone count if the rate of
    /// operations is unknown.
    pub fn floor(&self, bytes: u64, flops: u64, rate: u32) -> Option<f64> {
        match self {
            Peaks::Sheet(chip) => Some(chip.floor(bytes, flops, rate)),
            other => other.bandwidth().map(|bandwidth| bytes as f64 / bandwidth),
        }
    }

    /// The name of the bandwidth that shares are relative to.
    pub fn meaning(&self) -> &'static str {
        match self {
            Peaks::Copies(_) => "copy bandwidth",
            _ => "read bandwidth",
        }
    }

    /// The chip, if its peaks are known.
    pub fn chip(&self) -> Option<&Chip> {
        if let Peaks::Sheet(chip) = self { Some(chip) } else { None }
    }

    /// For the line that names the device.
    pub fn text(&self) -> String {
        match self {
            Peaks::Host(rate) => format!(", read bandwidth {:.1} GB/s", rate / 1e9),
            Peaks::Sheet(c) => {
                format!(", {}: {:.0} GB/s, {:.0} TFLOP/s", escaped(&c.name), c.bandwidth / 1e9, c.flops / 1e12)
            }
            Peaks::Copies(rate) => format!(", copies at {:.0} GB/s, measured", rate / 1e9),
            Peaks::Unknown => String::new(),
        }
    }

    /// The fields of the JSON form.
    pub fn json(&self) -> [(&'static str, Value); 3] {
        let (host, copies) = match self {
            Peaks::Host(rate) => (Some(rate), None),
            Peaks::Copies(rate) => (None, Some(rate)),
            _ => (None, None),
        };
        [("chip", json!(self.chip())), ("read_bandwidth", json!(host)), ("copy_bandwidth", json!(copies))]
    }
}

/// The chip of the artifact's row for this device, with its peaks.
fn row(engine: &Engine) -> Option<Chip> {
    variant(engine.target(), engine.device_name()).and_then(|variant| variant.chip.clone())
}

/// The variant that a device runs.
pub fn variant<'t>(target: &'t Target, device: &str) -> Option<&'t Variant> {
    let name = device.rsplit(':').next();
    target.variants.iter().find(|variant| Some(&variant.name[..]) == name)
}

/// Whether a driver's name of a product has every word of a row's name, as far as that names a
/// product: `NVIDIA A100-SXM4-80GB` is an `A100 80GB`, `AMD Instinct MI250X` is a
/// `MI250X, one die`.
fn names(product: &str, row: &str) -> bool {
    fn words(text: &str) -> impl Iterator<Item = &str> {
        text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty())
    }
    let row = row.split(',').next().unwrap_or_default();
    words(row).next().is_some() && words(row).all(|word| words(product).any(|other| other == word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_told_apart() {
        let same = [
            ("NVIDIA H200", "H200"),
            ("NVIDIA A100-SXM4-80GB", "A100 80GB"),
            ("AMD Instinct MI250X/MI250", "MI250X, one die"),
            ("AMD Radeon RX 7900 XTX", "RX 7900 XTX"),
        ];
        let other = [
            ("NVIDIA H100 80GB HBM3", "H200"),
            ("NVIDIA GH200 480GB", "H200"),
            ("NVIDIA A100-PCIE-40GB", "A100 80GB"),
            ("AMD Radeon RX 7900 XT", "RX 7900 XTX"),
            ("AMD Instinct MI325X", "MI300X"),
            ("", "H200"),
            ("NVIDIA H200", ""),
        ];
        same.iter().for_each(|(product, row)| assert!(names(product, row), "{product}, {row}"));
        other.iter().for_each(|(product, row)| assert!(!names(product, row), "{product}, {row}"));
    }

    #[test]
    fn the_better_measurement_counts() {
        for (a, b) in [(1.0, 2.0), (2.0, 1.0)] {
            assert_eq!(Peaks::Copies(a).better(Peaks::Copies(b)).bandwidth(), Some(2.0));
            assert_eq!(Peaks::Copies(a).better(Peaks::Unknown).bandwidth(), Some(a));
        }
    }
}
