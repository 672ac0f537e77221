//! Tests of answers: their JSON, their status, and who receives them.

use super::*;
use tidegate_types::{BatchId, Content, Dead, Delivery, Filter, Identity, Key, ListedStage, TimelineQuery};

const STORE: u64 = 0x1234;

fn target() -> Target {
    Target {
        application: "mail".into(),
        id: "i/1".into(),
        identity: Identity::given([7; 16]),
        assigned: None,
    }
}

fn customer_of() -> CustomerOf {
    CustomerOf { application: "mail".into(), customer: "c".into() }
}

fn told(command: Command, answer: Answer) -> (Status, Value) {
    let reply = Reply { asker: Asker::Local(1), command: Some(Box::new(command)), answer };
    let answered = answered(&reply, STORE);
    (answered.status, answered.document)
}

fn cancel(answer: Answer) -> (Status, Value) {
    told(Command::Cancel(target()), answer)
}

fn lookup(answer: Answer) -> (Status, Value) {
    told(Command::Lookup(target()), answer)
}

fn ended(end: End) -> Answer {
    let customer = Some("c".into());
    Answer::Ended(Box::new(Ended {
        end,
        at: 1_800_000_000_000,
        due: 1_799_999_999_000,
        attempts: 2,
        fingerprint: 0,
        customer,
    }))
}

fn sent() -> Answer {
    ended(End::Sent(BatchId([0xab; 16])))
}

fn dead(reason: Reason) -> Answer {
    ended(End::Dead(Arc::new(Dead { reason, error: "it could not be".into() })))
}

fn listed(stage: ListedStage) -> Listed {
    Listed {
        stage,
        key: Key::own(5_000, 31),
        accepted_due: 5_000,
        due: 1_800_000_000_500,
        application: "mail".into(),
        customer: Some("c".into()),
        received: 1_800_000_000_000,
        attempts: 1,
        retry: 0,
        last_error: Some("NO_ROUTE".into()),
        properties: Some(Arc::new(Content::default())),
    }
}

#[test]
fn a_cancel_says_what_became_of_it() {
    let batch = "ab".repeat(16);
    for (answer, want) in [
        (Answer::Cancelled { count: 1, in_flight: 0 }, json!({ "result": "cancelled", "count": 1 })),
        (
            Answer::Cancelled { count: 4, in_flight: 2 },
            json!({ "result": "cancelled", "count": 4, "in_flight": 2 }),
        ),
        (sent(), json!({ "result": "sent", "batch": batch, "at": 1_800_000_000_000_u64 })),
        (ended(End::Cancelled), json!({ "result": "cancelled", "count": 1 })),
        (dead(Reason::Expired), json!({ "result": "expired", "at": 1_800_000_000_000_u64 })),
        (
            dead(Reason::Attempts),
            json!({
                "result": "dead", "at": 1_800_000_000_000_u64, "reason": "attempts",
                "error": "it could not be"
            }),
        ),
        (Answer::InFlight, json!({ "result": "in_flight" })),
    ] {
        assert_eq!(cancel(answer), (Status::Known, want));
    }
    assert_eq!(cancel(Answer::Unknown), (Status::Unknown, json!({ "result": "unknown" })));
}

#[test]
fn a_look_up_has_every_key_of_the_contract() {
    let item = |state: &str, more: Value| {
        let all = json!({
            "state": state, "application": "mail", "id": "i/1", "customer": "c", "due": 1_799_999_999_000_u64,
            "attempts": 2, "last_error": null, "at": 1_800_000_000_000_u64,
        });
        (Status::Known, with(all, more))
    };
    assert_eq!(lookup(sent()), item("sent", json!({ "batch": "ab".repeat(16) })));
    assert_eq!(lookup(ended(End::Cancelled)), item("cancelled", json!({})));
    let error = "it could not be";
    assert_eq!(lookup(dead(Reason::Expired)), item("expired", json!({ "last_error": error })));
    for reason in Reason::ALL.into_iter().filter(|reason| *reason != Reason::Expired) {
        let more = json!({ "last_error": error, "reason": reason.as_str() });
        assert_eq!(lookup(dead(reason)), item("dead", more));
    }
    for stage in [ListedStage::Waiting, ListedStage::InFlight, ListedStage::Parked] {
        let want = json!({
            "state": stage.as_str(), "application": "mail", "id": "i/1", "customer": "c",
            "due": 1_800_000_000_500_u64, "attempts": 1, "last_error": "NO_ROUTE",
        });
        assert_eq!(lookup(Answer::Found(Box::new(listed(stage)))), (Status::Known, want));
    }
    let nothing = |state: &str| {
        json!({
            "state": state, "application": "mail", "id": "i/1", "customer": null, "due": null,
            "attempts": null, "last_error": null,
        })
    };
    assert_eq!(lookup(Answer::Unknown), (Status::Unknown, nothing("unknown")));
    assert_eq!(lookup(Answer::InFlight), (Status::Known, nothing("in_flight")));
}

#[test]
fn a_list_is_a_page_and_the_place_of_the_next() {
    let list = |answer| told(Command::List(Filter::default()), answer);
    let mut bare = listed(ListedStage::Parked);
    (bare.customer, bare.last_error, bare.properties) = (None, None, None);
    let items = vec![listed(ListedStage::Waiting), bare];
    let row = |state: &str, more: Value| {
        let all = json!({
            "state": state, "application": "mail", "id": "0000000000001234-1f-1388", "customer": "c",
            "due": 1_800_000_000_500_u64, "received": 1_800_000_000_000_u64, "attempts": 1,
            "last_error": "NO_ROUTE",
        });
        with(all, more)
    };
    let rows = [
        row("waiting", json!({})),
        row("parked", json!({ "customer": null, "last_error": null, "id": null })),
    ];
    let next = Some(Key::own(6_000, 8));
    let want = json!({ "items": rows, "next": "6000-8-8" });
    assert_eq!(list(Answer::Listed { items, next }), (Status::Known, want));
    let nothing = Answer::Listed { items: vec![], next: None };
    assert_eq!(list(nothing), (Status::Known, json!({ "items": [], "next": null })));
}

