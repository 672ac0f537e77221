//! `topology print`: prints what the configuration needs on the broker, as commands or definitions.

use super::args::Output;
use super::output::{Failure, Out};
use serde_json::{json, Map, Value};
use std::collections::BTreeSet;
use tidegate_amqp::blueprint::{self, any_of, Argument, Declared, Names, Rights};
use tidegate_config::{Config, Login, Topology};

/// The user that RabbitMQ creates at its first start, and accepts from its own machine only.
const GUEST: &str = "guest";

/// Runs the command.
///
/// # Errors
/// Failed if standard output cannot be written.
pub(super) fn print(config: &Config, output: Output) -> Result<(), Failure> {
    let mut out = Out::lock();
    match output {
        Output::Json => out.json(&definitions(config)),
        Output::Table => script(config).into_iter().try_for_each(|line| out.line(line)),
    }
}

/// One end of the broker: its address, user and objects.
struct BrokerEnd<'c> {
    vhost: &'c str,
    user: &'c str,
    login: Login,
    declared: Vec<Declared>,
    rights: Rights,
}

fn ends(config: &Config) -> Vec<BrokerEnd<'_>> {
    let names = Names::of(config);
    let dead = blueprint::dead(&config.dead);
    // The ingest queue names the dead exchange, which therefore comes first.
    let ingest = dead.iter().cloned().chain(blueprint::ingest(&names)).collect();
    let egress = std::iter::once(blueprint::egress(&config.egress.exchange)).chain(dead).collect();
    let sides = [
        (&config.amqp.endpoints, ingest, blueprint::ingest_rights(config)),
        (&config.egress.endpoints, egress, blueprint::egress_rights(config)),
    ];
    sides
        .into_iter()
        .filter_map(|(endpoints, declared, rights)| {
            let e = endpoints.first()?;
            Some(BrokerEnd { vhost: &e.vhost, user: &e.user, login: e.login, declared, rights })
        })
        .collect()
}

/// Each object once, with its virtual host, in an order in which they can be created.
fn declared<'c>(ends: &'c [BrokerEnd<'c>]) -> Vec<(&'c str, &'c Declared)> {
    let mut all = Vec::new();
    for one in ends.iter().flat_map(|end| end.declared.iter().map(|declared| (end.vhost, declared))) {
        if !all.contains(&one) {
            all.push(one);
        }
    }
    all
}

/// The commands for a shell, with comments.
fn script(config: &Config) -> Vec<String> {
    let ends = ends(config);
    let mut lines = vec!["# Virtual host, exchanges and queues.".to_owned()];
    let vhosts: BTreeSet<&str> = ends.iter().map(|end| end.vhost).filter(|vhost| *vhost != "/").collect();
    lines.extend(vhosts.into_iter().map(|vhost| format!("rabbitmqctl add_vhost {}", quoted(vhost))));
    lines.extend(declared(&ends).into_iter().map(|(vhost, declared)| command(vhost, declared)));
    lines.push(String::new());
    lines.push(
        match config.amqp.topology {
            Topology::Declare => "# The least rights with topology = \"declare\"; \"passive\" needs fewer.",
            Topology::Passive => "# The least rights with topology = \"passive\".",
            Topology::Off => "# The least rights with topology = \"off\".",
        }
        .to_owned(),
    );
    lines.extend(accounts(config, &ends));
    lines.push(String::new());
    let vhost = ends.first().map_or("/", |end| end.vhost);
    let publish =
        Rights { configure: any_of(&[]), write: any_of(&[&config.ingest.exchange]), read: any_of(&[]) };
    lines.push("# A producer, which may only publish requests:".to_owned());
    lines.push(format!("#{}", permission(vhost, "PRODUCER", &publish)));
    let exchange = &config.egress.exchange;
    lines.push(format!(
        "# Each application has a queue that is bound to {exchange} with its name as routing key."
    ));
    lines
}

