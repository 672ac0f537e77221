//! The admin HTTP server for operators and supervisors: probes, the state document, commands on items,
//! customers and applications, and a web page.
//!
//! It owns nothing and decides nothing. It queries the daemon's loops through a callback that posts into
//! their mailboxes, and waits for a one-shot reply with a time limit. There is no TLS (a proxy can add it),
//! no CORS and no session.

mod accept;
mod added;
mod answer;
pub(crate) mod applications;
mod audit;
mod command;
mod connections;
mod dead;
mod export;
mod guard;
mod health;
mod horizon;
mod items;
mod listener;
mod metrics;
mod openapi;
mod page;
pub mod parse;
mod readiness;
mod routes;
mod serve;
mod socket;
pub(crate) mod state;
mod sum;
mod traffic;

pub use command::{CommandRequest, CommandResponse, ItemOf, Status};
pub use export::{ExportFeed, ExportRefusal};
pub use health::{NodeHealth, ShardHealth};
pub use horizon::TimeHorizon;
pub use readiness::{Latch, Readiness};
pub use state::{LinkState, MapState, NodeFacts, ShardLine, ShardState, StateInput, StoreState};
pub use sum::sum;
pub use traffic::Traffic;

use accept::AdminListener;
use connections::{Connections, Places};
use listener::Bounds;
use secrecy::{ExposeSecret, SecretString};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tidegate_config::{Admin, Listen};
use tidegate_wire::dead_letters::{LetterReport, LetterTask, LetterTrouble};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

/// Time limit for requests in progress when the server stops.
const STOP_WITHIN: Duration = Duration::from_secs(2);

/// Whose state is wanted, where several nodes share the shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateScope {
    /// Of this node alone.
    Node,
    /// Also of the shards that other nodes have.
    AllNodes,
}

/// Queries of the server to the daemon's loop. A reply without a receiver is dropped.
#[derive(Debug)]
pub enum Query {
    /// The state at this moment.
    State(StateScope, oneshot::Sender<StateInput>),
    /// A command, and the sender of its response.
    Command(CommandRequest, oneshot::Sender<CommandResponse>),
    /// The whole store, as lines.
    Export(oneshot::Sender<Result<ExportFeed, ExportRefusal>>),
    /// An action on dead letters, which does not involve the loop but only the broker.
    Letters(LetterTask, oneshot::Sender<Result<LetterReport, LetterTrouble>>),
}

/// Posts a query into the loop's mailbox; must not block.
pub type Ask = Arc<dyn Fn(Query) + Send + Sync>;

/// The address of the server and its tokens.
#[derive(Clone, Debug)]
pub struct AdminOptions {
    /// The address or socket; with port 0 the system chooses.
    pub listen: Listen,
    /// Without the full token, `listen` must be local.
    pub tokens: Tokens,
}

/// Bearer tokens and their rights.
#[derive(Clone, Debug, Default)]
pub struct Tokens {
    /// Grants everything. `None`: requests need no token.
    pub full: Option<SecretString>,
    /// Grants requests that change nothing. No effect without the full token.
    pub read: Option<SecretString>,
    /// Grants the state and the metrics, which contain no payload, id or customer. No effect without the full
    /// token.
    pub state: Option<SecretString>,
}

impl From<&Admin> for AdminOptions {
    fn from(admin: &Admin) -> Self {
        let Admin { token, read_token, state_token, .. } = admin.clone();
        let tokens = Tokens { full: token, read: read_token, state: state_token };
        AdminOptions { listen: admin.listen.clone(), tokens }
    }
}

/// Why the server did not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Every machine of the network could read and write.
    #[error("admin.listen = {0} is not a loopback address: this needs admin.token_file")]
    TokenNeeded(Listen),
    /// An empty token protects nothing.
    #[error("a token of [admin] is empty")]
    EmptyToken,
    /// The address or the path is taken, not on this machine, or not permitted.
    #[error("admin.listen: cannot listen on {addr}: {source}")]
    Bind {
        /// The address of `admin.listen`.
        addr: Listen,
        /// The error of the system.
        source: io::Error,
    },
}

/// A running server, which stops at once when dropped.
#[derive(Debug)]
pub struct Server {
    at: Listen,
    stop: Option<watch::Sender<bool>>,
    /// `None` if the admin port is off.
    task: Option<JoinHandle<()>>,
}

/// Binds, and serves on the current tokio runtime until stopped. A listener that is off serves nothing.
///
/// # Errors
/// See [`ServeError`]. Once bound, the server does not fail.
pub async fn serve(options: AdminOptions, health: Arc<NodeHealth>, ask: Ask) -> Result<Server, ServeError> {
    let AdminOptions { listen, tokens } = options;
    if tokens.full.is_none() && !listen.is_local() {
        return Err(ServeError::TokenNeeded(listen));
    }
    let is_empty = |token: &SecretString| token.expose_secret().trim().is_empty();
    if tokens.full.iter().chain(&tokens.read).chain(&tokens.state).any(is_empty) {
        return Err(ServeError::EmptyToken);
    }
    let bound = AdminListener::bind(&listen).await;
    let Some((listener, at)) = bound.map_err(|source| ServeError::Bind { addr: listen, source })? else {
        return Ok(Server { at: Listen::Off, stop: None, task: None });
    };
    let app = routes::router(guard::Guard::new(tokens, &at), health, ask);
    let (stop, stopped) = watch::channel(false);
    let connections = Arc::new(Connections::new(Places::default()));
    let task = tokio::spawn(serve::serve(listener, app, connections, Bounds::default(), stopped));
    Ok(Server { at, stop: Some(stop), task: Some(task) })
}

impl Server {
    /// The actual address, with the port that the system chose.
    pub fn listens_at(&self) -> &Listen {
        &self.at
    }

    /// Stops taking requests, and waits a bounded time for those in progress.
    pub async fn stop(mut self) {
        drop(self.stop.take());
        if let Some(task) = &mut self.task {
            // If the time is over, the drop below ends the task.
            let _ = tokio::time::timeout(STOP_WITHIN, task).await;
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

#[cfg(test)]
mod tests;
