use crate::checkpoint::CheckpointError;
use crate::device::DeviceError;
use crate::engine::StepError;
use crate::hosted::HostedError;

/// Everything that can go wrong between an artifact and its tokens.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Artifact(#[from] atomc_artifact::Error),
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    Step(#[from] StepError),
    #[error(transparent)]
    Hosted(#[from] HostedError),
}
