//! What `adapter_config.json` says.
use std::fmt;
use std::path::Path;

use atomc_artifact::files;
use regex_lite::Regex;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, de};
use serde_json::{Map, Value};

use super::AdapterError;

const FILE: &str = "adapter_config.json";
/// The parameters of modules that hold experts, in the order in which classes have them: peft wraps
/// the first one first, so the last one is outermost.
const PARAMETERS: [&str; 2] = ["gate_up_proj", "down_proj"];

/// What classes call a module that holds experts.
const EXPERTS: &str = ".experts";

/// Fields that say how an adapter was trained, or what its tensors say too.
const WITHOUT_MEANING: [&str; 21] = [
    "auto_mapping",
    "base_model_name_or_path",
    "ensure_weight_tying",
    "eva_config",
    "exclude_modules",
    "inference_mode",
    "layers_pattern",
    "layers_to_transform",
    "loftq_config",
    "lora_dropout",
    "lora_ga_config",
    "megatron_core",
    "modules_to_save",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
    "target_modules",
    "task_type",
    "corda_config",
    "use_dora",
];

/// The fields that decide what tensors mean.
#[derive(Deserialize)]
struct Fields {
    peft_type: String,
    #[serde(default = "eight")]
    r: usize,
    #[serde(default = "eight_float")]
    lora_alpha: f64,
    #[serde(default)]
    use_rslora: bool,
    #[serde(default)]
    rank_pattern: Option<Patterns>,
    #[serde(default)]
    alpha_pattern: Option<Patterns>,
    #[serde(default)]
    target_parameters: Option<Vec<String>>,
    #[serde(default)]
    init_lora_weights: Value,
    #[serde(flatten)]
    others: Map<String, Value>,
}

fn eight() -> usize {
    8
}

fn eight_float() -> f64 {
    8.0
}

/// Numbers by the ends of modules' names, of which the first that matches counts.
struct Patterns(Vec<(Regex, f64)>);

impl<'de> Deserialize<'de> for Patterns {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Patterns, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Patterns;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("numbers by patterns")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Patterns, A::Error> {
                let mut all = Vec::new();
                while let Some((key, number)) = map.next_entry::<String, f64>()? {
                    let pattern = Regex::new(&format!(r"^(.*\.)?({key})$")).map_err(de::Error::custom)?;
                    all.push((pattern, number));
                }
                Ok(Patterns(all))
            }
        }
        from.deserialize_map(InOrder)
    }
}

impl Patterns {
    fn of(this: &Option<Patterns>, module: &str) -> Option<f64> {
        let found = this.as_ref()?.0.iter().find(|(pattern, _)| pattern.is_match(module));
        found.map(|(_, number)| *number)
    }
}

pub struct Told {
    fields: Fields,
}

impl Told {
    pub fn read(folder: &Path) -> Result<Told, AdapterError> {
        let path = folder.join(FILE);
        let text = files::read_to_string(&path).map_err(|source| AdapterError::Io { path: path.clone(), source })?;
        let fault = |error: serde_json::Error| AdapterError::Config { path: path.clone(), detail: error.to_string() };
        let told = Told { fields: serde_json::from_str(&text).map_err(fault)? };
        told.check(&path)?;
        Ok(told)
    }

    /// Refuses whatever has a meaning that is not known here.
    fn check(&self, path: &Path) -> Result<(), AdapterError> {
        let refused = |field: &str, found: String, why: &'static str| {
            Err(AdapterError::Refused { path: path.to_owned(), field: field.to_owned(), found, why })
        };
        if self.fields.peft_type != "LORA" {
            return refused("peft_type", format!("\"{}\"", self.fields.peft_type), "adapters are of LoRA");
        }
        if let Value::String(init) = &self.fields.init_lora_weights {
            let init = init.to_lowercase();
            let changed = ["pissa", "corda", "olora", "loftq", "lora_ga"].iter().any(|name| init.starts_with(name));
            if changed {
                let why = "the weights of its base model were changed with it; \
                     peft saves it as plain LoRA with `path_initial_model_for_weight_conversion`";
                return refused("init_lora_weights", format!("\"{init}\""), why);
            }
        }
        for (field, value) in &self.fields.others {
            let is_nothing = match value {
                Value::Null | Value::Bool(false) => true,
                Value::Object(fields) => fields.is_empty(),
                Value::Array(all) => all.is_empty(),
                Value::String(text) => field == "bias" && text == "none",
                _ => false,
            };
            if !is_nothing && !WITHOUT_MEANING.contains(&field.as_str()) {
                return refused(field, value.to_string(), "that is not plain LoRA");
            }
        }
        Ok(())
    }

    /// The parameter of a module of experts that a wrapper of this depth is of, if the
    /// configuration names parameters of it.
    pub fn parameter(&self, module: &str, depth: usize) -> Option<&'static str> {
        if !module.ends_with(EXPERTS) {
            return None;
        }
        let named = self.fields.target_parameters.as_deref().unwrap_or_default();
        let is_named = |parameter: &&&str| {
            let whole = format!("{module}.{parameter}");
            named.iter().any(|name| whole == *name || whole.ends_with(&format!(".{name}")))
        };
        PARAMETERS.iter().filter(is_named).rev().nth(depth).copied()
    }

    pub fn rank(&self, module: &str) -> usize {
        Patterns::of(&self.fields.rank_pattern, module).map_or(self.fields.r, |rank| rank as usize)
    }

    /// What the product of a module's matrices is multiplied with.
    pub fn scaling(&self, module: &str, rank: usize) -> f32 {
        let alpha = Patterns::of(&self.fields.alpha_pattern, module).unwrap_or(self.fields.lora_alpha);
        let rank = rank as f64;
        (alpha / if self.fields.use_rslora { rank.sqrt() } else { rank }) as f32
    }
}
