//! The Python package `atomc`: artifacts inside frameworks, and alone.
//!
//! It translates and nothing else. Whatever takes time runs without Python's lock; tensors pass by
//! DLPack or by address.
//!
//! `model.rs` and `engine.rs` translate `Hosted` and `Engine`, `dlpack.rs` passes tensors without
//! copies, `error.rs` is the only place that makes exceptions. The package has the runtime and no
//! compiler, and uses the stable interface of Python 3.10.
//!
//! `python/atomc/` has a shim for each framework. `frameworks.py` is shared by them: the
//! environment, the artifact of a model, and the loop of a step on torch's tensors. `pages.py` is
//! their memory as pages of an artifact. Everything that depends on a framework's release is in its
//! `compat.py`. `draft.py` is an artifact's draft as the framework sees it, and `guesses.py`
//! replaces the framework's kernels for it where there is no GPU.
//!
//! `vllm/`: vLLM calls `plugin.py`; `config.py` translates; `model.py` and `attention.py` are
//! vLLM's view of an artifact; `platform.py` and `worker.py` are machines without a GPU;
//! `loader.py` is the load format `atomc`; `metrics.py` is the line in `/metrics`.
//!
//! `sglang/`: SGLang's registry finds `entry.py`; `adapters.py` has a row for each kind of model
//! (how it is made, loaded, bound to a pool, and answers); `model.py` is the whole forward over
//! SGLang's pools; `memory.py` is the memory that a host gives back when SGLang releases its own;
//! `attention.py` is a backend that prepares nothing; `platform.py`, `pool.py` and `host_pools.py`
//! are machines without a GPU.
mod artifact;
mod dlpack;
mod engine;
mod error;
mod model;
mod vllm;

use pyo3::prelude::*;

#[pymodule]
fn _atomc(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<artifact::Artifact>()?;
    module.add_class::<dlpack::View>()?;
    module.add_class::<engine::Engine>()?;
    module.add_class::<model::Cache>()?;
    module.add_class::<model::Call>()?;
    module.add_class::<model::Loading>()?;
    module.add_class::<model::Model>()?;
    module.add_function(wrap_pyfunction!(artifact::trusted, module)?)?;
    module.add_function(wrap_pyfunction!(vllm::architectures, module)?)?;
    module.add_function(wrap_pyfunction!(vllm::judged_options, module)?)?;
    module.add_function(wrap_pyfunction!(vllm::known_options, module)?)?;
    module.add_function(wrap_pyfunction!(vllm::towers, module)?)?;
    module.add_function(wrap_pyfunction!(vllm::settings_of, module)?)?;
    module.add_function(wrap_pyfunction!(vllm::named_artifact, module)?)?;
    module.add_function(wrap_pyfunction!(vllm::judged_sglang_options, module)?)?;
    module.add_function(wrap_pyfunction!(vllm::overriding_artifact, module)?)?;
    module.add_function(wrap_pyfunction!(vllm::compile_options, module)?)?;
    module.add_function(wrap_pyfunction!(vllm::lacks, module)?)?;
    module.add_function(wrap_pyfunction!(vllm::interval_fault, module)?)?;
    module.add_function(wrap_pyfunction!(vllm::known_sglang_options, module)?)?;
    error::add(module)
}
