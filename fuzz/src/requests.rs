//! Requests to a server of a model without weights.
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use atomc_server::api::{Access, Defaults, Metrics, Router, Service, router};
use atomc_server::grammar::{FormLimits, Grammars};
use atomc_server::schedule::Options;
use atomc_server::schedule::toy::{Draft, Toy};
use atomc_server::serve::{Limits, Room, connection};
use atomc_server::template::Templates;
use atomc_server::text::Text;
use atomc_server::worker;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::runtime::{Builder, Runtime};

/// The vocabulary of the example model; its tokenizer is used.
const VOCAB: usize = 512;
/// Few, so that an answer takes a millisecond.
const POSITIONS: usize = 96;
const BLOCKS: usize = 400;
const BODY_BYTES: usize = 64 << 10;
/// Room for what is sent before it is read.
const PIPE_BYTES: usize = 8 << 10;
/// In which every answer must have ended.
const PATIENCE: Duration = Duration::from_secs(8);
const TEMPLATE: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% for c in m.tool_calls or [] %}\
    {{ c.function.arguments | tojson }}{% endfor %}\n{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}";

/// A first byte says what follows: the body of a completion or of a chat, or all that a client
/// sends. The server answers with what a client can read, and can be asked again.
pub fn requests(data: &[u8]) {
    static SERVER: OnceLock<Mutex<Server>> = OnceLock::new();
    let Some((kind, rest)) = data.split_first() else { return };
    let server = SERVER.get_or_init(|| Mutex::new(Server::new()));
    let server = server.lock().unwrap_or_else(PoisonError::into_inner);
    let sent = match kind % 4 {
        0 => posted("/v1/completions", rest),
        1 | 2 => posted("/v1/chat/completions", rest),
        _ => rest.to_vec(),
    };
    let is_raw = kind % 4 == 3;
    let answer = server.ask(&sent, is_raw);
    if !is_raw {
        check(&answer);
    }
    let health = server.ask(b"GET /health HTTP/1.1\r\nconnection: close\r\n\r\n", false);
    assert!(health.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&health));
}

fn posted(path: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    );
    [head.as_bytes(), body].concat()
}

/// That an answer is one: of success, or with what was wrong with the request.
fn check(answer: &[u8]) {
    let shown = String::from_utf8_lossy(answer);
    let status = shown.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)).and_then(|s| s.parse::<u16>().ok());
    match status {
        Some(200) => {}
        Some(400..=499) => {
            let body = shown.split_once("\r\n\r\n").map_or("", |(_, body)| body);
            let error: Value = serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {shown}"));
            assert!(error["error"]["message"].is_string(), "{shown}");
        }
        _ => panic!("{shown}"),
    }
}

struct Server {
    runtime: Runtime,
    room: Arc<Room>,
    router: Router,
}

impl Server {
    fn new() -> Server {
        let options = Options { running: 8, step_tokens: 0, prefix_cache: true, speculate: 3 };
        let toy = Toy::sized(BLOCKS, 0, (VOCAB, POSITIONS)).with_draft(Draft::Good, 8);
        let (handle, _) = worker::start(toy, options, 64).expect("a thread");
        let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/models/qwen3"));
        let text = Arc::new(Text::open(folder).expect("a tokenizer"));
        let stop: Vec<u32> = text.token("<|end|>").into_iter().collect();
        let templates = Templates::new(Some(TEMPLATE.into()), &Value::Null);
        let service = Service {
            handle,
            templates: templates.map_err(|error| error.to_string()),
            eyes: None,
            thoughts: true,
            grammars: Grammars::new(text.clone(), VOCAB, stop.clone(), FormLimits::default()),
            text,
            adapters: vec![],
            names: vec!["toy".into()],
            stop,
            defaults: Defaults::default(),
            page: true,
            access: Access { origins: vec!["*".into()], ..Access::default() },
            body_bytes: BODY_BYTES,
            choices: 4,
            lanes: Arc::default(),
            metrics: Arc::new(Metrics::default()),
            started: SystemTime::now(),
        };
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        Server { runtime, room: Room::new(Limits::default()), router: router(service) }
    }

    /// What comes back on a connection over which this is sent, and then, where it may be no whole
    /// request, the end.
    fn ask(&self, sent: &[u8], ends: bool) -> Vec<u8> {
        let (client, server) = duplex(PIPE_BYTES);
        let (mut reader, mut writer) = tokio::io::split(client);
        let (mut answer, router) = (vec![], self.router.clone());
        self.runtime.block_on(async {
            // A server may close before it has read everything.
            let send = async {
                _ = writer.write_all(sent).await;
                // A client that ends in between has gone away, and gets no answer.
                if ends {
                    _ = writer.shutdown().await;
                }
            };
            let ticket = self.room.take(IpAddr::from([127, 0, 0, 1]));
            let serve = async { _ = connection(server, router, &ticket).await };
            let all = async { tokio::join!(send, serve, reader.read_to_end(&mut answer)) };
            let ended = tokio::time::timeout(PATIENCE, all).await;
            ended.expect("an answer in time").2.expect("what is in memory can be read");
        });
        answer
    }
}
