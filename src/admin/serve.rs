//! Accepts connections and speaks HTTP/1 on them, within bounds on their number, their patience and their
//! life.
//!
//! hyper is used directly: what hands it connections must know when a request begins and ends, and must set
//! the time in which a head has to come.

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
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Time for the head of a request, from the moment at which the connection could send it; so also the longest
/// time for which a connection is kept for another request.
const HEAD_WITHIN: Duration = Duration::from_secs(5);
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
                Ok((stream, peer)) => {
                    let served = (app.clone(), bounds, stop.clone());
                    match connections.admit_behind(peer.source(), Instant::now().into_std()) {
                        ConnectionAdmission::Granted(place) => {
                            tasks.spawn(connection(stream, peer, place, served));
                        }
                        // Apart from this loop: others come meanwhile, and need not wait.
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

/// Closed at once: a client that waits in a queue would wait for ever.
fn closed(peer: Peer) {
    tracing::debug!(%peer, "too many requests under way: a connection was closed");
}

/// A request under way: its connection makes no room meanwhile. It ends with the head of its answer, or,
/// where that is [`Streamed`], of which there is one at a time, with the answer itself. Answers that nobody
/// reads would else have all places.
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

/// The body of an answer.
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

/// The client has gone before it was accepted.
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
    let answer = service_fn(move |mut request: Request<Incoming>| {
        let work = AtWork::begin(&at_work);
        request.extensions_mut().insert(peer);
        let answered = app.call(request);
        async move {
            let answer = answered.await?;
            let work = answer.extensions().get::<Streamed>().map(|_| work);
            Ok::<_, Infallible>(answer.map(|body| AnswerBody { body, _work: work }))
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
