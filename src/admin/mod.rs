//! The admin HTTP server: probes, the state document, and commands on items, customers and applications; for
//! operators and supervisors.
//!
//! It owns nothing and decides nothing. What it tells it asks the daemon's loop for, through a callback that
//! posts into the loop's mailbox and a one-shot reply, with a bound on the wait. There is no TLS here (a
//! proxy's task), no CORS and no session.

mod answer;
pub(crate) mod applications;
mod command;
mod connections;
mod guard;
mod items;
mod listener;
mod liveness;
pub mod parse;
mod readiness;
mod routes;
mod serve;
pub(crate) mod state;

pub use command::{CommandRequest, CommandResponse, ItemOf, Status};
pub use liveness::Liveness;
pub use readiness::{Latch, Readiness};
pub use state::{LatenessState, LinkState, StateInput, StoreState};

use crate::config::terms::is_loopback;
use connections::{Connections, Places};
use listener::Bounds;
use secrecy::{ExposeSecret, SecretString};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

/// How long requests that are under way may take once the server is to stop.
const STOP_WITHIN: Duration = Duration::from_secs(2);

/// What the server asks the daemon's loop. A reply whose receiver has gone is dropped.
#[derive(Debug)]
pub enum Query {
    /// Everything at this moment.
    State(oneshot::Sender<StateInput>),
    /// A command, and where its response goes.
    Command(CommandRequest, oneshot::Sender<CommandResponse>),
}

/// Posts a query into the loop's mailbox. Must not block.
pub type Ask = Arc<dyn Fn(Query) + Send + Sync>;

/// Where to listen, and what a request has to show.
#[derive(Clone, Debug)]
pub struct AdminOptions {
    /// Address; port 0 lets the system choose.
    pub listen: SocketAddr,
    /// Bearer token; needed unless `listen` is a loopback address.
    pub token: Option<SecretString>,
}

impl From<&crate::config::Admin> for AdminOptions {
    fn from(admin: &crate::config::Admin) -> Self {
        AdminOptions { listen: admin.listen, token: admin.token.clone() }
    }
}

/// Why the server did not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Every machine of the network could read and write.
    #[error("admin.listen = {0} is not a loopback address: this needs admin.token_file")]
    TokenNeeded(SocketAddr),
    /// An empty token is none.
    #[error("the token of admin.token_file is empty")]
    EmptyToken,
    /// The address is taken, foreign, or not allowed.
    #[error("admin.listen: cannot listen on {addr}: {source}")]
    Bind {
        /// As in `admin.listen`.
        addr: SocketAddr,
        /// The system's answer.
        source: io::Error,
    },
}

/// A running server. Dropping it stops it at once.
#[derive(Debug)]
pub struct Server {
    addr: SocketAddr,
    stop: Option<watch::Sender<bool>>,
    task: JoinHandle<()>,
}

/// Binds and serves on the current tokio runtime.
///
/// # Errors
/// See [`ServeError`]; once it has been bound, it serves until it is stopped.
pub async fn serve(
    options: AdminOptions,
    readiness: Arc<Readiness>,
    liveness: Arc<Liveness>,
    ask: Ask,
) -> Result<Server, ServeError> {
    match &options.token {
        None if !is_loopback(options.listen.ip()) => return Err(ServeError::TokenNeeded(options.listen)),
        Some(token) if token.expose_secret().trim().is_empty() => return Err(ServeError::EmptyToken),
        None | Some(_) => {}
    }
    let bind_error = |source| ServeError::Bind { addr: options.listen, source };
    let listener = TcpListener::bind(options.listen).await.map_err(bind_error)?;
    let addr = listener.local_addr().map_err(bind_error)?;
    let app = routes::router(guard::Guard::new(options.token, addr), readiness, liveness, ask);
    let (stop, stopped) = watch::channel(false);
    let connections = Arc::new(Connections::new(Places::default()));
    let task = tokio::spawn(serve::serve(listener, app, connections, Bounds::default(), stopped));
    Ok(Server { addr, stop: Some(stop), task })
}

impl Server {
    /// The address listened on, with the port that the system chose.
    pub fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    /// Takes no more requests, and waits a bounded time for those under way.
    pub async fn stop(mut self) {
        drop(self.stop.take());
        // Overdue: the drop below ends it.
        let _ = tokio::time::timeout(STOP_WITHIN, &mut self.task).await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[cfg(test)]
mod tests;
