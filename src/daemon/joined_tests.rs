//! Tests of joined answers, with shards that are lists of items.

use super::super::answers::ShardAnswer;
use super::*;
use crate::admin::{parse, ItemOf};
use serde_json::{json, Value};
use std::sync::Arc;
use tidegate_types::{Ahead, Answer, Asker, AssignedId, Content, CustomerOf, Listed, ListedStage, Reply};

const NOW: u64 = 1_800_000_000_123;

fn identity(shard: u16) -> u64 {
    0x100 + u64::from(shard)
}

fn carried(shard: u16, answer: Answer) -> ShardAnswer {
    let reply = Box::new(Reply { asker: Asker::Local(1), command: None, answer });
    ShardAnswer::Carried { reply, store_identity: identity(shard) }
}

fn listed(key: Key) -> Listed {
    Listed {
        stage: ListedStage::Waiting,
        key,
        accepted_due: key.due,
        due: key.due,
        application: "mail".into(),
        customer: None,
        received: 0,
        attempts: 0,
        retry: 0,
        last_error: None,
        properties: Some(Arc::default()),
    }
}

/// The page of a shard with items of these keys, in order. It looks at `most` items.
fn shard_page(keys: &[Key], filter: &Filter, most: usize) -> (Vec<Listed>, Option<Key>) {
    assert_eq!(filter.from_shard, 0, "a shard knows nothing of the others");
    let wanted = keys.iter().copied().filter(|key| *key >= filter.from);
    let mut wanted = wanted.filter(|key| filter.until.is_none_or(|until| key.due < until));
    let page: Vec<Listed> = wanted.by_ref().take(filter.limit.min(most)).map(listed).collect();
    (page, wanted.next())
}

/// The response to a page of the list, from shards that look at so many items and answer in this order.
fn page(query: &str, shards: &[Vec<Key>], most: usize, order: &[usize]) -> Value {
    let request = Command::List(parse::filter(Some(query)).unwrap());
    let mut joined = JoinedAnswer::of(&request, NOW).unwrap();
    let mut answers = Vec::new();
    for number in order {
        let shard = *number as u16;
        let Command::List(filter) = joined.part(shard) else { panic!("no list") };
        let (items, next) = shard_page(&shards[*number], &filter, most);
        answers.push((shard, carried(shard, Answer::Listed { items, next })));
    }
    for (shard, answer) in answers {
        joined.add(shard, answer.into()).unwrap();
    }
    let response = joined.response();
    assert_eq!(response.status, Status::Known);
    response.document
}

/// The ids of all items, page by page, with the sizes of the pages.
fn pages(query: &str, shards: &[Vec<Key>], most: usize, order: &[usize]) -> (Vec<String>, Vec<usize>) {
    let (mut ids, mut sizes, mut cursor) = (Vec::new(), Vec::new(), String::new());
    loop {
        let page = page(&format!("{query}&cursor={cursor}"), shards, most, order);
        let rows = page["items"].as_array().unwrap();
        ids.extend(rows.iter().map(|row| row["id"].as_str().unwrap().to_owned()));
        sizes.push(rows.len());
        match page["next"].as_str() {
            Some(next) => cursor = next.to_owned(),
            None => return (ids, sizes),
        }
        assert!(sizes.len() < 100, "{query} does not end: {sizes:?}");
    }
}

/// The ids of all items in the order of the list.
fn sorted(shards: &[Vec<Key>]) -> Vec<String> {
    let of = |(shard, keys): (u16, &Vec<Key>)| -> Vec<ListPlace> {
        keys.iter().map(|key| ListPlace { key: *key, shard }).collect()
    };
    let mut all: Vec<ListPlace> = (0..).zip(shards).flat_map(of).collect();
    all.sort_unstable();
    let id = |place: &ListPlace| {
        let assigned = AssignedId::of(place.key, place.key.due);
        tidegate_wire::item_id(&Content::default(), identity(place.shard), assigned)
    };
    all.iter().map(id).collect()
}

