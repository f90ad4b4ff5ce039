//! Answers as text, between the scheduler and a connection.
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

use super::error::ApiError;
use super::metrics::Metrics;
use crate::schedule::{Chosen, End, JobError, Likelihood, Output, Why};
use crate::text::{Reader, Stops, Text, TextError};

/// An event of one answer.
#[derive(Debug)]
pub enum Event {
    /// The prompt is computed.
    Begin {
        /// Tokens of it that were there already.
        cached: usize,
        /// The likelihoods of the prompt's tokens, from the second on, if they were asked for.
        prompt: Vec<Likelihood>,
    },
    /// More text, with its tokens if their likelihoods were asked for.
    Text {
        /// Whole characters.
        text: String,
        /// Not always those of this text alone.
        tokens: Vec<Chosen>,
    },
    /// The end.
    End(Result<End, ApiError>),
}

/// Events of all answers to a request, each with the number of its answer.
pub type Events = UnboundedReceiver<(usize, Event)>;

/// Makes text of the tokens of one answer, and sends it.
pub struct Writer {
    text: Arc<Text>,
    reader: Reader,
    stops: Stops,
    sender: UnboundedSender<(usize, Event)>,
    index: usize,
    /// Tokens with text that was not sent yet.
    tokens: Vec<Chosen>,
    metrics: Arc<Metrics>,
    started: Instant,
    has_token: bool,
    has_ended: bool,
}

/// How the tokens of an answer are shown.
#[derive(Clone, Debug, Default)]
pub struct Showing {
    /// Special tokens too.
    pub special: bool,
    /// What ends it.
    pub stops: Stops,
}

impl Writer {
    /// For an answer of this number.
    pub fn new(
        text: Arc<Text>,
        metrics: Arc<Metrics>,
        showing: Showing,
        sender: UnboundedSender<(usize, Event)>,
        index: usize,
    ) -> Writer {
        Writer {
            text,
            reader: Reader::new(showing.special),
            stops: showing.stops,
            sender,
            index,
            tokens: vec![],
            metrics,
            started: Instant::now(),
            has_token: false,
            has_ended: false,
        }
    }

    /// A client that no longer listens is found by `is_gone`.
    fn send(&mut self, event: Event) {
        _ = self.sender.send((self.index, event));
    }

    fn show(&mut self, text: String) {
        if !text.is_empty() || !self.tokens.is_empty() {
            let tokens = std::mem::take(&mut self.tokens);
            self.send(Event::Text { text, tokens });
        }
    }

    fn fail(&mut self, error: TextError) -> ControlFlow<()> {
        self.finish(Err(ApiError::from(error)));
        ControlFlow::Break(())
    }

    fn finish(&mut self, end: Result<End, ApiError>) {
        if !std::mem::replace(&mut self.has_ended, true) {
            self.metrics.whole.add(self.started.elapsed());
            self.send(Event::End(end));
        }
    }

    /// The text that was held back, as no token follows.
    fn rest(&mut self) -> Result<String, TextError> {
        let piece = self.reader.end(&self.text)?;
        let shown = self.stops.push(&piece);
        Ok(if shown.ends { shown.text } else { shown.text + &self.stops.end() })
    }
}

impl Output for Writer {
    fn begin(&mut self, cached: usize, prompt: Vec<Likelihood>) {
        self.send(Event::Begin { cached, prompt });
    }

    fn token(&mut self, chosen: Chosen) -> ControlFlow<()> {
        if !std::mem::replace(&mut self.has_token, true) {
            self.metrics.first_token.add(self.started.elapsed());
        }
        let piece = match self.reader.push(&self.text, chosen.token) {
            Ok(piece) => piece,
            Err(error) => return self.fail(error),
        };
        if chosen.likelihood.is_some() {
            self.tokens.push(chosen);
        }
        let shown = self.stops.push(&piece);
        if !shown.text.is_empty() || shown.ends {
            self.show(shown.text);
        }
        if shown.ends { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn end(mut self: Box<Self>, end: Result<End, JobError>) {
        self.metrics.ended(&end);
        if matches!(end, Ok(End { why: Why::Stop(_) | Why::Length, .. })) {
            match self.rest() {
                Ok(rest) => self.show(rest),
                Err(error) => return self.finish(Err(error.into())),
            }
        }
        self.finish(end.map_err(ApiError::from));
    }

    fn is_gone(&self) -> bool {
        self.sender.is_closed()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if !self.has_ended {
            self.metrics.gone();
        }
    }
}
