//! Time that a client may keep the server waiting, for the rest of a body or with the rest of an
//! answer.
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::limits::BYTES_A_SECOND;
use super::room::Seat;

/// A client that takes too long.
#[derive(Debug, thiserror::Error)]
#[error("the client took longer than {} s, or less than a kibibyte in each second behind that", patience.as_secs_f64())]
pub struct Slow {
    patience: Duration,
}

/// The time that is left to a client. Waiting takes of it, and bytes give back.
struct Pace {
    patience: Duration,
    left: Duration,
    /// While it is waited for.
    since: Option<Instant>,
    timer: Pin<Box<Sleep>>,
}

impl Pace {
    fn new(patience: Duration) -> Pace {
        Pace { patience, left: patience, since: None, timer: Box::pin(tokio::time::sleep(patience)) }
    }

    /// The client is waited for. Says whether its time is over, and wakes the task when it is.
    fn wait(&mut self, cx: &mut Context<'_>) -> Result<(), Slow> {
        if self.since.is_none() {
            let now = Instant::now();
            self.since = Some(now);
            self.timer.as_mut().reset(now + self.left);
        }
        match self.timer.as_mut().poll(cx) {
            Poll::Ready(()) => Err(Slow { patience: self.patience }),
            Poll::Pending => Ok(()),
        }
    }

    /// Counts bytes that were moved.
    fn moved(&mut self, bytes: usize) {
        let waited = self.since.take().map_or(Duration::ZERO, |since| since.elapsed());
        let back = Duration::from_secs(bytes as u64) / BYTES_A_SECOND;
        self.left = (self.left.saturating_sub(waited) + back).min(self.patience);
    }
}

/// The body of a request, which its client sends at its pace.
pub(super) struct Sent {
    body: Incoming,
    pace: Pace,
    seat: Arc<Seat>,
}

impl Sent {
    pub fn new(body: Incoming, patience: Duration, seat: Arc<Seat>) -> Sent {
        Sent { body, pace: Pace::new(patience), seat }
    }
}

impl Body for Sent {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = &mut *self;
        match Pin::new(&mut this.body).poll_frame(cx) {
            Poll::Pending => match this.pace.wait(cx) {
                Ok(()) => Poll::Pending,
                Err(slow) => Poll::Ready(Some(Err(slow.into()))),
            },
            Poll::Ready(None) => {
                this.seat.is_asked();
                Poll::Ready(None)
            }
            Poll::Ready(Some(frame)) => {
                let bytes = frame.as_ref().ok().and_then(Frame::data_ref).map_or(0, Bytes::len);
                this.pace.moved(bytes);
                if this.body.is_end_stream() {
                    this.seat.is_asked();
                }
                Poll::Ready(Some(frame.map_err(Into::into)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A connection to a client that takes answers at its own pace.
pub(super) struct Paced<S> {
    stream: S,
    pace: Pace,
    seat: Arc<Seat>,
}

impl<S> Paced<S> {
    pub fn new(stream: S, patience: Duration, seat: Arc<Seat>) -> Paced<S> {
        Paced { stream, pace: Pace::new(patience), seat }
    }

    fn written(&mut self, cx: &mut Context<'_>, poll: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match &poll {
            Poll::Pending => {
                self.seat.is_stuck(true);
                if let Err(slow) = self.pace.wait(cx) {
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, slow)));
                }
            }
            Poll::Ready(written) => {
                self.pace.moved(*written.as_ref().unwrap_or(&0));
                self.seat.is_stuck(false);
            }
        }
        poll
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Paced<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.written(cx, poll)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
        self.written(cx, poll)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// The body of an answer. At its end the connection waits for the next request.
pub(super) struct Answered<B> {
    body: B,
    seat: Arc<Seat>,
}

impl<B> Answered<B> {
    pub fn new(body: B, seat: Arc<Seat>) -> Answered<B> {
        Answered { body, seat }
    }
}

impl<B: Body + Unpin> Body for Answered<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<B> Drop for Answered<B> {
    fn drop(&mut self) {
        self.seat.is_answered();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_give_time_back() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let patience = Duration::from_secs(10);
            let mut pace = Pace::new(patience);
            let mut waited = |seconds: u64, bytes: usize| {
                pace.since = Some(Instant::now() - Duration::from_secs(seconds));
                pace.moved(bytes);
                pace.left.as_millis().div_ceil(100)
            };
            for _ in 0..100 {
                assert_eq!(waited(3, 3 << 10), 100, "a kibibyte a second is fast enough");
            }
            assert_eq!([waited(9, 1), waited(0, 2 << 10), waited(2, 0)], [10, 30, 10]);
            // There is no time left, and waiting gives none back.
            assert_eq!(waited(2, 0), 0);
            std::future::poll_fn(|cx| if pace.wait(cx).is_err() { Poll::Ready(()) } else { Poll::Pending }).await;
        });
    }
}