#[test]
fn a_timeline_names_its_stretches_and_how_far_it_is_known() {
    let ahead = Ahead { count: 3, next_due: Some(6_100) };
    let timeline = Timeline {
        at: 6_050,
        from: 6_000,
        each_ms: 1_000,
        counts: vec![3, 0],
        counted_until: None,
        applications: [("mail".into(), ahead)].into(),
        applications_truncated: false,
    };
    let told = |timeline| {
        let outlook = TimelineQuery { application: None, at: None, each_ms: 1_000, stretches: 2 };
        told(Command::TimelineQuery(outlook), Answer::Timeline(Box::new(timeline)))
    };
    let want = json!({
        "at": 6_050, "from": 6_000, "bucket_ms": 1_000, "counts": [3, 0], "counted_until": null,
        "applications": [{ "name": "mail", "count": 3, "next_due": 6_100 }],
        "applications_truncated": false,
    });
    assert_eq!(told(timeline.clone()), (Status::Known, want));
    let in_part = Timeline { counted_until: Some(6_500), applications_truncated: true, ..timeline };
    let (_, document) = told(in_part);
    assert_eq!(
        (&document["counted_until"], &document["applications_truncated"]),
        (&json!(6_500), &json!(true))
    );
}

#[test]
fn the_other_commands_are_answered_in_their_words() {
    let counted = |next_due| Answer::Counted { waiting: 3, in_flight: 2, parked: 1, next_due, paused: None };
    let all = |command| told(command, Answer::Done { changed: true });
    let app = || "mail".into();
    assert_eq!(
        told(Command::Count(customer_of()), counted(Some(5))).1,
        json!({
            "application": "mail", "customer": "c", "waiting": 3, "in_flight": 2, "parked": 1, "next_due": 5,
            "paused": false
        })
    );
    let paused = |until| {
        let counted =
            Answer::Counted { waiting: 3, in_flight: 0, parked: 0, next_due: None, paused: Some(until) };
        let told = told(Command::Count(customer_of()), counted).1;
        (told["paused"].clone(), told["paused_until"].clone())
    };
    assert_eq!(paused(9), (json!(true), json!(9)));
    assert_eq!(paused(u64::MAX), (json!(true), Value::Null));
    assert_eq!(told(Command::Count(customer_of()), counted(None)).1["next_due"], Value::Null);
    let flushed = json!({ "result": "flushed", "count": 0 });
    assert_eq!(told(Command::Flush(customer_of()), Answer::Flushed(0)), (Status::Known, flushed));
    for command in [Command::Pause(app(), None), Command::Resume(app()), Command::Retry(app())] {
        assert_eq!(all(command), (Status::Known, json!({ "result": "done", "changed": true })));
    }
    let dropped = Answer::Cancelled { count: 9, in_flight: 0 };
    assert_eq!(told(Command::DropParked(app()), dropped).1, json!({ "result": "cancelled", "count": 9 }));
    let unchanged = told(Command::DropParked(app()), Answer::Done { changed: false });
    assert_eq!(unchanged.1, json!({ "result": "done", "changed": false }));
}

/// For every command, these answers have the same meaning.
#[test]
fn every_command_can_be_unknown_refused_or_unavailable() {
    let app = || "mail".into();
    for command in [
        Command::Cancel(target()),
        Command::CancelAll(customer_of()),
        Command::Count(customer_of()),
        Command::Flush(customer_of()),
        Command::List(Filter::default()),
        Command::TimelineQuery(TimelineQuery { application: None, at: None, each_ms: 1, stretches: 1 }),
        Command::Pause(app(), None),
        Command::Resume(app()),
        Command::Retry(app()),
        Command::DropParked(app()),
    ] {
        let unknown = (Status::Unknown, json!({ "result": "unknown" }));
        assert_eq!(told(command.clone(), Answer::Unknown), unknown, "{command:?}");
        let busy = (Status::Unavailable, json!({ "error": "starting" }));
        assert_eq!(told(command.clone(), Answer::Unavailable("starting")), busy, "{command:?}");
        let refused = (Status::Refused, json!({ "result": "rejected", "error": "why" }));
        assert_eq!(told(command.clone(), Answer::Rejected("why".into())), refused, "{command:?}");
    }
    assert_eq!(lookup(Answer::Unavailable("starting")).1, json!({ "error": "starting" }));
}

#[test]
fn who_asked_by_amqp_reads_what_http_says_by_status() {
    let delivery = Delivery { generation: 1, tag: 1 };
    let asker = Asker::Remote { delivery, redelivered: false, reply_to: None };
    let remote = |command, answer| document(&Reply { asker: asker.clone(), command, answer }, STORE);
    let lookup = || Some(Box::new(Command::Lookup(target())));
    let busy = json!({ "result": "unavailable", "error": "starting" });
    assert_eq!(remote(lookup(), Answer::Unavailable("starting")), busy);
    let rejected = json!({ "result": "rejected", "error": "no id" });
    assert_eq!(remote(None, Answer::Rejected("no id".into())), rejected);
    assert_eq!(remote(None, Answer::Unknown), json!({ "result": "unknown" }));
    assert_eq!(remote(lookup(), Answer::Unknown)["state"], "unknown");
}
