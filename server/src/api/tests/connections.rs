//! Whole connections, and the limits on clients.
use std::net::IpAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

use super::*;
use crate::serve::{Limits, Room, Ticket, connection};

const LIMITS: Limits = Limits { connections: 3, each: 3, reserve: 2, patience: Duration::from_millis(300) };

/// A server that can be connected to.
struct Server {
    router: Router,
    room: Arc<Room>,
}

impl Server {
    fn new(change: impl FnOnce(&mut Service)) -> Server {
        Server { router: service(toy(), change, 64), room: Room::new(LIMITS) }
    }

    /// A connection from an address, with room for `bytes` bytes in transit.
    fn open(&self, host: u8, bytes: usize) -> DuplexStream {
        let (client, stream) = duplex(bytes);
        let ticket = self.room.take(IpAddr::from([10, 0, 0, host]));
        tokio::spawn(served(stream, self.router.clone(), ticket));
        client
    }

    /// The status of an answer to this on a connection of its own.
    async fn ask(&self, host: u8, sent: &str) -> u16 {
        let mut client = self.open(host, 64 << 10);
        client.write_all(sent.as_bytes()).await.unwrap();
        status(&rest(&mut client).await)
    }
}

async fn served(stream: DuplexStream, router: Router, ticket: Ticket) {
    tokio::select! {
        _ = connection(stream, router, &ticket) => {}
        () = ticket.seat.cut() => {}
    }
}

/// All bytes that follow.
async fn rest(client: &mut DuplexStream) -> String {
    let mut all = vec![];
    _ = client.read_to_end(&mut all).await;
    String::from_utf8(all).unwrap()
}

fn status(answer: &str) -> u16 {
    answer.get(9..12).and_then(|status| status.parse().ok()).unwrap_or_default()
}

fn get(path: &str, headers: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}\r\n")
}

/// The head of a completion with a body of `length` bytes.
fn post(length: usize) -> String {
    format!(
        "POST {COMPLETIONS} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    )
}

#[test]
fn bodies_that_drip_are_given_up() {
    run(async {
        let server = Server::new(|_| ());
        let mut client = server.open(1, 1 << 10);
        client.write_all(post(1000).as_bytes()).await.unwrap();
        let (mut reader, mut writer) = tokio::io::split(client);
        tokio::spawn(async move {
            while writer.write_all(b" ").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        let (start, mut answer) = (Instant::now(), vec![]);
        _ = reader.read_to_end(&mut answer).await;
        let answer = String::from_utf8(answer).unwrap();
        assert!(status(&answer) == 408 && answer.contains("connection: close"), "{answer}");
        assert!(answer.contains("the body did not come"), "{answer}");
        assert!((200..10_000).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());
    });
}

#[test]
fn answers_that_nobody_reads_are_given_up() {
    run(async {
        let server = Server::new(|_| ());
        let mut client = server.open(1, 256);
        let asked = "GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n";
        client.write_all(asked.as_bytes()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(900)).await;
        // The pipe has the bytes that were written before, and then its end.
        let answer = rest(&mut client).await;
        assert!(answer.len() <= 256 && status(&answer) == 200, "{answer}");
    });
}

#[test]
fn connections_that_ask_nothing_take_no_room() {
    run(async {
        let server = Server::new(|_| ());
        let mut held = vec![];
        for host in 1..=3 {
            let mut client = server.open(host, 1 << 10);
            client.write_all(post(1000).as_bytes()).await.unwrap();
            held.push(client);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(server.ask(4, &get("/v1/models", "")).await, 200);
        assert_eq!(rest(&mut held[0]).await, "", "the oldest was closed");
    });
}

#[test]
fn strangers_do_not_lock_out_who_has_a_key() {
    run(async {
        let server = Server::new(|service| service.access.keys = vec!["secret".into()]);
        let mut known = server.open(9, 4 << 10);
        let asked = "GET /v1/models HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer secret\r\n\r\n";
        known.write_all(asked.as_bytes()).await.unwrap();
        let mut some = [0; 12];
        known.read_exact(&mut some).await.unwrap();
        assert_eq!(&some, b"HTTP/1.1 200");
        // Many more than there is room for, of many addresses.
        let held: Vec<DuplexStream> = (10..40).map(|host| server.open(host, 1 << 10)).collect();
        tokio::time::sleep(Duration::from_millis(20)).await;
        known.write_all(asked.as_bytes()).await.unwrap();
        let mut more = vec![0; 2048];
        let mut found = String::new();
        while found.matches("HTTP/1.1 200").count() == 0 {
            let bytes = known.read(&mut more).await.unwrap();
            assert!(bytes > 0, "closed: {found}");
            found += &String::from_utf8_lossy(&more[..bytes]);
        }
        drop(held);
    });
}

#[test]
fn health_is_answered_where_all_connections_are_busy() {
    run(async {
        let server = Server { router: service(slow(5), |_| (), 64), room: Room::new(LIMITS) };
        let body = json!({ "prompt": [3, 4], "max_tokens": 100, "ignore_eos": true, "stream": true }).to_string();
        let mut busy = vec![];
        for host in 1..=3 {
            let mut client = server.open(host, 64 << 10);
            client.write_all(format!("{}{body}", post(body.len())).as_bytes()).await.unwrap();
            let mut some = [0; 12];
            client.read_exact(&mut some).await.unwrap();
            assert_eq!(&some, b"HTTP/1.1 200");
            busy.push(client);
        }
        assert_eq!(server.ask(4, &get("/health", "")).await, 200);
        assert_eq!(server.ask(4, &get("/v1/models", "")).await, 503);
        let mut all = String::new();
        while !all.contains("[DONE]") {
            let mut more = vec![0; 4096];
            let bytes = busy[0].read(&mut more).await.unwrap();
            all += &String::from_utf8_lossy(&more[..bytes]);
        }
        assert_eq!(server.ask(4, &get("/v1/models", "")).await, 200);
    });
}

#[test]
fn bodies_must_say_that_they_are_json() {
    run(async {
        let server = Server::new(|_| ());
        let body = r#"{"prompt": "x", "max_tokens": 1}"#;
        for (kind, expect) in [
            ("content-type: application/json\r\n", 200),
            ("content-type: text/plain\r\n", 415),
            ("content-type: application/x-www-form-urlencoded\r\n", 415),
            ("", 415),
        ] {
            let head = format!(
                "POST {COMPLETIONS} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{kind}content-length: {}\r\n\r\n",
                body.len()
            );
            assert_eq!(server.ask(1, &(head + body)).await, expect, "{kind}");
        }
    });
}

#[test]
fn pages_of_others_are_refused_without_keys() {
    run(async {
        let local = Server::new(|service| service.access.hosts = Some(vec![]));
        for (headers, expect) in [
            ("", 200),
            ("origin: http://localhost\r\n", 200),
            ("origin: https://evil.example\r\n", 403),
            ("origin: null\r\n", 403),
        ] {
            assert_eq!(local.ask(1, &get("/v1/models", headers)).await, expect, "{headers}");
        }
        let rebound = "GET /v1/models HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n";
        assert_eq!(local.ask(1, rebound).await, 403);
        assert_eq!(Server::new(|_| ()).ask(1, rebound).await, 200);
    });
}
