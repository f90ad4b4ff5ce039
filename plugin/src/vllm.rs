//! What the shims ask of the configuration's crate. All of it is text and JSON.
use atomc_config::framework::Rules;
use atomc_config::sglang;
use atomc_config::vllm::options::{BLOCK_SIZE_GIVEN, JUDGED, Judged, TEXT_ALONE, names};
use atomc_config::vllm::settings;
use atomc_config::{Config, FAMILIES};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::ffi::OsString;

/// The options that are judged, and the places of each in vLLM's resolved configuration. Releases
/// differ in places.
#[pyfunction]
pub fn judged_options() -> Vec<(&'static str, &'static str)> {
    let places = |judged: &'static Judged| judged.at.split('|').map(|at| (judged.name, at));
    JUDGED.iter().flat_map(places).chain([BLOCK_SIZE_GIVEN, TEXT_ALONE]).collect()
}

/// SGLang's options that are judged.
#[pyfunction]
pub fn judged_sglang_options() -> Vec<&'static str> {
    sglang::JUDGED.iter().map(|judged| judged.name).collect()
}

/// Every option of SGLang's that the table knows.
#[pyfunction]
pub fn known_sglang_options() -> Vec<&'static str> {
    sglang::options::names().collect()
}

/// The architectures that artifacts can be made of.
#[pyfunction]
pub fn architectures() -> Vec<&'static str> {
    FAMILIES.iter().map(|family| family.architecture).collect()
}

/// The architectures whose artifacts may have a tower.
#[pyfunction]
pub fn towers() -> Vec<&'static str> {
    FAMILIES.iter().filter(|family| family.sees()).map(|family| family.architecture).collect()
}

/// Every option that the table knows.
#[pyfunction]
pub fn known_options() -> Vec<&'static str> {
    names().collect()
}

/// Our variables of an environment. Unknown names and values are refused.
#[pyfunction]
pub fn settings_of(environment: HashMap<OsString, OsString>) -> PyResult<HashMap<String, String>> {
    let found = settings::read(environment).map_err(PyValueError::new_err)?;
    Ok(found.into_iter().map(|(name, value)| (name, value.as_str().unwrap_or_default().to_owned())).collect())
}

/// The artifact that the values of `--additional-config` and `--model-loader-extra-config` name, as
/// JSON.
#[pyfunction]
pub fn named_artifact(additional: &str, loader: &str) -> PyResult<Option<String>> {
    let named = || {
        let given = [("additional_config", json(additional)?), ("model_loader_extra_config", json(loader)?)];
        atomc_config::vllm::artifact(&given.map(|(name, value)| (name.to_owned(), value)).into_iter().collect())
    };
    named().map_err(PyValueError::new_err)
}

/// The artifact that the object `atomc` of `--json-model-override-args` names, given as JSON.
#[pyfunction]
pub fn overriding_artifact(ours: &str) -> PyResult<Option<String>> {
    let named = || {
        let overrides = Value::Object(Map::from_iter([("atomc".to_owned(), json(ours)?)]));
        sglang::artifact(&Map::from_iter([("json_model_override_args".to_owned(), overrides)]))
    };
    named().map_err(PyValueError::new_err)
}

/// The options of `atomc compile` that make an artifact for a model and a framework's options, both
/// as JSON; `own` says whether the artifact attends.
#[pyfunction]
pub fn compile_options(framework: &str, config: &str, options: &str, own: bool) -> PyResult<Vec<String>> {
    let config = Config::parse(config, None).map_err(|fault| PyValueError::new_err(fault.to_string()))?;
    let options = object(options).map_err(PyValueError::new_err)?;
    Ok((rules(framework)?.compile_options)(&config, &options, own))
}

/// The option that a framework's own class needs to run models of an architecture, if artifacts,
/// with a tower or without, are a part of it and the options, as JSON, lack it.
#[pyfunction]
pub fn lacks(framework: &str, architecture: &str, tower: bool, options: &str) -> PyResult<Option<&'static str>> {
    let options = object(options).map_err(PyValueError::new_err)?;
    Ok(rules(framework)?.lacks(architecture, tower, &options))
}

/// Why SGLang cannot tell which layers of a `config.json` attend, and what to do.
#[pyfunction]
pub fn interval_fault(config: &str) -> PyResult<Option<String>> {
    let facts = object(config).map_err(PyValueError::new_err)?;
    Ok(sglang::interval(&facts).map(|fault| format!("{fault}. {}", fault.help.as_deref().unwrap_or_default())))
}

/// The rules of a framework, by its name.
pub fn rules(framework: &str) -> PyResult<&'static Rules> {
    let unknown = || PyValueError::new_err(format!("framework: `{framework}` is neither `vLLM` nor `SGLang`"));
    Rules::of(framework).ok_or_else(unknown)
}

pub fn object(text: &str) -> Result<Map<String, Value>, String> {
    match json(text)? {
        Value::Object(map) => Ok(map),
        _ => Ok(Map::new()),
    }
}

fn json(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}
