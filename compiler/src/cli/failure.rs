//! How a verb fails, and how that is shown: the one place that renders errors.
use std::fmt::{self, Display};
use std::io::{self, Write};

use atomc::model::ModelError;
use atomc_runtime::device::Vendor;
use atomc_runtime::{AdapterError, CheckpointError, DeviceError, Error, SignatureError, StepError, TrustError};

use super::shown::lines;

/// Why a verb did not finish.
#[derive(Debug)]
pub enum Failure {
    Report(Box<Report>),
    /// The reader of the output has closed it.
    Closed,
}

#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Report {
    code: &'static str,
    message: String,
    help: Option<String>,
}

impl miette::Diagnostic for Report {
    fn code(&self) -> Option<Box<dyn Display + '_>> {
        Some(Box::new(self.code))
    }

    fn help(&self) -> Option<Box<dyn Display + '_>> {
        self.help.as_ref().map(|help| Box::new(help) as Box<dyn Display>)
    }
}

/// Renders a report to standard error.
pub fn show(report: Report) {
    // The hook can be set once, and this is the only place that does.
    let _ = miette::set_hook(Box::new(|_| Box::new(Plain)));
    tell(format_args!("{:?}", miette::Report::new(report)));
}

/// Writes a line to standard error. If that fails, the work goes on, and the exit code says the
/// same.
pub fn tell(line: fmt::Arguments) {
    let _ = writeln!(io::stderr(), "{}", lines(&line.to_string()));
}

/// A few lines that are not cut to a width, so that scripts can read them too. They show no source
/// code.
struct Plain;

impl miette::ReportHandler for Plain {
    fn debug(&self, error: &dyn miette::Diagnostic, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error")?;
        if let Some(code) = error.code() {
            write!(f, "[{code}]")?;
        }
        write!(f, ": {}", lines(&error.to_string()))?;
        match error.help() {
            Some(help) => write!(f, "\n  help: {}", lines(&help.to_string())),
            None => Ok(()),
        }
    }
}

impl Failure {
    pub fn new(code: &'static str, message: impl Display) -> Failure {
        Failure::Report(Box::new(Report { code, message: message.to_string(), help: None }))
    }

    pub fn help(mut self, help: impl Into<String>) -> Failure {
        if let Failure::Report(report) = &mut self {
            report.help = Some(help.into());
        }
        self
    }

    /// Something about a file.
    pub fn file(code: &'static str, path: &std::path::Path, error: impl Display) -> Failure {
        Failure::new(code, format!("{}: {error}", path.display()))
    }
}

/// An I/O error without a file name is one of standard output.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::Closed,
            _ => Failure::new("output", error),
        }
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Failure {
        io::Error::from(error).into()
    }
}

impl From<atomc_artifact::Error> for Failure {
    fn from(error: atomc_artifact::Error) -> Failure {
        Failure::new("artifact", error)
    }
}

impl From<StepError> for Failure {
    fn from(error: StepError) -> Failure {
        match &error {
            StepError::Device(_) => Failure::new("device", error),
            _ => Failure::new("step", error),
        }
    }
}

impl From<SignatureError> for Failure {
    fn from(error: SignatureError) -> Failure {
        Failure::new("signature", error)
    }
}

impl From<TrustError> for Failure {
    fn from(error: TrustError) -> Failure {
        Failure::new("trust", error)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        match error {
            Error::Artifact(error) => error.into(),
            Error::Hosted(_) | Error::NoDraftCheckpoint | Error::Ranks { .. } | Error::CallerAttends { .. } => {
                Failure::new("artifact", error)
            }
            Error::NoTower => {
                Failure::new("artifact", error).help("Compile the model with --tower, if its checkpoint has one.")
            }
            Error::Signature(error) => error.into(),
            Error::Trust(error) => error.into(),
            Error::Step(error) => error.into(),
            Error::Device(error) => device(error),
            Error::Checkpoint(error) => checkpoint(error),
            Error::Adapter(AdapterError::Checkpoint(error)) => checkpoint(error),
            Error::Adapter(error) => Failure::new("adapter", error),
        }
    }
}

fn device(error: DeviceError) -> Failure {
    let failure = Failure::new("device", &error);
    match error {
        DeviceError::NoTarget { wanted, .. } => failure.help(format!("Compile the model with --target {wanted}.")),
        DeviceError::Units { .. } => failure.help(
            "Use a larger device, or compile the model for an older one of its kind, e.g. with --target sm_80, whose \
             kernels do not wait.",
        ),
        DeviceError::NoDriver { vendor, .. } => failure.help(match vendor {
            Vendor::Hip => "AMD GPUs need ROCm's runtime, version 6 or later; `atomc devices` lists what there is.",
            Vendor::Cuda => "NVIDIA GPUs need a driver for CUDA 12 or later; `atomc devices` lists what there is.",
        }),
        DeviceError::NoDevice { .. } => failure.help("`atomc devices` lists what there is."),
        DeviceError::Full { .. } => failure.help("Take a smaller cache, or end what else uses the device."),
        DeviceError::Kernel { .. } => failure.help("`atomc verify` tries every kernel of an artifact on the device."),
        DeviceError::Lost { .. } => {
            failure.help("`atomc doctor` says what is there; its driver's log says what happened.")
        }
        _ => failure,
    }
}

fn checkpoint(error: CheckpointError) -> Failure {
    let code = if matches!(error, CheckpointError::Write { .. }) { "output" } else { "checkpoint" };
    let failure = Failure::new(code, &error);
    match error {
        CheckpointError::NotACheckpoint { .. } => {
            failure.help("Give a folder with weights, or --random-weights to do without.")
        }
        CheckpointError::Missing { .. } | CheckpointError::Unused { .. } | CheckpointError::Shape { .. } => {
            failure.help("Is this the checkpoint of the model that the artifact was compiled from?")
        }
        _ => failure,
    }
}

impl From<ModelError> for Failure {
    fn from(error: ModelError) -> Failure {
        match error {
            ModelError::Gguf { .. } => Failure::new("gguf", error),
            ModelError::Config(diagnostic) => diagnostic.into(),
            ModelError::Text(error) => Failure::new("tokenizer", error),
            ModelError::Checkpoint(error) => checkpoint(error),
        }
    }
}

impl From<atomc_config::Diagnostic> for Failure {
    fn from(diagnostic: atomc_config::Diagnostic) -> Failure {
        let (code, message) = (diagnostic.code, diagnostic.to_string());
        Failure::Report(Box::new(Report { code, message, help: diagnostic.help }))
    }
}
