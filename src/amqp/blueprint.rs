//! What tidegate needs on the broker, as data: what is declared, and the rights of each login.
//!
//! [`super::topology`] declares by it; `tidegate topology print` prints it for those who let tidegate declare
//! nothing.

use super::ingest_lock::lock_name;
use crate::config::{Config, DeadLetters, EgressConfig, IngestConfig, Topology};

/// Returns of one message to the ingest queue before the broker moves it to the dead exchange.
const DELIVERY_LIMIT: i64 = 50;

/// Value of a queue's argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Argument {
    Text(String),
    Number(i64),
}

/// The names that both sides use.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    pub(super) queue: String,
    pub(super) ingest: String,
    pub(super) egress: String,
    pub(super) dead: String,
}

impl Names {
    pub(crate) fn of(ingest: &IngestConfig, egress: &EgressConfig, dead: &DeadLetters) -> Names {
        Names {
            queue: ingest.queue.clone(),
            ingest: ingest.exchange.clone(),
            egress: egress.exchange.clone(),
            dead: dead.exchange.clone(),
        }
    }
}

/// How an exchange routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Routing {
    Direct,
    Fanout,
}

impl Routing {
    /// As RabbitMQ names it.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Routing::Direct => "direct",
            Routing::Fanout => "fanout",
        }
    }
}

/// Something durable on the broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Declared {
    Exchange { name: String, kind: Routing },
    Queue { name: String, arguments: Vec<(&'static str, Argument)> },
    Binding { exchange: String, queue: String },
}

/// Rights of a login in its virtual host, as regular expressions over names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rights {
    pub(crate) configure: String,
    pub(crate) write: String,
    pub(crate) read: String,
}

/// Requests: where they are published, and where they are taken from. In the order in which it can be made,
/// as all of these.
pub(crate) fn ingest(names: &Names) -> [Declared; 3] {
    let text = |value: &str| Argument::Text(value.to_owned());
    let arguments = vec![
        ("x-queue-type", text("quorum")),
        ("x-dead-letter-exchange", text(&names.dead)),
        ("x-dead-letter-strategy", text("at-least-once")),
        ("x-overflow", text("reject-publish")),
        ("x-delivery-limit", Argument::Number(DELIVERY_LIMIT)),
    ];
    let (queue, exchange) = (names.queue.clone(), names.ingest.clone());
    [
        Declared::Queue { name: queue.clone(), arguments },
        Declared::Exchange { name: exchange.clone(), kind: Routing::Fanout },
        Declared::Binding { exchange, queue },
    ]
}

/// Where batches are published.
pub(crate) fn egress(exchange: &str) -> Declared {
    Declared::Exchange { name: exchange.to_owned(), kind: Routing::Direct }
}

/// Dead letters: their exchange, which both sides name.
pub(crate) fn dead_exchange(name: &str) -> Declared {
    Declared::Exchange { name: name.to_owned(), kind: Routing::Fanout }
}

/// Dead letters: the queue behind the exchange.
pub(crate) fn dead_queue(name: &str) -> [Declared; 2] {
    let (exchange, queue) = (name.to_owned(), name.to_owned());
    [Declared::Queue { name: queue.clone(), arguments: Vec::new() }, Declared::Binding { exchange, queue }]
}

/// The least rights of the login that consumes requests and answers commands. To declare, it needs more than
/// to use what is there.
pub(crate) fn ingest_rights(config: &Config) -> Rights {
    let (queue, exchange, dead) = (&*config.ingest.queue, &*config.ingest.exchange, &*config.dead.exchange);
    let lock = lock_name(queue);
    match config.amqp.topology {
        Topology::Declare => Rights {
            configure: any_of(&[&lock, queue, exchange, dead]),
            // To bind takes the right to write to the queue and to read from the exchange, to name a
            // dead-letter exchange that to write to it.
            write: any_of(&["amq.default", queue, dead]),
            read: any_of(&[queue, exchange, dead]),
        },
        Topology::Passive | Topology::Off => {
            Rights { configure: any_of(&[&lock]), write: any_of(&["amq.default"]), read: any_of(&[queue]) }
        }
    }
}

/// The least rights of the login that publishes batches and dead letters.
pub(crate) fn egress_rights(config: &Config) -> Rights {
    let (exchange, dead) = (&*config.egress.exchange, &*config.dead.exchange);
    let write = any_of(&[exchange, dead]);
    match config.amqp.topology {
        Topology::Declare => Rights { configure: write.clone(), write, read: any_of(&[dead]) },
        Topology::Passive | Topology::Off => Rights { configure: any_of(&[]), write, read: any_of(&[]) },
    }
}

/// The rights of a login that does the work of both sides.
pub(crate) fn rights_of_both(config: &Config) -> Rights {
    let (one, other) = (ingest_rights(config), egress_rights(config));
    let both = |a: String, b: String| match (&*a, &*b) {
        (_, "^$") => a,
        ("^$", _) => b,
        (a, b) => format!("{a}|{b}"),
    };
    Rights {
        configure: both(one.configure, other.configure),
        write: both(one.write, other.write),
        read: both(one.read, other.read),
    }
}

/// A regular expression for these names and no others; RabbitMQ gives the default exchange the name
/// `amq.default` in permissions.
pub(crate) fn any_of(names: &[&str]) -> String {
    match names {
        [] => "^$".to_owned(),
        [name] => format!("^{}$", escaped(name)),
        names => format!("^({})$", names.iter().map(|name| escaped(name)).collect::<Vec<_>>().join("|")),
    }
}

fn escaped(name: &str) -> String {
    let mut text = String::with_capacity(name.len() + 8);
    for c in name.chars() {
        if r"\.+*?()|[]{}^$#&-~".contains(c) {
            text.push('\\');
        }
        text.push(c);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_name_what_is_used_and_no_more() {
        let mut config = Config::default();
        config.amqp.topology = Topology::Passive;
        let rights = |configure: &str, write: &str, read: &str| Rights {
            configure: configure.to_owned(),
            write: write.to_owned(),
            read: read.to_owned(),
        };
        let lock = r"^tidegate\.lock\.tidegate\.ingest$";
        assert_eq!(ingest_rights(&config), rights(lock, r"^amq\.default$", r"^tidegate\.ingest$"));
        assert_eq!(egress_rights(&config), rights("^$", r"^(tidegate\.out|tidegate\.dead)$", "^$"));
        assert_eq!(
            rights_of_both(&config),
            rights(lock, r"^amq\.default$|^(tidegate\.out|tidegate\.dead)$", r"^tidegate\.ingest$")
        );
    }

    #[test]
    fn a_name_is_no_pattern() {
        assert_eq!(any_of(&["a.b", "c|d"]), r"^(a\.b|c\|d)$");
        assert_eq!(any_of(&["größe"]), "^größe$");
    }
}
