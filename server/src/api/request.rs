//! The fields that completions and chats share.
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::mpsc::unbounded_channel;

use super::Service;
use super::body::Payload;
use super::defaults::Defaults;
use super::error::ApiError;
use super::events::{Events, Showing, Writer};
use super::{fields, words};
use crate::grammar::{Form, FormError};
use crate::schedule::{Job, Party, Penalties, Salt, Settings};
use crate::text::Stops;
use crate::thoughts::Start;
use atomc_runtime::Sampling;
use atomc_runtime::sight::Images;

/// Most answers to one request, over all its prompts.
const MOST_ANSWERS: usize = 256;
/// Most texts that end an answer.
const MOST_STOPS: usize = 64;
/// Most bytes of all of them.
const MOST_STOP_BYTES: usize = 16 << 10;
/// Bytes that preparing a form may take and leave: 2,000 properties take 17 MB.
const FORM_BYTES: usize = 16 << 20;
/// Most of the likeliest tokens that are told of each.
const MOST_LOGPROBS: usize = 20;
/// Most bytes of a salt.
const MOST_SALT: usize = 256;

/// The fields that both have.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Common {
    pub model: Option<String>,
    pub stream: Option<bool>,
    pub stream_options: Option<StreamOptions>,
    pub n: Option<usize>,
    pub best_of: Option<usize>,
    pub use_beam_search: Option<bool>,
    pub seed: Option<i64>,
    pub temperature: Option<f32>,
    pub top_p: Option<f32>,
    pub top_k: Option<i64>,
    pub min_p: Option<f32>,
    pub presence_penalty: Option<f32>,
    pub frequency_penalty: Option<f32>,
    pub repetition_penalty: Option<f32>,
    pub logit_bias: Option<BTreeMap<String, f32>>,
    pub stop: Option<Several>,
    pub stop_token_ids: Option<Vec<u32>>,
    pub include_stop_str_in_output: Option<bool>,
    pub skip_special_tokens: Option<bool>,
    pub ignore_eos: Option<bool>,
    pub min_tokens: Option<usize>,
    pub max_tokens: Option<usize>,
    pub max_completion_tokens: Option<usize>,
    pub response_format: Option<ResponseFormat>,
    pub structured_outputs: Option<Structured>,
    pub cache_salt: Option<String>,
    /// Fields of the request that nothing is made of.
    #[serde(skip)]
    pub ignored: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub struct StreamOptions {
    pub include_usage: Option<bool>,
}

/// One text, or some.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "must be a text, or a list of texts")]
pub enum Several {
    One(String),
    Many(Vec<String>),
}

#[derive(Debug, Deserialize)]
pub struct ResponseFormat {
    #[serde(rename = "type")]
    kind: String,
    json_schema: Option<JsonSchema>,
}

#[derive(Debug, Deserialize)]
struct JsonSchema {
    schema: Option<Value>,
}

/// Forms as vLLM names them.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Structured {
    json: Option<Value>,
    json_object: Option<bool>,
    regex: Option<String>,
    choice: Option<Vec<String>>,
    grammar: Option<String>,
}

/// Which probabilities a request wants to see.
#[derive(Clone, Copy, Debug, Default)]
pub struct Likely {
    pub answer: Option<usize>,
    pub prompt: Option<usize>,
}

/// The settings of a request in which the kinds differ.
#[derive(Clone, Debug, Default)]
pub struct Kind {
    pub likely: Likely,
    /// Most tokens of an answer, if the request does not say.
    pub most: usize,
    /// The form of answers that call a tool.
    pub calls: Option<Form>,
    /// How answers begin.
    pub start: Start,
    /// The images of the prompt, if it has some.
    pub images: Option<Seen>,
}

/// The images of a prompt, and what tells them from others.
#[derive(Clone, Debug)]
pub struct Seen {
    pub images: Arc<Images>,
    pub hash: String,
}

/// Reads the fields of all requests, and those of this kind.
pub fn read_both<T: DeserializeOwned>(Payload(body): &Payload) -> Result<(Common, T), ApiError> {
    let (mut common, kind): (Common, T) = (read(body)?, read(body)?);
    common.ignored = fields::ignored::<Common, T>(&read::<fields::Given>(body)?)?;
    Ok((common, kind))
}

/// Reads a body. An error has the name of the field.
fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    let mut reader = serde_json::Deserializer::from_slice(body);
    let value = serde_path_to_error::deserialize(&mut reader).map_err(|error| at_fault(&error))?;
    reader.end().map_err(|error| ApiError::bad(format!("the request goes on behind its end: {error}")))?;
    Ok(value)
}

/// The fault of JSON, with the name of the field.
pub fn at_fault(error: &serde_path_to_error::Error<serde_json::Error>) -> ApiError {
    match error.path().to_string().as_str() {
        "." => ApiError::bad(format!("the request: {}", words::plain(&error.inner().to_string(), false))),
        path => ApiError::field(path, words::plain(&error.inner().to_string(), true)),
    }
}