/// Excluded: an item that is left out, shown twice or shown out of order at the border of two pages, where
/// several shards have the same key.
#[test]
fn each_item_of_all_shards_is_on_one_page_in_order() {
    let keys = [Key::own(5, 1), Key { due: 5, window: 1, seq: 2 }, Key::own(5, 2), Key::own(6, 1)];
    let chosen = |bits: usize| -> Vec<Key> {
        (0..keys.len()).filter(|place| bits >> place & 1 == 1).map(|place| keys[place]).collect()
    };
    for bits in 0..1 << (3 * keys.len()) {
        let shards = [0, 4, 8].map(|shift| chosen(bits >> shift & 15));
        let want = sorted(&shards);
        let order = if bits % 2 == 0 { [0, 1, 2] } else { [2, 0, 1] };
        for limit in [1, 2, 3, 5, 13] {
            let (ids, sizes) = pages(&format!("limit={limit}"), &shards, usize::MAX, &order);
            assert_eq!(ids, want, "{shards:?} with {limit}");
            let full = sizes.split_last().unwrap().1;
            assert!(full.iter().all(|size| *size == limit), "only the last page is short: {sizes:?}");
        }
        // Shards that look at one item only, and say where they stopped.
        let (ids, _) = pages("limit=3", &shards, 1, &order);
        assert_eq!(ids, want, "{shards:?}");
    }
}

#[test]
fn a_page_ends_where_a_shard_has_not_looked_further() {
    let shards = [vec![Key::own(5, 1), Key::own(9, 1)], vec![Key::own(7, 1), Key::own(8, 1)]];
    let page = page("limit=10", &shards, 1, &[0, 1]);
    let id = sorted(&[vec![Key::own(5, 1)], vec![Key::own(7, 1)]]);
    assert_eq!(page["items"].as_array().unwrap().len(), 2, "{page}");
    assert_eq!((&page["items"][0]["id"], &page["items"][1]["id"]), (&json!(id[0]), &json!(id[1])));
    assert_eq!(page["next"], json!("8-1-1-1"), "there may be an item of shard 1 before that of shard 0");
}

#[test]
fn a_cursor_without_a_shard_begins_at_its_key_in_all_shards() {
    let shards = [vec![Key::own(5, 1)], vec![Key::own(5, 1)], vec![Key::own(4, 1), Key::own(5, 1)]];
    let shown = |cursor: &str| pages(&format!("limit=2&from={cursor}"), &shards, 9, &[0, 1, 2]).0;
    assert_eq!(shown("").len(), 4);
    let at = |cursor: &str| {
        let page = page(&format!("cursor={cursor}"), &shards, 9, &[0, 1, 2]);
        page["items"].as_array().unwrap().len()
    };
    assert_eq!(["5-1-1", "5-1-1-1", "5-1-1-2", "5-1-1-3", "5-1-2"].map(at), [3, 2, 1, 0, 0]);
}

#[test]
fn a_page_with_much_in_it_is_short() {
    let keys = |shard: u64| (0..3).map(|n| Key::own(n, shard)).collect::<Vec<_>>();
    let filter = parse::filter(Some("limit=10")).unwrap();
    let size = listed(Key::own(0, 0)).size();
    let mut joined = JoinedPage::new(filter.clone(), size * 3 + 1);
    for shard in 0..2 {
        let (items, next) = shard_page(&keys(shard.into()), &filter, 9);
        let part = carried(shard, Answer::Listed { items, next }).into();
        let ShardPart::Page { rows, next } = part else { panic!("{part:?}") };
        joined.add(shard, rows, next);
    }
    let shown: Vec<Key> = joined.items.iter().map(|row| row.place.key).collect();
    assert_eq!(shown, [Key::own(0, 0), Key::own(0, 1), Key::own(1, 0), Key::own(1, 1)]);
    assert_eq!(joined.known_until, Some(ListPlace { key: Key::own(2, 0), shard: 0 }));
}

#[test]
fn only_what_is_about_all_applications_is_asked_of_all_shards() {
    let item = ItemOf { application: "mail".into(), id: "1".into() };
    let of = CustomerOf { application: "mail".into(), customer: "ann".into() };
    for one in [Command::Lookup(item), Command::Count(of), Command::Retry("mail".into())] {
        assert!(JoinedAnswer::of(&one, NOW).is_none(), "{one:?}");
    }
    for query in ["application=mail", "application=mail&cursor=5-1-1-3"] {
        assert!(JoinedAnswer::of(&Command::List(parse::filter(Some(query)).unwrap()), NOW).is_none());
    }
    let timeline = |query| Command::TimelineQuery(parse::timeline(Some(query)).unwrap());
    assert!(JoinedAnswer::of(&timeline("application=mail"), NOW).is_none());
    let joined = JoinedAnswer::of(&timeline("span=day"), NOW).unwrap();
    let part = |shard| {
        let Command::TimelineQuery(query) = joined.part(shard) else { panic!("no timeline") };
        (query.at, query.each_ms, query.stretches)
    };
    assert_eq!([0, 3].map(part), [(Some(NOW), 1_800_000, 48); 2], "the same spans in all");
}

