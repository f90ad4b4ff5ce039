//! Access of clients to a server.
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, HOST, HeaderName, ORIGIN};
use axum::http::{HeaderMap, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tower_http::cors::{Any, CorsLayer};

use super::error::ApiError;
use super::{HEALTH, Shared};
use crate::serve::Seat;

/// Where Anthropic's clients have their key.
const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// Access rules for clients.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// Keys of clients. If there are any, a client must have one of them.
    pub keys: Vec<String>,
    /// Origins of pages that may ask; `*` for all.
    pub origins: Vec<String>,
    /// Names by which the server may be asked, in addition to those of this machine for itself;
    /// none where any name will do.
    pub hosts: Option<Vec<String>>,
}

/// Refuses requests over a connection that is there for `/health` alone.
pub async fn room(request: Request, next: Next) -> Response {
    let full = request.extensions().get::<Arc<Seat>>().and_then(|seat| seat.full());
    match full {
        Some(full) if request.uri().path() != HEALTH => ApiError::from(full).into_response(),
        _ => next.run(request).await,
    }
}

/// Lets clients with a key through, if one is required. Browsers ask for permission without one.
pub async fn key(State(service): State<Shared>, request: Request, next: Next) -> Response {
    let keys = &service.access.keys;
    let given = given(request.headers());
    // All of them are looked at, so that time says nothing.
    let is_known = keys.iter().fold(false, |known, key| known | is_same(key, given));
    if is_known && let Some(seat) = request.extensions().get::<Arc<Seat>>() {
        seat.know();
    }
    match keys.is_empty() || is_known || request.method() == Method::OPTIONS {
        true => next.run(request).await,
        false => ApiError::key().into_response(),
    }
}

/// The key that a request has: as OpenAI's clients send it, or as Anthropic's do.
fn given(headers: &HeaderMap) -> &str {
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let bearer = text(AUTHORIZATION).and_then(|value| value.split_once(' '));
    let bearer = bearer.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map(|(_, key)| key.trim());
    bearer.or_else(|| text(X_API_KEY)).unwrap_or_default()
}

/// Whether two keys are the same, in a time that does not depend on the place of a difference.
fn is_same(key: &str, given: &str) -> bool {
    let (key, given) = (key.as_bytes(), given.as_bytes());
    let differ = |index: usize| key[index] ^ given.get(index).copied().unwrap_or(0);
    (0..key.len()).fold(0, |all, index| all | differ(index)) == 0 && key.len() == given.len()
}

/// Without keys: refuses requests of pages of other origins, and requests by a host name that
/// somebody else gives this address (DNS rebinding).
pub async fn page(State(service): State<Shared>, request: Request, next: Next) -> Response {
    match service.access.check(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

impl Access {
    fn check(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        if !self.keys.is_empty() {
            return Ok(());
        }
        let text = |name: HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or_default());
        let (host, origin) = (text(HOST), text(ORIGIN));
        if let Some(origin) = origin
            && !self.takes(origin)
            && host.is_none_or(|host| authority(origin) != Some(host))
        {
            let message = format!("pages of {origin:?} may not ask; `--cors` names those that may");
            return Err(ApiError::forbidden(message));
        }
        match (host, &self.hosts) {
            (Some(host), Some(hosts)) if !is_local(host) && !hosts.iter().any(|known| name(host) == known) => {
                let message = format!(
                    "the server is not asked as {:?} here; `--allowed-host` names what it is, or give it a key",
                    name(host)
                );
                Err(ApiError::forbidden(message))
            }
            _ => Ok(()),
        }
    }

    fn takes(&self, origin: &str) -> bool {
        self.origins.iter().any(|known| known == "*" || known.eq_ignore_ascii_case(origin))
    }
}

/// Host and port of an origin.
fn authority(origin: &str) -> Option<&str> {
    origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"))
}

/// A host without its port.
fn name(host: &str) -> &str {
    let end = host.rfind(':').filter(|&end| !host[end..].contains(']')).unwrap_or(host.len());
    host[..end].trim_start_matches('[').trim_end_matches(']')
}

/// Whether a host is this machine, by a name that always means this machine.
fn is_local(host: &str) -> bool {
    let name = name(host);
    let address = name.parse::<IpAddr>();
    name.eq_ignore_ascii_case("localhost")
        || address.is_ok_and(|address| address.is_loopback() || address == Ipv4Addr::UNSPECIFIED)
}

/// Permits requests of pages of other origins.
pub fn cors(origins: &[String]) -> Option<CorsLayer> {
    let layer = CorsLayer::new().allow_methods([Method::GET, Method::POST]).allow_headers([
        AUTHORIZATION,
        X_API_KEY,
        HeaderName::from_static("content-type"),
    ]);
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
    use super::*;

    #[test]
    fn keys_are_compared_whole() {
        assert!(is_same("secret", "secret"));
        for other in ["", "secre", "secrets", "Secret", "secreT"] {
            assert!(!is_same("secret", other), "{other}");
        }
    }

    #[test]
    fn pages_and_names_of_others_are_refused() {
        let open = Access { hosts: Some(vec!["model.lan".into()]), origins: vec!["http://page".into()], keys: vec![] };
        let asked = |access: &Access, host: &str, origin: Option<&str>| {
            let mut headers = HeaderMap::new();
            headers.insert(HOST, host.parse().unwrap());
            origin.into_iter().for_each(|origin| drop(headers.insert(ORIGIN, origin.parse().unwrap())));
            access.check(&headers).is_ok()
        };
        for host in
            ["localhost:8000", "LOCALHOST", "127.0.0.1:8000", "127.1.2.3", "[::1]:8000", "[::1]", "model.lan:80"]
        {
            assert!(asked(&open, host, None), "{host}");
        }
        for host in
            ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8000", "10.0.0.1", "[fe80::1]", ""]
        {
            assert!(!asked(&open, host, None), "{host}");
        }
        for (origin, is_taken) in [
            ("http://localhost:8000", true),
            ("http://page", true),
            ("http://localhost:3000", false),
            ("http://evil.example", false),
            ("null", false),
        ] {
            assert_eq!(asked(&open, "localhost:8000", Some(origin)), is_taken, "{origin}");
        }
        let anywhere = Access { hosts: None, ..open.clone() };
        assert!(asked(&anywhere, "model.example", None) && !asked(&anywhere, "model.example", Some("http://other")));
        let keyed = Access { keys: vec!["key".into()], ..open };
        assert!(asked(&keyed, "model.example", Some("http://other")));
    }
}