impl Common {
    pub fn is_stream(&self) -> bool {
        self.stream.unwrap_or(false)
    }

    pub fn wants_usage(&self) -> bool {
        self.stream_options.and_then(|options| options.include_usage).unwrap_or(false)
    }

    /// Whether the client may know how much of its prompt was computed before, for others. Clients
    /// with one key, or with none, are one party, and so are those that know a salt.
    pub fn knows_cached(&self, service: &Service) -> bool {
        service.access.keys.len() <= 1 || self.cache_salt.is_some()
    }

    /// Gives the answers to prompts to the scheduler, `n` of each, in this order.
    pub async fn submit(&self, service: &Service, prompts: &[Vec<u32>], kind: &Kind) -> Result<Events, ApiError> {
        let (answers, form) = (self.n.unwrap_or(1), self.form()?);
        if form.is_some() && kind.calls.is_some() {
            return Err(ApiError::field("tool_choice", "a call has no `response_format` beside it"));
        }
        let (form, field) = match &kind.calls {
            Some(calls) => (Some(calls), "tools"),
            None => (form.as_ref(), "response_format"),
        };
        let settings = self.settings(service, kind)?;
        let salt: Salt = match &kind.images {
            // Tokens of all images are alike, so what is in them is a part of the salt.
            Some(seen) => Some(format!("{} {}", seen.hash, self.cache_salt.as_deref().unwrap_or_default()).into()),
            None => self.cache_salt.as_deref().map(Arc::from),
        };
        let images = kind.images.as_ref().map(|seen| seen.images.clone());
        let showing = Showing { special: self.skip_special_tokens == Some(false), stops: self.stops()? };
        let refused = |error: FormError| ApiError::form(field, &error);
        let form = match form {
            Some(form) => {
                service.lanes.owe(FORM_BYTES);
                Some(service.grammars.prepare(form).await.map_err(refused)?)
            }
            None => None,
        };
        let (sender, events) = unbounded_channel();
        let mut jobs = vec![];
        for index in 0..prompts.len() * answers {
            let guide = form.as_ref().map(|form| form.guide(kind.start)).transpose().map_err(refused)?;
            let (text, metrics) = (service.text.clone(), service.metrics.clone());
            let writer = Writer::new(text, metrics, showing.clone(), sender.clone(), index);
            let seed = settings.sampling.seed.wrapping_add((index % answers) as u64);
            let settings = Settings { sampling: Sampling { seed, ..settings.sampling }, ..settings.clone() };
            let (prompt, images) = (prompts[index / answers].clone(), images.clone());
            let party = Party { adapter: service.adapter(self.model.as_deref()), salt: salt.clone() };
            jobs.push(Job { prompt, party, images, settings, guide, output: Box::new(writer) });
        }
        service.handle.submit(jobs)?;
        Ok(events)
    }

    /// Refuses requests by their fields alone, before `prompts` prompts are tokenised.
    pub fn check(&self, service: &Service, prompts: usize) -> Result<(), ApiError> {
        service.check_name(self.model.as_deref())?;
        let answers = self.n.unwrap_or(1);
        if !(1..=service.choices).contains(&answers) {
            return Err(ApiError::field("n", format!("{answers} is not from 1 to {}", service.choices)));
        }
        if prompts.saturating_mul(answers) > MOST_ANSWERS {
            return Err(ApiError::field("n", format!("one request has at most {MOST_ANSWERS} answers")));
        }
        if self.best_of.is_some_and(|best| best != answers) {
            return Err(ApiError::field("best_of", "only as many answers as `n` are made"));
        }
        if self.cache_salt.as_ref().is_some_and(|salt| salt.is_empty() || salt.len() > MOST_SALT) {
            return Err(ApiError::field("cache_salt", format!("a salt has from 1 to {MOST_SALT} bytes")));
        }
        if self.use_beam_search == Some(true) {
            return Err(ApiError::field("use_beam_search", "beams are not offered"));
        }
        Ok(())
    }

    fn settings(&self, service: &Service, kind: &Kind) -> Result<Settings, ApiError> {
        let &Kind { likely, most, .. } = kind;
        let vocab = service.handle.limits().vocab;
        for (field, top) in [("logprobs", likely.answer), ("prompt_logprobs", likely.prompt)] {
            if top.is_some_and(|top| top > MOST_LOGPROBS) {
                return Err(ApiError::field(field, format!("at most {MOST_LOGPROBS} are told")));
            }
        }
        let ends = self.stop_token_ids.clone().unwrap_or_default();
        if let Some(token) = ends.iter().find(|&&token| token as usize >= vocab) {
            return Err(ApiError::field("stop_token_ids", format!("{token} is no token of {vocab}")));
        }
        let own = if self.ignore_eos == Some(true) { &[][..] } else { &service.stop };
        let sampling = self.sampling(&service.defaults);
        sampling.check().map_err(|error| ApiError::field(error.field, error))?;
        Ok(Settings {
            max_new: self.max_completion_tokens.or(self.max_tokens).unwrap_or(most),
            min_new: self.min_tokens.unwrap_or(0),
            sampling,
            penalties: self.penalties(&service.defaults)?,
            bias: self.bias(vocab)?,
            logprobs: likely.answer,
            prompt_logprobs: likely.prompt,
            stop: [own, &ends].concat(),
        })
    }

