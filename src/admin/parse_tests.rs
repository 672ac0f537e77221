//! Tests of valid paths and queries, and of the errors for the others.

use super::*;
use proptest::prelude::*;

fn item_of(application: &str, id: &str) -> ItemOf {
    ItemOf { application: application.into(), id: id.into() }
}

fn error<T: std::fmt::Debug>(outcome: Result<T, BadRequest>) -> String {
    outcome.unwrap_err().to_string()
}

#[test]
fn names_in_a_path_are_any_text() {
    for (path, application, id) in [
        ("/api/v1/items/mail/17", "mail", "17"),
        ("/api/v1/items/a%2Fb/c%2Fd%2f", "a/b", "c/d/"),
        ("/api/v1/items/a%20b/c+d", "a b", "c+d"),
        ("/api/v1/items/gr%C3%B6%C3%9Fe/%E2%9C%93", "größe", "✓"),
        ("/api/v1/items/größe/✓", "größe", "✓"),
        ("/api/v1/items/%2e%2e/%00", "..", "\0"),
        ("/api/v1/items/%25/%2525", "%", "%25"),
        ("/api/v1/items/a?b/c%3Fd", "a?b", "c?d"),
    ] {
        assert_eq!(item(path), Ok(item_of(application, id)), "{path}");
    }
    let both = CustomerOf { application: "a".into(), customer: "c d".into() };
    assert_eq!(customer("/api/v1/customers/a/c%20d/flush"), Ok(both));
    assert_eq!(application("/api/v1/applications/a%2Fb/pause"), Ok("a/b".into()));
}

#[test]
fn what_no_name_is_is_refused_by_its_parameter() {
    let long = "x".repeat(201);
    for (path, named) in [
        ("/api/v1/items//17", "application: it must not be empty"),
        ("/api/v1/items/mail/", "id: it must not be empty"),
        ("/api/v1/items/mail", "id: it must not be empty"),
        ("/api/v1/items/%ff/17", "application: it is not UTF-8"),
        ("/api/v1/items/mail/%C3", "id: it is not UTF-8"),
        ("/api/v1/items/mail/%ED%A0%80", "id: it is not UTF-8"),
        ("/api/v1/items/mail/100%", "id: a %"),
        ("/api/v1/items/mail/%4", "id: a %"),
        ("/api/v1/items/mail/%%41", "id: a %"),
        ("/api/v1/items/mail/%+41", "id: a %"),
        (&format!("/api/v1/items/{long}/1"), "application: it has 201 bytes, 200 are allowed"),
    ] {
        assert!(error(item(path)).starts_with(named), "{path}: {}", error(item(path)));
    }
    // The bounds count decoded bytes.
    let path = |id: &str| format!("/api/v1/items/a/{id}");
    assert!(item(&path(&"%41".repeat(255))).is_ok());
    assert!(error(item(&path(&"%41".repeat(256)))).starts_with("id: it has 256 bytes"));
    assert!(error(item(&path(&"ö".repeat(128)))).starts_with("id: it has 256 bytes"));
    let flush = format!("/api/v1/customers/a/{long}/flush");
    assert!(error(customer(&flush)).starts_with("customer: it has 201"));
}

#[test]
fn a_timeline_is_of_a_span_and_perhaps_of_an_application() {
    let of = |application: Option<&str>, each_ms, stretches| {
        Ok(TimelineQuery { application: application.map(Arc::from), at: None, each_ms, stretches })
    };
    for (query, want) in [
        ("span=minute", of(None, 1_000, 60)),
        ("span=hour", of(None, 60_000, 60)),
        ("span=day&application=a%2Fb", of(Some("a/b"), 1_800_000, 48)),
        ("span=&application=", of(None, 60_000, 60)),
        ("", of(None, 60_000, 60)),
    ] {
        assert_eq!(timeline(Some(query)), want, "{query}");
    }
    assert_eq!(timeline(None), timeline(Some("span=hour")));
    for (query, named) in [
        ("span=week", "span: it must be minute, hour or day"),
        ("span=day&span=day", "span: it is given twice"),
        ("spam=day", "spam: this path has no such query parameter"),
        ("customer=c", "customer: this path has no such query parameter"),
        ("application=%ff", "application: it is not UTF-8"),
    ] {
        assert_eq!(error(timeline(Some(query))), named, "{query}");
    }
    let long = format!("application={}", "x".repeat(201));
    assert!(error(timeline(Some(&long))).starts_with("application: it has 201 bytes"));
}

