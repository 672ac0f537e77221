//! The admin HTTP server: probes, the state document, commands on items, customers and applications, and a
//! page for people; for operators and supervisors.
//!
//! It owns nothing and decides nothing. What it tells it asks the daemon's loop for, through a callback that
//! posts into the loop's mailbox and a one-shot reply, with a bound on the wait. There is no TLS here (a
//! proxy's task), no CORS and no session.

mod accept;
mod answer;
pub(crate) mod applications;
mod audit;
mod command;
mod connections;
mod export;
mod guard;
mod items;
mod letters;
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

pub use command::{CommandRequest, CommandResponse, ItemOf, Status};
pub use export::{ExportFeed, ExportRefusal};
pub use metrics::Traffic;
pub use readiness::{Latch, Readiness};
pub use state::{LatenessState, LinkState, StateInput, StoreState};

use crate::config::{Admin, Listen};
use crate::letters::{LetterReport, LetterTask, LetterTrouble};
use crate::progress::ProgressMarks;
use accept::AdminListener;
use connections::{Connections, Places};
use listener::Bounds;
use secrecy::{ExposeSecret, SecretString};
use std::io;
use std::sync::Arc;
use std::time::Duration;
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
    /// Everything that is stored, as lines.
    Export(oneshot::Sender<Result<ExportFeed, ExportRefusal>>),
    /// Work on dead letters, which is not the loop's: it goes to the broker, and to no other part.
    Letters(LetterTask, oneshot::Sender<Result<LetterReport, LetterTrouble>>),
}

/// Posts a query into the loop's mailbox. Must not block.
pub type Ask = Arc<dyn Fn(Query) + Send + Sync>;

/// Where to listen, and what a request has to show.
#[derive(Clone, Debug)]
pub struct AdminOptions {
    /// Address or socket; port 0 lets the system choose.
    pub listen: Listen,
    /// Without one for everything, `listen` must be local.
    pub tokens: Tokens,
}

/// Bearer tokens, and what each lets its bearer do.
#[derive(Clone, Debug, Default)]
pub struct Tokens {
    /// Everything. `None`: no token is asked for.
    pub full: Option<SecretString>,
    /// What changes nothing. Without effect unless there is one for everything.
    pub read: Option<SecretString>,
    /// The state and the metrics, in which no payload is, no id and no customer. Likewise.
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
    /// An empty token is none.
    #[error("a token of [admin] is empty")]
    EmptyToken,
    /// The address or the path is taken, foreign, or not allowed.
    #[error("admin.listen: cannot listen on {addr}: {source}")]
    Bind {
        /// As in `admin.listen`.
        addr: Listen,
        /// The system's answer.
        source: io::Error,
    },
}

/// A running server. Dropping it stops it at once.
#[derive(Debug)]
pub struct Server {
    at: Listen,
    stop: Option<watch::Sender<bool>>,
    /// `None`: it is off.
    task: Option<JoinHandle<()>>,
}

/// Binds and serves on the current tokio runtime. What is off serves nobody.
///
/// # Errors
/// See [`ServeError`]; once it has been bound, it serves until it is stopped.
pub async fn serve(
    options: AdminOptions,
    readiness: Arc<Readiness>,
    progress: Arc<ProgressMarks>,
    ask: Ask,
) -> Result<Server, ServeError> {
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
    let app = routes::router(guard::Guard::new(tokens, &at), readiness, progress, ask);
    let (stop, stopped) = watch::channel(false);
    let connections = Arc::new(Connections::new(Places::default()));
    let task = tokio::spawn(serve::serve(listener, app, connections, Bounds::default(), stopped));
    Ok(Server { at, stop: Some(stop), task: Some(task) })
}

impl Server {
    /// Where it listens, with the port that the system chose.
    pub fn listens_at(&self) -> &Listen {
        &self.at
    }

    /// Takes no more requests, and waits a bounded time for those under way.
    pub async fn stop(mut self) {
        drop(self.stop.take());
        if let Some(task) = &mut self.task {
            // Overdue: the drop below ends it.
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
