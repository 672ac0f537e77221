//! Commands: which messages are one, what they select, who is answered; and the identities they select by.

use super::super::target;
use super::*;
use tidegate_types::{AssignedId, Command, CustomerOf, ReplyTo, Target};

fn kind(kind: &str) -> BasicProperties {
    BasicProperties::default().with_type(kind.into())
}

fn command(body: RequestBody) -> (Command, Option<ReplyTo>) {
    match body {
        RequestBody::Command(command, reply_to) => (command, reply_to),
        RequestBody::Items(items) | RequestBody::Elsewhere(items) => panic!("accepted: {items:?}"),
        RequestBody::Rejected(rejected) => panic!("rejected: {:?}", rejected.dead),
    }
}

fn item_of(application: &str, id: &str) -> Target {
    target(application, id, STORE)
}

fn all_of(application: &str, customer: &str) -> CustomerOf {
    CustomerOf { application: application.into(), customer: customer.into() }
}

#[test]
fn by_headers() {
    let named = |name: &str| kind(name).with_headers(table(&[("x-customer", number(42))]));
    let ask = |properties| command(take(properties, b"not looked at")).0;
    assert_eq!(
        ask(kind("tidegate.cancel").with_message_id("i".into())),
        Command::Cancel(item_of("orders", "i"))
    );
    assert_eq!(ask(named("tidegate.cancel")), Command::CancelAll(all_of("orders", "42")));
    // The id is the narrower one.
    let both = ask(named("tidegate.cancel").with_message_id("i".into()));
    assert_eq!(both, Command::Cancel(item_of("orders", "i")));
    assert_eq!(
        ask(kind("tidegate.lookup").with_message_id("i".into())),
        Command::Lookup(item_of("orders", "i"))
    );
    assert_eq!(ask(named("tidegate.flush")), Command::Flush(all_of("orders", "42")));
    assert_eq!(
        ask(named("tidegate.flush").with_message_id("i".into())),
        Command::Flush(all_of("orders", "42")),
        "an id has no meaning there"
    );
    let elsewhere = kind("tidegate.lookup")
        .with_message_id("i".into())
        .with_headers(table(&[("x-application", text("billing"))]));
    assert_eq!(
        command(from("", "tidegate.ingest", elsewhere, b"")).0,
        Command::Lookup(item_of("billing", "i"))
    );
}

