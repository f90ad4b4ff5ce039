//! Devices as the command line names them: one, or one for each rank.
use atomc_runtime::device::{Device, DeviceError, Started};
use atomc_runtime::manifest::Manifest;
use atomc_runtime::{Artifact, DeviceChoice, Error};

use super::failure::Failure;

/// Devices of the ranks, in their order; at least one.
#[derive(Clone, Debug)]
pub struct Devices(Vec<DeviceArg>);

/// Most devices of a list: as many as ranks.
const MOST: usize = 64;

impl std::str::FromStr for Devices {
    type Err = DeviceError;

    /// Names with commas between them. `hip:0-3` is `hip:0,hip:1,hip:2,hip:3`.
    fn from_str(text: &str) -> Result<Devices, DeviceError> {
        let mut devices = Vec::new();
        for name in text.split(',') {
            match range(name) {
                Some((prefix, numbers)) => {
                    let all = numbers.map(|number| format!("{prefix}:{number}").parse());
                    devices.extend(all.collect::<Result<Vec<DeviceArg>, _>>()?);
                }
                None => devices.push(name.parse()?),
            }
        }
        Ok(Devices(devices))
    }
}

/// The prefix and the numbers of several devices of a kind.
fn range(name: &str) -> Option<(&str, std::ops::RangeInclusive<usize>)> {
    let (prefix, numbers) = name.split_once(':')?;
    let (first, last) = numbers.split_once('-')?;
    let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
    (first <= last && last - first < MOST).then_some((prefix, first..=last))
}

impl Devices {
    /// That of the first rank.
    pub fn first(&self) -> &DeviceArg {
        &self.0[0]
    }

    /// How many there are: as many as ranks.
    #[cfg(feature = "compiler")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Starts the drivers of those that have one.
    pub fn start(&self) -> Result<Vec<Started>, Failure> {
        self.0.iter().filter_map(|device| device.start().transpose()).collect()
    }

    /// Opens all of them with the artifact's code, each with its part of the threads.
    pub fn open(&self, artifact: &Artifact, threads: usize) -> Result<Vec<Box<dyn Device>>, Failure> {
        let threads = match threads {
            0 => atomc_runtime::pool::threads(0, self.0.len()),
            all => all.div_ceil(self.0.len()),
        };
        self.0.iter().map(|device| device.open(artifact, threads)).collect()
    }
}

/// A device as the command line names it.
#[derive(Clone, Debug)]
pub enum DeviceArg {
    Runtime(DeviceChoice),
    #[cfg(feature = "emulator")]
    Emulated(Chip),
}

/// A chip that is emulated: with every check that the emulator knows, or fast, with none but those
/// of bounds.
#[cfg(feature = "emulator")]
#[derive(Clone, Debug)]
pub struct Chip {
    name: String,
    fast: bool,
}

#[cfg(feature = "emulator")]
impl Chip {
    fn parse(text: &str) -> Option<Chip> {
        let text = text.strip_prefix("emu:")?;
        let (name, mode) = text.split_once(':').map_or((text, None), |(name, mode)| (name, Some(mode)));
        let chip = Chip { name: name.to_owned(), fast: mode.is_some() };
        (!name.is_empty() && matches!(mode, None | Some("fast"))).then_some(chip)
    }

    pub fn open(&self, artifact: &Artifact, threads: usize) -> Result<atomc::emulated::Emulated, Error> {
        let options = if self.fast { atomc_emulator::Options::fast() } else { Default::default() };
        Ok(atomc::emulated::Emulated::open(artifact, &self.name, threads, options)?)
    }
}

impl std::str::FromStr for DeviceArg {
    type Err = DeviceError;