#[test]
fn a_list_without_a_shard_is_no_list() {
    let refused = |error: &str| ShardAnswer::Refused(error.to_owned());
    let unavailable = || carried(1, Answer::Unavailable("the store is behind"));
    for (answer, error) in [(refused("it stands by"), "it stands by"), (unavailable(), "the store is behind")]
    {
        let mut joined = JoinedAnswer::of(&Command::List(parse::filter(None).unwrap()), NOW).unwrap();
        let items = vec![listed(Key::own(5, 1))];
        joined.add(0, carried(0, Answer::Listed { items, next: None }).into()).unwrap();
        let want = CommandResponse { status: Status::Unavailable, document: json!({ "error": error }) };
        assert_eq!(joined.add(1, answer.into()), Err(want));
    }
}

fn timeline(counts: &[u64], ahead: &[(&str, u64, u64)]) -> Timeline {
    let row = |(name, count, due): &(&str, u64, u64)| {
        (Arc::from(*name), Ahead { count: *count, next_due: Some(*due) })
    };
    Timeline {
        at: NOW,
        from: NOW / 1_000 * 1_000,
        each_ms: 1_000,
        counts: counts.to_vec(),
        counted_until: None,
        applications: ahead.iter().map(row).collect(),
        applications_truncated: false,
    }
}

fn joined_timeline(parts: Vec<Timeline>) -> Value {
    let query = TimelineQuery { application: None, at: None, each_ms: 1_000, stretches: 3 };
    let mut joined = JoinedAnswer::of(&Command::TimelineQuery(query), NOW).unwrap();
    for (shard, part) in (0..).zip(parts) {
        joined.add(shard, carried(shard, Answer::Timeline(Box::new(part))).into()).unwrap();
    }
    joined.response().document
}

#[test]
fn timelines_are_added() {
    let from = NOW / 1_000 * 1_000;
    let parts = vec![
        Timeline { counted_until: Some(from + 2_000), ..timeline(&[1, 0, 2], &[("a", 3, from + 500)]) },
        timeline(&[0, 0, 0], &[]),
        Timeline {
            counted_until: Some(from + 1_000),
            ..timeline(&[0, 4, 1], &[("b", 4, from + 1_500), ("a", 1, from + 400)])
        },
    ];
    let want = json!({
        "at": NOW, "from": from, "bucket_ms": 1_000, "counts": [1, 4, 3], "counted_until": from + 1_000,
        "applications": [
            { "name": "a", "count": 4, "next_due": from + 400 },
            { "name": "b", "count": 4, "next_due": from + 1_500 },
        ],
        "applications_truncated": false,
    });
    assert_eq!(joined_timeline(parts), want);
}

#[test]
fn a_joined_timeline_names_no_more_applications_than_one() {
    let names: Vec<String> = (0..1_500).map(|n| format!("app-{n:04}")).collect();
    let part = |names: &[String]| {
        let ahead: Vec<(&str, u64, u64)> = names.iter().map(|name| (name.as_str(), 1, NOW)).collect();
        timeline(&[0, 0, names.len() as u64], &ahead)
    };
    let told = joined_timeline(vec![part(&names[750..]), part(&names[..750])]);
    let listed = told["applications"].as_array().unwrap();
    assert_eq!((listed.len(), &listed[999]["name"]), (1_000, &json!("app-0999")), "the first by name");
    assert_eq!((&told["applications_truncated"], &told["counts"]), (&json!(true), &json!([0, 0, 1_500])));
    let cut = Timeline { applications_truncated: true, ..timeline(&[0, 0, 0], &[]) };
    assert_eq!(joined_timeline(vec![cut, part(&names[..2])])["applications_truncated"], true);
}
