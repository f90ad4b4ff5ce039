//! Values of fields that a request does not have.
use serde::Deserialize;

use super::request::{Common, at_fault};

/// Values of fields that a request does not have: those of `generation_config.json`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Defaults {
    /// How freely to choose.
    pub temperature: Option<f32>,
    /// The share of the likeliest tokens.
    pub top_p: Option<f32>,
    /// The number of likeliest tokens.
    pub top_k: Option<i64>,
    /// Least likelihood, relative to the likeliest token.
    pub min_p: Option<f32>,
    /// Makes tokens that occurred before less likely.
    pub repetition_penalty: Option<f32>,
}

impl Defaults {
    /// Reads the defaults of a file. A value that no request may have is a fault of the file, with
    /// the name of the field.
    pub fn parse(text: &str) -> Result<Defaults, String> {
        let mut reader = serde_json::Deserializer::from_str(text);
        let defaults: Defaults =
            serde_path_to_error::deserialize(&mut reader).map_err(|error| at_fault(&error).message().to_owned())?;
        let silent = Common::default();
        silent.sampling(&defaults).check().map_err(|error| format!("{}: {error}", error.field))?;
        silent.penalties(&defaults).map_err(|error| error.message().to_owned())?;
        Ok(defaults)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_a_file_is_named() {
        let good = Defaults::parse(r#"{"temperature": 0.6, "top_k": 20, "eos_token_id": [1, 2]}"#).unwrap();
        assert_eq!((good.temperature, good.top_k, good.top_p), (Some(0.6), Some(20), None));
        for (text, field) in [
            (r#"{"temperature": -1}"#, "temperature"),
            (r#"{"temperature": "hot"}"#, "temperature"),
            (r#"{"top_p": 0}"#, "top_p"),
            (r#"{"min_p": 2}"#, "min_p"),
            (r#"{"repetition_penalty": 0}"#, "repetition_penalty"),
            ("[", "EOF"),
        ] {
            let error = Defaults::parse(text).unwrap_err();
            assert!(error.contains(field), "{text}: {error}");
        }
    }
}
