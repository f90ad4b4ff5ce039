//! Faults as exceptions. Their text is the runtime's, which names the field.
use atomc_artifact::{Error as ArtifactFault, escaped};
use atomc_runtime::hosted::HostedError;
use atomc_runtime::{Error as Fault, StepError as StepFault, TowerError};
use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use std::path::Path;

create_exception!(atomc, Error, PyException, "Whatever atomc refuses or cannot do.");
create_exception!(atomc, ArtifactError, Error, "The artifact cannot be used, or not in this way.");
create_exception!(atomc, DeviceError, Error, "The device cannot run the artifact, or failed.");
create_exception!(atomc, StepError, Error, "A step was refused.");
create_exception!(atomc, WeightsError, Error, "The tensors are not those of the model.");

pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("Error", py.get_type::<Error>())?;
    module.add("ArtifactError", py.get_type::<ArtifactError>())?;
    module.add("DeviceError", py.get_type::<DeviceError>())?;
    module.add("StepError", py.get_type::<StepError>())?;
    module.add("WeightsError", py.get_type::<WeightsError>())
}

/// The exception for a fault.
pub fn raised(fault: impl Into<Fault>) -> PyErr {
    let fault = fault.into();
    let text = escaped(&fault.to_string());
    exception(fault, text)
}

/// The exception for a fault of an artifact. It names the file.
pub fn raised_of(path: &Path, fault: impl Into<Fault>) -> PyErr {
    let fault = fault.into();
    let text = match &fault {
        // Which name it themselves.
        Fault::Artifact(ArtifactFault::Io { .. }) => fault.to_string(),
        _ => format!("{}: {fault}", path.display()),
    };
    exception(fault, escaped(&text))
}

fn exception(fault: Fault, text: String) -> PyErr {
    match fault {
        Fault::Artifact(_)
        | Fault::Signature(_)
        | Fault::Trust(_)
        | Fault::Ranks { .. }
        | Fault::CallerAttends { .. }
        | Fault::NoTower
        | Fault::NoDraftCheckpoint => ArtifactError::new_err(text),
        Fault::Hosted(
            HostedError::Rank { .. }
            | HostedError::Attention { .. }
            | HostedError::Draft(_)
            | HostedError::NoTower
            | HostedError::Tower { .. },
        ) => ArtifactError::new_err(text),
        Fault::Device(_) | Fault::Step(StepFault::Device(_)) => DeviceError::new_err(text),
        Fault::Hosted(HostedError::Image(TowerError::Device(_))) => DeviceError::new_err(text),
        Fault::Hosted(HostedError::Device(_) | HostedError::Prepare { .. } | HostedError::Allocate { .. }) => {
            DeviceError::new_err(text)
        }
        Fault::Checkpoint(_) | Fault::Adapter(_) | Fault::Hosted(HostedError::Loading(_)) => {
            WeightsError::new_err(text)
        }
        Fault::Step(_) | Fault::Hosted(_) => StepError::new_err(text),
    }
}
