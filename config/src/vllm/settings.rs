//! Users' settings in addition to vLLM's options: environment variables, and the name of an
//! artifact.
use std::ffi::OsStr;
use std::fmt::Write;

use serde_json::{Map, Value, json};

/// A variable of the environment.
pub struct Variable {
    pub name: &'static str,
    /// The allowed values; empty for any text.
    pub values: &'static [&'static str],
}

const fn switch(name: &'static str) -> Variable {
    Variable { name, values: &["0", "1"] }
}

const fn text(name: &'static str) -> Variable {
    Variable { name, values: &[] }
}

/// Every variable that atomc reads when it runs. `ATOMC_API_KEY`, `ATOMC_LOG`, `ATOMC_PTXAS` and
/// `ATOMC_SYSROOT` are the command line's.
pub const VARIABLES: &[Variable] = &[
    switch("ATOMC_STRICT"),
    switch("ATOMC_DISABLE"),
    switch("ATOMC_AUTOCOMPILE"),
    text("ATOMC_COMPILER"),
    text("ATOMC_TARGET"),
    Variable { name: "ATOMC_ATTENTION", values: &["own", "vllm"] },
    switch("ATOMC_UNSUPPORTED_VERSION"),
    text("ATOMC_REQUIRE_SIGNED_BY"),
    text("ATOMC_API_KEY"),
    text("ATOMC_LOG"),
    text("ATOMC_PTXAS"),
    text("ATOMC_SYSROOT"),
];

/// Variables that builds, tests and benchmarks of atomc read. Its developers may have them set
/// permanently.
pub const DEVELOPERS: &[&str] = &[
    "ATOMC_AITER",
    "ATOMC_AMD_TIMES",
    "ATOMC_FUZZ",
    "ATOMC_FUZZ_SEED",
    "ATOMC_LLVM_DIR",
    "ATOMC_PEER_PYTHON",
    "ATOMC_QUANTISED",
    "ATOMC_SOAK_SECONDS",
    "ATOMC_TEST_ARTIFACT",
    "ATOMC_TEST_CASES",
    "ATOMC_TEST_DEVICE",
    "ATOMC_TEST_LONG",
    "ATOMC_TEST_SIBLINGS",
    "ATOMC_TEST_TARGET",
    "ATOMC_TIMING_CACHE",
    "ATOMC_TORCH_PYTHON",
    "ATOMC_TRITON_DIR",
    "ATOMC_TRITON_GEMM",
];

/// The prefix of our names.
const PREFIX: &str = "ATOMC_";

/// Keys of ours in `--additional-config`.
pub const KEYS: &[&str] = &["artifact"];

/// Our variables among those of an environment, by their names; an empty one is as good as none.
/// Unknown names and values are faults. Variables of others may be any bytes.
pub fn read<S: AsRef<OsStr>>(environment: impl IntoIterator<Item = (S, S)>) -> Result<Map<String, Value>, String> {
    let mut found = Map::new();
    for (name, value) in environment {
        let (name, value) = (name.as_ref(), value.as_ref());
        let ours = name.as_encoded_bytes().starts_with(PREFIX.as_bytes());
        if !ours || value.is_empty() || DEVELOPERS.iter().any(|known| name == *known) {
            continue;
        }
        let Some(variable) = VARIABLES.iter().find(|variable| name == variable.name) else {
            return Err(unknown(&name.to_string_lossy(), "variable", VARIABLES.iter().map(|variable| variable.name)));
        };
        let name = variable.name;
        let value = value.to_str().ok_or_else(|| format!("{name}: {value:?} is not UTF-8"))?;
        if !variable.values.is_empty() && !variable.values.contains(&value) {
            return Err(format!("{name}: {value:?} is none of {}", variable.values.join(", ")));
        }
        found.insert(name.to_owned(), json!(value));
    }
    Ok(found)
}

/// Our part of an option that plugins share, such as `--additional-config`: its object `atomc` if
/// it has one, with keys of other plugins around it; else all of it.
pub fn shared(option: &str, config: &Value) -> Result<Map<String, Value>, String> {
    let ours = match config {
        Value::Null => return Ok(Map::new()),
        Value::Object(map) => map.get("atomc").unwrap_or(config),
        _ => config,
    };
    let Value::Object(ours) = ours else { return Err(format!("{option}: must be an object, not {ours}")) };
    if let Some(key) = ours.keys().find(|key| !KEYS.contains(&key.as_str())) {
        let known = unknown(&format!("{option}: {key}"), "key", KEYS.iter().copied());
        return Err(format!("{known}; keys of other plugins may stand beside an object `atomc` with ours"));
    }
    artifact(option, ours)?;
    Ok(ours.clone())
}

/// The artifact in the value of an option, which has to be a path.
pub fn artifact<'a>(option: &str, keys: &'a Map<String, Value>) -> Result<Option<&'a str>, String> {
    match keys.get("artifact") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(path)) if !path.is_empty() => Ok(Some(path)),
        Some(other) => Err(format!("{option}: artifact: must be a path, not {other}")),
    }
}

fn unknown<'a>(name: &str, what: &str, known: impl Iterator<Item = &'a str>) -> String {
    let mut text = format!("{name}: there is no such {what}; known are");
    for (at, name) in known.enumerate() {
        let _ = write!(text, "{} {name}", if at == 0 { "" } else { "," });
    }
    text
}