#[test]
fn a_filter_takes_what_the_contract_names() {
    assert_eq!(filter(None), Ok(Filter { limit: DEFAULT_PAGE, ..Filter::default() }));
    let all =
        "application=a%2Fb&customer=c+d&state=in_flight&from=1800000000000&to=2027-01-15T09:00:01%2B01:00\
               &cursor=1800000000500-7-7&limit=1000";
    let want = Filter {
        application: Some("a/b".into()),
        customer: Some("c d".into()),
        state: Some(ListedStage::InFlight),
        from: Key::own(1_800_000_000_500, 7),
        from_shard: 0,
        until: Some(1_800_000_001_000),
        limit: 1_000,
    };
    assert_eq!(filter(Some(all)), Ok(want.clone()));
    // The order does not matter.
    let reversed = all.split('&').rev().collect::<Vec<_>>().join("&");
    assert_eq!(filter(Some(&reversed)), Ok(want));
    let template = "application=&customer=&state=&from=&to=&cursor=&limit=";
    assert_eq!(filter(Some(template)), filter(None), "an empty value counts as absent");
    assert_eq!(filter(Some("")), filter(None));
}

#[test]
fn the_later_of_from_and_cursor_counts() {
    let from = |query| filter(Some(query)).map(|filter| filter.from);
    let key = |due, seq| Key::own(due, seq);
    assert_eq!(from("from=1800000000000"), Ok(key(1_800_000_000_000, 0)));
    assert_eq!(from("cursor=5-9-9"), Ok(key(5, 9)));
    assert_eq!(from("cursor=5-9-9&from=1800000000000"), Ok(key(1_800_000_000_000, 0)));
    assert_eq!(from("cursor=1800000000000-9-9&from=1800000000000"), Ok(key(1_800_000_000_000, 9)));
    let first = |query| filter(Some(query)).map(|filter| filter.first());
    let place = |due, seq, shard| ListPlace { key: Key::own(due, seq), shard };
    assert_eq!(first("cursor=5-9-9-3"), Ok(place(5, 9, 3)));
    assert_eq!(first("cursor=1800000000000-0-0-3&from=1800000000000"), Ok(place(1_800_000_000_000, 0, 3)));
    assert_eq!(first("cursor=5-9-9-3&from=1800000000000"), Ok(place(1_800_000_000_000, 0, 0)));
}

#[test]
fn a_filter_refuses_by_name() {
    for (query, named) in [
        ("colour=red", "colour: this path has no such"),
        ("Limit=5", "Limit: this path has no such"),
        ("=5", ": this path has no such"),
        ("limit=5&limit=5", "limit: it is given twice"),
        ("application=&application=a", "application: it is given twice"),
        ("limit=0", "limit: it is not a number from 1 to 1000"),
        ("limit=1001", "limit: "),
        ("limit=-1", "limit: "),
        ("limit=%2B5", "limit: "),
        ("limit=1e2", "limit: "),
        ("limit=99999999999999999999", "limit: "),
        ("state=sent", "state: it must be"),
        ("state=Waiting", "state: "),
        ("cursor=5", "cursor: "),
        ("cursor=5-", "cursor: "),
        ("cursor=-5", "cursor: "),
        ("cursor=5--5", "cursor: "),
        ("cursor=5-6", "cursor: "),
        ("cursor=5-6-7-8-9", "cursor: "),
        ("cursor=18446744073709551616-0", "cursor: "),
        ("from=tomorrow", "from: it is neither"),
        ("from=1800000000", "from: that is in 1973"),
        ("to=2027-01-15T08:00:00", "to: it is neither"),
        ("to=-5", "to: "),
        ("application=%ff", "application: it is not UTF-8"),
        ("customer=50%", "customer: a %"),
        ("%ff=1", "the query: it is not UTF-8"),
    ] {
        assert!(error(filter(Some(query))).starts_with(named), "{query}: {}", error(filter(Some(query))));
    }
    let long = format!("customer={}", "x".repeat(201));
    assert!(error(filter(Some(&long))).starts_with("customer: it has 201 bytes"));
    let hostile = format!("{}=1", "y".repeat(5_000));
    assert!(error(filter(Some(&hostile))).len() < 200, "a client's text is not quoted whole");
}

