//! A page to chat on, for people. It is one file within the program, and asks this server alone.
use std::sync::LazyLock;

use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::response::{IntoResponse, Response};
use base64ct::{Base64, Encoding};
use sha2::{Digest, Sha256};

/// Where it is.
pub const PATH: &str = "/";

const PAGE: &str = include_str!("page.html");

/// The page, with headers by which nothing but its own script and style has effect, it asks no
/// other server, and no other page may hold it.
pub async fn page() -> Response {
    let headers = [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CACHE_CONTROL, "no-store"),
        (REFERRER_POLICY, "no-referrer"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    (headers, [(CONTENT_SECURITY_POLICY, POLICY.as_str())], PAGE).into_response()
}

static POLICY: LazyLock<String> = LazyLock::new(|| {
    let (script, style) = (hash_of("script"), hash_of("style"));
    format!(
        "default-src 'none'; script-src '{script}'; style-src '{style}'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
});

/// The hash of what stands in an element, as a policy names it.
fn hash_of(element: &str) -> String {
    let inside =
        PAGE.split_once(&format!("<{element}>")).and_then(|(_, rest)| rest.split_once(&format!("</{element}>")));
    let (inside, _) = inside.expect("the page has one");
    format!("sha256-{}", Base64::encode_string(&Sha256::digest(inside)))
}
