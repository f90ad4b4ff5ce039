//! Whether a configuration means the model that an artifact was made of.
use std::fmt;

use serde_json::Value;

use crate::Config;

/// What facts are called in a `config.json`, in the order in which differences are named: what explains others goes first.
/// A fact that is not listed is compared like all others, and goes by its own name.
const NAMES: [(&str, &str); 17] = [
    ("architecture", "architectures"),
    ("layers", "num_hidden_layers"),
    ("vocab", "vocab_size"),
    ("hidden", "hidden_size"),
    ("intermediate", "intermediate_size"),
    ("heads", "num_attention_heads"),
    ("kv_heads", "num_key_value_heads"),
    ("head_dim", "head_dim"),
    ("eps", "rms_norm_eps"),
    ("activation", "hidden_act"),
    ("tied", "tie_word_embeddings"),
    ("qkv_bias", "attention_bias"),
    ("o_bias", "attention_bias"),
    ("mlp_bias", "mlp_bias"),
    ("windows", "sliding_window"),
    ("rope", "rope_parameters"),
    ("positions", "max_position_embeddings"),
];

/// What parts of facts are called that no `config.json` has in this form.
const PARTS: [(&str, &str); 1] = [("rope_parameters.rotary_dim", "partial_rotary_factor: elements that rotate")];

/// Facts that are not compared, and why.
pub const ELSEWHERE: [(&str, &str); 5] = [
    ("dtype", "a framework has an option for it"),
    ("cache_dtype", "a framework has an option for it"),
    ("context", "the longest sequence has a rule of its own"),
    ("stop", "a framework ends answers itself"),
    ("bos", "a framework begins prompts itself"),
];

/// A fact in which two models differ.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// Its name in a `config.json`.
    pub field: String,
    /// `null` where there is none.
    pub asked: Value,
    pub held: Value,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Difference { field, asked, held } = self;
        write!(f, "config.json: {field}: vLLM has {}, the artifact {}", plain(asked), plain(held))
    }
}

/// A value as it stands in a message: `none` for nothing.
pub fn plain(value: &Value) -> String {
    match value {
        Value::Null => "none".into(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// What differs between a configuration and the facts of a model that an artifact has echoed ([`Config::echo`]), by what fields
/// mean: every fact of the one or the other, of those in the same list or object the first.
pub fn differences(asked: &Config, held: &Value) -> Vec<Difference> {
    let asked = asked.echo();
    let mut facts: Vec<&str> = NAMES.map(|(fact, _)| fact).to_vec();
    let others = [&asked, held].into_iter().filter_map(Value::as_object).flat_map(|facts| facts.keys());
    for fact in others {
        if !facts.contains(&fact.as_str()) && !ELSEWHERE.iter().any(|(name, _)| name == fact) {
            facts.push(fact);
        }
    }
    let mut found: Vec<Difference> = vec![];
    for fact in facts {
        let name = NAMES.iter().find(|(name, _)| *name == fact).map_or(fact, |(_, field)| field);
        if let Some(difference) = first(name, &asked[fact], &held[fact])
            && !found.iter().any(|other| other.field == difference.field)
        {
            found.push(difference);
        }
    }
    found
}

/// The first difference of two values, in what both are made of.
fn first(field: &str, asked: &Value, held: &Value) -> Option<Difference> {
    match (asked, held) {
        // The type of an embedding says which other fields it has.
        (Value::Object(a), Value::Object(h)) => {
            let mut names: Vec<&String> = a.keys().chain(h.keys()).collect();
            names.sort_by_key(|name| (!name.ends_with("_type"), *name));
            names.into_iter().find_map(|name| first(&format!("{field}.{name}"), &asked[name], &held[name]))
        }
        (Value::Array(a), Value::Array(h)) if a.len() == h.len() => {
            a.iter().zip(h).find_map(|(a, h)| first(field, a, h))
        }
        _ => (asked != held).then(|| {
            let field = PARTS.iter().find(|(part, _)| *part == field).map_or(field, |(_, name)| name).to_owned();
            Difference { field, asked: asked.clone(), held: held.clone() }
        }),
    }
}
