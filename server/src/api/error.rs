//! Faults of a request, as OpenAI's clients know them.
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::grammar::FormError;
use crate::schedule::JobError;
use crate::serve::Full;
use crate::text::TextError;
use crate::worker::Refused;

/// An error of the interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    status: StatusCode,
    message: String,
    kind: &'static str,
    /// The field that is wrong.
    param: Option<String>,
    code: Option<&'static str>,
}

impl ApiError {
    /// A request that cannot be answered as it is.
    pub fn bad(message: impl Into<String>) -> ApiError {
        let (status, kind) = (StatusCode::BAD_REQUEST, "invalid_request_error");
        ApiError { status, message: message.into(), kind, param: None, code: None }
    }

    /// A field that is wrong.
    pub fn field(field: impl Into<String>, message: impl std::fmt::Display) -> ApiError {
        let field = field.into();
        ApiError { param: Some(field.clone()), ..ApiError::bad(format!("{field}: {message}")) }
    }

    /// With another status.
    pub fn status(self, status: u16) -> ApiError {
        ApiError { status: StatusCode::from_u16(status).unwrap_or(self.status), ..self }
    }

    /// A model that is not served.
    pub fn no_model(name: &str, names: &[String]) -> ApiError {
        let message = format!("the model `{name}` is not served; there is: {}", names.join(", "));
        ApiError { code: Some("model_not_found"), ..ApiError::field("model", message).status(404) }
    }

    /// A key that is not one of ours.
    pub fn key() -> ApiError {
        let message = "no valid API key: send one as `Authorization: Bearer KEY`";
        ApiError { code: Some("invalid_api_key"), kind: "authentication_error", ..ApiError::bad(message).status(401) }
    }

    /// A client without permission.
    pub fn forbidden(message: impl Into<String>) -> ApiError {
        ApiError { kind: "permission_error", ..ApiError::bad(message).status(403) }
    }

    /// A fault of the server's.
    pub fn fault(message: impl Into<String>) -> ApiError {
        ApiError { kind: "server_error", ..ApiError::bad(message).status(500) }
    }

    /// A server that takes nothing now.
    pub fn unavailable(message: impl Into<String>) -> ApiError {
        ApiError { kind: "server_error", ..ApiError::bad(message).status(503) }
    }

    /// The number of its status.
    pub fn code_of_status(&self) -> u16 {
        self.status.as_u16()
    }

    /// The message of the fault.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// As JSON, also for the middle of a stream.
    pub fn json(&self) -> Value {
        let ApiError { message, kind, param, code, .. } = self;
        json!({ "error": { "message": message, "type": kind, "param": param, "code": code } })
    }
}

impl From<JobError> for ApiError {
    fn from(error: JobError) -> ApiError {
        let message = error.to_string();
        match error {
            JobError::TooLong { .. } => {
                ApiError { code: Some("context_length_exceeded"), ..ApiError::field("prompt", message) }
            }
            JobError::Empty | JobError::Token { .. } | JobError::NoRoom(_) => ApiError::field("prompt", message),
            JobError::Sampling(_) | JobError::Form(_) => ApiError::bad(message),
            JobError::NotFinite | JobError::Fault(_) => ApiError::fault(message),
            JobError::Down(_) | JobError::Ending => ApiError::unavailable(message),
        }
    }
}

impl ApiError {
    /// A form that is not followed, which stands in this field.
    pub fn form(field: &str, error: &FormError) -> ApiError {
        match error {
            FormError::TooMuch { .. } | FormError::Wrong(_) | FormError::Slow(_) => ApiError::field(field, error),
            FormError::Busy => ApiError::unavailable(error.to_string()),
            FormError::Fault(why) => ApiError::fault(why.as_str()),
        }
    }
}

impl From<TextError> for ApiError {
    fn from(error: TextError) -> ApiError {
        match error {
            TextError::TooLong { .. } => {
                ApiError { code: Some("context_length_exceeded"), ..ApiError::field("prompt", error) }
            }
            TextError::Tokenizer(_) => ApiError::field("prompt", error),
            TextError::File { .. } => ApiError::fault(error.to_string()),
        }
    }
}

impl From<Refused> for ApiError {
    fn from(refused: Refused) -> ApiError {
        let message = refused.to_string();
        match refused {
            Refused::Full { .. } => {
                ApiError { kind: "rate_limit_error", code: Some("queue_full"), ..ApiError::bad(message).status(429) }
            }
            Refused::Ending | Refused::Down(_) => ApiError::unavailable(message),
        }
    }
}

/// Connections that are not served.
impl From<Full> for ApiError {
    fn from(full: Full) -> ApiError {
        let code = Some("connections_full");
        match full {
            Full::All(most) => {
                let message = format!("{most} connections are busy, and no more are served; try again later");
                ApiError { code, ..ApiError::unavailable(message) }
            }
            Full::Address(most) => {
                let message = format!("{most} connections of your address are busy, and no more are served");
                ApiError { kind: "rate_limit_error", code, ..ApiError::bad(message).status(429) }
            }
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = super::axum_json(self.status, &self.json());
        if matches!(self.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        if self.status == StatusCode::REQUEST_TIMEOUT || self.code == Some("connections_full") {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        // An interface with another form makes its own of it.
        response.extensions_mut().insert(self);
        response
    }
}