#[test]
fn letters_are_meant_by_name_or_all_of_them() {
    let key = "0123456789abcdef0123456789abcdef";
    let filter = |reason: Option<&str>, application: Option<&str>, key: Option<&str>| LetterFilter {
        reason: reason.map(Into::into),
        application: application.map(Into::into),
        key: key.and_then(LetterKey::parse),
    };
    let dropped = |query: &str| {
        let Ok(LetterTask { job: LetterJob::Drop { filter, limit }, .. }) = letter_drop(Some(query)) else {
            panic!("{query}")
        };
        (filter, limit)
    };
    assert_eq!(dropped("all=true"), (LetterFilter::default(), MOST_OF_A_CALL));
    assert_eq!(dropped("reason=broker%3Aexpired&limit=7"), (filter(Some("broker:expired"), None, None), 7));
    assert_eq!(dropped("unreadable=true").0, filter(None, Some(""), None));
    assert_eq!(dropped("application=-").0, filter(None, Some("-"), None), "a name like another");
    assert_eq!(dropped(&format!("key={key}")).0, filter(None, None, Some(key)));
    for (query, named) in [
        ("", "all: name a key"),
        ("reason=&application=", "reason: it is empty"),
        ("reason=expired&key=", "key: it is empty"),
        ("all=false", "all: name a key"),
        ("all=yes", "all: it must be"),
        ("unreadable=false", "all: name a key"),
        ("unreadable=true&application=a", "unreadable: it cannot be combined"),
        ("unreadable=true&all=true", "all: it cannot be combined"),
        ("all=true&reason=x", "all: it cannot be combined"),
        ("key=12", "key: it is not the key"),
        ("all=true&limit=0", "limit: it is not a number"),
        ("all=true&cursor=1", "cursor: it is not a `cursor`"),
        ("all=true&walk=true&cursor=00000000000000ff", "walk: it cannot be combined"),
        ("all=true&page=1", "page: this path has no"),
    ] {
        let text = error(letter_drop(Some(query)));
        assert!(text.starts_with(named), "{query}: {text}");
    }
}

#[test]
fn an_empty_value_widens_no_change() {
    let chosen = |query: &str| selection("shop".into(), Some(query));
    for (told, named) in [
        (chosen("due_before=1800000000000&customer=").map(drop), "customer: it is empty"),
        (chosen("customer=ann&due_before=").map(drop), "due_before: it is empty"),
        (chosen("all=true&customer_prefix=").map(drop), "customer_prefix: it is empty"),
        (pause_end(Some("for=")).map(drop), "for: it is empty"),
        (slowed(Some("rate=1/s&until=")).map(drop), "until: it is empty"),
        (new_due(Some("delay=5&at=")).map(drop), "at: it is empty"),
        (letter_retry(Some("reason=expired&application=")).map(drop), "application: it is empty"),
    ] {
        let text = error(told);
        assert!(text.starts_with(named), "{named}: {text}");
    }
}

#[test]
fn letters_go_back_at_one_time() {
    let terms = |query: &str| {
        let read = letter_retry(Some(&format!("all=true&{query}")));
        let Ok(LetterTask { job: LetterJob::Retry { terms, .. }, .. }) = read else { panic!("{query}") };
        terms
    };
    let new = |time: NewTime, deliver_before: Option<u64>| RetryTerms { time, deliver_before };
    assert_eq!(terms(""), RetryTerms::default());
    assert_eq!(terms("delay=5"), new(NewTime::After(5), None));
    assert_eq!(terms("at=1800000000000"), new(NewTime::At(1_800_000_000_000), None));
    let both = terms("at=1800000000000&deliver_before=1800000000001");
    assert_eq!(both, new(NewTime::At(1_800_000_000_000), Some(1_800_000_000_001)));
    for (query, named) in [
        ("at=1800000000000&delay=5", "delay: it cannot be combined"),
        ("delay=-5", "delay: it is not a number"),
        ("at=soon", "at: it is neither"),
        ("at=1800000000001&deliver_before=1800000000001", "deliver_before: it is not later"),
    ] {
        let text = error(letter_retry(Some(&format!("all=true&{query}"))));
        assert!(text.starts_with(named), "{query}: {text}");
    }
}

