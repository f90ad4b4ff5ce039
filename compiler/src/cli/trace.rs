//! Traces in the form that chrome://tracing and ui.perfetto.dev show: of steps, and of the
//! compiler's work.
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use serde_json::{Value, json};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Filter, Layer};
use tracing_subscriber::registry::LookupSpan;

use super::failure::Failure;

/// Events that have a beginning and a length.
#[derive(Default)]
pub struct Trace(Vec<Value>);

impl Trace {
    /// One event, in seconds from the beginning of the trace.
    pub fn add(&mut self, name: &str, kind: &str, (start, seconds): (f64, f64), thread: usize, facts: Value) {
        let [ts, dur] = [start, seconds].map(|seconds| seconds * 1e6);
        let event = json!({ "name": name, "cat": kind, "ph": "X", "ts": ts, "dur": dur, "pid": 0, "tid": thread, "args": facts });
        self.0.push(event);
    }

    pub fn written(self) -> Result<Vec<u8>, Failure> {
        Ok(serde_json::to_vec(&json!({ "traceEvents": self.0, "displayTimeUnit": "ms" }))?)
    }
}

/// Takes the spans of this process as events, each thread in a row of its own.
#[derive(Clone)]
pub struct Spans {
    start: Instant,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
struct Seen {
    threads: Vec<std::thread::ThreadId>,
    trace: Trace,
}

/// The fields of a span, and the time at which it was entered.
struct Open {
    fields: BTreeMap<&'static str, Value>,
    entered: Instant,
}

impl Spans {
    pub fn new() -> Spans {
        Spans { start: Instant::now(), seen: Arc::default() }
    }

    /// Takes the spans so far.
    #[cfg(feature = "compiler")]
    pub fn take(&self) -> Trace {
        std::mem::take(&mut self.seen.lock().unwrap_or_else(PoisonError::into_inner).trace)
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Spans {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, cx: Context<'_, S>) {
        let mut open = Open { fields: BTreeMap::new(), entered: Instant::now() };
        attributes.record(&mut open);
        if let Some(span) = cx.span(id) {
            span.extensions_mut().insert(open);
        }
    }

    fn on_enter(&self, id: &Id, cx: Context<'_, S>) {
        if let Some(span) = cx.span(id)
            && let Some(open) = span.extensions_mut().get_mut::<Open>()
        {
            open.entered = Instant::now();
        }
    }

    fn on_exit(&self, id: &Id, cx: Context<'_, S>) {
        let Some(span) = cx.span(id) else { return };
        let extensions = span.extensions();
        let Some(Open { fields, entered }) = extensions.get::<Open>() else { return };
        let time = (entered.duration_since(self.start).as_secs_f64(), entered.elapsed().as_secs_f64());
        let name = fields.get("symbol").or(fields.get("name")).and_then(Value::as_str).unwrap_or(span.name());
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let own = std::thread::current().id();
        let thread = seen.threads.iter().position(|&thread| thread == own).unwrap_or_else(|| {
            seen.threads.push(own);
            seen.threads.len() - 1
        });
        seen.trace.add(name, span.name(), time, thread, json!(fields));
    }
}

/// The spans that a trace of the compiler has.
impl<S> Filter<S> for Spans {
    fn enabled(&self, metadata: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        metadata.is_span() && *metadata.level() <= Level::DEBUG
    }
}

impl Visit for Open {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.fields.insert(field.name(), json!(format!("{value:?}")));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.insert(field.name(), json!(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.fields.insert(field.name(), json!(value));
    }
}
