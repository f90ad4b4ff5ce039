//! The Python package `atomc`: artifacts inside frameworks, and alone.
//!
//! It translates and nothing else. Whatever takes time runs without Python's lock; tensors pass by
//! DLPack or by address.
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
