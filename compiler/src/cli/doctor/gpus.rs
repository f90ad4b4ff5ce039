//! GPUs: the devices in the machine, the kernel's view of them, and the findings of the driver's
//! library.
use std::fs::{self, OpenOptions};
use std::io::ErrorKind;
use std::path::Path;

use atomc_runtime::DeviceChoice;
use atomc_runtime::device::{GpuDevice, Vendor};

use super::Finding;

/// The findings about one vendor's GPUs.
struct Seen {
    vendor: Vendor,
    /// Whether one is on the bus.
    on_bus: bool,
    /// Whether the device file of the driver can be opened; nothing if there is none.
    opens: Option<bool>,
    /// The devices that the driver's library lists.
    devices: Result<Vec<GpuDevice>, String>,
}

/// The numbers of vendors on the PCI bus (`/sys/class/drm`), and the device files of their kernel
/// drivers.
fn facts(vendor: Vendor) -> (&'static str, &'static str) {
    match vendor {
        Vendor::Hip => ("0x1002", "/dev/kfd"),
        Vendor::Cuda => ("0x10de", "/dev/nvidiactl"),
    }
}

pub fn look(wanted: Option<&DeviceChoice>) -> Vec<Finding> {
    let seen = Vendor::ALL.map(|vendor| {
        let (number, file) = facts(vendor);
        let devices = vendor.devices().map_err(|error| error.to_string());
        Seen { vendor, on_bus: on_bus(Path::new("/sys/class/drm"), number), opens: opens(Path::new(file)), devices }
    });
    let missing = wanted.and_then(missing);
    seen.iter().flat_map(findings).chain(missing).collect()
}

/// The fault of a device that has to be there.
fn missing(wanted: &DeviceChoice) -> Option<Finding> {
    let DeviceChoice::Gpu { vendor, ordinal } = wanted else { return None };
    let error = vendor.device(*ordinal).err()?;
    let about = format!("{}:{ordinal}", vendor.prefix());
    Some(Finding::bad(&about, error.to_string(), "`atomc devices` lists what there is"))
}

/// Whether a graphics card of a vendor is there.
fn on_bus(cards: &Path, number: &str) -> bool {
    let vendor = |card: fs::DirEntry| fs::read_to_string(card.path().join("device/vendor")).unwrap_or_default();
    fs::read_dir(cards).is_ok_and(|all| all.flatten().any(|card| vendor(card).trim() == number))
}

fn opens(file: &Path) -> Option<bool> {
    match OpenOptions::new().read(true).write(true).open(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        opened => Some(opened.is_ok()),
    }
}

fn findings(Seen { vendor, on_bus, opens, devices }: &Seen) -> Vec<Finding> {
    let (about, (_, file)) = (vendor.prefix(), facts(*vendor));
    match devices {
        Ok(devices) if !devices.is_empty() => devices.iter().map(device).collect(),
        _ if *opens == Some(false) => {
            let help = match vendor {
                Vendor::Hip => "add this user to the groups `render` and `video`, and log in again",
                Vendor::Cuda => "this user may not use the GPUs: ask who runs the machine",
            };
            vec![Finding::bad(about, format!("{file} is there and cannot be opened"), help)]
        }
        _ if *on_bus && opens.is_none() => {
            let help = match vendor {
                Vendor::Hip => "load the kernel driver `amdgpu`; in a container: --device /dev/kfd --device /dev/dri",
                Vendor::Cuda => "load the kernel driver `nvidia`; in a container: --gpus all",
            };
            vec![Finding::bad(about, format!("a GPU is on the bus, and {file} is missing"), help)]
        }
        Err(error) if opens.is_some() => {
            let help = match vendor {
                Vendor::Hip => "install ROCm's runtime (libamdhip64), and put its folder into LD_LIBRARY_PATH",
                Vendor::Cuda => "install the user part of NVIDIA's driver (libcuda)",
            };
            vec![Finding::bad(about, error.as_str(), help)]
        }
        Err(_) | Ok(_) => vec![Finding::good(about, "no GPU of this kind is in the machine")],
    }
}

/// A GPU: whether there are kernels for it.
fn device(device: &GpuDevice) -> Finding {
    let text = format!("{}, {}, {:.1} GB", device.name, device.arch, device.memory as f64 / 1e9);
    match target(device) {
        Some(target) => Finding::good(&device.to_string(), format!("{text}: --target {target}")),
        None if cfg!(feature = "compiler") => {
            let help = "`atomc targets` lists the chips with kernels; docs/add-a-target.md says how to add one";
            Finding::bad(&device.to_string(), format!("{text}: there are no kernels for it"), help)
        }
        None => Finding::good(&device.to_string(), text),
    }
}

/// The target to compile for a GPU.
#[cfg(feature = "compiler")]
fn target(device: &GpuDevice) -> Option<&'static str> {
    device.best(atomc_targets::rows().iter().map(|row| row.target))
}

#[cfg(not(feature = "compiler"))]
fn target(_device: &GpuDevice) -> Option<&'static str> {
    None
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[cfg(feature = "compiler")]
    fn gpu(arch: &str) -> GpuDevice {
        let (name, arch) = ("A GPU".to_owned(), arch.to_owned());
        GpuDevice { vendor: Vendor::Hip, ordinal: 0, name, arch, modes: vec![], memory: 192 << 30, units: 304 }
    }

    fn found(on_bus: bool, opens: Option<bool>, devices: Result<Vec<GpuDevice>, &str>) -> (Verdict, String) {
        let devices = devices.map_err(str::to_owned);
        let [finding] = &findings(&Seen { vendor: Vendor::Hip, on_bus, opens, devices })[..] else { panic!("one") };
        (finding.verdict, format!("{} {}", finding.text, finding.help.as_deref().unwrap_or_default()))
    }

    #[test]
    fn what_is_missing_is_named_from_the_machine_upwards() {
        assert_eq!(found(false, None, Err("no libamdhip64")).0, Verdict::Good);
        let (verdict, text) = found(true, None, Err("no libamdhip64"));
        assert!(verdict == Verdict::Bad && text.contains("amdgpu"), "{text}");
        let (verdict, text) = found(true, Some(false), Ok(vec![]));
        assert!(verdict == Verdict::Bad && text.contains("render"), "{text}");
        let (verdict, text) = found(true, Some(true), Err("no libamdhip64"));
        assert!(verdict == Verdict::Bad && text.contains("no libamdhip64") && text.contains("ROCm"), "{text}");
    }

    #[test]
    fn a_device_that_is_asked_for_has_to_be_there() {
        let number = |ordinal| missing(&DeviceChoice::Gpu { vendor: Vendor::Hip, ordinal });
        let finding = number(999).expect("there are fewer");
        assert_eq!((finding.verdict, finding.about.as_str()), (Verdict::Bad, "hip:999"));
        assert_eq!(missing(&DeviceChoice::Host { variant: None }), None);
    }

    #[cfg(feature = "compiler")]
    #[test]
    fn a_gpu_names_its_target() {
        let (verdict, text) = found(true, Some(true), Ok(vec![gpu("gfx942")]));
        assert!(verdict == Verdict::Good && text.contains("--target gfx942"), "{text}");
        let (verdict, text) = found(true, Some(true), Ok(vec![gpu("gfx803")]));
        assert!(verdict == Verdict::Bad && text.contains("no kernels"), "{text}");
    }
}
