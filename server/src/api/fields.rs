//! Fields of requests: which there are, which are refused, and which are ignored, as an answer
//! says.
use std::collections::BTreeMap;
use std::fmt;

use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;
use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::error::ApiError;

/// Names the fields of a request that nothing was made of.
pub const IGNORED: HeaderName = HeaderName::from_static("x-atomc-ignored");
/// Most names that it has, and most characters of each.
const MOST_NAMES: usize = 32;
const MOST_CHARACTERS: usize = 64;

/// Fields of other servers that would change an answer, with a text for each. They are refused
/// unless they ask for nothing.
const REFUSED: [(&str, &str); 26] = [
    ("allowed_token_ids", "not offered; `logit_bias` is"),
    ("audio", "only text is offered"),
    ("background", "answers are not kept; ask for a stream"),
    ("bad_words", "not offered; `logit_bias` is"),
    ("container", "not offered"),
    ("continue_final_message", "an answer is not continued"),
    ("conversation", "answers are not kept: send the whole conversation"),
    ("documents", "not offered; say it in a message"),
    ("ebnf", "`structured_outputs.grammar` is offered"),
    ("function_call", "is the old name of `tool_choice`, which is offered"),
    ("guided_choice", "is the old name of `structured_outputs.choice`"),
    ("guided_grammar", "is the old name of `structured_outputs.grammar`"),
    ("guided_json", "is the old name of `structured_outputs.json`"),
    ("guided_regex", "is the old name of `structured_outputs.regex`"),
    ("json_schema", "`response_format` is offered"),
    ("logits_processors", "not offered"),
    ("lora_path", "not offered"),
    ("mcp_servers", "not offered"),
    ("previous_response_id", "answers are not kept: send the whole conversation"),
    ("prompt_embeds", "not offered"),
    ("prompt_logprobs", "`echo` with `logprobs` is offered, of completions"),
    ("regex", "`structured_outputs.regex` is offered"),
    ("return_tokens_as_token_ids", "not offered"),
    ("thinking_token_budget", "not offered"),
    ("truncate_prompt_tokens", "not offered"),
    ("web_search_options", "not offered"),
];

/// The names of a structure's fields, as its `Deserialize` knows them.
fn names<T: DeserializeOwned>() -> &'static [&'static str] {
    let mut found: &'static [&'static str] = &[];
    // It finds the names, and nothing to read.
    _ = T::deserialize(Names { found: &mut found });
    found
}

struct Names<'a> {
    found: &'a mut &'static [&'static str],
}

impl<'de> Deserializer<'de> for Names<'_> {
    type Error = serde::de::value::Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
        Err(Error::custom("names alone are wanted"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        *self.found = fields;
        self.deserialize_any(visitor)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// The fields of a request that neither of two structures has. Those that would change the answer
/// are refused.
pub fn ignored<A: DeserializeOwned, B: DeserializeOwned>(given: &Given) -> Result<Vec<String>, ApiError> {
    let known = [names::<A>(), names::<B>()];
    let is_known = |name: &str| known.iter().any(|names| names.contains(&name));
    let unknown = given.iter().filter(|(name, value)| !is_known(name) && value.0);
    unknown
        .map(|(name, _)| match REFUSED.iter().find(|(refused, _)| refused == name) {
            Some((_, why)) => Err(ApiError::field(name.as_str(), why)),
            None => Ok(name.clone()),
        })
        .collect()
}

/// The fields of a request, and whether each asks for anything.
pub type Given = BTreeMap<String, Asks>;

/// Whether a value asks for anything: it is not null, false or empty. The value is not kept.
#[derive(Clone, Copy, Debug)]
pub struct Asks(bool);

impl<'de> Deserialize<'de> for Asks {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Asks, D::Error> {
        deserializer.deserialize_any(Any)
    }
}

struct Any;

impl<'de> Visitor<'de> for Any {
    type Value = Asks;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Asks, E> {
        Ok(Asks(false))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Asks, E> {
        Ok(Asks(value))
    }

    fn visit_i64<E>(self, _: i64) -> Result<Asks, E> {
        Ok(Asks(true))
    }

    fn visit_u64<E>(self, _: u64) -> Result<Asks, E> {
        Ok(Asks(true))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Asks, E> {
        Ok(Asks(true))
    }

    fn visit_str<E>(self, text: &str) -> Result<Asks, E> {
        Ok(Asks(!text.is_empty()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Asks, A::Error> {
        let mut asks = false;
        while list.next_element::<IgnoredAny>()?.is_some() {
            asks = true;
        }
        Ok(Asks(asks))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Asks, A::Error> {
        let mut asks = false;
        while object.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
            asks = true;
        }
        Ok(Asks(asks))
    }
}

/// An answer that says which fields were ignored.
pub fn named(mut response: Response, ignored: &[String]) -> Response {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "_-.".contains(c) { c } else { '?' };
    let names = ignored.iter().take(MOST_NAMES).map(|name| name.chars().take(MOST_CHARACTERS).map(plain));
    let names: Vec<String> = names.map(Iterator::collect).collect();
    if let Ok(value) = HeaderValue::from_str(&names.join(","))
        && !names.is_empty()
    {
        response.headers_mut().insert(IGNORED, value);
    }
    response
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[derive(Deserialize)]
    #[allow(dead_code, reason = "only the names are asked for")]
    struct Some {
        a: u32,
        #[serde(rename = "type")]
        kind: String,
    }

    #[test]
    fn what_is_not_known_is_named_or_refused() {
        assert_eq!(names::<Some>(), ["a", "type"]);
        let of = |value: Value| ignored::<Some, Some>(&serde_json::from_value(value).unwrap());
        let given = json!({ "a": 1, "type": "x", "logit_biass": {"1": 2}, "user": "me", "documents": [] });
        assert_eq!(of(given).unwrap(), ["logit_biass", "user"]);
        assert!(of(json!({ "guided_json": {"a": 1} })).unwrap_err().message().contains("structured_outputs.json"));
        assert!(REFUSED.is_sorted());
        let response = named(Response::default(), &["a".into(), "é\r\nx: y".into()]);
        assert_eq!(response.headers()[IGNORED], "a,???x??y");
        assert!(!named(Response::default(), &[]).headers().contains_key(IGNORED));
    }
}
