//! `/tokenize` and `/detokenize`, as vLLM has them.
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;
use serde_json::json;

use super::body::Payload;
use super::chat::Chat;
use super::error::ApiError;
use super::fields::named;
use super::request::{Common, read_both};
use super::{Service, Shared, axum_json, read_apart};

/// The fields of a request to tokenise that a conversation does not have.
#[derive(Deserialize)]
struct Text {
    prompt: Option<String>,
    messages: Option<serde::de::IgnoredAny>,
    add_special_tokens: Option<bool>,
    return_token_strs: Option<bool>,
}

#[derive(Deserialize)]
struct Tokens {
    tokens: Option<Vec<u32>>,
}

pub async fn tokenize(State(service): State<Shared>, body: Payload) -> Result<Response, ApiError> {
    read_apart(service, body, true, |service, body| {
        let (common, text): (Common, Text) = read_both(body)?;
        service.check_name(common.model.as_deref())?;
        let positions = service.handle.limits().positions;
        let (prompt, special, ignored) = match (text.prompt, text.messages) {
            (Some(prompt), None) => (prompt, text.add_special_tokens.unwrap_or(true), common.ignored),
            (None, Some(_)) => {
                let (mut common, chat): (Common, Chat) = read_both(body)?;
                common.ignored.retain(|name| !["add_special_tokens", "return_token_strs"].contains(&name.as_str()));
                // Templates write the special tokens themselves.
                (chat.talk()?.prompt(&service)?, text.add_special_tokens.unwrap_or(false), common.ignored)
            }
            (Some(_), Some(_)) => return Err(ApiError::field("prompt", "there is a conversation beside it")),
            (None, None) => return Err(ApiError::field("prompt", "there is none, and no `messages`")),
        };
        let tokens = service.text.encode(&prompt, special, positions)?;
        let shown = || tokens.iter().map(|&token| service.text.show(token).text).collect::<Vec<_>>();
        let shown = text.return_token_strs.unwrap_or(false).then(shown);
        let found = json!({ "count": tokens.len(), "max_model_len": positions, "tokens": tokens, "token_strs": shown });
        Ok(named(axum_json(StatusCode::OK, &found), &ignored))
    })
    .await
}

pub async fn detokenize(State(service): State<Shared>, body: Payload) -> Result<Response, ApiError> {
    read_apart(service, body, false, |service, body| {
        let (common, asked): (Common, Tokens) = read_both(body)?;
        service.check_name(common.model.as_deref())?;
        let tokens = asked.tokens.ok_or_else(|| ApiError::field("tokens", "there are none"))?;
        check(&service, &tokens)?;
        let found = json!({ "prompt": service.text.decode(&tokens, true)? });
        Ok(named(axum_json(StatusCode::OK, &found), &common.ignored))
    })
    .await
}

/// Checks that tokens are in the vocabulary, and no more than a sequence may have.
fn check(service: &Service, tokens: &[u32]) -> Result<(), ApiError> {
    let limits = service.handle.limits();
    if tokens.len() > limits.positions {
        return Err(ApiError::field("tokens", format!("at most {} are made text", limits.positions)));
    }
    match tokens.iter().find(|&&token| token as usize >= limits.vocab) {
        Some(token) => Err(ApiError::field("tokens", format!("{token} is no token of {}", limits.vocab))),
        None => Ok(()),
    }
}

pub async fn version() -> Response {
    axum_json(StatusCode::OK, &json!({ "version": env!("CARGO_PKG_VERSION") }))
}
