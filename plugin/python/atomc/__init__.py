"""Runs language models that atomc compiled ahead of time, alone or inside a framework.

`Model` is for frameworks that schedule, keep the cache and sample: they give memory, pages of their cache and the tensors of
each step by address, which `Model` follows without looking. `Engine` does all of that itself.
"""

from ._atomc import (
    Artifact,
    ArtifactError,
    Cache,
    Call,
    DeviceError,
    Engine,
    Error,
    Loading,
    Model,
    StepError,
    View,
    WeightsError,
    __version__,
)

__all__ = [
    "Artifact",
    "ArtifactError",
    "Cache",
    "Call",
    "DeviceError",
    "Engine",
    "Error",
    "Loading",
    "Model",
    "StepError",
    "View",
    "WeightsError",
    "__version__",
]
