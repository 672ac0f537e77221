//! Tests of the rows that `list` shows.

use super::super::client::tests::running;
use super::*;
use crate::admin::state::tests::example;
use crate::admin::state::Document;
use crate::admin::{CommandRequest, CommandResponse, NodeHealth, Query, Status};
use std::sync::{Arc, Mutex};
use tidegate_types::{Filter, Key};

fn page(ids: std::ops::Range<u64>, next: Option<&str>) -> Value {
    let items: Vec<_> = ids.map(|id| json!({ "id": id })).collect();
    json!({ "items": items, "next": next })
}

/// The request of a page: cursor and rows.
type Asking = (Option<String>, u64);

/// Follows pages with these answers in order, and returns the requests.
fn followed(limit: u64, pages: Vec<Value>) -> (Result<ListedItems, Failure>, Vec<Asking>) {
    let mut asked = vec![];
    let mut pages = pages.into_iter();
    let listed = follow(None, limit, |cursor, rows| {
        asked.push((cursor.map(str::to_owned), rows));
        pages.next().ok_or_else(|| Failure::failed("asked once too often"))
    });
    (listed, asked)
}

#[test]
fn pages_are_followed_to_the_end() {
    let pages = vec![page(0..1_000, Some("5-1")), page(0..0, Some("6-1")), page(1_000..1_200, None)];
    let (listed, asked) = followed(5_000, pages);
    let listed = listed.unwrap();
    assert_eq!((listed.items.len(), listed.next), (1_200, None));
    let cursor = |text: &str| Some(text.to_owned());
    assert_eq!(asked, [(None, 1_000), (cursor("5-1"), 1_000), (cursor("6-1"), 1_000)]);
}

#[test]
fn no_more_is_asked_for_than_is_wanted() {
    let (listed, asked) = followed(1_100, vec![page(0..1_000, Some("5-1")), page(0..100, Some("6-1"))]);
    let listed = listed.unwrap();
    assert_eq!((listed.items.len(), listed.next.as_deref()), (1_100, Some("6-1")));
    assert_eq!(asked.last(), Some(&(Some("5-1".to_owned()), 100)));
}

#[test]
fn a_list_that_makes_no_sense_is_not_followed_for_ever() {
    let (stuck, asked) = followed(10, vec![page(0..1, Some("5-1")), page(1..2, Some("5-1"))]);
    assert_eq!((stuck.unwrap_err().exit_code(), asked.len()), (1, 2));
    assert_eq!(followed(10, vec![json!({ "rows": [] })]).0.unwrap_err().exit_code(), 1);
    assert_eq!(followed(10, vec![page(0..11, None)]).0.unwrap_err().exit_code(), 1);
}

#[test]
fn the_table_has_a_column_for_what_is_asked_most() {
    let item = json!({
        "state": "parked", "application": "sms", "id": "a\nb", "customer": null, "due": 1_800_000_000_250_u64,
        "received": 1, "attempts": 3, "last_error": "NO_ROUTE",
    });
    let rows = item_table(&[item]);
    assert_eq!(rows[0], ["DUE", "STATE", "APPLICATION", "CUSTOMER", "ID", "ATTEMPTS", "LAST ERROR"]);
    assert_eq!(rows[1], ["2027-01-15T08:00:00.25Z", "parked", "sms", "", "a\\nb", "3", "NO_ROUTE"]);
}

#[test]
fn counts_of_a_customer_are_lines() {
    let counts = json!({
        "application": "a", "customer": "c", "waiting": 3, "in_flight": 0, "parked": 1,
        "next_due": 1_800_000_000_000_u64,
    });
    let want = [["waiting", "3"], ["in flight", "0"], ["parked", "1"], ["next due", "2027-01-15T08:00:00Z"]];
    assert_eq!(customer_counts(&counts).unwrap(), want);
    let none = json!({ "waiting": 0, "in_flight": 0, "parked": 0, "next_due": null });
    assert_eq!(customer_counts(&none).unwrap().len(), 3);
}