#[test]
fn letters_are_listed_in_one_call_or_in_several() {
    let list = |query: &str| letter_list(Some(query)).unwrap();
    let once = |job| LetterTask { job, walk: LetterWalk::Once };
    let filter = LetterFilter { reason: Some("full".into()), ..LetterFilter::default() };
    let want = LetterJob::List { filter, limit: 5, whole: true };
    assert_eq!(list("reason=full&limit=5&whole=true"), once(want.clone()));
    assert_eq!(letter_export(Some("reason=full&limit=5")), Ok(once(want)));
    assert!(error(letter_list(Some("limit=2001"))).starts_with("limit: it is not a number"));
    let key = "0123456789abcdef0123456789abcdef";
    let one = LetterFilter { key: LetterKey::parse(key), ..LetterFilter::default() };
    let want = LetterJob::List { filter: one, limit: 1, whole: true };
    assert_eq!(letter(&format!("/api/v1/dead/letters/{key}")), Ok(once(want)));
    let walk = |query: &str| letter_count(Some(query)).unwrap().walk;
    let next = LetterWalk::Next(WalkCursor::of(255));
    assert_eq!((walk(""), walk("walk=true")), (LetterWalk::Once, LetterWalk::First));
    assert_eq!(walk("cursor=00000000000000ff"), next);
    let want = LetterTask {
        job: LetterJob::List { filter: LetterFilter::default(), limit: 50_000, whole: false },
        walk: next,
    };
    assert_eq!(list("limit=50000&cursor=00000000000000ff"), want);
    assert!(error(letter_count(Some("limit=5"))).starts_with("limit: this path has no"));
    assert!(letter("/api/v1/dead/letters/..").is_err());
}

#[test]
fn a_path_without_query_refuses_one() {
    assert_eq!(no_query(None), Ok(()));
    assert_eq!(no_query(Some("")), Ok(()));
    assert!(error(no_query(Some("force=1"))).starts_with("force: "));
}

#[test]
fn moments() {
    for (text, want) in [
        ("1800000000000", 1_800_000_000_000),
        ("0", 0),
        ("18446744073709551615", u64::MAX),
        ("2027-01-15T08:00:00Z", 1_800_000_000_000),
        ("2027-01-15T09:00:00+01:00", 1_800_000_000_000),
        ("2027-01-15T09:00:00 01:00", 1_800_000_000_000),
        ("2027-01-15T07:00:00-01:00", 1_800_000_000_000),
        ("2027-01-15T08:00:00.0001Z", 1_800_000_000_001),
        ("1969-12-31T23:59:59Z", 0),
        ("9999-12-31T23:59:59Z", 253_402_300_799_000),
        ("2016-12-31T23:59:60Z", 1_483_228_800_000),
    ] {
        assert_eq!(moment(text), Ok(want), "{text}");
    }
    for offset in ["+24:00", "+25:59", "+0800", "+08", "+08:00:30", ",5Z"] {
        let text = format!("2027-01-15T08:00:00{offset}");
        assert!(moment(&text).is_err() && expiry(&text).is_err(), "{text}");
    }
    assert_eq!(expiry("2027-01-15T08:00:00.0009Z"), Ok(1_800_000_000_000), "it leaves before");
    for wrong in ["1800000000", "99999999999", "", "2027-01-15", "2027-01-15 08:00", "1e12", "ö:00:00", "-1"]
    {
        assert!(moment(wrong).is_err(), "{wrong}");
    }
}

proptest! {
    /// No input causes a panic, and a cursor survives the round trip.
    #[test]
    fn whatever_is_sent_is_read_or_refused(path in "\\PC{0,80}", query in "\\PC{0,80}") {
        let _ = item(&path);
        let _ = item(&format!("/api/v1/items/{path}"));
        let _ = customer(&path);
        let _ = filter(Some(&query));
        let _ = filter(Some(&format!("from={query}")));
    }

    #[test]
    fn encoded_names_come_back(application in "\\PC{1,50}", id in any::<String>()) {
        prop_assume!(!id.is_empty() && id.len() <= MAX_ID);
        let encode = |text: &str| {
            percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
        };
        let path = format!("/api/v1/items/{}/{}", encode(&application), encode(&id));
        prop_assert_eq!(item(&path), Ok(item_of(&application, &id)));
    }

    #[test]
    fn cursors_come_back(
        (due, window, seq) in any::<(u64, u64, u64)>(),
        shard in any::<u16>(),
    ) {
        let place = ListPlace { key: Key { due, window, seq }, shard };
        prop_assert_eq!(cursor(&cursor_text(place)), Some(place));
    }
}

#[test]
fn the_first_shard_has_no_number_in_a_cursor() {
    let place = |shard| ListPlace { key: Key { due: 5, window: 7, seq: 9 }, shard };
    assert_eq!(cursor_text(place(0)), "5-7-9");
    assert_eq!(cursor_text(place(12)), "5-7-9-12");
    assert_eq!(cursor("5-7-9"), Some(place(0)));
    for wrong in ["5-7-9-", "5-7-9-65536", "5-7-9-1-", "5-7-9-1-2", "5-7-9-+1"] {
        assert_eq!(cursor(wrong), None, "{wrong}");
    }
}
