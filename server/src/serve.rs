//! Connections: taking them, and ending them all.
mod limits;
mod pace;
mod room;

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::Request;
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulConnection, GracefulShutdown};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};

pub use limits::{FilesError, Limits};
pub use pace::Slow;
pub use room::{Full, Room, Seat, Ticket};

use crate::api::{Service, router};
use crate::memory;
use crate::worker::Handle;
use pace::{Answered, Paced, Sent};

/// Time that connections have once all answers have ended.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// Threads that read requests: few, as the engine wants the cores.
const READERS: usize = 2;
/// Pause after a failure to take a connection, as when there are no more file descriptors.
const REST: Duration = Duration::from_millis(100);
/// The interval at which memory is given back to the system once no request is left.
const TIDY: Duration = Duration::from_secs(1);

/// Where and how long to serve.
#[derive(Clone, Debug)]
pub struct Place {
    /// The address to listen on.
    pub address: SocketAddr,
    /// Limits of connections.
    pub limits: Limits,
    /// Time that requests have to end when the server is told to.
    pub grace: Duration,
}

/// Serves until the process is told to end (SIGTERM, SIGINT); a second time ends it at once.
/// `ready` is called with the address once connections are taken.
pub fn serve(service: Service, place: &Place, ready: impl FnOnce(SocketAddr)) -> io::Result<()> {
    memory::share();
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().max_blocking_threads(READERS).build()?;
    let served = runtime.block_on(async {
        let listener = TcpListener::bind(place.address).await?;
        let told = Told::new()?;
        ready(listener.local_addr()?);
        listen(listener, service, place, told).await;
        Ok(())
    });
    // Reads that are still going on are not waited for.
    runtime.shutdown_background();
    served
}

/// Signals.
struct Told {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Told {
    fn new() -> io::Result<Told> {
        Ok(Told { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn wait(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

async fn listen(listener: TcpListener, service: Service, place: &Place, mut told: Told) {
    let (handle, lanes) = (service.handle.clone(), service.lanes.clone());
    tokio::spawn(async move { lanes.give_back().await });
    let router = router(service);
    let graceful = GracefulShutdown::new();
    let room = Room::new(place.limits);
    let mut tidy = tokio::time::interval(TIDY);
    loop {
        tokio::select! {
            taken = listener.accept() => match taken {
                Ok((stream, client)) => take(stream, room.take(client.ip()), &router, &graceful),
                Err(error) => {
                    tracing::warn!(%error, "a connection was not taken");
                    room.relieve();
                    tokio::time::sleep(REST).await;
                }
            },
            _ = tidy.tick() => if room.is_quiet() {
                tokio::task::spawn_blocking(memory::trim);
            },
            () = told.wait() => break,
        }
    }
    drop(listener);
    tracing::info!("the server ends");
    handle.end(place.grace);
    tokio::select! {
        () = ended(graceful, place.grace + LAST_WORDS) => {}
        () = told.wait() => tracing::warn!("the server ends at once"),
    }
}

/// Waits for all connections, but no longer than this.
async fn ended(graceful: GracefulShutdown, within: Duration) {
    if tokio::time::timeout(within, graceful.shutdown()).await.is_err() {
        tracing::warn!("connections were cut");
    }
}

/// Serves a connection until it ends, or must go for another.
fn take(stream: TcpStream, ticket: Ticket, router: &Router, graceful: &GracefulShutdown) {
    // Pieces of an answer are sent at once.
    _ = stream.set_nodelay(true);
    let connection = graceful.watch(connection(stream, router.clone(), &ticket));
    tokio::spawn(async move {
        tokio::select! {
            _ = connection => {}
            () = ticket.seat.cut() => {}
        }
    });
}

/// A connection, from its first byte to its last.
pub fn connection<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    router: Router,
    ticket: &Ticket,
) -> impl GracefulConnection<Error = hyper::Error> + Send + use<S> {
    let (patience, seat) = (ticket.patience(), ticket.seat.clone());
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(patience);
    let stream = Paced::new(stream, patience, seat.clone());
    let router = TowerToHyperService::new(router);
    let answer = move |request: Request<Incoming>| {
        if request.body().is_end_stream() {
            seat.is_asked();
        }
        let mut request = request.map(|body| Body::new(Sent::new(body, patience, seat.clone())));
        request.extensions_mut().insert(seat.clone());
        let (answer, seat) = (router.call(request), seat.clone());
        async move { answer.await.map(|response| response.map(|body| Answered::new(body, seat))) }
    };
    http.serve_connection(TokioIo::new(stream), service_fn(answer))
}

/// Tells the scheduler to end, and waits for its thread.
pub fn join(handle: &Handle, thread: std::thread::JoinHandle<()>) {
    handle.end(Duration::ZERO);
    // Its panic was reported in its thread.
    _ = thread.join();
}
