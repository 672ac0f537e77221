//! Accepts connections and speaks HTTP/1 on them, within bounds on their number, their patience and their
//! life.
//!
//! hyper is used directly: what hands it connections must know when a request begins and ends, and must set
//! the time in which a head has to come.

use super::accept::{AdminListener, Duplex, Peer, Source};
use super::connections::{ConnectionAdmission, ConnectionPlace, Connections};
use super::listener::{Bounded, Bounds};
use axum::http::Request;
use axum::Router;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{service_fn, Service};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Time for the head of a request, from the moment at which the connection could send it; so also the longest
/// time for which a connection is kept for another request.
const HEAD_WITHIN: Duration = Duration::from_secs(5);
/// Upper bound on the bytes of a head: path, query and headers.
const MAX_HEAD: usize = 32 << 10;
/// Pause after the system could not accept for want of its own means.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Serves until `stop` says so (or its sender goes), and then until the requests under way are answered.
pub(super) async fn serve(
    listener: AdminListener,
    app: Router,
    connections: Arc<Connections>,
    bounds: Bounds,
    mut stop: watch::Receiver<bool>,
) {
    let mut tasks = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => match place_for(&connections, peer.source()).await {
                    Some(place) => {
                        tasks.spawn(connection(stream, peer, app.clone(), place, bounds, stop.clone()));
                    }
                    // Closed at once: a client that waits in a queue would wait for ever.
                    None => tracing::debug!(%peer, "too many requests under way: a connection was closed"),
                },
                Err(error) if is_of_the_client(&error) => {}
                Err(error) => {
                    tracing::warn!(%error, "the admin port cannot accept connections");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(_) = tasks.join_next() => {}
            _ = stop.changed() => break,
        }
    }
    drop(listener);
    while tasks.join_next().await.is_some() {}
}

/// A place for a newcomer, after the time in which those who could make room are spared.
async fn place_for(connections: &Arc<Connections>, source: Source) -> Option<ConnectionPlace> {
    loop {
        match connections.admit(source, Instant::now().into_std()) {
            ConnectionAdmission::Granted(place) => return Some(place),
            ConnectionAdmission::Refused => return None,
            ConnectionAdmission::Later(at) => tokio::time::sleep_until(at.into()).await,
        }
    }
}

/// The client has gone before it was accepted.
fn is_of_the_client(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

async fn connection(
    stream: Box<dyn Duplex>,
    peer: Peer,
    app: Router,
    place: ConnectionPlace,
    bounds: Bounds,
    mut stop: watch::Receiver<bool>,
) {
    let app = TowerToHyperService::new(app);
    let place = &place;
    let answer = service_fn(move |mut request: Request<Incoming>| {
        place.begin();
        request.extensions_mut().insert(peer);
        let answered = app.call(request);
        async move {
            let answer = answered.await;
            place.end();
            answer
        }
    });
    let io = TokioIo::new(Bounded::new(stream, bounds));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_WITHIN).max_buf_size(MAX_HEAD);
    let mut served = pin!(http.serve_connection(io, answer));
    let mut stopping = false;
    loop {
        tokio::select! {
            ended = served.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%peer, %error, "an admin connection has ended");
                }
                return;
            }
            () = place.leave.notified() => return,
            // Sent or dropped, it means the same.
            _ = stop.changed(), if !stopping => {
                stopping = true;
                served.as_mut().graceful_shutdown();
            }
        }
    }
}
