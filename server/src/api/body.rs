//! The body of a request: JSON, whole.
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{FromRequest, Request};
use axum::http::header::CONTENT_TYPE;

use super::error::ApiError;
use crate::serve::Slow;

/// The bytes of a body that says it is JSON.
pub struct Payload(pub Bytes);

impl<S: Send + Sync> FromRequest<S> for Payload {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Payload, ApiError> {
        let kind = request.headers().get(CONTENT_TYPE).map(|kind| kind.to_str().unwrap_or_default().to_owned());
        // Pages of any origin may send text and forms without asking first, and bodies of no kind.
        if !kind.as_deref().is_some_and(is_json) {
            let given = kind.map_or("none".into(), |kind| format!("{kind:?}"));
            let message = format!("the body must be JSON: `Content-Type: application/json`, and there is {given}");
            return Err(ApiError::bad(message).status(415));
        }
        Bytes::from_request(request, state).await.map(Payload).map_err(|fault| unread(&fault))
    }
}

/// Whether a content type is JSON, or a form of it as `application/problem+json` is.
fn is_json(kind: &str) -> bool {
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    kind.strip_prefix("application/").is_some_and(|kind| kind == "json" || kind.ends_with("+json"))
}

fn unread(fault: &BytesRejection) -> ApiError {
    let first: &(dyn std::error::Error + 'static) = fault;
    let mut causes = std::iter::successors(Some(first), |error| error.source());
    match causes.find_map(|error| error.downcast_ref::<Slow>()) {
        Some(slow) => ApiError::bad(format!("the body did not come: {slow}")).status(408),
        None => ApiError::bad(fault.body_text()).status(fault.status().as_u16()),
    }
}

#[cfg(test)]
mod tests {
    use super::is_json;

    #[test]
    fn json_is_known_by_its_type() {
        for kind in ["application/json", "Application/JSON; charset=utf-8", "application/vnd.api+json"] {
            assert!(is_json(kind), "{kind}");
        }
        for kind in ["", "text/plain", "text/json", "application/x-www-form-urlencoded", "application/jsonx"] {
            assert!(!is_json(kind), "{kind}");
        }
    }
}
