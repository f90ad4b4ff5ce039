//! The interfaces over HTTP: OpenAI's, and the parts of Anthropic's and vLLM's that clients ask
//! for.
mod answer;
mod body;
mod chat;
mod completions;
mod defaults;
mod error;
mod events;
mod fields;
mod guard;
mod lanes;
mod messages;
mod metrics;
mod page;
mod request;
mod responses;
mod talk;
mod tokens;
mod words;

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

pub use axum::Router;
use axum::extract::rejection::PathRejection;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::{Value, json};

use crate::eyes::Eyes;
use crate::grammar::Grammars;
use crate::template::Templates;
use crate::text::Text;
use crate::worker::Handle;
use body::Payload;
pub use defaults::Defaults;
use error::ApiError;
pub use guard::Access;
pub use lanes::Lanes;
pub use metrics::Metrics;

/// The model that is served, and the settings.
pub struct Service {
    /// Where requests go.
    pub handle: Handle,
    /// The tokenizer.
    pub text: Arc<Text>,
    /// Chat templates, or why there are none.
    pub templates: Result<Templates, String>,
    /// What sees images, if the artifact has a tower.
    pub eyes: Option<Eyes>,
    /// Whether thoughts are told apart from text.
    pub thoughts: bool,
    /// Makers of forms of answers.
    pub grammars: Grammars,
    /// Names of the model; answers have the first one.
    pub names: Vec<String>,
    /// Names of adapters, by their slots: a request for one gets the model with it.
    pub adapters: Vec<String>,
    /// Tokens that end an answer.
    pub stop: Vec<u32>,
    /// Values of fields that a request does not have.
    pub defaults: Defaults,
    /// Access rules for clients.
    pub access: Access,
    /// Whether there is a page to chat on.
    pub page: bool,
    /// Most bytes of a request.
    pub body_bytes: usize,
    /// Most answers to one request.
    pub choices: usize,
    /// Which requests are read at once.
    pub lanes: Arc<Lanes>,
    /// Counters of requests.
    pub metrics: Arc<Metrics>,
    /// When it began.
    pub started: SystemTime,
}

type Shared = Arc<Service>;

/// Answered on every connection.
const HEALTH: &str = "/health";

/// The routes.
pub fn router(service: Service) -> Router {
    let (body_bytes, cors) = (service.body_bytes, guard::cors(&service.access.origins));
    let page = if service.page { Router::new().route(page::PATH, get(page::page)) } else { Router::new() };
    let service: Shared = Arc::new(service);
    let guarded = Router::new()
        .route("/v1/models", get(models))
        .route("/v1/models/{*name}", get(model))
        .route("/v1/completions", post(completions::complete))
        .route("/v1/chat/completions", post(chat::complete))
        .route("/v1/responses", post(responses::respond))
        .route(messages::PATH, post(messages::answer))
        .route("/v1/messages/count_tokens", post(messages::count))
        .route("/v1/embeddings", post(embeddings))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route("/version", get(tokens::version))
        .layer(axum::middleware::from_fn_with_state(service.clone(), guard::key));
    let router = guarded
        .merge(page)
        .route(HEALTH, get(health))
        .route("/metrics", get(metrics::render))
        .fallback(nothing)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(body_bytes))
        .layer(axum::middleware::from_fn_with_state(service.clone(), guard::page))
        .layer(axum::middleware::from_fn(guard::room))
        .layer(axum::middleware::from_fn(messages::errors))
        .with_state(service);
    match cors {
        Some(cors) => router.layer(cors),
        None => router,
    }
}

/// Seconds since 1970.
fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// A name for an answer that no other of this server has.
fn name_of_answer(kind: &str) -> String {
    use std::hash::{BuildHasher, RandomState};
    // Each state has keys of its own.
    format!("{kind}-{:016x}", RandomState::new().hash_one(Instant::now()))
}

async fn models(State(service): State<Shared>) -> Response {
    let data: Vec<Value> = service.known().map(|name| described(&service, name)).collect();
    axum_json(StatusCode::OK, &json!({ "object": "list", "data": data }))
}

async fn model(State(service): State<Shared>, path: Result<Path<String>, PathRejection>) -> Result<Response, ApiError> {
    let Path(name) = path.map_err(|fault| ApiError::field("model", fault.body_text()).status(404))?;
    service.check_name(Some(&name))?;
    Ok(axum_json(StatusCode::OK, &described(&service, &name)))
}

fn described(service: &Service, name: &str) -> Value {
    let mut told = json!({
        "id": name,
        "object": "model",
        "created": seconds(service.started),
        "owned_by": "atomc",
        "root": service.names[0],
        "max_model_len": service.handle.limits().positions,
    });
    if service.adapter(Some(name)).is_some() {
        told["parent"] = json!(service.names[0]);
    }
    told
}

impl Service {
    /// Checks that a request is for this model.
    fn check_name(&self, name: Option<&str>) -> Result<(), ApiError> {
        match name {
            Some(name) if !self.known().any(|known| known == name) => {
                let known: Vec<String> = self.known().map(str::to_owned).collect();
                Err(ApiError::no_model(name, &known))
            }
            _ => Ok(()),
        }
    }

    /// All names that requests may have.
    fn known(&self) -> impl Iterator<Item = &str> {
        self.names.iter().chain(&self.adapters).map(String::as_str)
    }

    /// The slot of the adapter that a request names.
    fn adapter(&self, name: Option<&str>) -> Option<usize> {
        self.adapters.iter().position(|known| Some(known.as_str()) == name)
    }

    /// What answers to a request call the model.
    fn answers_as(&self, name: Option<&str>) -> &str {
        self.adapter(name).map_or(&self.names[0], |slot| &self.adapters[slot])
    }
}

async fn embeddings() -> ApiError {
    ApiError::bad("/v1/embeddings: this server makes text; embeddings of a model are not offered").status(404)
}

async fn nothing(request: axum::extract::Request) -> ApiError {
    ApiError::bad(format!("there is no {} {}", request.method(), request.uri().path())).status(404)
}

async fn wrong_method(request: axum::extract::Request) -> ApiError {
    ApiError::bad(format!("{} does not take {}", request.uri().path(), request.method())).status(405)
}

async fn health(State(service): State<Shared>) -> Response {
    let said = service.handle.said();
    match (said.down, service.handle.is_ending()) {
        (Some(why), _) => ApiError::unavailable(why).into_response(),
        (None, true) => ApiError::unavailable("the server is ending").into_response(),
        (None, false) => axum_json(StatusCode::OK, &json!({ "status": "ok" })),
    }
}

/// Reads a request so that it delays no other connection. Large ones and those with a slow template
/// are read one at a time.
async fn read_apart<T: Send + 'static>(
    service: Shared,
    body: Payload,
    is_talk: bool,
    read: impl FnOnce(Shared, &Payload) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let is_slow = is_talk && service.templates.as_ref().is_ok_and(Templates::is_slow);
    let lanes = service.lanes.clone();
    let _lane = lanes.enter(body.0.len(), is_slow).await?;
    apart(move || read(service, &body)).await
}

/// Does work that takes time (tokenising, templates) so that it delays no other connection. Its
/// panic fails one request.
async fn apart<T: Send + 'static>(work: impl FnOnce() -> Result<T, ApiError> + Send + 'static) -> Result<T, ApiError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(ApiError::fault(format!("the request could not be read: {error}"))),
    }
}

fn axum_json(status: StatusCode, value: &Value) -> Response {
    let kind = [(axum::http::header::CONTENT_TYPE, "application/json")];
    (status, kind, value.to_string()).into_response()
}

#[cfg(test)]
mod tests;
