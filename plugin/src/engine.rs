//! The engine, which schedules nothing and keeps a cache of its own, for Python.
use crate::artifact::Artifact;
use crate::dlpack::{Device, View};
use crate::error::{StepError, raised};
use atomc_artifact::manifest::DType;
use atomc_runtime::hosted::Rows;
use atomc_runtime::weights::packed::Packed;
use atomc_runtime::{
    Answer, Artifact as File, Checkpoint, DeviceChoice, Engine as Inner, EngineOptions, Error, Guesses, Params, Random,
    Request, Sampling, SeqId, Want, generate,
};
use pyo3::prelude::*;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// An artifact on a device, with a cache and sequences of its own. One thread uses it at a time;
/// others wait.
#[pyclass(frozen, module = "atomc")]
pub struct Engine {
    inner: Mutex<Inner>,
    /// The guesses of the last answer.
    guesses: Mutex<(usize, usize, usize)>,
}

/// Logits that outlive their step.
#[pyclass(frozen)]
struct Numbers {
    _values: Vec<f32>,
}

impl Engine {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Engine {
    #[new]
    #[pyo3(signature = (artifact, device = "host", *, threads = 0, cache_tokens = 0, slots = 0, draft = false))]
    #[allow(clippy::too_many_arguments, reason = "named in Python")]
    fn new(
        py: Python<'_>,
        artifact: &Bound<'_, Artifact>,
        device: &str,
        threads: usize,
        cache_tokens: usize,
        slots: usize,
        draft: bool,
    ) -> PyResult<Engine> {
        let device: DeviceChoice = device.parse().map_err(|error| raised(Error::Device(error)))?;
        // Sequences cannot share a beginning in this interface.
        let snapshot_tokens = EngineOptions::NO_SNAPSHOTS;
        let options = EngineOptions { device, threads, cache_tokens, slots, snapshots: 0, snapshot_tokens, draft };
        let path = artifact.get().path();
        let file = py.detach(|| File::open(path)).map_err(raised)?;
        Artifact::check_signature(path, &file)?;
        let open =
            || Ok::<_, Error>(Engine { inner: Mutex::new(Inner::new(file, &options)?), guesses: Mutex::default() });
        py.detach(open).map_err(raised)
    }

    #[getter]
    fn device(&self) -> String {
        self.lock().device_name().to_owned()
    }

    /// Loads a checkpoint's directory, or a file of packed weights. The file's checksums are
    /// compared if `verify` is set. `draft` is the directory of the draft's checkpoint, if it has
    /// its own.
    #[pyo3(signature = (path, *, verify = true, draft = None))]
    fn load(&self, py: Python<'_>, path: PathBuf, verify: bool, draft: Option<PathBuf>) -> PyResult<()> {
        let packed = || Packed::open(&path).map(|packed| if verify { packed } else { packed.unverified() });
        let load = || match path.is_file() {
            true => self.lock().load_packed(&packed()?, &|_, _| ()),
            false => {
                let (model, mut engine) = (Checkpoint::open(&path)?, self.lock());
                match &draft {
                    Some(draft) => engine.load_weights_with(&model, &Checkpoint::open(draft)?, &|_, _| ()),
                    None => engine.load_weights(&model, &|_, _| ()),
                }
            }
        };
        py.detach(load).map_err(raised)
    }

    /// Loads made-up weights.
    #[pyo3(signature = (seed = 0))]
    fn load_random(&self, py: Python<'_>, seed: u64) -> PyResult<()> {
        py.detach(|| self.lock().load_weights(&Random { seed }, &|_, _| ())).map_err(raised)
    }

    /// A new, empty sequence.
    fn add(&self) -> u64 {
        self.lock().add_sequence().to_bits()
    }

    /// Forgets a sequence.
    fn drop(&self, sequence: u64) -> PyResult<()> {
        self.lock().drop_sequence(SeqId::from_bits(sequence)).map_err(raised)
    }

    /// Gives each sequence of `(sequence, tokens, logits)` its new tokens, `logits` being `none`,
    /// `last` or `all`; the rows of logits that each wants.
    fn step(&self, py: Python<'_>, requests: Vec<(u64, Vec<u32>, String)>) -> PyResult<Vec<View>> {
        let wants: Vec<Want> = requests.iter().map(|(_, _, want)| wanted(want)).collect::<PyResult<_>>()?;
        let run = || {
            let mut engine = self.lock();
            let all: Vec<Request> = requests.iter().zip(wants).map(|(request, want)| of(request, want)).collect();
            let logits = engine.step(&all)?;
            Ok::<_, Error>((0..all.len()).map(|index| logits.of(index).flatten().copied().collect()).collect())
        };
        let rows: Vec<Vec<f32>> = py.detach(run).map_err(raised)?;
        let width = self.lock().model().vocab;
        rows.into_iter().map(|values| view(py, values, width)).collect()
    }

    /// Answers a prompt; without a temperature with the likeliest tokens. With `speculate` the
    /// draft guesses that many tokens for each step to verify; the answer is the same.
    #[pyo3(signature = (prompt, max_new, *, temperature = 0.0, top_k = 0, top_p = 1.0, seed = 0, speculate = 0))]
    #[allow(clippy::too_many_arguments, reason = "named in Python")]
    fn generate(
        &self,
        py: Python<'_>,
        prompt: Vec<u32>,
        max_new: usize,
        temperature: f32,
        top_k: usize,
        top_p: f32,
        seed: u64,
        speculate: usize,
    ) -> PyResult<Vec<u32>> {
        let answer = py.detach(|| {
            let mut engine = self.lock();
            let sampling = Sampling { temperature, top_k, top_p, seed, ..Sampling::default() };
            let params = Params { sampling, speculate, ..Params::for_model(engine.model(), max_new) };
            generate::generate(&mut engine, &prompt, &params, |_| ControlFlow::Continue(()))
        });
        let Answer { tokens, guesses: Guesses { made, right, steps }, .. } = answer.map_err(raised)?;
        *self.guesses.lock().unwrap_or_else(PoisonError::into_inner) = (made, right, steps);
        Ok(tokens)
    }

    /// Of the last answer: tokens that the draft guessed, those of them that were right, and the
    /// model's steps after the prompt.
    #[getter]
    fn guesses(&self) -> (usize, usize, usize) {
        *self.guesses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn of((sequence, tokens, _): &(u64, Vec<u32>, String), logits: Want) -> Request<'_> {
    Request { sequence: SeqId::from_bits(*sequence), tokens, logits }
}

fn wanted(name: &str) -> PyResult<Want> {
    match name {
        "none" => Ok(Want::Nothing),
        "last" => Ok(Want::Last),
        "all" => Ok(Want::All),
        other => Err(StepError::new_err(format!("logits: `{other}` is none of `none`, `last` and `all`"))),
    }
}

fn view(py: Python<'_>, mut values: Vec<f32>, width: usize) -> PyResult<View> {
    let (address, rows) = (values.as_mut_ptr().cast(), values.len() / width);
    let rows = Rows { address, rows, width, stride: width, dtype: DType::F32 };
    Ok(View::new(rows, Device::HOST, Bound::new(py, Numbers { _values: values })?.into_any().unbind()))
}
