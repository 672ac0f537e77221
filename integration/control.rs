//! The connection by which nodes ask each other, on a real broker: whom a request reaches, and what is told of
//! one that reaches nobody.

use crate::fake_broker::harness::runtime;
use futures_util::future::BoxFuture;
use futures_util::FutureExt;
use std::fs;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_amqp::blueprint::ingest_rights;
use tidegate_amqp::{adopt, inspect, AskFailure, ControlLink, Options, Serve};
use tidegate_config::Config;
use tidegate_harness::lapin::ExchangeKind;
use tidegate_harness::{bounded, wait_until, Node, Push, Site, Welcome};
use tokio::runtime::Runtime;

const LIMIT: Duration = Duration::from_secs(60);

/// The nodes of a site, each with a link of its own.
struct Linked {
    site: Site<'static>,
    runtime: Runtime,
}

/// What a node answers: its name, a colon, and the request; nothing to "mute", and too much to "much".
fn serving(name: &'static str, asked: &Arc<AtomicUsize>) -> Serve {
    let asked = Arc::clone(asked);
    Arc::new(move |body: Vec<u8>| -> BoxFuture<'static, Option<Vec<u8>>> {
        asked.fetch_add(1, Ordering::SeqCst);
        async move {
            match &*body {
                b"mute" => None,
                b"much" => Some(vec![0; (8 << 20) + 1]),
                b"never" => std::future::pending().await,
                _ => Some([name.as_bytes(), b":", &body].concat()),
            }
        }
        .boxed()
    })
}

impl Linked {
    fn new(name: &str) -> Linked {
        bounded(Duration::from_secs(240));
        Linked { site: Site::new(name).divided(2), runtime: runtime() }
    }

    /// The checked configuration of a node that reaches the broker by this address.
    fn config(&self, uri: &str, topology: &str) -> Config {
        self.divided(uri, topology, 2)
    }

    /// The same with this number of shards.
    fn divided(&self, uri: &str, topology: &str, shards: u16) -> Config {
        let Linked { site, .. } = self;
        let text = format!(
            "amqp.uri = \"{uri}\"\namqp.topology = \"{topology}\"\nshards.count = {shards}\n\
             ingest.queue = \"{}\"\ningest.exchange = \"{}\"\negress.exchange = \"{}\"\n\
             dead.exchange = \"{}\"\n\
             [store]\nkind = \"postgres\"\nuri = \"postgres://u@localhost/t?sslmode=disable\"\n",
            site.ingest_queue(),
            site.ingest(),
            site.out(),
            site.dead()
        );
        let file = self.site.dir.join("node.toml");
        fs::write(&file, text).expect("the configuration");
        Config::load(Some(&file), std::iter::empty()).expect("a good one").config
    }

    /// Starts the link of a node; counts what it is asked.
    fn link(&self, name: &'static str, config: &Config) -> (ControlLink, Arc<AtomicUsize>) {
        let asked = Arc::default();
        let options = Options::new(config, 0, None);
        let exchange = config.control_exchange();
        let serve = serving(name, &asked);
        (ControlLink::start(self.runtime.handle(), options, exchange, name.to_owned(), serve), asked)
    }

    fn started(&self, name: &'static str) -> (ControlLink, Arc<AtomicUsize>) {
        self.link(name, &self.config(self.site.node.uri(), "declare"))
    }

    fn ask(
        &self,
        link: &ControlLink,
        node: &str,
        body: &[u8],
        limit: Duration,
    ) -> Result<String, AskFailure> {
        let answer = self.runtime.block_on(link.ask(node, body.to_vec(), limit));
        answer.map(|body| String::from_utf8(body).expect("text"))
    }

    /// Asks until the node answers.
    fn answers(&self, link: &ControlLink, node: &str, wanted: &str) {
        wait_until(&format!("{node} answers"), LIMIT, || {
            self.ask(link, node, b"hello", LIMIT) == Ok(wanted.to_owned())
        });
    }

    fn end(&self, link: &ControlLink) {
        self.runtime.block_on(link.shutdown(Duration::from_secs(5)));
    }
}

