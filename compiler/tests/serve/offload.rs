//! A server whose cache travels to a folder: killed at any moment, restarted, and with files that
//! others have changed. Every answer is that of a server without such a folder, to the last digit
//! of how likely each token was.
//!
//! With `ATOMC_TEST_LONG` it is killed 200 times, and without it 5 times:
//!
//!     ATOMC_TEST_LONG=1 cargo test -p atomc --test serve offload
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use serde_json::{Value, json};

use super::*;

/// Prompts that are asked.
const PROMPTS: usize = 24;
/// Clients at once.
const CLIENTS: usize = 3;

struct Table {
    bench: Bench,
    folder: PathBuf,
    prompts: Vec<String>,
}

impl Table {
    fn new() -> Table {
        let bench = Bench::empty();
        let problems = Path::new(MODEL).join("../../problems.jsonl");
        let text = std::fs::read_to_string(problems).expect("problems");
        let prompt = |line: &str| {
            let problem: Value = serde_json::from_str(line).expect("JSON");
            problem["prompt"].as_str().expect("a prompt").to_owned()
        };
        let prompts = text.lines().take(PROMPTS).map(prompt).collect();
        bench.succeed(&["compile", MODEL, "--no-trust", "--invariant", "--target", "host", "-o", "m.atomc"]);
        let folder = bench.path("cache");
        Table { bench, folder, prompts }
    }

    /// A server with a small cache, and what leaves it in memory and then in files.
    fn serve(&self, offload: bool) -> Asked {
        let small = ["--cache-tokens", "256", "--parallel", "4", "--threads", "1", "--port", "0"];
        let mut command = self.bench.serve(&["m.atomc", "--weights", MODEL]);
        command.args(small);
        if offload {
            command.args(["--cache-host-bytes", "200000", "--cache-dir", self.folder.to_str().expect("UTF-8")]);
        }
        let served = Served::start(&mut command);
        let address = served.last().rsplit_once("http://").expect("an address").1;
        let address = address.split('/').next().expect("a host and a port").to_owned();
        Asked { served, address }
    }

    /// What answers should be.
    fn expect(&self) -> Vec<Value> {
        let server = self.serve(false);
        self.prompts.iter().map(|prompt| server.answer(prompt).expect("an answer")).collect()
    }

    fn files(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(&self.folder).expect("a folder").map(|entry| entry.expect("a file").path());
        entries.filter(|path| path.extension().is_some_and(|ending| ending == "piece")).collect()
    }
}

/// A server that runs.
struct Asked {
    served: Served,
    address: String,
}

impl Asked {
    fn send(&self, head: &str, body: &str) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(&self.address)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        let length = body.len();
        write!(
            stream,
            "{head} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n\r\n{body}"
        )?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text.split_once("\r\n\r\n").map_or(String::new(), |(_, body)| body.to_owned()))
    }

    /// What is answered; none if the server has gone.
    fn answer(&self, prompt: &str) -> Option<Value> {
        let body = json!({ "prompt": prompt, "max_tokens": 32, "temperature": 0, "logprobs": 1 });
        let text = self.send("POST /v1/completions", &body.to_string()).ok()?;
        let answer: Value = serde_json::from_str(&text).ok()?;
        Some(answer["choices"].clone())
    }

    /// A number of `/metrics`.
    fn metric(&self, name: &str) -> u64 {
        let text = self.send("GET /metrics", "").expect("metrics");
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("atomc_{name} ")));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().expect("a number")
    }

    /// Ends the server as it wants to end.
    fn end(mut self) {
        // SAFETY: a signal to a child that was not waited for yet.
        assert_eq!(unsafe { libc::kill(self.served.child.id() as i32, libc::SIGTERM) }, 0);
        assert!(self.served.child.wait().expect("it ends").success());
    }
}

/// Asks with several clients until all prompts were asked so often, or the server has gone. Returns
/// the number of answers, none of which was another one.
fn ask(server: &Asked, table: &Table, (expect, rounds): (&[Value], usize)) -> usize {
    let (next, answers) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Relaxed);
                    if number >= rounds * table.prompts.len() {
                        return;
                    }
                    let index = number % table.prompts.len();
                    let Some(answer) = server.answer(&table.prompts[index]) else { return };
                    assert_eq!(answer, expect[index], "{}", table.prompts[index]);
                    answers.fetch_add(1, Relaxed);
                }
            });
        }
    });
    answers.into_inner()
}

#[test]
fn a_server_that_is_killed_leaves_no_wrong_answer() {
    let table = Table::new();
    let expect = table.expect();
    let tries = if std::env::var_os("ATOMC_TEST_LONG").is_some() { 200 } else { 5 };
    let (mut answers, mut cut) = (0, 0);
    for number in 0..tries {
        let mut server = table.serve(true);
        // From before the first answer to behind the last one.
        let wait = Duration::from_millis(number as u64 * 137 % 1400);
        let pid = server.served.child.id() as i32;
        let killer = std::thread::spawn(move || {
            std::thread::sleep(wait);
            // SAFETY: a signal to a child that nobody waits for before this thread has ended.
            assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
        });
        let found = ask(&server, &table, (&expect, 20));
        killer.join().expect("a signal");
        server.served.child.wait().expect("it ends");
        (answers, cut) = (answers + found, cut + usize::from(found < 20 * table.prompts.len()));
    }
    let server = table.serve(true);
    assert_eq!(ask(&server, &table, (&expect, 2)), 2 * table.prompts.len());
    let (hits, damaged) = (server.metric("offload_file_hits_total"), server.metric("offload_files_damaged_total"));
    println!("{tries} kills, {cut} under way, {answers} answers; then {hits} hits of files, {damaged} damaged");
    assert!(hits > 0 && cut > 0 && damaged == 0);
}

/// A server that ends leaves all that it has in files, with which the next one begins. Of files
/// with a changed byte nothing is used.
#[test]
fn a_restart_has_the_cache_of_before() {
    let table = Table::new();
    let expect = table.expect();
    let first = table.serve(true);
    ask(&first, &table, (&expect, 1));
    first.end();
    let second = table.serve(true);
    ask(&second, &table, (&expect, 1));
    let [prompts, cached] = ["prompt_tokens_total", "prompt_tokens_cached_total"].map(|name| second.metric(name));
    println!("{cached} of {prompts} tokens of prompts were there after a restart");
    assert!(cached * 10 >= prompts * 9, "{cached} of {prompts}");
    let taken = said(&mut table.bench.serve(&["m.atomc", "--weights", MODEL, "--cache-dir", "cache"]), 1);
    assert!(taken.contains("error[cache_dir]: cache is the cache of another server that runs"), "{taken}");
    second.end();
    for file in table.files() {
        let mut bytes = std::fs::read(&file).expect("a file");
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        std::fs::write(&file, bytes).expect("a file");
    }
    let third = table.serve(true);
    ask(&third, &table, (&expect, 1));
    assert!(third.metric("offload_files_damaged_total") > 0);
    assert_eq!(third.metric("offload_file_hits_total"), 0);
}

#[test]
fn options_that_go_against_each_other_are_refused() {
    let bench = Bench::empty();
    for (args, told) in [
        (&["--cache-host-bytes", "0"][..], "from 1 on"),
        (&["--cache-dir-bytes", "5"], "--cache-dir"),
        (&["--cache-host-bytes", "5", "--no-prefix-cache"], "--no-prefix-cache"),
        (&["--cache-dir", "x", "--no-prefix-cache"], "--no-prefix-cache"),
    ] {
        let text = said(bench.serve(&[MODEL]).args(args), 2);
        assert!(text.contains(told), "{args:?}: {text}");
    }
}