#[test]
fn parked_applications_say_why_and_until_when() {
    let parked = Applications::parked(Document::new(&example(), &NodeHealth::ready_but(&[])));
    let rows = parked_table(&parked);
    // In the example every application has parked items, and one application is parked.
    let sms = rows.iter().find(|row| row[0] == "sms").unwrap();
    assert_eq!(sms[1..], ["9", "3", "in 1.5 s", "NO_ROUTE"]);
    let letters = rows.last().unwrap();
    assert_eq!((letters[0].as_str(), letters[2].as_str()), ("(dead letters)", ""));
    let mut truncated = parked;
    truncated.applications_truncated = true;
    assert_eq!(remark(vec![], &truncated).len(), 1);
}

#[test]
fn every_filter_reaches_the_daemon() {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let asked = Arc::clone(&heard);
    let ask = move |query| match query {
        Query::State(_, reply) => drop(reply.send(example())),
        Query::Letters(..) | Query::Export(_) => panic!("neither was asked for"),
        Query::Command(command, reply) => {
            asked.lock().unwrap().push(command);
            let document = json!({ "items": [], "next": null });
            drop(reply.send(CommandResponse { status: Status::Known, document }));
        }
    };
    let (_daemon, config) = running(None, Arc::new(ask));
    let client = Client::new(&config.admin).unwrap();
    let args = ListArgs {
        cursor: None,
        application: Some("a/b".to_owned()),
        customer: Some("c+d".to_owned()),
        state: Some(ListedStage::InFlight),
        from: Some(1_800_000_000_000),
        to: Some(1_800_000_001_000),
        limit: 5_000,
        count: false,
    };
    run(&client, &args, Output::Json).unwrap();
    let parked_of = ParkedListArgs { application: Some("sms".to_owned()), limit: 7 };
    parked(&client, &parked_of, Output::Table).unwrap();
    let want = [
        Filter {
            application: Some("a/b".into()),
            customer: Some("c+d".into()),
            state: Some(ListedStage::InFlight),
            from: Key::at(1_800_000_000_000),
            from_shard: 0,
            until: Some(1_800_000_001_000),
            limit: MAX_PAGE,
        },
        Filter {
            application: Some("sms".into()),
            state: Some(ListedStage::Parked),
            limit: 7,
            ..Filter::default()
        },
    ];
    assert_eq!(*heard.lock().unwrap(), want.map(CommandRequest::List));
}

#[test]
fn a_count_needs_to_know_whose_customer_it_is() {
    let (_daemon, config) = running(
        None,
        Arc::new(|query| match query {
            Query::State(_, reply) => drop(reply.send(example())),
            Query::Letters(..) | Query::Export(_) => panic!("neither was asked for"),
            Query::Command(asked, reply) => {
                assert!(matches!(asked, CommandRequest::Count(_)), "{asked:?}");
                let document = json!({ "waiting": 1, "in_flight": 0, "parked": 0, "next_due": null });
                drop(reply.send(CommandResponse { status: Status::Known, document }));
            }
        }),
    );
    let client = Client::new(&config.admin).unwrap();
    let count = |application: Option<&str>, customer: Option<&str>| {
        let text = |text: Option<&str>| text.map(str::to_owned);
        let args = ListArgs {
            cursor: None,
            application: text(application),
            customer: text(customer),
            state: None,
            from: None,
            to: None,
            limit: 100,
            count: true,
        };
        run(&client, &args, Output::Table).map_or_else(|failure| failure.exit_code(), |()| 0)
    };
    assert_eq!(count(None, None), 0);
    assert_eq!(count(Some("sms"), None), 0);
    assert_eq!(count(Some("sms"), Some("c")), 0);
    assert_eq!(count(Some("nobody"), None), 3);
    assert_eq!(count(None, Some("c")), 2);
}