#[test]
fn nodes_ask_each_other_by_name_and_a_name_that_nobody_has_is_told_at_once() {
    let nodes = Linked::new("control-asks");
    let ((one, asked_one), (other, _)) = (nodes.started("one/1"), nodes.started("other/2"));
    nodes.answers(&one, "other/2", "other/2:hello");
    nodes.answers(&other, "one/1", "one/1:hello");
    // A node may ask itself.
    assert_eq!(nodes.ask(&one, "one/1", b"self", LIMIT), Ok("one/1:self".to_owned()));
    assert_eq!(nodes.ask(&one, "nobody/3", b"hello", LIMIT), Err(AskFailure::NoNode));
    assert_eq!(nodes.ask(&one, &"n".repeat(256), b"hello", LIMIT), Err(AskFailure::NoNode));

    // Under both names, and only these.
    assert_eq!(nodes.ask(&other, "one/9", b"hello", LIMIT), Err(AskFailure::NoNode));
    one.rename("one/9".to_owned());
    nodes.answers(&other, "one/9", "one/1:hello");
    nodes.answers(&other, "one/1", "one/1:hello");

    // Among others that are returned, each gets its own answer. More than may be open wait for a place.
    let many = (0..200).map(|n| {
        let (node, body) = (if n % 3 == 0 { "nobody/3" } else { "other/2" }, format!("{n}"));
        let one = &one;
        async move { (n, one.ask(node, body.into_bytes(), LIMIT).await) }
    });
    for (n, answer) in many_at_once(&nodes.runtime, many) {
        let wanted = match n % 3 {
            0 => Err(AskFailure::NoNode),
            _ => Ok(format!("other/2:{n}").into_bytes()),
        };
        assert_eq!(answer, wanted, "{n}");
    }

    let whole = vec![b'x'; 1 << 20];
    let answer = nodes.ask(&one, "other/2", &whole, LIMIT).expect("an answer");
    assert_eq!(answer.len(), "other/2:".len() + whole.len());
    let Err(AskFailure::Unsent(why)) = nodes.ask(&one, "other/2", &[whole, vec![1]].concat(), LIMIT) else {
        panic!("it is too long")
    };
    assert_eq!(why, "the request has 1048577 bytes, and 1048576 are possible");

    // What other programs send is not served, and does not disturb.
    let before = asked_one.load(Ordering::SeqCst);
    let exchange = format!("{}.control", nodes.site.ingest_queue().trim_end_matches(".ingest"));
    nodes.site.client.publish(&Push::new(&exchange, "one/1", "made up"));
    nodes.answers(&other, "one/1", "one/1:hello");
    assert_eq!(asked_one.load(Ordering::SeqCst), before + 1);

    nodes.end(&other);
    assert_eq!(nodes.ask(&one, "other/2", b"hello", LIMIT), Err(AskFailure::NoNode), "its queue is gone");
    let ended = nodes.ask(&other, "one/1", b"hello", LIMIT);
    assert_eq!(ended, Err(AskFailure::Unsent("this node is shutting down".to_owned())));
    nodes.end(&one);
}

#[test]
fn a_node_that_ends_answers_what_was_sent_to_it_and_the_rest_comes_back() {
    let nodes = Linked::new("control-ends");
    let ((one, _), (other, asked)) = (nodes.started("one/1"), nodes.started("other/2"));
    nodes.answers(&one, "other/2", "other/2:hello");
    // Each asks until the node is gone.
    let asking = (0..8).map(|_| async {
        loop {
            match one.ask("other/2", b"hello".to_vec(), LIMIT).await {
                Ok(answer) => assert_eq!(answer, b"other/2:hello"),
                Err(failure) => return failure,
            }
        }
    });
    let ending = async {
        is_asked(&asked, 100).await;
        other.shutdown(Duration::from_secs(20)).await;
    };
    let asking = futures_util::future::join_all(asking);
    let (failures, ()) = nodes.runtime.block_on(futures_util::future::join(asking, ending));
    assert_eq!(failures, vec![AskFailure::NoNode; 8]);
    nodes.end(&one);
}