    pub fn sampling(&self, defaults: &Defaults) -> Sampling {
        use std::hash::{BuildHasher, RandomState};
        let top_k = self.top_k.or(defaults.top_k).unwrap_or(0);
        Sampling {
            temperature: self.temperature.or(defaults.temperature).unwrap_or(1.0),
            top_p: self.top_p.or(defaults.top_p).unwrap_or(1.0),
            min_p: self.min_p.or(defaults.min_p).unwrap_or(0.0),
            // -1 is all, as with vLLM.
            top_k: usize::try_from(top_k).unwrap_or(0),
            seed: self.seed.map_or_else(|| RandomState::new().hash_one(0), |seed| seed as u64),
        }
    }

    pub fn penalties(&self, defaults: &Defaults) -> Result<Penalties, ApiError> {
        let presence = self.presence_penalty.unwrap_or(0.0);
        let frequency = self.frequency_penalty.unwrap_or(0.0);
        for (field, value) in [("presence_penalty", presence), ("frequency_penalty", frequency)] {
            if !(-2.0..=2.0).contains(&value) {
                return Err(ApiError::field(field, format!("{value} is not from -2 to 2")));
            }
        }
        let repetition = self.repetition_penalty.or(defaults.repetition_penalty).unwrap_or(1.0);
        if !(repetition > 0.0 && repetition.is_finite()) {
            return Err(ApiError::field("repetition_penalty", format!("{repetition} is not a number above 0")));
        }
        Ok(Penalties { repetition, presence, frequency })
    }

    fn bias(&self, vocab: usize) -> Result<Vec<(u32, f32)>, ApiError> {
        let entries = self.logit_bias.iter().flatten();
        entries
            .map(|(token, &bias)| {
                let number = token.parse().ok().filter(|&id: &u32| (id as usize) < vocab);
                let number = number.ok_or_else(|| ApiError::field("logit_bias", format!("{token:?} is no token")))?;
                match (-100.0..=100.0).contains(&bias) {
                    true => Ok((number, bias)),
                    false => Err(ApiError::field("logit_bias", format!("{bias} is not from -100 to 100"))),
                }
            })
            .collect()
    }

    fn stops(&self) -> Result<Stops, ApiError> {
        let texts = match &self.stop {
            None => vec![],
            Some(Several::One(text)) => vec![text.clone()],
            Some(Several::Many(texts)) => texts.clone(),
        };
        if texts.len() > MOST_STOPS {
            return Err(ApiError::field("stop", format!("at most {MOST_STOPS} texts end an answer")));
        }
        let bytes: usize = texts.iter().map(String::len).sum();
        if bytes > MOST_STOP_BYTES {
            let message = format!("the texts have {bytes} bytes; all of them may have {MOST_STOP_BYTES}");
            return Err(ApiError::field("stop", message));
        }
        Ok(Stops::new(texts, self.include_stop_str_in_output == Some(true)))
    }

    /// The form of answers, if the request asks for one.
    fn form(&self) -> Result<Option<Form>, ApiError> {
        let structured = self.structured_outputs.as_ref().and_then(Structured::form);
        let Some(ResponseFormat { kind, json_schema }) = &self.response_format else { return Ok(structured) };
        match (kind.as_str(), json_schema) {
            ("text", _) => Ok(structured),
            ("json_object", _) => Ok(Some(Form::Json(json!({ "type": "object" })))),
            ("json_schema", Some(JsonSchema { schema: Some(schema) })) => Ok(Some(Form::Json(schema.clone()))),
            ("json_schema", _) => Err(ApiError::field("response_format.json_schema.schema", "there is none")),
            (kind, _) => {
                let known = "text, json_object or json_schema (others are in `structured_outputs`)";
                Err(ApiError::field("response_format.type", format!("{kind:?} is not {known}")))
            }
        }
    }
}

impl Structured {
    fn form(&self) -> Option<Form> {
        let Structured { json, json_object, regex, choice, grammar } = self;
        let schema = json.clone().or(json_object.filter(|on| *on).map(|_| json!({ "type": "object" })));
        let form = schema.map(Form::Json).or(regex.clone().map(Form::Regex));
        form.or(choice.clone().map(Form::Choice)).or(grammar.clone().map(Form::Lark))
    }
}