/// The accounts with their rights. `guest` is not an account for a daemon: another name replaces it.
fn accounts(config: &Config, ends: &[BrokerEnd<'_>]) -> Vec<String> {
    let own = |user: &str, name: &str| if user == GUEST { name.to_owned() } else { user.to_owned() };
    let wanted: Vec<(&str, String, Rights)> = match ends {
        [ingest, egress] if ingest.user == egress.user && ingest.user != GUEST => {
            if ingest.vhost == egress.vhost {
                vec![(ingest.vhost, ingest.user.to_owned(), blueprint::rights_of_both(config))]
            } else {
                ends.iter().map(|end| (end.vhost, end.user.to_owned(), end.rights.clone())).collect()
            }
        }
        ends => ends
            .iter()
            .zip(["tidegate-in", "tidegate-out"])
            .map(|(end, name)| (end.vhost, own(end.user, name), end.rights.clone()))
            .collect(),
    };
    let mut lines = Vec::new();
    let mut known = BTreeSet::new();
    for (vhost, user, rights) in &wanted {
        if known.insert(user) {
            lines.push(format!("rabbitmqctl add_user {} PASSWORD", quoted(user)));
            // The user logs in by certificate, and must not be able to log in by password.
            if ends.iter().any(|end| end.login == Login::External && end.user == user) {
                lines.push(format!("rabbitmqctl clear_password {}", quoted(user)));
            }
        }
        lines.push(permission(vhost, user, rights));
    }
    lines
}

fn permission(vhost: &str, user: &str, rights: &Rights) -> String {
    let [vhost, user, configure, write, read] =
        [vhost, user, &rights.configure, &rights.write, &rights.read].map(quoted);
    format!("rabbitmqctl set_permissions -p {vhost} {user} {configure} {write} {read}")
}

/// The command for rabbitmqadmin version 2.
fn command(vhost: &str, declared: &Declared) -> String {
    let admin = format!("rabbitmqadmin --vhost {} declare", quoted(vhost));
    match declared {
        Declared::Exchange { name, kind, alternate } => {
            let argument = alternate.as_ref().map(|other| json!({ "alternate-exchange": other }).to_string());
            let arguments = argument.map(|text| format!(" --arguments {}", quoted(&text)));
            format!(
                "{admin} exchange --name {} --type {} --durable true{}",
                quoted(name),
                kind.as_str(),
                arguments.unwrap_or_default()
            )
        }
        Declared::Queue { name, arguments } => {
            let kind = arguments.iter().find_map(|(name, value)| match value {
                Argument::Text(kind) if *name == "x-queue-type" => Some(kind.as_str()),
                Argument::Text(_) | Argument::Number(_) => None,
            });
            let others = arguments.iter().filter(|(name, _)| *name != "x-queue-type");
            let others: Map<String, Value> =
                others.map(|(name, value)| ((*name).to_owned(), json(value))).collect();
            let arguments = match others.is_empty() {
                true => String::new(),
                false => format!(" --arguments {}", quoted(&Value::Object(others).to_string())),
            };
            let kind = kind.unwrap_or("classic");
            format!("{admin} queue --name {} --type {kind} --durable true{arguments}", quoted(name))
        }
        Declared::Binding { exchange, queue, key } => format!(
            "{admin} binding --source {} --destination-type queue --destination {} --routing-key {}",
            quoted(exchange),
            quoted(queue),
            quoted(key)
        ),
        Declared::ExchangeBinding { source, destination } => format!(
            "{admin} binding --source {} --destination-type exchange --destination {} --routing-key ''",
            quoted(source),
            quoted(destination)
        ),
    }
}

fn json(value: &Argument) -> Value {
    match value {
        Argument::Text(text) => json!(text),
        Argument::Number(number) => json!(number),
    }
}

/// The definitions in the form that `rabbitmqctl import_definitions` and the management plugin read.
fn definitions(config: &Config) -> Value {
    let ends = ends(config);
    let vhosts: BTreeSet<&str> = ends.iter().map(|end| end.vhost).collect();
    let vhosts: Vec<Value> = vhosts.into_iter().map(|name| json!({ "name": name })).collect();
    let (mut exchanges, mut queues, mut bindings) = (Vec::new(), Vec::new(), Vec::new());
    for (vhost, declared) in declared(&ends) {
        match declared {
            Declared::Exchange { name, kind, alternate } => {
                let arguments =
                    alternate.as_ref().map_or(json!({}), |other| json!({ "alternate-exchange": other }));
                exchanges.push(json!({
                    "vhost": vhost, "name": name, "type": kind.as_str(), "durable": true,
                    "auto_delete": false, "internal": false, "arguments": arguments,
                }));
            }
            Declared::Queue { name, arguments } => {
                let arguments: Map<String, Value> =
                    arguments.iter().map(|(name, value)| ((*name).to_owned(), json(value))).collect();
                queues.push(json!({
                    "vhost": vhost, "name": name, "durable": true, "auto_delete": false,
                    "arguments": arguments,
                }));
            }
            Declared::Binding { exchange, queue, key } => bindings.push(json!({
                "vhost": vhost, "source": exchange, "destination": queue, "destination_type": "queue",
                "routing_key": key, "arguments": {},
            })),
            Declared::ExchangeBinding { source, destination } => bindings.push(json!({
                "vhost": vhost, "source": source, "destination": destination,
                "destination_type": "exchange", "routing_key": "", "arguments": {},
            })),
        }
    }
    json!({ "vhosts": vhosts, "exchanges": exchanges, "queues": queues, "bindings": bindings })
}

/// One word for a shell.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configured(text: &str) -> Config {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.toml");
        std::fs::write(&path, text).unwrap();
        Config::load(Some(&path), std::iter::empty()).unwrap().config
    }

    #[test]
    fn each_thing_is_made_once_and_in_an_order_that_works() {
        let config = configured("[amqp]\nuri = \"amqp://tg:x@localhost/push\"\ntopology = \"passive\"\n");
        let lines = script(&config);
        let at = |part: &str| {
            let mut found = lines.iter().enumerate().filter(|(_, line)| line.contains(part));
            let first = found.next().unwrap_or_else(|| panic!("{part} is not in {lines:#?}")).0;
            assert!(found.next().is_none(), "{part} twice in {lines:#?}");
            first
        };
        assert!(at("add_vhost push") < at("exchange --name tidegate.dead --type fanout"));
        assert!(at("exchange --name tidegate.dead") < at("queue --name tidegate.ingest --type quorum"));
        assert!(at("queue --name tidegate.ingest") < at("--source tidegate.in "));
        at("rabbitmqctl add_user tg PASSWORD");
        at("rabbitmqctl set_permissions -p push tg '^tidegate\\.lock\\.tidegate\\.ingest$'");
        let made = definitions(&config);
        assert_eq!(made["queues"].as_array().unwrap().len(), 2);
        assert_eq!(made["queues"][0]["arguments"]["x-queue-type"], "quorum");
        assert_eq!(made["queues"][1]["arguments"]["x-delivery-limit"], 50);
        assert_eq!(made["exchanges"].as_array().unwrap().len(), 3);
    }

    #[test]
    fn the_queues_of_shards_are_made_and_permitted_too() {
        let config = configured("[shards]\ncount = 2\n[applications.shop]\n");
        let lines = script(&config);
        let queues: Vec<_> =
            lines.iter().filter_map(|line| line.split_once("declare queue --name ")).collect();
        let (of_node, of_shard) = (queues[1].1, queues[3].1);
        assert_eq!(queues.len(), 4, "{lines:#?}");
        assert_eq!(of_shard, of_node.replace("tidegate.ingest", "tidegate.ingest.1"));
        let rights = lines.iter().find(|line| line.contains("set_permissions -p / tidegate-in")).unwrap();
        assert!(rights.contains(r"|tidegate\.lock\.tidegate\.ingest\.1|"), "{rights}");
        let made = definitions(&config);
        let names: Vec<_> =
            made["queues"].as_array().unwrap().iter().map(|queue| queue["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["tidegate.dead", "tidegate.ingest", "tidegate.ingest.0", "tidegate.ingest.1"]);
        assert_eq!(made["queues"][3]["arguments"], made["queues"][1]["arguments"]);
        let bindings = made["bindings"].as_array().unwrap().iter();
        let bindings: Vec<_> = bindings
            .map(|one| {
                ["source", "destination_type", "destination", "routing_key"]
                    .map(|key| one[key].as_str().unwrap())
            })
            .collect();
        let shop = format!("tidegate.ingest.{}", tidegate_wire::home("shop", 2));
        assert_eq!(
            bindings,
            [
                ["tidegate.dead", "queue", "tidegate.dead", ""],
                ["tidegate.new", "queue", "tidegate.ingest", ""],
                ["tidegate.in", "exchange", "tidegate.apps", ""],
                ["tidegate.apps", "queue", &shop, "shop"],
            ]
        );
        let apps = made["exchanges"].as_array().unwrap().iter().find(|one| one["name"] == "tidegate.apps");
        assert_eq!(apps.unwrap()["arguments"], json!({ "alternate-exchange": "tidegate.new" }));
        let line = lines.iter().find(|line| line.contains("exchange --name tidegate.apps")).unwrap();
        assert!(line.ends_with(r#" --arguments '{"alternate-exchange":"tidegate.new"}'"#), "{line}");
    }

    #[test]
    fn the_exchange_of_the_nodes_is_made_and_permitted_too() {
        let store = "[store]\nkind = \"postgres\"\nuri = \"postgres://u@localhost/t?sslmode=disable\"\n";
        let config = configured(&format!("[shards]\ncount = 2\n{store}"));
        let lines = script(&config);
        let made = "declare exchange --name tidegate.control --type direct --durable true";
        assert_eq!(lines.iter().filter(|line| line.ends_with(made)).count(), 1, "{lines:#?}");
        let rights = lines.iter().find(|line| line.contains("set_permissions -p / tidegate-in")).unwrap();
        assert_eq!(rights.matches(r"|tidegate\.control|").count(), 3, "{rights}");
        assert_eq!(rights.matches(r"|^amq\.gen-'").count(), 3, "{rights}");
        let made = definitions(&config);
        let control =
            made["exchanges"].as_array().unwrap().iter().find(|one| one["name"] == "tidegate.control");
        assert_eq!(
            (&control.unwrap()["type"], &control.unwrap()["durable"]),
            (&json!("direct"), &json!(true))
        );
    }

    #[test]
    fn guest_gets_no_rights() {
        let text = script(&Config::default()).join("\n");
        assert!(!text.contains("guest"), "{text}");
        assert!(text.contains("add_user tidegate-in") && text.contains("add_user tidegate-out"), "{text}");
    }

    #[test]
    fn a_name_is_one_word_of_the_shell() {
        assert_eq!(quoted("a.b-c/d"), "a.b-c/d");
        assert_eq!(quoted("it's $HOME"), r"'it'\''s $HOME'");
        assert_eq!(quoted(""), "''");
    }
}
