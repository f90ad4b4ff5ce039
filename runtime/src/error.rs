use crate::adapters::AdapterError;
use crate::checkpoint::CheckpointError;
use crate::device::DeviceError;
use crate::engine::StepError;
use crate::hosted::HostedError;
use crate::signature::SignatureError;
use crate::trust::TrustError;

/// Everything that can go wrong between an artifact and its tokens.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "a message says what its variant means, and shows the fields")]
pub enum Error {
    #[error(transparent)]
    Artifact(#[from] atomc_artifact::Error),
    #[error(transparent)]
    Adapter(#[from] AdapterError),
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(
        "device: the artifact is for {ranks} ranks, and each needs a device, but {devices} are named; \
         --tp, --ep and --pp of `atomc compile` say how many ranks there are"
    )]
    Ranks { ranks: usize, devices: usize },
    #[error(
        "attention: every plan for target `{target}` leaves attention to a framework; \
         an engine needs an artifact that was compiled with --attention own"
    )]
    CallerAttends { target: String },
    #[error("the artifact has no draft whose weights lie in a checkpoint of their own")]
    NoDraftCheckpoint,
    #[error("the artifact has no tower: it was compiled without --tower")]
    NoTower,
    #[error(transparent)]
    Step(#[from] StepError),
    #[error(transparent)]
    Hosted(#[from] HostedError),
    #[error(transparent)]
    Signature(#[from] SignatureError),
    #[error(transparent)]
    Trust(#[from] TrustError),
}
