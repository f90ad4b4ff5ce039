use crate::error::{raised, raised_of};
use atomc_artifact::manifest::{Paged, StreamLayout, Target};
use atomc_artifact::{Fingerprint, escaped};
use atomc_config::Config;
use atomc_runtime::states::pages_of;
use atomc_runtime::{Artifact as File, Error, Expected, TrustList};
use atomc_runtime::{device, signature, trust};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::collections::BTreeMap;
use std::env::var_os;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An artifact's file, checked.
#[pyclass(frozen, module = "atomc")]
pub struct Artifact {
    path: PathBuf,
    file: Arc<File>,
}

impl Artifact {
    pub fn file(&self) -> &Arc<File> {
        &self.file
    }

    pub fn path(&self) -> &PathBuf {
        &self.path
    }

    /// Refuses to run an artifact that was opened at this path without the signature that
    /// `ATOMC_REQUIRE_SIGNED_BY` asks for.
    pub fn check_signature(path: &Path, file: &File) -> PyResult<()> {
        require(path, file.fingerprint())
    }
}

fn require(path: &Path, fingerprint: Fingerprint) -> PyResult<()> {
    signature::require(var_os(signature::VARIABLE), path, fingerprint).map_err(raised)
}

fn is_trusted(path: &Path, fingerprint: Fingerprint) -> PyResult<bool> {
    if var_os(signature::VARIABLE).is_some() {
        return require(path, fingerprint).map(|()| true);
    }
    let place = trust::place(var_os("XDG_CONFIG_HOME"), var_os("HOME"));
    let list = place.and_then(|path| TrustList::read(&path)).map_err(raised)?;
    Ok(list.has(fingerprint))
}

/// Whether a file is trusted, by its header alone: nothing else is read or unpacked. An artifact
/// that is opened later may be another, and is checked again.
#[pyfunction]
pub fn trusted(path: PathBuf) -> PyResult<bool> {
    let fingerprint = atomc_artifact::fingerprint(&path).map_err(|fault| raised_of(&path, fault))?;
    is_trusted(&path, fingerprint)
}

#[pymethods]
impl Artifact {
    #[new]
    #[pyo3(signature = (path, *, expected=None))]
    fn new(py: Python<'_>, path: PathBuf, expected: Option<&str>) -> PyResult<Artifact> {
        let expected = expected.map(Expected::parse).transpose().map_err(raised)?;
        let file = py.detach(|| File::open(&path)).map_err(|fault| raised_of(&path, fault))?;
        if let Some(expected) = &expected {
            file.manifest().expect(expected).map_err(|fault| raised_of(&path, fault))?;
        }
        Ok(Artifact { path, file: Arc::new(file) })
    }

    #[getter(path)]
    fn get_path(&self) -> PathBuf {
        self.path.clone()
    }

    /// As `config.json` names it.
    #[getter]
    fn architecture(&self) -> &str {
        &self.file.manifest().model.architecture
    }

    /// The compile key: what has the same key was compiled alike.
    #[getter]
    fn key(&self) -> String {
        self.file.manifest().key()
    }

    /// What identifies the whole content.
    #[getter]
    fn fingerprint(&self) -> String {
        self.file.fingerprint().to_string()
    }

    /// Whether the user's list of trusted artifacts, which `atomc trust` keeps, has this content. A
    /// framework that finds an artifact next to a model asks before it makes a `Model` of it, which
    /// runs code. Where `ATOMC_REQUIRE_SIGNED_BY` names a key, the artifact needs that key's
    /// signature instead.
    fn trusted(&self) -> PyResult<bool> {
        is_trusted(&self.path, self.file.fingerprint())
    }

    /// Whether it has a draft.
    #[getter]
    fn draft(&self) -> bool {
        self.file.manifest().targets.iter().any(|target| target.draft.is_some())
    }

    /// Whether it has a tower, and so takes images.
    #[getter]
    fn tower(&self) -> bool {
        self.file.manifest().tower.is_some()
    }

    #[getter]
    fn targets(&self) -> Vec<&str> {
        self.file.manifest().targets.iter().map(|target| target.name.as_str()).collect()
    }

    /// The pages of a target's cache: tokens in one, and the bytes of a layer's pages of those, of
    /// the layer that has most.
    fn page(&self, target: &str) -> PyResult<(usize, usize)> {
        let manifest = self.file.manifest();
        let number = device::target(manifest, target).map_err(|error| raised(Error::Device(error)))?;
        let target = &manifest.targets[number];
        let mut layers = BTreeMap::<usize, usize>::new();
        for (state, pages) in
            target.states.iter().filter_map(|state| Some((state, pages_of(&target.groups[state.group])?)))
        {
            *layers.entry(state.layer).or_default() += pages.block_bytes;
        }
        Ok((target.layout.block_tokens, layers.into_values().max().unwrap_or(0)))
    }

    /// Whether pages keep one row of each token, with keys and values as parts of it.
    #[getter]
    fn latent(&self) -> bool {
        let is_shared = |pages: &Paged| pages.streams.iter().any(|s| matches!(s.layout, StreamLayout::Prefix { .. }));
        // Keys that positions or blocks are chosen by, which are one row too, come behind these.
        let first = |target: &Target| {
            target.states.iter().find_map(|state| pages_of(&target.groups[state.group])).is_some_and(is_shared)
        };
        self.file.manifest().targets.iter().any(first)
    }

    /// Every option and model fact that shaped the artifact.
    #[getter]
    fn config<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        py.import("json")?.call_method1("loads", (self.file.manifest().config.to_string(),))
    }

    /// Ranks that have a part of each projection.
    #[getter]
    fn tensor_parallel(&self) -> usize {
        self.file.manifest().tensor_parallel
    }

    /// Ranks that hold some of the experts each, whole; 1 if none do.
    #[getter]
    fn expert_parallel(&self) -> usize {
        self.file.manifest().expert_parallel
    }

    /// All ranks that run the artifact.
    #[getter]
    fn ranks(&self) -> usize {
        self.file.manifest().ranks()
    }

    /// The version of atomc that wrote it.
    #[getter]
    fn producer(&self) -> &str {
        &self.file.manifest().producer
    }

    /// What differs between a `config.json` and the model that the artifact was made of, by what
    /// the fields mean.
    fn differences(&self, config: &str) -> PyResult<Vec<String>> {
        let config = Config::parse(config, None).map_err(|fault| PyValueError::new_err(fault.to_string()))?;
        let held = &self.file.manifest().config["model"];
        Ok(atomc_config::differences(&config, held).iter().map(ToString::to_string).collect())
    }

    fn __repr__(&self) -> String {
        format!("atomc.Artifact({}, {})", self.path.display(), escaped(self.architecture()))
    }
}
