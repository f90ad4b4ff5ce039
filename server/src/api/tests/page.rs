//! The page to chat on: what a server says of it. `server/tests/page.py` uses it in a browser.
use axum::http::HeaderMap;

use super::*;

async fn page(router: &Router, method: &str) -> (u16, HeaderMap, String) {
    let request = Request::builder().method(method).uri("/").body(Body::empty()).unwrap();
    let response = router.clone().oneshot(request).await.unwrap();
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    (status, headers, String::from_utf8(bytes(response).await).unwrap())
}

#[test]
fn a_page_asks_this_server_alone() {
    run(async {
        // Without a key, as it asks for it.
        let router = service(toy(), |service| service.access.keys = vec!["secret".into()], 64);
        let (status, headers, body) = page(&router, "GET").await;
        assert_eq!(status, 200);
        let header = |name: &str| headers[name].to_str().unwrap().to_owned();
        let kind = ["content-type", "cache-control", "referrer-policy", "x-content-type-options"].map(header);
        assert_eq!(kind, ["text/html; charset=utf-8", "no-store", "no-referrer", "nosniff"]);
        let policy = header("content-security-policy");
        let rules: Vec<&str> = policy.split("; ").filter(|rule| !rule.contains("sha256-")).collect();
        let wanted = ["default-src 'none'", "connect-src 'self'", "img-src data:", "base-uri 'none'"];
        assert_eq!(rules, [&wanted[..], &["form-action 'none'", "frame-ancestors 'none'"]].concat());
        assert!(!policy.contains("unsafe"), "{policy}");
        assert!(body.len() < 25_000, "{}", body.len());
        // Addresses, ways to make HTML or code of texts, and what a policy refuses.
        for word in [
            "http:",
            "https:",
            "innerHTML",
            "outerHTML",
            "insertAdjacent",
            "document.write",
            "eval(",
            " style=",
            " onclick=\"",
        ] {
            assert!(!body.contains(word), "{word}");
        }
        for once in ["<script>", "</script>", "<style>", "</style>"] {
            assert_eq!(body.matches(once).count(), 1, "{once}");
        }

        let (status, head, none) = page(&router, "HEAD").await;
        assert_eq!((status, none.as_str()), (200, ""));
        assert_eq!(head["content-length"], body.len().to_string().as_str());
        assert_eq!(head["content-security-policy"], policy.as_str());
        assert_eq!(page(&router, "POST").await.0, 405);
    });
}

#[test]
fn a_server_without_a_page_has_none() {
    run(async {
        let router = service(toy(), |service| service.page = false, 64);
        for method in ["GET", "HEAD"] {
            assert_eq!(page(&router, method).await.0, 404);
        }
    });
}

#[test]
fn a_page_is_for_the_servers_own_name() {
    run(async {
        let access = Access { hosts: Some(vec![]), ..Access::default() };
        let router = service(toy(), |service| service.access = access, 64);
        let asked = |host: &str| Request::builder().uri("/").header(header::HOST, host).body(Body::empty()).unwrap();
        assert_eq!(answer(&router, asked("localhost:8000")).await.0, 200);
        assert_eq!(answer(&router, asked("evil.example")).await.0, 403);
    });
}
