//! `/metrics`, in Prometheus' text.
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};

use super::Shared;
use atomc_runtime::offload;

use crate::schedule::{End, JobError, Why};

/// Upper ends of the buckets of times, in milliseconds.
const BUCKETS: [u64; 12] = [5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 60_000];

/// Counters of answers.
#[derive(Debug, Default)]
pub struct Metrics {
    /// From a request to the first token of its answer.
    pub first_token: Histogram,
    /// From a request to the end of its answer.
    pub whole: Histogram,
    stopped: AtomicU64,
    cut: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
    gone: AtomicU64,
}

/// Times.
#[derive(Debug, Default)]
pub struct Histogram {
    /// Counts up to each limit; the last one counts all.
    counts: [AtomicU64; BUCKETS.len() + 1],
    micros: AtomicU64,
}

impl Histogram {
    /// Counts one.
    pub fn add(&self, time: Duration) {
        let bucket = BUCKETS.iter().position(|&end| time <= Duration::from_millis(end)).unwrap_or(BUCKETS.len());
        self.counts[bucket].fetch_add(1, Relaxed);
        self.micros.fetch_add(time.as_micros() as u64, Relaxed);
    }

    fn render(&self, name: &str, help: &str, out: &mut String) {
        _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} histogram");
        let mut count = 0;
        for (index, bucket) in self.counts.iter().enumerate() {
            count += bucket.load(Relaxed);
            let end = BUCKETS.get(index).map_or("+Inf".into(), |&end| (end as f64 / 1e3).to_string());
            _ = writeln!(out, "{name}_bucket{{le=\"{end}\"}} {count}");
        }
        let sum = self.micros.load(Relaxed) as f64 / 1e6;
        _ = writeln!(out, "{name}_sum {sum}\n{name}_count {count}");
    }
}

impl Metrics {
    /// Counts an answer that has ended.
    pub fn ended(&self, end: &Result<End, JobError>) {
        let count = match end {
            Ok(End { why: Why::Length, .. }) => &self.cut,
            Ok(_) => &self.stopped,
            Err(JobError::NotFinite | JobError::Fault(_) | JobError::Down(_) | JobError::Ending) => &self.failed,
            Err(_) => &self.refused,
        };
        count.fetch_add(1, Relaxed);
    }

    /// Counts an answer that its client gave up.
    pub fn gone(&self) {
        self.gone.fetch_add(1, Relaxed);
    }
}

/// What has left the engine's cache.
fn render_offloaded(counts: &offload::Counts, one: &mut impl FnMut(&str, &str, &str, u64)) {
    let read = "pieces of the cache that were copied back from";
    let there = "pieces of the cache in";
    one("offload_tokens_total", "counter", "Cached tokens of prompts that were copied back.", counts.tokens);
    one("offload_host_hits_total", "counter", &format!("The {read} the host's memory."), counts.host_hits);
    one("offload_host_read_bytes_total", "counter", &format!("Bytes of {read} the host's memory."), counts.host_read);
    one("offload_file_hits_total", "counter", &format!("The {read} files."), counts.file_hits);
    one("offload_file_read_bytes_total", "counter", &format!("Bytes of {read} files."), counts.file_read);
    one("offload_saved_bytes_total", "counter", "Bytes of pieces that left the engine's cache.", counts.saved);
    one("offload_files_damaged_total", "counter", "Files that were not as they were written.", counts.damaged);
    one("offload_host_bytes", "gauge", &format!("Bytes of {there} the host's memory."), counts.host_bytes);
    one("offload_file_bytes", "gauge", &format!("Bytes of {there} files."), counts.file_bytes);
}

/// The page.
pub async fn render(State(service): State<Shared>) -> Response {
    let (said, limits) = (service.handle.said(), service.handle.limits());
    let mut out = String::new();
    let mut one = |name: &str, kind: &str, help: &str, value: u64| {
        _ = writeln!(out, "# HELP atomc_{name} {help}\n# TYPE atomc_{name} {kind}\natomc_{name} {value}");
    };
    let (counts, gauges) = (said.counts, said.gauges);
    one("up", "gauge", "Whether requests can be served.", u64::from(said.down.is_none()));
    one("requests_running", "gauge", "Requests in the steps of the engine.", gauges.running as u64);
    one("requests_waiting", "gauge", "Requests in the queue.", gauges.waiting as u64);
    one("cache_blocks", "gauge", "Blocks of the KV cache.", limits.blocks as u64);
    one("cache_blocks_free", "gauge", "Blocks that nothing holds.", gauges.free_blocks as u64);
    one("prefixes_retained", "gauge", "Sequences retained for what begins like them.", gauges.retained as u64);
    one("steps_total", "counter", "Steps of the engine.", counts.steps);
    one("step_faults_total", "counter", "Steps that failed.", counts.faults);
    one("prompt_tokens_total", "counter", "Tokens of prompts.", counts.prompt_tokens);
    one("prompt_tokens_cached_total", "counter", "Of these, those that were there already.", counts.cached_tokens);
    one("generation_tokens_total", "counter", "Tokens of answers.", counts.new_tokens);
    one("guessed_tokens_total", "counter", "Tokens that the draft guessed and steps verified.", counts.guesses_made);
    one("guessed_tokens_right_total", "counter", "Of these, those that were right.", counts.guesses_right);
    one("preemptions_total", "counter", "Requests that gave their part of the cache back.", counts.preempted);
    if let Some(counts) = &said.offloaded {
        render_offloaded(counts, &mut one);
    }
    let metrics = &service.metrics;
    _ = writeln!(out, "# HELP atomc_requests_total Answers, by how they ended.\n# TYPE atomc_requests_total counter");
    let ends = [
        ("stop", &metrics.stopped),
        ("length", &metrics.cut),
        ("refused", &metrics.refused),
        ("error", &metrics.failed),
        ("gone", &metrics.gone),
    ];
    for (end, count) in ends {
        _ = writeln!(out, "atomc_requests_total{{end=\"{end}\"}} {}", count.load(Relaxed));
    }
    metrics.first_token.render("atomc_time_to_first_token_seconds", "To the first token of an answer.", &mut out);
    metrics.whole.render("atomc_request_seconds", "To the end of an answer.", &mut out);
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], out).into_response()
}
