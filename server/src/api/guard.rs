//! Who may ask.
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, HeaderName};
use axum::http::{HeaderValue, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tower_http::cors::{Any, CorsLayer};

use super::Shared;
use super::error::ApiError;

/// Lets through who has a key, if one is wanted. Browsers ask for permission without one.
pub async fn key(State(service): State<Shared>, request: Request, next: Next) -> Response {
    let given = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let given = given.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default();
    // All of them are looked at, so that time says nothing.
    let is_known = service.keys.iter().fold(false, |known, key| known | is_same(key, given));
    match service.keys.is_empty() || is_known || request.method() == Method::OPTIONS {
        true => next.run(request).await,
        false => ApiError::key().into_response(),
    }
}

/// Whether two keys are the same, in a time that does not depend on where they differ.
fn is_same(key: &str, given: &str) -> bool {
    let (key, given) = (key.as_bytes(), given.as_bytes());
    let differ = |index: usize| key[index] ^ given.get(index).copied().unwrap_or(0);
    (0..key.len()).fold(0, |all, index| all | differ(index)) == 0 && key.len() == given.len()
}

/// What lets pages of other origins ask.
pub fn cors(origins: &[String]) -> Option<CorsLayer> {
    let layer = CorsLayer::new()
        .allow_methods([Method::GET, Method::POST])
        .allow_headers([AUTHORIZATION, HeaderName::from_static("content-type")]);
    match origins {
        [] => None,
        all if all.iter().any(|origin| origin == "*") => Some(layer.allow_origin(Any).allow_headers(Any)),
        some => {
            let some: Vec<HeaderValue> = some.iter().filter_map(|origin| origin.parse().ok()).collect();
            Some(layer.allow_origin(some))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::is_same;

    #[test]
    fn keys_are_compared_whole() {
        assert!(is_same("secret", "secret"));
        for other in ["", "secre", "secrets", "Secret", "secreT"] {
            assert!(!is_same("secret", other), "{other}");
        }
    }
}