#[test]
fn by_body() {
    let ask = |name: &str, id: &str, body: &str| {
        let properties = kind(name)
            .with_content_type("application/vnd.tidegate+json; charset=utf-8".into())
            .with_message_id(id.into())
            .with_headers(table(&[("x-customer", text("h"))]));
        command(take(properties, body.as_bytes())).0
    };
    let cancel = |id: &str, body: &str| ask("tidegate.cancel", id, body);
    assert_eq!(cancel("", r#"{"application":"a","id":"i"}"#), Command::Cancel(item_of("a", "i")));
    assert_eq!(cancel("", r#"{"id":7,"customer":"c"}"#), Command::Cancel(item_of("orders", "7")));
    // A client library may set a message id by itself: it must not narrow what the body asks for.
    assert_eq!(cancel("auto", r#"{"customer":-7}"#), Command::CancelAll(all_of("orders", "-7")));
    assert_eq!(cancel("i", r#"{"application":"a"}"#), Command::Cancel(item_of("a", "i")));
    assert_eq!(cancel("", r#"{"application":"a","id":null}"#), Command::CancelAll(all_of("a", "h")));
    assert_eq!(cancel("i", ""), Command::Cancel(item_of("orders", "i")));
    assert_eq!(cancel("i", r#"{"id":""}"#), Command::Cancel(item_of("orders", "i")));
    assert_eq!(ask("tidegate.lookup", "auto", r#"{"id":"\u00e4"}"#), Command::Lookup(item_of("orders", "ä")));
    assert_eq!(ask("tidegate.flush", "auto", r#"{"customer":"c"}"#), Command::Flush(all_of("orders", "c")));
    assert_eq!(ask("tidegate.flush", "", "{}"), Command::Flush(all_of("orders", "h")));
}

#[test]
fn who_is_answered() {
    let asked = |properties: BasicProperties| command(take(properties.with_message_id("i".into()), b"")).1;
    let lookup = || kind("tidegate.lookup");
    assert_eq!(asked(lookup()), None);
    assert_eq!(asked(lookup().with_correlation_id("c".into())), None);
    assert_eq!(asked(lookup().with_reply_to("".into())), None);
    let to = |correlation_id: Option<&str>| {
        Some(ReplyTo { queue: "q".into(), correlation_id: correlation_id.map(Into::into) })
    };
    assert_eq!(asked(lookup().with_reply_to("q".into())), to(None));
    assert_eq!(asked(lookup().with_reply_to("q".into()).with_correlation_id("c".into())), to(Some("c")));
    // That of an ordinary request is for the consumers.
    let pushed = BasicProperties::default()
        .with_reply_to("q".into())
        .with_headers(table(&[("x-delay", text("soon"))]));
    assert_eq!(rejected(take(pushed, b"")).reply_to, None);
}

#[test]
fn malformed_ones_are_answered_and_dead() {
    let long = "x".repeat(201);
    let headers = |name: &str, value: AMQPValue| table(&[(name, value)]);
    let cases = [
        (kind("tidegate.cancel"), "neither the fields nor the body of the command name an id"),
        (kind("tidegate.lookup").with_headers(headers("x-customer", text("c"))), "an id (message_id)"),
        (kind("tidegate.flush").with_message_id("i".into()), "a customer (x-customer)"),
        (kind("tidegate.cancel").with_headers(headers("x-customer", text(&long))), "x-customer is 201 bytes"),
        (
            kind("tidegate.flush").with_headers(headers("x-customer", AMQPValue::Double(1.0))),
            "x-customer must be",
        ),
        (
            kind("tidegate.lookup").with_headers(headers("x-application", text(&long))),
            "x-application is 201 bytes",
        ),
        (
            kind("tidegate.batch"),
            "a batch came back (type tidegate.batch), and redelivery is off for application \"orders\"",
        ),
        (kind("tidegate.batches"), "type \"tidegate.batches\" is not a command"),
        (kind("tidegate."), "type "),
        (kind("tidegate.item"), "type "),
        (kind("tidegate.Cancel"), "type "),
        (kind("tidegate.cancel "), "type "),
    ];
    for (properties, said) in cases {
        let properties = properties.with_reply_to("q".into()).with_correlation_id("c".into());
        let refused = rejected(take(properties, b"body"));
        assert_eq!(refused.dead.reason, Reason::Invalid);
        assert!(refused.dead.error.contains(said), "{}", refused.dead.error);
        assert_eq!(refused.reply_to, Some(ReplyTo { queue: "q".into(), correlation_id: Some("c".into()) }));
        assert_eq!(refused.content.body, b"body");
    }
    let nowhere = kind("tidegate.lookup").with_message_id("i".into());
    assert!(refusal(from("", "tidegate.ingest", nowhere, b"")).starts_with("x-application is missing"));
    let large = vec![b'x'; LIMITS.max_body as usize + 1];
    let refused = rejected(take(kind("tidegate.flush").with_reply_to("q".into()), &large));
    assert_eq!((refused.dead.reason, refused.reply_to.is_some()), (Reason::TooLarge, true));
}

#[test]
fn malformed_bodies() {
    let refused = |body: &[u8]| {
        let properties = kind("tidegate.cancel")
            .with_content_type("application/vnd.tidegate+json".into())
            .with_message_id("i".into());
        refusal(take(properties, body))
    };
    for (body, said) in [
        ("[]", "not an array"),
        (r#" [{"id":"i"}]"#, "not an array"),
        (r#"["a","c","i"]"#, "not an array"),
        (r#"{"id":"i","payload":1}"#, "unknown field `payload`"),
        (r#"{"id":"i","id":"j"}"#, "duplicate field `id`"),
        (r#"{"id":"i"} x"#, "not understood"),
        (r#"{"id":"i""#, "not understood"),
        (" ", "not understood"),
        ("5", "not understood"),
        ("null", "not understood"),
        (r#"{"id":{}}"#, "id must be text or an integer"),
        (r#"{"id":4.2}"#, "id must be text or an integer"),
        (r#"{"customer":true}"#, "customer must be"),
        (r#"{"application":["a"]}"#, "application must be"),
        (r#"{"application":"\ud800"}"#, "application is not Unicode"),
    ] {
        let error = refused(body.as_bytes());
        assert!(error.contains(said), "{body}: {error}");
    }
    assert!(refused(b"{\"id\":\"\xff\"}").contains("UTF-8"));
    assert!(refused(format!(r#"{{"id":"{}"}}"#, "i".repeat(256)).as_bytes()).starts_with("id is 256 bytes"));
    assert!(
        refused(format!(r#"{{"customer":"{}"}}"#, "c".repeat(201)).as_bytes()).starts_with("customer is 201")
    );
}

#[test]
fn other_types_are_the_producers_own() {
    for own in ["", "tidegate", "tidegatex", "Tidegate.cancel", "order.created"] {
        item(take(kind(own), b"x"));
    }
}

#[test]
fn identities_keep_application_and_id_apart() {
    let known = identity("ab", "c");
    assert!(known.is_given());
    assert_eq!(known, identity("ab", "c"));
    assert_ne!(known, identity("a", "bc"));
    assert_ne!(known, identity("abc", ""));
    assert_ne!(known, identity("c", "ab"));
    // The store finds rows by it: it must never change.
    let hex: String = known.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, "a0968c014f3fc7bd1a7d9a8d1ad1177e");
}

/// Judges promise 9.
#[test]
fn ids_that_this_store_assigns() {
    let seq = |id: &str| target("a", id, STORE).assigned;
    let assigned = |seq, due| Some(AssignedId { seq, due, window: seq });
    assert_eq!(seq("000000000000abcd-0-0"), assigned(0, 0));
    assert_eq!(seq("000000000000abcd-1f-2a"), assigned(31, 42));
    let of_two = AssignedId { seq: 31, due: 42, window: 2 };
    assert_eq!(seq("000000000000abcd-1f-2a-1d"), Some(of_two));
    assert_eq!(seq("000000000000abcd-ffffffffffffffff-1"), assigned(u64::MAX, 1));
    for other in [
        "",
        "-",
        "abcd-1-1",
        "000000000000abce-1-1",
        "000000000000ABCD-1-1",
        "000000000000abcd-1F-1",
        "000000000000abcd-1-1F",
        "000000000000abcd-01-1",
        "000000000000abcd-+1-1",
        "000000000000abcd--1",
        "000000000000abcd-1",
        "000000000000abcd-1-1-1",
        "000000000000abcd-1f-1-0",
        "000000000000abcd-1f-1-1D",
        "000000000000abcd-1f-1-20",
        "000000000000abcd-ffffffffffffffff-1-100000000",
        "000000000000abcd-1f-1-1-1",
        "000000000000abcd-10000000000000000-1",
        "000000000000abcd-1-1 ",
        "0000000000000abcd-1-1",
    ] {
        assert_eq!(seq(other), None, "{other}");
        assert_eq!(target("a", other, STORE).identity, identity("a", other));
    }
}