    fn from_str(text: &str) -> Result<DeviceArg, DeviceError> {
        #[cfg(feature = "emulator")]
        if let Some(chip) = Chip::parse(text) {
            return Ok(DeviceArg::Emulated(chip));
        }
        text.parse().map(DeviceArg::Runtime).map_err(|error| match error {
            #[cfg(feature = "emulator")]
            DeviceError::UnknownDevice { given, mut have } => {
                have.extend(["emu:<chip>", "emu:<chip>:fast"]);
                DeviceError::UnknownDevice { given, have }
            }
            error => error,
        })
    }
}

impl DeviceArg {
    /// Starts the device's driver, if it has one.
    pub fn start(&self) -> Result<Option<Started>, Failure> {
        match self {
            DeviceArg::Runtime(choice) => Ok(choice.start().map_err(Error::from)?),
            #[cfg(feature = "emulator")]
            DeviceArg::Emulated(_) => Ok(None),
        }
    }

    /// Opens the device with the artifact's code for it.
    pub fn open(&self, artifact: &Artifact, threads: usize) -> Result<Box<dyn Device>, Failure> {
        match self {
            DeviceArg::Runtime(choice) => Ok(choice.open(artifact, threads).map_err(Error::from)?),
            #[cfg(feature = "emulator")]
            DeviceArg::Emulated(chip) => Ok(Box::new(chip.open(artifact, threads)?)),
        }
    }

    /// The target to compile for, to run here.
    #[cfg(feature = "compiler")]
    pub fn known_target(&self) -> Result<String, Failure> {
        let arch = match self {
            DeviceArg::Runtime(DeviceChoice::Host { .. }) => return Ok("host".into()),
            DeviceArg::Runtime(DeviceChoice::Gpu { vendor, ordinal }) => {
                vendor.device(*ordinal).map_err(Error::from)?.arch
            }
            #[cfg(feature = "emulator")]
            DeviceArg::Emulated(chip) => chip.name.clone(),
        };
        // NVIDIA's code for one generation alone has a letter more. A chip of AMD's that has no
        // code of its own runs its family's.
        let family = atomc_runtime::device::gpu::family(&arch).map(str::to_owned);
        let names = [arch.clone(), format!("{arch}a")].into_iter().chain(family);
        let known = |name: &String| atomc_targets::rows().iter().any(|row| row.name == *name);
        names.into_iter().find(known).ok_or_else(|| {
            let message = format!("no target is called {arch}, which the device is");
            Failure::new("target", message).help("Name one with --target; `atomc targets` lists them.")
        })
    }

    /// The artifact's target for the device.
    pub fn target(&self, manifest: &Manifest) -> Result<usize, DeviceError> {
        match self {
            DeviceArg::Runtime(choice) => choice.target(manifest),
            #[cfg(feature = "emulator")]
            DeviceArg::Emulated(chip) => atomc_runtime::device::target(manifest, &chip.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(all(feature = "compiler", feature = "emulator"))]
    fn chips_have_targets() {
        let target = |chip: &str| format!("emu:{chip}").parse::<DeviceArg>().unwrap().known_target().ok();
        for (chip, name) in [("gfx1201", "gfx1201"), ("gfx1103", "gfx11-generic"), ("sm_90", "sm_90a")] {
            assert_eq!(target(chip).as_deref(), Some(name));
        }
        assert_eq!(target("gfx1030"), None);
    }

    #[test]
    fn lists_and_ranges_name_devices() {
        let parsed = |text: &str| text.parse::<Devices>().map(|devices| format!("{:?}", devices.0));
        assert_eq!(parsed("hip:2-4").unwrap(), parsed("hip:2,hip:3,hip:4").unwrap());
        assert_eq!(parsed("host,host").unwrap(), format!("{:?}", vec![DeviceArg::Runtime(DeviceChoice::default()); 2]));
        for wrong in ["hip:4-2", "cuda:0-99", "host,", "cuda:0,,cuda:1", "cuda:0;1"] {
            assert!(matches!(parsed(wrong), Err(DeviceError::UnknownDevice { .. })), "{wrong}");
        }
    }
}
