//! Connections: taking them, and ending them all.
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;

use crate::api::{Service, router};
use crate::worker::Handle;

/// Time in which a client must have sent the head of a request.
const HEAD: Duration = Duration::from_secs(30);
/// Time that connections have once all answers have ended.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// Threads that read requests: few, as the engine wants the cores.
const READERS: usize = 2;
/// Rest behind a failure to take a connection, as when there are no more file descriptors.
const REST: Duration = Duration::from_millis(100);

/// Where and how long to serve.
#[derive(Clone, Debug)]
pub struct Place {
    /// The address to listen on.
    pub address: SocketAddr,
    /// Most connections at once.
    pub connections: usize,
    /// Time that requests have to end when the server is told to.
    pub grace: Duration,
}

/// Serves until the process is told to end (SIGTERM, SIGINT); a second time ends it at once.
/// `ready` is called with the address once connections are taken.
pub fn serve(service: Service, place: &Place, ready: impl FnOnce(SocketAddr)) -> io::Result<()> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().max_blocking_threads(READERS).build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(place.address).await?;
        let told = Told::new()?;
        ready(listener.local_addr()?);
        listen(listener, service, place, told).await;
        Ok(())
    })
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
    let room = std::sync::Arc::new(Semaphore::new(place.connections.max(1)));
    loop {
        // Who comes when there is no room waits in the system's queue.
        let next = async {
            let permit = room.clone().acquire_owned().await;
            (listener.accept().await, permit)
        };
        tokio::select! {
            (taken, permit) = next => match taken {
                Ok((stream, _)) => {
                    // Pieces of an answer leave as they come.
                    _ = stream.set_nodelay(true);
                    let connection = graceful.watch(connection(stream, router.clone()));
                    tokio::spawn(async move {
                        _ = connection.await;
                        drop(permit);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection was not taken");
                    tokio::time::sleep(REST).await;
                }
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

/// A connection, from its first byte to its last.
pub fn connection<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    router: Router,
) -> http1::Connection<TokioIo<S>, TowerToHyperService<Router>> {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD);
    http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
}

/// Tells the scheduler to end, and waits for its thread.
pub fn join(handle: &Handle, thread: std::thread::JoinHandle<()>) {
    handle.end(Duration::ZERO);
    // A panic of it was told where it happened.
    _ = thread.join();
}
