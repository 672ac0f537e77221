//! Accepts connections and speaks HTTP/1 on them, with bounds on their number, idle time and lifetime.
//!
//! The server uses hyper directly, because it must know when a request begins and ends, and must set a time
//! limit for the head of a request.

use super::accept::{AdminListener, Duplex, Peer};
use super::connections::{ConnectionAdmission, ConnectionPlace, Connections};
use super::export::Streamed;
use super::guard::MAX_HEAD;
use super::listener::{Bounded, Bounds};
use axum::body::Body;
use axum::http::Request;
use axum::Router;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::{service_fn, Service};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::convert::Infallible;
use std::io;
use std::pin::{pin, Pin};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Time limit for the head of a request, from the moment at which the client could send it. It is also the
/// longest wait of a connection for its next request.
const HEAD_WITHIN: Duration = Duration::from_secs(5);
/// Pause after the system lacked the resources to accept a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Serves until `stop` changes or its sender is dropped, and then until the requests in progress are
/// answered.
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
                Ok((stream, peer)) => {
                    let served = (app.clone(), bounds, stop.clone());
                    match connections.admit_behind(peer.source(), Instant::now().into_std()) {
                        ConnectionAdmission::Granted(place) => {
                            tasks.spawn(connection(stream, peer, place, served));
                        }
                        // In a separate task, so that other clients need not wait.
                        ConnectionAdmission::Later(_) => match connections.wait(peer.source()) {
                            Some(newcomer) => {
                                tasks.spawn(async move {
                                    let place = newcomer.place().await;
                                    drop(newcomer);
                                    match place {
                                        Some(place) => connection(stream, peer, place, served).await,
                                        None => closed(peer),
                                    }
                                });
                            }
                            None => closed(peer),
                        },
                        ConnectionAdmission::Refused => closed(peer),
                    }
                }
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

/// Closes at once: a client waiting here would wait indefinitely.
fn closed(peer: Peer) {
    tracing::debug!(%peer, "too many requests under way: a connection was closed");
}

/// A request in progress, whose connection is not evicted. It ends with the head of its answer, or with the
/// whole answer if that is [`Streamed`], of which only one runs at a time. Otherwise unread answers could
/// take all places.
struct AtWork(Arc<ConnectionPlace>);

impl AtWork {
    fn begin(place: &Arc<ConnectionPlace>) -> AtWork {
        place.begin();
        AtWork(Arc::clone(place))
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// The body of an answer, with its request in progress.
struct AnswerBody {
    body: Body,
    _work: Option<AtWork>,
}

impl hyper::body::Body for AnswerBody {
    type Data = <Body as hyper::body::Body>::Data;
    type Error = <Body as hyper::body::Body>::Error;

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

/// The client disconnected before the connection was accepted.
fn is_of_the_client(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

async fn connection(
    stream: Box<dyn Duplex>,
    peer: Peer,
    place: ConnectionPlace,
    (app, bounds, mut stop): (Router, Bounds, watch::Receiver<bool>),
) {
    let app = TowerToHyperService::new(app);
    let place = Arc::new(place);
    let at_work = Arc::clone(&place);
    // The last answer is a long one.
    let streams = Arc::new(AtomicBool::new(false));
    let of_answers = Arc::clone(&streams);
    let answer = service_fn(move |mut request: Request<Incoming>| {
        let (work, streams) = (AtWork::begin(&at_work), Arc::clone(&of_answers));
        streams.store(false, Relaxed);
        request.extensions_mut().insert(peer);
        let answered = app.call(request);
        async move {
            let answer = answered.await?;
            let is_streamed = answer.extensions().get::<Streamed>().is_some();
            streams.store(is_streamed, Relaxed);
            let work = is_streamed.then_some(work);
            Ok::<_, Infallible>(answer.map(|body| AnswerBody { body, _work: work }))
        }
    });
    let io = TokioIo::new(Bounded::new(stream, bounds));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_WITHIN).max_buf_size(MAX_HEAD);
    let mut served = pin!(http.serve_connection(io, answer));
    let mut ageing = pin!(tokio::time::sleep(bounds.life));
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
            () = ageing.as_mut(), if !stopping => {
                // A long answer keeps a snapshot of the store open. Any other one is still given.
                if streams.load(Relaxed) {
                    return;
                }
                stopping = true;
                served.as_mut().graceful_shutdown();
            }
            // A change of the value and a dropped sender both mean stop.
            _ = stop.changed(), if !stopping => {
                stopping = true;
                served.as_mut().graceful_shutdown();
            }
        }
    }
}