/// Waits until a node has been asked this many times.
async fn is_asked(asked: &AtomicUsize, times: usize) {
    let end = Instant::now() + LIMIT * 2;
    while asked.load(Ordering::SeqCst) < times {
        assert!(Instant::now() < end, "asked {} times of {times}", asked.load(Ordering::SeqCst));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Runs all of them at the same time.
fn many_at_once<T>(runtime: &Runtime, all: impl IntoIterator<Item = impl Future<Output = T>>) -> Vec<T> {
    runtime.block_on(futures_util::future::join_all(all))
}

#[test]
fn what_is_not_answered_in_time_is_told_and_others_are_served_meanwhile() {
    let nodes = Linked::new("control-late");
    let ((one, _), (other, asked)) = (nodes.started("one/1"), nodes.started("other/2"));
    nodes.answers(&one, "other/2", "other/2:hello");
    let short = Duration::from_millis(400);
    for body in ["mute", "much", "never"] {
        let begun = Instant::now();
        assert_eq!(nodes.ask(&one, "other/2", body.as_bytes(), short), Err(AskFailure::Unanswered));
        assert!(begun.elapsed() >= short, "{body}");
    }
    nodes.answers(&one, "other/2", "other/2:hello");
    // As many as are served at a time never end: the others wait until these are given up, and are dropped
    // where their askers have gone before.
    let before = asked.load(Ordering::SeqCst);
    let stuck = (0..64).map(|_| one.ask("other/2", b"never".to_vec(), Duration::from_secs(15)));
    let late = (0..8).map(|_| one.ask("other/2", b"late".to_vec(), Duration::from_secs(1)));
    let one_at_a_time = async {
        let stuck = futures_util::future::join_all(stuck);
        let late = async {
            is_asked(&asked, before + 64).await;
            futures_util::future::join_all(late).await
        };
        futures_util::future::join(stuck, late).await
    };
    let (stuck, late) = nodes.runtime.block_on(one_at_a_time);
    assert!(stuck.iter().chain(&late).all(|answer| *answer == Err(AskFailure::Unanswered)), "{late:?}");
    nodes.answers(&one, "other/2", "other/2:hello");
    assert_eq!(asked.load(Ordering::SeqCst), before + 65, "what is too late is served no more");
    nodes.end(&one);
    nodes.end(&other);
}

#[test]
fn without_a_connection_nothing_is_sent_and_after_it_all_goes_on() {
    let nodes = Linked::new("control-lost");
    let (other, asked) = nodes.started("other/2");
    let (proxy, uri) = nodes.site.node.proxied();
    let (one, _) = nodes.link("one/1", &nodes.config(&uri, "declare"));
    nodes.answers(&one, "other/2", "other/2:hello");

    proxy.welcome(Welcome::Refuse);
    // One that is open when the connection is lost ends with it.
    let before = asked.load(Ordering::SeqCst);
    let cut = async {
        let asking = one.ask("other/2", b"never".to_vec(), LIMIT);
        let cutting = async {
            is_asked(&asked, before + 1).await;
            proxy.cut(true);
        };
        futures_util::future::join(asking, cutting).await.0
    };
    assert_eq!(nodes.runtime.block_on(cut), Err(AskFailure::Unanswered));
    let begun = Instant::now();
    let Err(AskFailure::Unsent(why)) = nodes.ask(&one, "other/2", b"hello", LIMIT) else {
        panic!("there is no connection")
    };
    assert!(!why.is_empty() && begun.elapsed() < LIMIT / 2, "{why}");
    wait_until("its queue is gone", LIMIT, || {
        nodes.ask(&other, "one/1", b"hello", Duration::from_secs(1)) == Err(AskFailure::NoNode)
    });

    // A name that is given meanwhile holds afterwards.
    one.rename("one/9".to_owned());
    proxy.welcome(Welcome::Forward);
    nodes.answers(&one, "other/2", "other/2:hello");
    nodes.answers(&other, "one/9", "one/1:hello");
    nodes.end(&one);
    nodes.end(&other);
}

#[test]
fn with_passive_topology_the_missing_exchange_is_named_until_it_is_there() {
    let nodes = Linked::new("control-passive");
    let config = nodes.config(nodes.site.node.uri(), "passive");
    let exchange = config.control_exchange();
    let (one, _) = nodes.link("one/1", &config);
    let told = || match nodes.ask(&one, "one/1", b"hello", LIMIT) {
        Err(AskFailure::Unsent(why)) => why,
        other => panic!("{other:?}"),
    };
    wait_until("the exchange is named", LIMIT, || told().contains(&format!("exchange '{exchange}'")));
    assert!(told().contains("`tidegate topology print` shows how"), "{}", told());
    nodes.site.client.exchange(&exchange, ExchangeKind::Direct);
    nodes.answers(&one, "one/1", "one/1:hello");
    nodes.end(&one);
}

/// A user of this test alone.
const LEAST: &str = "control-least";

#[test]
fn the_least_rights_are_enough_to_ask_and_the_check_names_each_that_is_missing() {
    let test = "the_least_rights_are_enough_to_ask_and_the_check_names_each_that_is_missing";
    let Some(node) = Node::controlled(test) else { return };
    let nodes = Linked::new("control-rights");
    let uri = node.uri_of(LEAST, "%2f");
    node.ctl(&["add_user", LEAST, LEAST]);
    let may = |configure: &str, write: &str, read: &str| {
        node.ctl(&["set_permissions", "-p", "/", LEAST, configure, write, read]);
    };
    let exchange = nodes.config(&uri, "declare").control_exchange();
    // What the check says of the exchange and of the node's queue.
    let found = |config: &Config| -> Vec<String> {
        let found = nodes.runtime.block_on(inspect(&Options::new(config, 0, None)));
        let texts = found.iter().map(|line| format!("{} {}", line.severity.as_str(), line.text));
        texts.filter(|text| text.contains(&exchange) || text.contains("amq.gen-")).collect()
    };
    for topology in ["declare", "passive"] {
        let config = nodes.config(&uri, topology);
        let least = ingest_rights(&config);
        may(&least.configure, &least.write, &least.read);
        let (one, _) = nodes.link("one/1", &config);
        nodes.answers(&one, "one/1", "one/1:hello");
        nodes.end(&one);
        let told = found(&config);
        let rights = format!("write '{exchange}', read '{exchange}', configure 'amq.gen-', write 'amq.gen-'");
        assert!(told.iter().any(|text| text.starts_with("ok ") && text.contains(&rights)), "{told:?}");
        assert!(told.iter().all(|text| !text.contains("is missing")), "{told:?}");
    }
    may("^$", "^$", "^$");
    let told = found(&nodes.config(&uri, "passive"));
    for right in ["write", "read"] {
        let missing = format!("warn the right to {right} '{exchange}' is missing: ");
        assert!(told.iter().any(|text| text.starts_with(&missing)), "{missing}: {told:?}");
    }
    for right in ["configure", "write", "read"] {
        let missing = format!("warn the right to {right} 'amq.gen-' is missing: ");
        assert!(told.iter().any(|text| text.starts_with(&missing)), "{missing}: {told:?}");
    }
    // Without them, the reason names what is refused.
    let (one, _) = nodes.link("one/1", &nodes.config(&uri, "off"));
    wait_until("the refusal is told", LIMIT, || {
        let answer = nodes.ask(&one, "one/1", b"hello", LIMIT);
        let Err(AskFailure::Unsent(why)) = answer else { panic!("{answer:?}") };
        why.contains("ACCESS_REFUSED") && why.contains("shows the rights that nodes need")
    });
    nodes.end(&one);
}

#[test]
fn the_exchange_of_nodes_is_made_with_several_shards_and_deleted_with_one() {
    let nodes = Linked::new("control-adopted");
    let of = |shards: u16| nodes.divided(nodes.site.node.uri(), "passive", shards);
    let exchange = of(2).control_exchange();
    let adopted = |shards: u16| nodes.runtime.block_on(adopt(&of(shards))).expect("the steps");
    assert!(adopted(2).contains(&format!("exchange '{exchange}' (direct)")));
    assert!(nodes.site.client.has_exchange(&exchange, ExchangeKind::Direct));
    assert!(adopted(1).contains(&format!("exchange '{exchange}' deleted")));
    assert!(!nodes.site.client.has_exchange(&exchange, ExchangeKind::Direct));
    assert!(!adopted(1).iter().any(|line| line.contains(&exchange)), "there is nothing to do");
}
